//! Tests with hand-computed and measured numbers.

use proptest::prelude::*;

use super::*;

fn buffer(requested: u64, rule: AdmitRule) -> SocketBuffer<u32> {
    SocketBuffer::new(SocketConfig { requested: Bytes(requested), rule, ..SocketConfig::default() })
}

#[test]
fn truesize_matches_measurements() {
    // UDP payload and the charge reported by SO_MEMINFO on Linux 6.18, x86-64, loopback.
    let measured = [
        (1, 832),
        (197, 832),
        (198, 1_280),
        (645, 1_280),
        (646, 2_304),
        (1_472, 2_304),
        (1_669, 2_304),
        (1_670, 4_352),
        (3_717, 4_352),
        (3_718, 8_448),
        (7_813, 8_448),
        (7_814, 16_640),
        (8_972, 16_640),
        (16_004, 16_640),
        (16_005, 16_837),
        (32_000, 32_832),
        (60_000, 60_832),
        (65_000, 65_832),
    ];
    for (payload, charge) in measured {
        assert_eq!(SkbLayout::Linear.truesize(payload), charge, "{payload} bytes");
    }
    assert_eq!(SkbLayout::Pages { page: 2_048 }.truesize(1_472), 2_880);
}

#[test]
fn the_buffer_is_twice_the_permitted_request() {
    let config = |requested| SocketConfig { requested: Bytes(requested), ..SocketConfig::default() };
    assert_eq!(config(65_536).rcvbuf(), 131_072);
    assert_eq!(config(1 << 30).rcvbuf(), 8 << 20);
    assert_eq!(config(1).rcvbuf(), 2_304);
}

#[test]
fn the_buffer_holds_as_many_datagrams_as_the_kernels() {
    // SO_RCVBUF 65,536: datagrams queued before the first drop, measured on Linux 6.18.
    for (payload, datagrams) in [(100, 157), (500, 102), (1_472, 56), (3_000, 30), (8_972, 7), (60_000, 2)] {
        let mut buffer = buffer(65_536, AdmitRule::Linux615);
        let size = SkbLayout::Linear.truesize(payload);
        let held = (0..10_000).take_while(|&n| buffer.push(n, size).is_ok()).count();
        assert_eq!(held, datagrams, "{payload} bytes");
        assert_eq!(buffer.drops(), 1);
    }
}

#[test]
fn memory_is_released_in_quarters_as_in_the_kernel() {
    // 1,472 bytes, SO_RCVBUF 65,536: reads after which the charge fell, and its value, measured on Linux
    // 6.18.
    let mut buffer = buffer(65_536, AdmitRule::Linux615);
    while buffer.push(0, 2_304).is_ok() {}
    let mut falls = Vec::new();
    let mut before = buffer.charged();
    assert_eq!(before, 129_024);
    for read in 1.. {
        if buffer.pop().is_none() {
            break;
        }
        if buffer.charged() != before {
            before = buffer.charged();
            falls.push((read, before));
        }
    }
    assert_eq!(falls, [(15, 94_464), (30, 59_904), (45, 25_344), (56, 0)]);
}

#[test]
fn kernel_versions_differ_in_the_last_datagram() {
    let held = |rule| {
        let mut buffer = buffer(2_304, rule);
        (0..100).take_while(|&n| buffer.push(n, 2_304).is_ok()).count()
    };
    // 4,608 bytes: two fit exactly.
    assert_eq!(held(AdmitRule::Linux26), 1);
    assert_eq!(held(AdmitRule::Linux410), 3);
    assert_eq!(held(AdmitRule::Linux615), 2);
    // An oversized skb is accepted if the queue is empty, but not on 2.6.
    let lone = |rule| buffer(1_152, rule).push(0, 100_000).is_ok();
    assert_eq!([AdmitRule::Linux26, AdmitRule::Linux410, AdmitRule::Linux615].map(lone), [false, true, true]);
}

#[test]
fn later_packets_carry_the_drop_count() {
    let mut buffer = buffer(2_304, AdmitRule::Linux615);
    for n in 0..5 {
        let _ = buffer.push(n, 2_304);
    }
    // 0 and 1 are queued, 2, 3 and 4 dropped. Memory is freed when the reader's queue is empty.
    assert_eq!(buffer.pop().unwrap().drops_before, None);
    assert_eq!(buffer.pop().unwrap().drops_before, None);
    buffer.push(5, 2_304).unwrap();
    let stamped = buffer.pop().unwrap();
    assert_eq!((stamped.content, stamped.drops_before), (5, Some(3)));
}

proptest! {
    #[test]
    fn packets_are_conserved_and_the_charge_is_bounded(
        rule in prop::sample::select(vec![AdmitRule::Linux26, AdmitRule::Linux410, AdmitRule::Linux615]),
        requested in 1u64..200_000,
        ops in prop::collection::vec((any::<bool>(), 0u32..9_000), 1..400),
    ) {
        let mut buffer = buffer(requested, rule);
        let (mut queued, mut read) = (Vec::new(), Vec::new());
        for (n, (push, payload)) in ops.into_iter().enumerate() {
            let size = SkbLayout::Linear.truesize(payload);
            if !push {
                read.extend(buffer.pop().map(|skb| skb.content));
            } else if buffer.push(n as u32, size).is_ok() {
                queued.push(n as u32);
            }
            prop_assert!(buffer.charged() <= buffer.rcvbuf() + 16_640);
            prop_assert_eq!(buffer.len(), queued.len() - read.len());
        }
        while let Some(skb) = buffer.pop() {
            read.push(skb.content);
        }
        prop_assert_eq!(read, queued);
        prop_assert_eq!(buffer.charged(), 0);
    }
}
