//! A set sent by blasting: lost packets are retransmitted only after all others were sent.

use std::fs;
use std::time::Duration;

use haul_base::{Piece, Rng};
use haul_mover::{ReceiveOptions, SendLimits};
use haul_proto::{ObjectSink, ObjectSource};
use haul_wire::control::Layout;

use crate::harness::{bytes, names_below, options, start};
use crate::trees::{assert_same, contents};

const PACKET: u64 = 1_400;

/// Sends everything in order and then, in rounds, what was lost; never more than the sink has capacity for.
/// Returns the number of rounds.
fn blast(source: &mut dyn ObjectSource, sink: &mut dyn ObjectSink, loss: f64) -> usize {
    let (mut rng, mut delivered, mut next, mut rounds) = (Rng::from_seed(5), 0, 0, 1);
    let mut lost = Vec::new();
    let mut send = |source: &mut dyn ObjectSource, offset: u64, len: u64| {
        let mut data = vec![0; len as usize];
        source.read(offset, &mut data);
        if rng.chance(loss) {
            return false;
        }
        while sink.limit() - delivered < len {
            std::thread::sleep(Duration::from_micros(100));
        }
        sink.deliver(&data, &[Piece { offset, range: 0..data.len() }]);
        delivered += len;
        true
    };
    let end = loop {
        let available = source.available();
        // Whole packets, so that the same ones are lost each time.
        while next + PACKET <= available.upto || available.end && next < available.upto {
            let len = PACKET.min(available.upto - next);
            if !send(source, next, len) {
                lost.push((next, len));
            }
            next += len;
        }
        if available.end {
            break available.upto;
        }
        std::thread::sleep(Duration::from_micros(100));
    };
    while !lost.is_empty() {
        rounds += 1;
        lost.retain(|&(offset, len)| !send(source, offset, len));
    }
    source.release(end);
    sink.complete(end);
    rounds
}

#[test]
fn a_round_covers_a_set_with_more_losses_than_memory() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    fs::create_dir_all(&src).unwrap();
    fs::create_dir_all(&dst).unwrap();
    for (n, size) in [9_000_000, 5_000_000, 10, 0, 14_000_000, 70_000].into_iter().enumerate() {
        fs::write(src.join(format!("f{n}")), contents(size, n as u64)).unwrap();
    }
    let memory = 1 << 20;
    let limits = SendLimits { keep: memory, ..SendLimits::default() };
    let options = ReceiveOptions { memory, ..options() };
    let sources = vec![[&bytes(&src)[..], b"/."].concat()];
    let mut pair = start(sources, &dst, Layout::Into, limits, options).unwrap();
    assert!(pair.receive.sink.takes_any_order());
    let rounds = blast(&mut *pair.send.source, &mut *pair.receive.sink, 0.2);
    pair.send.handle.join().unwrap();
    pair.receive.handle.join().unwrap();
    // 20,000 packets: 4,000 are lost, then 800, 160, 32, 6, 1.
    assert!((5..=10).contains(&rounds), "{rounds}");
    for path in names_below(&src) {
        assert_same(&path, &dst.join(path.strip_prefix(&src).unwrap()));
    }
}
