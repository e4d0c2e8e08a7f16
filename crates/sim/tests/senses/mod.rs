//! Laws that use samples of the receiving host, on a host with a shared core.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::BTreeMap;

use crate::common::{Channel, Session};
use haul_base::{Bytes, PathId, Rate, Span, Time};
use haul_proto::presets::preset;
use haul_sim::host::scheduler::{FairConfig, O1Config, SchedulerKind};
use haul_sim::host::{HostConfig, Load, NicConfig, ReceiverConfig, SimulatedHost, SocketConfig};
use haul_sim::{
    Distribution, DropReason, FlowId, HostId, LinkId, Pattern, Sink, StageChange, StageRef, UdpSource,
    UdpSourceSpec, World,
};
use haul_stack::Recipe;

pub(crate) const O1: SchedulerKind = SchedulerKind::O1(O1Config { tick: Span::from_millis(1) });
pub(crate) const FAIR: SchedulerKind = SchedulerKind::Fair(FairConfig {
    tick: Span::from_millis(1),
    slice: Span::from_millis(3),
    run_to_parity: false,
});

/// 10 us per packet, as in the papers' saw-tooth; a memory load increases this to 12 us.
pub(crate) fn host(scheduler: SchedulerKind, buffer: u64, loads: Vec<Load>) -> SimulatedHost {
    let socket =
        SocketConfig { requested: Bytes(buffer), permitted: Bytes(buffer), ..SocketConfig::default() };
    let template = ReceiverConfig::packet_by_packet(socket);
    let (nic, receivers) = (NicConfig::default(), Vec::new());
    SimulatedHost::new(&HostConfig { scheduler, nic, receivers, loads, seed: 5 }, template)
}

pub(crate) fn memory(processes: u32) -> Load {
    Load::Memory { processes, slowdown_permille: 1_200 }
}

pub(crate) fn recipe(name: &str, set: &[(&str, &str)]) -> Recipe {
    let mut recipe = preset(name).unwrap().unwrap();
    for (key, value) in set {
        haul_proto::micro::registry().set(&mut recipe, &format!("rate_control.{key}"), value).unwrap();
    }
    recipe
}

/// A transfer to a host.
pub(crate) struct Run {
    pub(crate) world: World,
    pub(crate) session: Session,
    pub(crate) data: FlowId,
    host: HostId,
    forward: LinkId,
    back: LinkId,
    /// Milliseconds in each phase of the law.
    phases: BTreeMap<&'static str, u64>,
}

impl Run {
    fn new(recipe: &Recipe, len: u64, rtt: Span, host: SimulatedHost) -> Self {
        Self::over(recipe, len, rtt, &Channel::clean(rtt / 2, Rate::from_mbps(1_000)), host)
    }

    pub(crate) fn over(recipe: &Recipe, len: u64, rtt: Span, channel: &Channel, host: SimulatedHost) -> Self {
        Self::seeded(3, recipe, len, rtt, channel, host)
    }

    pub(crate) fn seeded(
        seed: u64,
        recipe: &Recipe,
        len: u64,
        rtt: Span,
        channel: &Channel,
        host: SimulatedHost,
    ) -> Self {
        Self::between(seed, recipe, len, rtt, [channel, channel], host)
    }

    /// As above, with different channels in the two directions.
    pub(crate) fn between(
        seed: u64,
        recipe: &Recipe,
        len: u64,
        rtt: Span,
        channels: [&Channel; 2],
        host: SimulatedHost,
    ) -> Self {
        let mut world = World::new(seed);
        let session = Session::of_recipe(&mut world, recipe, len, rtt);
        let host = world.add_host(host);
        world.place(session.receiver, host).unwrap();
        let [forward, back] = channels.map(Channel::spec);
        let (forward, back) =
            (world.add_link("there", &forward).unwrap(), world.add_link("back", &back).unwrap());
        let port = PathId::default();
        let (from, to) = ((session.sender, port), (session.receiver, port));
        let data = world.connect("data", from, to, &[forward]).unwrap();
        world.connect("feedback", to, from, &[back]).unwrap();
        Self { world, session, data, host, forward, back, phases: BTreeMap::new() }
    }

    /// Runs until all data have arrived, at most for `cap`.
    pub(crate) fn run(mut self, cap: Span) -> Self {
        while !self.session.is_over(&self.world) && self.world.now() < Time::ZERO + cap {
            let next = self.world.now() + Span::from_millis(1);
            self.world.run_until(next);
            *self.phases.entry(self.session.sender(&self.world).rate_state().phase).or_default() += 1;
        }
        assert!(self.world.adds_up());
        self
    }

    /// Adds cross traffic on the same link, at this rate in bursts.
    pub(crate) fn cross_traffic(&mut self, rate: Rate, on: Span, off: Span) {
        let pattern = Pattern::OnOff { on: Distribution::Constant(on), off: Distribution::Constant(off) };
        let spec = UdpSourceSpec { rate, packet: 1_500, pattern, start: Span::ZERO, length: None };
        let source = self.world.add_node("others", UdpSource::new(spec, 9));
        let sink = self.world.add_node("others' end", Sink::new());
        let port = PathId::default();
        self.world.connect("others", (source, port), (sink, port), &[self.forward]).unwrap();
    }

    /// Changes stage `name` in both directions at `at`.
    pub(crate) fn change(&mut self, at: Span, name: &'static str, change: StageChange) {
        let links = [self.forward, self.back];
        self.world.at(Time::ZERO + at, move |world| {
            for link in links {
                world.change_link(link, &StageRef::Name(name.into()), &change).unwrap();
            }
        });
    }

    /// Runs `load` for `duration` of each `period`, starting at 1 s.
    pub(crate) fn load_every(&mut self, load: Load, period: Span, duration: Span) {
        let host = self.host;
        for n in 0..60 {
            let begins = Time::ZERO + Span::from_secs(1) + period * n;
            self.world.at(begins, move |world| {
                let id = world.host_mut::<SimulatedHost>(host).unwrap().host_mut().start_load(load);
                world.at(begins + duration, move |world| {
                    world.host_mut::<SimulatedHost>(host).unwrap().host_mut().stop_load(id);
                });
            });
        }
    }

    pub(crate) fn lost(&self, reason: DropReason) -> u64 {
        self.world.truth(self.data).drops.of(reason)
    }

    /// Returns the goodput delivered to the program, Mbit/s.
    pub(crate) fn goodput(&self) -> f64 {
        let bytes = self.session.receiver(&self.world).stats().object_bytes;
        let time = self.world.now().since(Time::ZERO);
        Rate::from_transfer(bytes, time).as_bps() as f64 / 1e6
    }

    /// Returns the share of time that the law spent in this phase.
    fn share(&self, phase: &str) -> f64 {
        *self.phases.get(phase).unwrap_or(&0) as f64 / self.phases.values().sum::<u64>() as f64
    }
}

pub(crate) const RTT: Span = Span::from_millis(10);

#[test]
fn the_sender_learns_the_receiving_hosts_state() {
    for (scheduler, loads) in [(O1, 0), (O1, 1), (FAIR, 0), (FAIR, 1)] {
        let recipe = recipe("bulk", &[("controller", "fixed"), ("rate", "400Mbit")]);
        let host = host(scheduler, 4 << 20, (0..loads).map(|_| memory(1)).collect());
        let run = Run::new(&recipe, 100_000_000, RTT, host).run(Span::from_secs(20));
        run.session.assert_complete(&run.world);
        let peer = run.session.sender(&run.world).stats().receiver_host;
        let sample = peer.sample.unwrap();
        let is_busy =
            sample.run_delay.unwrap() > Span::from_millis(300) && sample.involuntary_switches.unwrap() > 0;
        assert_eq!(is_busy, loads > 0, "{sample:?}");
        assert!(sample.socket_fill.unwrap() <= 1_000, "{sample:?}");
        assert_eq!(sample.sleep_average.is_some(), scheduler == O1, "{sample:?}");
        assert!(peer.drain_rate.is_some() && peer.read_delay.is_some(), "{peer:?}");
        // The receiver's own sample is at least as recent.
        let local = run.session.receiver(&run.world).stats().host.unwrap();
        assert!(local.run_delay >= sample.run_delay, "{local:?}, {sample:?}");
    }
}

#[test]
fn rapid_pauses_only_with_a_load_and_a_sleep_average() {
    let held = |scheduler, loads| {
        let recipe = recipe("rapid", &[("rate", "350Mbit")]);
        let run =
            Run::new(&recipe, 300_000_000, RTT, host(scheduler, 4 << 20, loads)).run(Span::from_secs(30));
        run.session.assert_complete(&run.world);
        run.share("hold")
    };
    // Two other processes with slices of 100 ms raise the sleep average by two levels, from which it can
    // fall.
    let busy = held(O1, vec![memory(2)]);
    println!("rapid: on hold for {:.1} % of the time", busy * 100.0);
    assert!((0.01..0.5).contains(&busy), "{busy}");
    assert_eq!((held(O1, vec![]), held(FAIR, vec![memory(2)])), (0.0, 0.0));
}

#[test]
fn proactive_acts_before_the_minimum_of_the_saw_tooth_and_loses_less() {
    let transfer = |name, set: &[(&str, &str)], loads| {
        let recipe = recipe(name, &[&[("rate", "494Mbit")], set].concat());
        let run = Run::new(&recipe, 200_000_000, RTT, host(O1, 4 << 20, loads)).run(Span::from_secs(20));
        run.session.assert_complete(&run.world);
        run
    };
    let asynch = transfer("asynch", &[], vec![memory(1)]).lost(DropReason::SocketBuffer);
    for (act, phase) in [("lower", "lower"), ("hold", "hold")] {
        let set = [("predictor", "sleep_average"), ("act", act)];
        let run = transfer("proactive", &set, vec![memory(1)]);
        let (lost, acted) = (run.lost(DropReason::SocketBuffer), run.share(phase));
        println!("proactive, {act}: {lost} lost, asynch {asynch}; {:.1} % of the time", acted * 100.0);
        assert!((0.03..0.6).contains(&acted), "{act}: {acted}");
        assert!(lost * 10 < asynch * 8, "{act}: {lost}, asynch {asynch}");
        let idle = transfer("proactive", &set, vec![]);
        assert_eq!((idle.share(phase), idle.lost(DropReason::SocketBuffer)), (0.0, 0));
    }
}

/// Many programs need its core for 30 ms of every 150 ms: only losses that the diagnosis attributes to the
/// host show when.
#[test]
fn proactive_with_host_loss_times_loses_less_than_asynch() {
    let lost = |name, set: &[(&str, &str)]| {
        let mut recipe = recipe(name, &[&[("rate", "300Mbit"), ("diagnosis", "on")], set].concat());
        haul_proto::micro::registry().set(&mut recipe, "bitmap_ack.interval", "2ms").unwrap();
        let mut run = Run::new(&recipe, 1 << 40, RTT, host(FAIR, 64 << 10, vec![]));
        run.load_every(memory(20), Span::from_millis(150), Span::from_millis(30));
        let run = run.run(Span::from_secs(10));
        let (packets, died) =
            (run.session.sender(&run.world).stats().packets, run.lost(DropReason::SocketBuffer));
        println!("{name}: {died} of {packets} lost, {:.0} Mbit/s, {:?}", run.goodput(), run.phases);
        died as f64 / packets as f64
    };
    let asynch = lost("asynch", &[]);
    assert!(asynch > 0.005, "{asynch}");
    for act in ["lower", "hold"] {
        let set = [("predictor", "host_losses"), ("act", act), ("socket_buffer", "50KiB")];
        let proactive = lost("proactive", &set);
        assert!(proactive < 0.8 * asynch, "{act}: {proactive}, asynch {asynch}");
    }
}

/// A receiver with a small socket buffer that shares its core for 0.5 s of every 3 s.
fn intermittently_busy(law: &str, (cause_aware, diagnosis): (&str, &str)) -> Run {
    let aware = [("cause_aware", cause_aware), ("diagnosis", diagnosis)];
    let recipe = recipe("bulk", &[&[("controller", law), ("rate", "420Mbit")], &aware[..]].concat());
    let host = host(FAIR, 64 << 10, vec![]);
    let mut run = Run::new(&recipe, 10_000_000_000, Span::from_millis(20), host);
    run.load_every(memory(3), Span::from_secs(3), Span::from_millis(500));
    run.run(Span::from_secs(14))
}

#[test]
fn a_cause_aware_law_keeps_twice_the_rate() {
    for law in ["highspeed", "tfrc", "reno"] {
        // With the true causes, and with its own diagnosis.
        let kinds = [("false", "on"), ("true", "off"), ("true", "on")];
        let [plain, by_report, by_diagnosis] = kinds.map(|kind| intermittently_busy(law, kind));
        for run in [&plain, &by_report, &by_diagnosis] {
            let drops = &run.world.truth(run.data).drops;
            // Probes of the path MTU are too large; all other losses are the host's.
            let known = drops.of(DropReason::SocketBuffer) + drops.of(DropReason::TooLarge);
            assert!(known == drops.total() && drops.of(DropReason::SocketBuffer) > 500, "{drops:?}");
        }
        let [plain_rate, report_rate, diagnosis_rate] = [&plain, &by_report, &by_diagnosis].map(Run::goodput);
        println!(
            "{law}: {plain_rate:.0} Mbit/s, with the true causes {report_rate:.0}, with its own diagnosis {diagnosis_rate:.0}"
        );
        for aware in [&by_report, &by_diagnosis] {
            assert!(aware.goodput() >= 2.0 * plain_rate, "{law}: {} {plain_rate}", aware.goodput());
            // The drain rate limits it while the host is busy, and shortly afterwards.
            assert!((0.05..0.5).contains(&aware.share("host")), "{law}: {:?}", aware.phases);
            let packets = aware.session.sender(&aware.world).stats().packets;
            assert!(aware.lost(DropReason::SocketBuffer) * 20 < packets);
        }
    }
}

/// A receiver with an untuned host's socket buffer, suspended for 100 ms of every second.
#[test]
fn an_occasionally_suspended_host_is_used_while_it_runs() {
    for rtt in [10, 20, 70, 100].map(Span::from_millis) {
        let set =
            [("controller", "highspeed"), ("rate", "400Mbit"), ("cause_aware", "true"), ("diagnosis", "on")];
        let suspension = Load::Suspension { every: Span::from_secs(1), stop: Span::from_millis(100) };
        let host = host(FAIR, 208 << 10, vec![suspension]);
        let bytes = |run: &Run| run.session.receiver(&run.world).stats().object_bytes;
        let started = Run::new(&recipe("bulk", &set), 1 << 40, rtt, host).run(Span::from_secs(5));
        let before = bytes(&started);
        let run = started.run(Span::from_secs(15));
        let goodput = Rate::from_transfer(bytes(&run) - before, Span::from_secs(10)).as_bps() as f64;
        let (drained, lost) = (goodput / (0.9 * 400e6), run.lost(DropReason::SocketBuffer));
        println!("RTT {rtt}: {drained:.3} of what it could drain, {lost} lost, {:?}", run.phases);
        assert!(lost > 500, "{lost}");
        assert!(drained >= 0.85, "RTT {rtt}: {drained}");
    }
}

#[test]
fn a_cause_aware_law_reacts_to_path_losses() {
    let transfer = |cause_aware| {
        let aware = [("cause_aware", cause_aware), ("diagnosis", "off")];
        let recipe = recipe("bulk", &[&[("controller", "reno")], &aware[..]].concat());
        let clean = Channel::clean(RTT / 2, Rate::from_mbps(100));
        let channel = Channel { loss: 0.000_02, queue: Span::from_millis(5), ..clean };
        let run = Run::over(&recipe, 10_000_000_000, RTT, &channel, host(FAIR, 4 << 20, vec![]));
        let run = run.run(Span::from_secs(10));
        let drops = &run.world.truth(run.data).drops;
        assert!(drops.of(DropReason::QueueFull) > 0 && drops.of(DropReason::Random) > 0, "{drops:?}");
        (run.session.sender(&run.world).stats().packets, run.phases)
    };
    assert_eq!(transfer("true"), transfer("false"));
}
