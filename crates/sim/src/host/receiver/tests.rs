//! Tests of a whole host.

use haul_base::{Bytes, Rng};
use proptest::prelude::*;

use super::super::scheduler::{FairConfig, O1Config, RunSlice};
use super::super::{AdmitRule, Gro, SkbLayout};
use super::*;

const O1: SchedulerKind = SchedulerKind::O1(O1Config { tick: Span::from_millis(1) });

/// The program takes 10 us per packet, the softirq 1 us.
fn host(scheduler: SchedulerKind, requested: u64, loads: &[Load]) -> ReceivingHost {
    let socket = SocketConfig {
        requested: Bytes(requested),
        permitted: Bytes(64 << 20),
        rule: AdmitRule::Linux26,
        layout: SkbLayout::Linear,
    };
    let receiver = ReceiverConfig::packet_by_packet(socket);
    let nic = NicConfig::default();
    let config = HostConfig { scheduler, nic, receivers: vec![receiver], loads: loads.to_vec(), seed: 3 };
    ReceivingHost::new(&config, Time::ZERO)
}

fn one(tag: u64) -> Incoming {
    Incoming { tag, socket: 0, flow: 0, bytes: 1_472, packets: 1 }
}

/// Offers packets at a constant rate; returns the drops with time and reason.
fn offer(host: &mut ReceivingHost, per_second: u64, seconds: f64) -> Vec<(Time, HostDrop)> {
    let mut drops = Vec::new();
    for n in 0..(per_second as f64 * seconds) as u64 {
        let now = Time::from_nanos(n * 1_000_000_000 / per_second);
        host.advance(now, &mut |output| {
            if let HostOutput::Dropped { at, reason, .. } = output {
                drops.push((at, reason));
            }
        });
        if let Admission::Dropped(reason) = host.on_arrival(now, one(n)) {
            drops.push((now, reason));
        }
    }
    drops
}

fn assert_adds_up(host: &ReceivingHost) {
    let c = host.counters();
    assert_eq!(c.arrived, c.ring_drops + c.socket_drops + c.delivered + host.inside(), "{c:?}");
}

#[test]
fn a_receiver_that_is_fast_enough_loses_nothing() {
    let mut host = host(O1, 1 << 20, &[]);
    assert!(offer(&mut host, 85_000, 1.0).is_empty());
    assert_adds_up(&host);
    assert!(host.counters().delivered >= 84_990);
}

#[test]
fn a_receiver_loses_packets_beyond_its_capacity_in_the_socket_buffer() {
    let mut host = host(O1, 256 << 10, &[]);
    let drops = offer(&mut host, 120_000, 2.0);
    assert_adds_up(&host);
    assert!(drops.iter().all(|&(_, reason)| reason == HostDrop::SocketBuffer));
    // 120,000 softirqs of 1 us leave 0.88 s of each second, at 10 us per packet.
    let delivered = host.counters().delivered as f64 / 2.0;
    assert!((delivered / 88_000.0 - 1.0).abs() < 0.002, "{delivered} packets a second");
    let lost = drops.len() as f64 / 2.0;
    assert!((lost - 32_000.0).abs() < 200.0, "{lost} packets a second");
}

#[test]
fn a_softirq_that_is_too_slow_loses_in_the_ring() {
    let mut host = host(O1, 1 << 20, &[]);
    // 1 us per packet: the limit is a million per second, and no time is left for the program.
    let drops = offer(&mut host, 1_250_000, 0.5);
    assert_adds_up(&host);
    let ring = drops.iter().filter(|(_, reason)| *reason == HostDrop::NicRing).count() as f64;
    assert!((ring - 125_000.0).abs() < 2_000.0, "{ring} of 625,000");
    assert!(host.counters().delivered < 1_000);
}

#[test]
fn a_super_packet_takes_one_slot_or_many_and_counts_as_one_drop() {
    let slots = |carries_batches| {
        let mut nic = Nic::new(NicConfig { slots: 64, carries_batches, ..NicConfig::default() });
        let batch = Incoming { packets: 32, bytes: 32 * 1_472, ..one(0) };
        (0..100).take_while(|_| nic.offer(batch)).count()
    };
    assert_eq!((slots(false), slots(true)), (2, 64));
}

#[test]
fn merged_packets_arrive_and_are_lost_together() {
    let mut host = host(O1, 16 << 10, &[Load::Computation { processes: 1, spec: TaskSpec::default() }]);
    host.nic = Nic::new(NicConfig { gro: Some(Gro::default()), ..NicConfig::default() });
    host.advance(Time::ZERO, &mut |_| {});
    // All at once: the softirq takes the first singly, then 44 (65,507 bytes), 44 again and the last 11.
    let _ = (0..100).map(|n| host.on_arrival(Time::ZERO, one(n))).collect::<Vec<_>>();
    let mut outputs = Vec::new();
    host.advance(Time::ZERO + Span::from_secs(1), &mut |output| outputs.push(output));
    assert_adds_up(&host);
    // 32 KiB hold the first packet, neither of the two buffers of 44, but the last 11.
    let dropped = outputs.iter().filter(|output| matches!(output, HostOutput::Dropped { .. })).count();
    assert_eq!((dropped, host.socket_memory(0).1), (88, 2));
    let delivered: Vec<(u64, bool, Option<u32>)> = outputs
        .iter()
        .filter_map(|output| match output {
            HostOutput::Delivered { arrival, continues, socket_drops, .. } => {
                Some((arrival.tag, *continues, *socket_drops))
            }
            HostOutput::Dropped { .. } => None,
        })
        .collect();
    assert_eq!(delivered[..3], [(0, false, None), (89, false, Some(2)), (90, true, Some(2))]);
    assert_eq!(delivered.len(), 12);
}

/// The slices of tasks other than the receiver.
fn others(host: &ReceivingHost) -> Vec<RunSlice> {
    let trace = host.cpu().scheduler().ledger().trace().unwrap();
    assert_eq!(trace.omitted(), 0);
    trace.slices().iter().filter(|slice| slice.task != host.task(0)).copied().collect()
}

#[test]
fn losses_occur_while_another_task_holds_the_core() {
    for scheduler in [O1, SchedulerKind::Fair(FairConfig::default())] {
        // asynch figure 7. The buffer of the fair scheduler's host is smaller, as its slices are.
        let requested = if scheduler == O1 { 1 << 20 } else { 64 << 10 };
        let mut host = host(scheduler, requested, &[Load::Memory { processes: 2, slowdown_permille: 1_200 }]);
        host.set_trace(Some(Trace::new(2_000_000, Span::from_millis(1))));
        let drops = offer(&mut host, 40_000, 4.0);
        assert_adds_up(&host);
        assert!(drops.len() > 2_000, "{} drops", drops.len());
        let others = others(&host);
        let during = drops.iter().filter(|(at, _)| {
            let next = others.partition_point(|slice| slice.to < *at);
            others.get(next).is_none_or(|slice| slice.from <= *at)
        });
        let share = during.count() as f64 / drops.len() as f64;
        assert!(share > 0.99, "{scheduler:?}: {share}");
    }
}

#[test]
fn a_sample_has_the_wait_for_the_core_and_the_socket_fill() {
    for scheduler in [O1, SchedulerKind::Fair(FairConfig::default())] {
        let mut idle = host(scheduler, 1 << 20, &[]);
        offer(&mut idle, 10_000, 0.5);
        let sample = idle.sample(0);
        assert_eq!((sample.run_delay, sample.involuntary_switches), (Some(Span::ZERO), Some(0)));
        assert_eq!(sample.socket_fill, Some(0), "{scheduler:?}");

        // More than it can read: it is always ready, so it waits whenever another task runs.
        let mut busy =
            host(scheduler, 1 << 20, &[Load::Computation { processes: 2, spec: TaskSpec::default() }]);
        offer(&mut busy, 110_000, 2.0);
        let (sample, now, ledger) = (busy.sample(0), busy.cpu().now(), busy.cpu().scheduler().ledger());
        let others = now.since(Time::ZERO).saturating_sub(ledger.run_time(busy.task(0), now)).as_nanos();
        let waited = sample.run_delay.unwrap().as_nanos();
        assert!(
            waited.abs_diff(others) < 200_000,
            "{scheduler:?}: waited {waited} ns, others had {others} ns"
        );
        assert!(sample.involuntary_switches.unwrap() > 5, "{sample:?}");
        assert!((900..=1_000).contains(&sample.socket_fill.unwrap()), "{sample:?}");
        assert_eq!(sample.sleep_average.is_some(), scheduler == O1);
        assert_eq!((sample.cpu_pressure, sample.disk_pressure, sample.steal), (None, None, None));
    }
}

#[test]
fn the_sleep_average_is_a_saw_tooth_with_switches_at_its_minimum() {
    // asynch figures 7 and 8: a receiver that is busy for two thirds of the time, and a CPU-bound process.
    let mut host = host(O1, 4 << 20, &[Load::Computation { processes: 1, spec: TaskSpec::default() }]);
    host.set_trace(Some(Trace::new(4_000_000, Span::from_millis(1))));
    offer(&mut host, 53_333, 12.0);
    let receiver = host.task(0);
    let trace = host.cpu().scheduler().ledger().trace().unwrap();
    let settled = Time::ZERO + Span::from_secs(2);
    let long =
        |slice: &&RunSlice| slice.to.since(slice.from) >= Span::from_millis(50) && slice.from > settled;
    let outages: Vec<RunSlice> = others(&host).iter().filter(long).copied().collect();
    assert!(outages.len() > 40, "{}", outages.len());

    // Uniform and periodic: the load's slice of 100 ms, then as long as the backlog takes.
    let mut periods: Vec<f64> =
        outages.windows(2).map(|pair| pair[1].from.since(pair[0].from).as_millis_f64()).collect();
    periods.sort_by(f64::total_cmp);
    let median = periods[periods.len() / 2];
    println!("median period {median} ms of {}", periods.len());
    assert!((180.0..200.0).contains(&median), "{median} ms");
    let near = periods.iter().filter(|&&period| (period / median - 1.0).abs() < 0.15).count();
    assert!(near * 10 >= periods.len() * 9, "{near} of {} near {median} ms", periods.len());

    let samples: Vec<_> = trace.samples().iter().filter(|sample| sample.task == receiver).collect();
    let between =
        |from: Time, to: Time| samples.iter().filter(move |sample| sample.at >= from && sample.at <= to);
    for pair in outages.windows(2) {
        let cycle: Vec<_> = between(pair[0].to, pair[1].from).collect();
        let (first, last) = (cycle[0].sleep_average, cycle[cycle.len() - 1].sleep_average);
        let least = cycle.iter().map(|sample| sample.sleep_average).min().unwrap();
        let most = cycle.iter().map(|sample| sample.sleep_average).max().unwrap();
        // It starts at the maximum, and is switched out within a millisecond's worth of the minimum.
        assert!(last <= least + Span::from_millis(1), "switch at {last}, minimum {least}");
        assert!(first + Span::from_millis(1) >= most, "start at {first}, maximum {most}");
        assert!(most.saturating_sub(least) > Span::from_millis(50), "{least} to {most}");
        // The dynamic priority alone carries little information: at most three values.
        assert!(cycle.iter().all(|sample| (123..=125).contains(&sample.priority)));
    }
}

#[test]
fn system_calls_hurt_more_than_memory_and_memory_more_than_computation() {
    // asynch figures 4 and 5, with rate adaptation off.
    let loss = |load| {
        let mut host = host(O1, 1 << 20, &[load]);
        offer(&mut host, 60_000, 6.0);
        assert_adds_up(&host);
        host.counters().socket_drops as f64 / host.counters().arrived as f64
    };
    let calls = loss(Load::system_calls(4));
    let memory = loss(Load::Memory { processes: 4, slowdown_permille: 1_300 });
    let computation = loss(Load::Computation { processes: 4, spec: TaskSpec::default() });
    println!("loss beside four: system calls {calls:.3}, memory {memory:.3}, computation {computation:.3}");
    assert!(
        calls > memory && memory > 1.5 * computation && computation > 0.03,
        "{calls} {memory} {computation}"
    );
}

#[test]
fn equal_seeds_give_equal_runs() {
    let run = || {
        let mut host = host(O1, 1 << 20, &[Load::of_paper(), Load::system_calls(2)]);
        let drops = offer(&mut host, 30_000, 8.0);
        (drops, host.counters(), host.cpu().scheduler().ledger().switches())
    };
    assert_eq!(run(), run());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn packets_and_time_add_up(
        seed: u64,
        fair: bool,
        gro: bool,
        slots in 1u32..100,
        requested in 1u64..300_000,
        calls in 0u32..3,
        forwarded in 0u64..600_000,
    ) {
        let scheduler = if fair { SchedulerKind::Fair(FairConfig::default()) } else { O1 };
        let forwarding =
            Load::Forwarding { packets_per_second: forwarded, per_packet: Span::from_micros(1), burst: 16 };
        let mut host = host(scheduler, requested, &[Load::system_calls(calls), Load::of_paper(), forwarding]);
        host.nic = Nic::new(NicConfig { slots, gro: gro.then(Gro::default), ..NicConfig::default() });
        let mut rng = Rng::from_seed(seed);
        let mut now = Time::ZERO;
        let (mut delivered, mut dropped, mut last_tag) = (0, 0, None);
        for tag in 0..3_000 {
            let most = if rng.chance(0.01) { 20_000_000 } else { 15_000 };
            now += Span::from_nanos(rng.below(most));
            host.advance(now, &mut |output| match output {
                HostOutput::Delivered { arrival, at, queued, .. } => {
                    assert!(queued <= at && at <= now);
                    assert!(last_tag.replace(arrival.tag) < Some(arrival.tag), "out of order");
                    delivered += u64::from(arrival.packets);
                }
                HostOutput::Dropped { arrival, .. } => dropped += u64::from(arrival.packets),
            });
            let packets = 1 + rng.below(5) as u32;
            let arrival = Incoming { tag, socket: 0, flow: 0, bytes: packets * 1_200, packets };
            if host.on_arrival(now, arrival) != Admission::Accepted {
                dropped += u64::from(packets);
            }
            let c = host.counters();
            prop_assert_eq!((c.delivered, c.ring_drops + c.socket_drops), (delivered, dropped));
            prop_assert_eq!(c.arrived, delivered + dropped + host.inside());
        }
        let ledger = host.cpu().scheduler().ledger();
        let run = (0..ledger.tasks() as u32)
            .fold(Span::ZERO, |sum, id| sum + ledger.run_time(TaskId(id), now));
        prop_assert_eq!(run + ledger.idle_time(now), now.since(Time::ZERO));
        prop_assert!(host.cpu().stolen_time() <= run);
    }
}

#[test]
fn a_stopped_receiver_loses_what_exceeds_its_buffer_and_continues() {
    let (every, stop) = (Span::from_millis(300), Span::from_millis(60));
    let mut host = host(O1, 208 << 10, &[Load::Suspension { every, stop }]);
    let drops = offer(&mut host, 20_000, 1.5);
    assert_adds_up(&host);
    assert!(drops.iter().all(|&(_, reason)| reason == HostDrop::SocketBuffer));
    let in_period = |at: Time| at.since(Time::ZERO).as_nanos() % every.as_nanos();
    // A full buffer stays full a moment longer.
    let is_stopped = |at| in_period(at) >= 240_000_000 || in_period(at) < 1_000_000;
    assert!(drops.iter().all(|&(at, _)| is_stopped(at)));
    // 2 * 208 KiB hold 184 packets of 2,304 bytes; each of five stops of 60 ms brings 1,200 packets.
    assert!(drops.len().abs_diff(5 * (1_200 - 184)) <= 10, "{} packets", drops.len());
    let mut large = self::host(O1, 8 << 20, &[Load::Suspension { every, stop }]);
    assert!(offer(&mut large, 20_000, 1.5).is_empty());
}
