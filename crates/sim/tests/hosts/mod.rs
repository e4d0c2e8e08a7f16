//! A machine behind a host model, which decides whether and when its process gets packets and the CPU.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::VecDeque;

use crate::common::{Channel, Job, Session};
use haul_base::{Rate, Span, Time};
use haul_proto::{LimitEvidence, Waiting, limit_of_sender};
use haul_sim::host::scheduler::{FairConfig, SchedulerKind, TaskSpec};
use haul_sim::host::{HostConfig, Load, NicConfig, ReceiverConfig, SimulatedHost};
use haul_sim::{DropReason, FlowId, HostExit, HostModel, NodeId, Parcel, World};

/// A host whose only process sleeps from 1 s to 1.5 s, with a socket buffer of `room` packets.
#[derive(Debug)]
struct SleepingHost {
    room: u64,
    waiting: VecDeque<(Time, Parcel)>,
    dropped: VecDeque<(Time, Parcel)>,
    inside: u64,
    drops: Option<u32>,
    requested: bool,
}

const SLEEPS: Time = Time::from_nanos(1_000_000_000);
const WAKES: Time = Time::from_nanos(1_500_000_000);

fn is_asleep(now: Time) -> bool {
    now >= SLEEPS && now < WAKES
}

impl SleepingHost {
    fn new(room: u64) -> Self {
        let (waiting, dropped) = Default::default();
        Self { room, waiting, dropped, inside: 0, drops: None, requested: false }
    }
}

impl HostModel for SleepingHost {
    fn open(&mut self, _: FlowId, _: NodeId) {}

    fn on_arrival(&mut self, now: Time, parcel: Parcel) {
        self.inside += u64::from(parcel.packets());
        if self.inside > self.room {
            self.drops = Some(self.drops.unwrap_or(0) + 1);
            self.dropped.push_back((now, parcel));
        } else {
            self.waiting.push_back((now, parcel));
        }
    }

    fn may_run(&mut self, now: Time, _: NodeId) -> bool {
        self.requested |= is_asleep(now);
        !is_asleep(now)
    }

    fn next_event(&self) -> Option<Time> {
        let read = |(at, _): &(Time, Parcel)| if is_asleep(*at) { WAKES } else { *at };
        let dropped = self.dropped.front().map(|(at, _)| *at);
        let wake = self.requested.then_some(WAKES);
        [self.waiting.front().map(read), dropped, wake].into_iter().flatten().min()
    }

    fn advance(&mut self, now: Time, sink: &mut dyn FnMut(Time, HostExit)) {
        self.requested &= now < WAKES;
        while let Some((_, parcel)) = self.dropped.pop_front() {
            self.inside -= u64::from(parcel.packets());
            sink(now, HostExit::Dropped { parcel, reason: DropReason::SocketBuffer });
        }
        while !is_asleep(now)
            && let Some((arrived, parcel)) = self.waiting.pop_front()
        {
            self.inside -= u64::from(parcel.packets());
            sink(now, HostExit::Read { parcel, arrived, socket_drops: self.drops });
        }
    }

    fn inside(&self) -> u64 {
        self.inside
    }
}

/// Connects both ends by a clean path. Returns the data flow.
fn connect(world: &mut World, session: &Session, rtt: Span, rate: Rate) -> FlowId {
    let channel = Channel::clean(rtt / 2, rate).spec();
    let (forward, back) =
        (world.add_link("there", &channel).unwrap(), world.add_link("back", &channel).unwrap());
    world.connect_pair("bulk", (session.sender, session.receiver), &[forward], &[back]).unwrap().0
}

fn run(room: u64) -> (World, Session, FlowId) {
    let seed = 3;
    println!("seed {seed}");
    let mut world = World::new(seed);
    let rtt = Span::from_millis(10);
    let (ceiling, limit) = (Some(Rate::from_mbps(400)), u64::MAX >> 16);
    let job = Job { name: "bulk", len: 100_000_000, controller: "fixed", ceiling, rtt, limit };
    let session = Session::add(&mut world, job);
    let host = world.add_host(SleepingHost::new(room));
    world.place(session.receiver, host).unwrap();
    let data = connect(&mut world, &session, rtt, Rate::from_mbps(1_000));
    world.run_until(WAKES - Span::from_millis(1));
    assert!(world.adds_up());
    world.run_while(Time::ZERO + Span::from_secs(20), |world| !session.is_over(world));
    assert!(world.adds_up());
    session.assert_complete(&world);
    (world, session, data)
}

#[test]
fn a_host_with_buffer_space_loses_nothing_while_its_process_sleeps() {
    let (world, session, data) = run(1_000_000);
    assert_eq!(world.truth(data).drops.of(DropReason::SocketBuffer), 0);
    assert_eq!(session.receiver(&world).stats().socket_drops, 0);
}

#[test]
fn a_small_socket_buffer_overflows_and_the_receiver_learns_it() {
    let (world, session, data) = run(1_000);
    let lost = world.truth(data).drops.of(DropReason::SocketBuffer);
    // 0.5 s at 400 Mbit/s are 17,000 packets.
    assert!((10_000..20_000).contains(&lost), "{lost}");
    assert!(session.receiver(&world).stats().socket_drops > 0);
    assert_eq!(world.truth(data).drops.of(DropReason::QueueFull), 0);
}

#[test]
fn the_fill_of_a_socket_is_recorded_over_time() {
    let mut world = World::new(3);
    let (rtt, ceiling, limit) = (Span::from_millis(10), Some(Rate::from_mbps(120)), u64::MAX >> 16);
    let job = Job { name: "bulk", len: 1 << 30, controller: "fixed", ceiling, rtt, limit };
    let session = Session::add(&mut world, job);
    // Stopped from 0.5 s to 1 s of each second.
    let loads = vec![Load::Suspension { every: Span::from_secs(1), stop: Span::from_millis(500) }];
    let (scheduler, nic) = (SchedulerKind::Fair(FairConfig::default()), NicConfig::default());
    let config = HostConfig { scheduler, nic, receivers: Vec::new(), loads, seed: 1 };
    let host = world.add_host(SimulatedHost::new(&config, ReceiverConfig::default()));
    world.place(session.receiver, host).unwrap();
    let data = connect(&mut world, &session, rtt, Rate::from_mbps(1_000));
    world.record_every(Span::from_millis(100));
    world.run_until(Time::ZERO + Span::from_secs(2));
    let rates = world.summary().rates.unwrap();
    let fill = &rates.socket_fill[session.receiver.0 as usize];
    assert!(rates.socket_fill[session.sender.0 as usize].is_empty(), "it is on no host");
    assert!(fill[1..5].iter().all(|&fill| fill < 100), "{fill:?}");
    assert!(fill[5..9].windows(2).all(|pair| pair[0] <= pair[1]) && fill[8] > 900, "{fill:?}");
    let lost = &rates.dropped_by[data.0 as usize]["socket_buffer"];
    assert!(lost[..5].iter().all(|&lost| lost == 0) && lost[8] > 0, "{lost:?}");
}

/// Returns what limited a sender on a path of 200 Mbit/s with this cost per packet and load, the packets sent
/// in 4 s, and the times that it waited.
fn sent_by(controller: &str, per_sent_us: u64, load: Load) -> (String, u64, Waiting) {
    let mut world = World::new(11);
    let (rtt, limit) = (Span::from_millis(40), u64::MAX >> 16);
    let job = Job { name: "bulk", len: 1 << 30, controller, ceiling: None, rtt, limit };
    let session = Session::add(&mut world, job);
    let template = ReceiverConfig { per_sent: Span::from_micros(per_sent_us), ..ReceiverConfig::default() };
    let loads = vec![load];
    let (scheduler, nic) = (SchedulerKind::Fair(FairConfig::default()), NicConfig::default());
    let config = HostConfig { scheduler, nic, receivers: Vec::new(), loads, seed: 1 };
    let host = world.add_host(SimulatedHost::new(&config, template));
    world.place(session.sender, host).unwrap();
    connect(&mut world, &session, rtt, Rate::from_mbps(200));
    let elapsed = Span::from_secs(4);
    world.run_until(Time::ZERO + elapsed);
    assert!(world.adds_up());
    let stats = session.sender(&world).stats();
    let limit = limit_of_sender(&LimitEvidence {
        waiting: stats.waiting,
        min_rtt: stats.min_rtt,
        elapsed,
        sent: Rate::from_transfer(stats.datagram_bytes, elapsed),
        peak_delivery: Rate::from_bps(stats.peak_delivery_bps),
        packets: stats.packets,
        lost: stats.lost,
        ..LimitEvidence::default()
    });
    println!(
        "{controller}, {per_sent_us} us, {load:?}: {} packets, {limit:?}, {:?}",
        stats.packets, stats.waiting
    );
    (limit.unwrap().what.into_owned(), stats.packets, stats.waiting)
}

/// Returns a load of CPU-bound processes.
fn computing(processes: u32) -> Load {
    Load::Computation { processes, spec: TaskSpec::default() }
}

#[test]
fn a_sender_limited_by_its_core_reports_it() {
    for law in ["bbr", "cubic", "delivery"] {
        // 5,000 packets per second; the path carries 17,000.
        let (what, packets, _) = sent_by(law, 200, computing(0));
        assert_eq!(what, "sender_cpu", "{law}");
        assert!((15_000..=20_001).contains(&packets), "{law}: {packets}");
        assert_eq!(sent_by(law, 20, computing(0)).0, "path", "{law}");
    }
}

#[test]
fn a_sender_that_waits_for_its_core_does_not_blame_the_path() {
    for law in ["bbr", "cubic", "delivery"] {
        let (what, _, waiting) = sent_by(law, 40, computing(8));
        assert_eq!(what, "sender_cpu", "{law}: {waiting:?}");
        // Beside one process it gets half of the core, and needs 10 %.
        assert_eq!(sent_by(law, 5, computing(1)).0, "path", "{law}");
    }
}

#[test]
fn a_mostly_stopped_sender_does_not_blame_the_path() {
    // As with a CPU quota: 20 ms of every 100 ms, 20 % of the path's capacity; and half of the time, in
    // intervals shorter than a round trip.
    for law in ["bbr", "delivery"] {
        for (every, stop) in [(100, 80), (100, 30), (20, 10)] {
            let load = Load::Suspension { every: Span::from_millis(every), stop: Span::from_millis(stop) };
            let (what, packets, waiting) = sent_by(law, 2, load);
            let awake = 1.0 - stop as f64 / every as f64;
            // 200 Mbit/s for 4 s are 66,667 packets of 1,500 bytes; some are lost at the start, and at most 5
            // % are caught up.
            let share = packets as f64 / (66_667.0 * awake);
            assert!(
                share > 0.8,
                "{law}, {stop} of {every} ms: {share:.2} of what it could send, {waiting:?}"
            );
            assert!(what == "sender_cpu" || awake > 0.4, "{law}, {stop} of {every} ms: {what}, {waiting:?}");
        }
    }
}
