//! The built-in recipes of objects as stacks, over a seeded lossy path in virtual time.

#![expect(clippy::unwrap_used, reason = "test helpers: a panic fails the test")]

#[expect(dead_code, reason = "the path between sender and receiver is not used here")]
mod common;
#[path = "bulk_recipes/feedback.rs"]
mod feedback;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::{Arc, Mutex};

use common::{Checksum, PatternSource, Shared, SinkState, link};
use haul_base::{Ecn, Machine, PathId, Received, Rng, Span, Time};
use haul_proto::micro::registry;
use haul_proto::presets::{PRESETS, preset};
use haul_proto::{
    ControllerConfig, Receiver, ReceiverConfig, Seal, Sender, SenderConfig, build_controller,
    check_object_recipe,
};
use haul_stack::{Ends, Recipe, Setup, Stack, StackEvent};
use haul_wire::packet::{COMMON_HEADER_LEN, DATA_BODY_LEN, FEEDBACK_HEADER_LEN};

const DELAY: Span = Span::from_millis(5);

/// Arrival time, a number that keeps the order, whether it goes to the receiver, the packet.
type InTransit = Reverse<(Time, u64, bool, Vec<u8>)>;

/// Random faults of a path.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    loss: f64,
    duplication: f64,
    /// Share of packets that arrive up to 20 ms late.
    reordering: f64,
}

/// One direction of the control channel: a lost message arrives 200 ms later, and all after it as well.
#[derive(Default)]
struct ChannelDirection {
    messages: VecDeque<(Time, Vec<u8>)>,
    last: Time,
}

struct Path {
    now: Time,
    ends: [Stack; 2],
    sink_state: Arc<Mutex<SinkState>>,
    in_transit: BinaryHeap<InTransit>,
    rng: Rng,
    faults: Faults,
    /// To the sender, to the receiver.
    channel: [ChannelDirection; 2],
    /// Number of messages sent on it.
    messages: usize,
    repeat_messages: bool,
    sent: u64,
    events: [Vec<StackEvent>; 2],
    /// Every packet sent: whether to the receiver, its kind, its size.
    kinds: Vec<(bool, u8, usize)>,
}

impl Path {
    fn new(recipe: &Recipe, len: u64, loss: f64, seed: u64) -> Self {
        Self::up_to(u64::MAX, recipe, len, loss, seed)
    }

    /// With a sink that initially accepts `limit` bytes.
    fn up_to(limit: u64, recipe: &Recipe, len: u64, loss: f64, seed: u64) -> Self {
        println!("seed {seed}");
        let compiled = Arc::new(registry()).compile(recipe, Checksum.tag_len()).unwrap();
        let sink_state = Arc::new(Mutex::new(SinkState { limit, ..SinkState::default() }));
        let stack = |ends: Ends| {
            let mut setup = Setup::new(Time::ZERO);
            setup.keys = Some((Box::new(Checksum), Box::new(Checksum)));
            setup.initial_rtt = DELAY * 2;
            setup.ends = ends;
            Stack::new(compiled.clone(), setup).unwrap()
        };
        let source = PatternSource { len, released: Arc::default() };
        let sends = stack(Ends { object_source: Some(Box::new(source)), ..Ends::default() });
        let takes =
            stack(Ends { object_sink: Some(Box::new(Shared(sink_state.clone()))), ..Ends::default() });
        Self {
            now: Time::ZERO,
            ends: [sends, takes],
            sink_state,
            in_transit: BinaryHeap::new(),
            rng: Rng::from_seed(seed),
            faults: Faults { loss, ..Faults::default() },
            channel: [ChannelDirection::default(), ChannelDirection::default()],
            messages: 0,
            repeat_messages: false,
            sent: 0,
            events: [Vec::new(), Vec::new()],
            kinds: Vec::new(),
        }
    }

    fn send(&mut self) {
        let mut slot = vec![0; 65_536];
        for (from, forward) in [(0, true), (1, false)] {
            while let Some(t) = self.ends[from].poll_transmit(self.now, &mut slot) {
                for packet in slot[..t.len].chunks(t.segment_size) {
                    self.sent += 1;
                    self.kinds.push((forward, packet[0], packet.len()));
                    if packet.len() <= 1_472 && !self.rng.chance(self.faults.loss) {
                        let copies = 1 + usize::from(self.rng.chance(self.faults.duplication));
                        for _ in 0..copies {
                            let at = self.now + DELAY + self.later();
                            self.in_transit.push(Reverse((at, self.sent, forward, packet.to_vec())));
                        }
                    }
                }
            }
            self.send_messages(from);
            while let Some(event) = self.ends[from].poll_event() {
                self.events[from].push(event);
            }
        }
    }

    /// Random extra delay of a packet.
    fn later(&mut self) -> Span {
        let is_late = self.faults.reordering > 0.0 && self.rng.chance(self.faults.reordering);
        if is_late { Span::from_micros(self.rng.below(20_000)) } else { Span::ZERO }
    }

    fn send_messages(&mut self, from: usize) {
        let mut message = Vec::new();
        while self.ends[from].poll_channel(self.now, &mut message) {
            let mut at = self.now + DELAY;
            while self.rng.chance(self.faults.loss) {
                at += Span::from_millis(200);
            }
            let direction = &mut self.channel[1 - from];
            direction.last = direction.last.max(at);
            let copies = 1 + usize::from(self.repeat_messages);
            direction
                .messages
                .extend(std::iter::repeat_n((direction.last, std::mem::take(&mut message)), copies));
            self.messages += 1;
        }
    }

    fn take_messages(&mut self) {
        for (to, direction) in self.channel.iter_mut().enumerate() {
            while direction.messages.front().is_some_and(|message| message.0 <= self.now) {
                let (_, message) = direction.messages.pop_front().unwrap();
                self.ends[to].on_channel(self.now, &message);
            }
        }
    }

    fn step(&mut self) {
        self.send();
        let deadlines = self.ends.iter().filter_map(|end| end.deadline().map(|d| d.at));
        let messages =
            self.channel.iter().filter_map(|direction| direction.messages.front().map(|message| message.0));
        let next = deadlines.chain(messages).chain(self.in_transit.peek().map(|f| f.0.0)).min();
        self.now = next.unwrap_or(self.now).max(self.now + Span::from_nanos(100));
        for end in &mut self.ends {
            end.on_deadline(self.now);
        }
        self.take_messages();
        while let Some(Reverse((_, _, forward, mut data))) =
            self.in_transit.peek().is_some_and(|f| f.0.0 <= self.now).then(|| self.in_transit.pop()).flatten()
        {
            let stride = data.len();
            let mut received = Received {
                data: &mut data,
                stride,
                arrival: None,
                path: PathId::default(),
                ecn: Ecn::NotEct,
                socket_drops: None,
            };
            self.ends[usize::from(forward)].on_receive(self.now, &mut received);
        }
    }

    /// Runs until both ends are done, or `cap` has passed.
    fn run(&mut self, cap: Span) {
        let done = |path: &Self| {
            path.events[0].contains(&StackEvent::Delivered)
                && path.events[1].iter().any(|event| matches!(event, StackEvent::Complete(_)))
        };
        while self.now < Time::ZERO + cap && !done(self) {
            self.step();
        }
    }

    fn assert_complete(&self, len: u64) {
        let sink_state = self.sink_state.lock().unwrap();
        assert_eq!(
            (sink_state.complete, sink_state.wrong, sink_state.delivered),
            (Some(len), 0, len),
            "{:?}",
            self.events
        );
        assert!(self.events[0].contains(&StackEvent::Delivered), "{:?}", self.events);
    }
}

fn shipped(name: &str) -> Recipe {
    preset(name).unwrap().unwrap()
}

/// Delivers the messages of one end to the other.
fn pass(now: Time, from: &mut impl Machine, to: &mut impl Machine) {
    let mut slot = vec![0; 65_536];
    while let Some(t) = from.poll_transmit(now, &mut slot) {
        let (data, stride) = (&mut slot[..t.len], t.segment_size);
        let (arrival, path, ecn) = (None, PathId::default(), Ecn::NotEct);
        to.on_receive(now, &mut Received { data, stride, arrival, path, ecn, socket_drops: None });
    }
}

/// A ceiling, a window, a memory limit: what was agreed on within the server's limits stays, whatever the
/// peer requests during the session.
#[test]
fn no_end_changes_the_recipe_of_a_session_that_moves_an_object() {
    let mut requested = shipped("bulk");
    registry().set(&mut requested, "rate_control.rate", "1Tbit").unwrap();
    registry().set(&mut requested, "retransmit.window", "10000000").unwrap();
    let of_other_parts = shipped("bulk").with("statistics");
    for requested in [requested, of_other_parts] {
        let control = ControllerConfig { ceiling: None, initial_rtt: DELAY, feedback_interval: DELAY };
        let controller = build_controller("delivery", &control).unwrap();
        let source = Box::new(PatternSource { len: 0, released: Arc::default() });
        let config = SenderConfig::default();
        let sender = Sender::with_config(Time::ZERO, &config, link(), source, controller, 1 << 20).unwrap();
        assert_refuses(sender, &requested);
        let silence = Span::from_secs(15);
        let config = ReceiverConfig { feedback_interval: DELAY, feedback_datagram: 1_200, silence };
        assert_refuses(
            Receiver::new(Time::ZERO, config, link(), Box::new(Shared(Arc::default()))),
            &requested,
        );
    }
}

/// Asserts that one end of a session refuses the other's request to change to `requested`.
#[track_caller]
fn assert_refuses(mut end: impl Machine, requested: &Recipe) {
    let mut setup = Setup::new(Time::ZERO);
    setup.keys = Some((Box::new(Checksum), Box::new(Checksum)));
    let compiled = Arc::new(registry()).compile(&shipped("bulk"), Checksum.tag_len()).unwrap();
    let mut hostile = Stack::new(compiled, setup).unwrap();
    hostile.reconfigure(Time::ZERO, requested).unwrap();
    let mut now = Time::ZERO;
    let reason = loop {
        now += Span::from_millis(1);
        assert!(now < Time::ZERO + Span::from_secs(5), "no answer");
        hostile.on_deadline(now);
        end.on_deadline(now);
        pass(now, &mut hostile, &mut end);
        pass(now, &mut end, &mut hostile);
        if let Some(StackEvent::Refused(reason)) = hostile.poll_event() {
            break reason;
        }
    };
    assert!(reason.contains("cannot change"), "{reason}");
}

#[test]
fn every_shipped_recipe_round_trips() {
    for (name, _) in PRESETS {
        let recipe = shipped(name);
        assert_eq!((recipe.name.as_str(), recipe.summary.is_empty()), (*name, false));
        assert!(registry().parse(&recipe.to_toml()).unwrap().same_stack(&recipe), "{name}");
    }
}

#[test]
fn packets_of_objects_match_the_wire_format() {
    for name in ["bulk", "fobs", "rbudp"] {
        let compiled = Arc::new(registry()).compile(&shipped(name), 16).unwrap();
        let places: Vec<_> =
            compiled.layout().attributes().iter().map(|a| (a.name, a.offset, a.len)).collect();
        assert_eq!(places, [("sequence", 7, 6), ("offset", 13, 6), ("sent_at", 19, 4)], "{name}");
        assert_eq!(compiled.layout().clear_len(), COMMON_HEADER_LEN);
        assert_eq!(compiled.layout().data_overhead(), COMMON_HEADER_LEN + DATA_BODY_LEN + 16);
    }
}

#[test]
fn each_recipe_transfers_an_object_over_a_lossy_path() {
    for (seed, name) in [(1, "bulk"), (2, "fobs"), (3, "rbudp")] {
        for len in [0, 1, 5_000_000, 20_000_000] {
            let mut path = Path::new(&shipped(name), len, 0.03, seed);
            path.run(Span::from_secs(20));
            path.assert_complete(len);
        }
    }
}

#[test]
fn the_papers_control_laws_transfer_an_object() {
    let objects = PRESETS.iter().map(|(name, _)| *name).filter(|name| shipped(name).has("object"));
    for (seed, name) in (10..).zip(objects) {
        let mut path = Path::new(&shipped(name), 5_000_000, 0.005, seed);
        path.run(Span::from_secs(30));
        path.assert_complete(5_000_000);
    }
}

/// How long an object of 5 MB takes at 40 Mbit/s.
fn transfer_time(name: &str, loss: f64) -> f64 {
    takes_with(41, name, loss)
}

fn takes_with(seed: u64, name: &str, loss: f64) -> f64 {
    let mut recipe = shipped(name);
    registry().set(&mut recipe, "rate_control.rate", "40Mbit").unwrap();
    let mut path = Path::new(&recipe, 5_000_000, loss, seed);
    path.run(Span::from_secs(120));
    path.assert_complete(5_000_000);
    path.now.since(Time::ZERO).as_secs_f64()
}

#[test]
fn pauses_for_an_idle_receiver_lengthen_the_transfer() {
    // 10 ms after each 100 ms.
    let longer = transfer_time("rbudp+", 0.0) / transfer_time("rbudp", 0.0);
    assert!((1.06..1.12).contains(&longer), "{longer}");
    // The priority of a receiver that does not report it has no effect.
    assert!((transfer_time("rapid", 0.0) / transfer_time("rbudp", 0.0) - 1.0).abs() < 1e-6);
}

#[test]
fn a_lossy_chunk_lowers_the_next_rate_and_rounds_are_evaluated() {
    // Five chunks of 1 MB with 10 % loss: 40, 38, 36 ... Mbit/s; the last few are judged after the end.
    let chunked = |name: &str| {
        let mut recipe = shipped(name);
        registry().set(&mut recipe, "object.chunk", "1MB").unwrap();
        registry().set(&mut recipe, "rate_control.rate", "40Mbit").unwrap();
        let mut path = Path::new(&recipe, 5_000_000, 0.1, 43);
        path.run(Span::from_secs(60));
        path.assert_complete(5_000_000);
        path.now.since(Time::ZERO).as_secs_f64()
    };
    let slower = chunked("fobs-gentle") / chunked("fobs");
    assert!((1.03..1.25).contains(&slower), "{slower}");
    // The first round has losses, and the rate falls to the drain rate, 0.7 of it; three tenths are left. The
    // end of a round may be lost, which takes a while: so several transfers.
    let all = |name| (41..47).map(|seed| takes_with(seed, name, 0.3)).sum::<f64>();
    let slower = all("rapid+") / all("rbudp");
    assert!((1.03..1.3).contains(&slower), "{slower}");
}

/// Indices of the packets of one kind and direction among all that were sent.
fn places(path: &Path, forward: bool, kind: u8) -> Vec<usize> {
    let packets = path.kinds.iter().enumerate();
    packets.filter(|(_, sent)| (sent.0, sent.1) == (forward, kind)).map(|(at, _)| at).collect()
}

#[test]
fn rbudp_retransmits_exactly_the_missing_packets_after_each_round() {
    let len = 20_000_000;
    let mut path = Path::new(&shipped("rbudp"), len, 0.05, 7);
    path.run(Span::from_secs(20));
    path.assert_complete(len);
    let segments = 20_000_000_u64.div_ceil(1_200 - 31);
    let stats = path.ends[0].stats();
    let first_round = places(&path, true, 16)[0];
    let sent_before = path.kinds[..first_round].iter().filter(|sent| sent.0 && sent.1 <= 2).count() as u64;
    assert_eq!(sent_before, segments, "the whole object once, then the end of the round");
    // Reports before it only count: they have no bitmaps.
    let reports = places(&path, false, 3);
    let early: Vec<_> = reports.iter().filter(|&&at| at < first_round).collect();
    assert!(
        !early.is_empty() && early.iter().all(|&&at| path.kinds[at].2 == 7 + FEEDBACK_HEADER_LEN + 8),
        "{early:?}"
    );
    // Each round retransmits about 1/20 of the previous one.
    let ideal = segments as f64 / 0.95;
    let share = stats.data_sent as f64 / ideal;
    assert!(share < 1.01, "sent {share} of the ideal: {stats:?}");
}

#[test]
fn a_slow_sink_slows_every_recipe_without_losses() {
    for name in ["bulk", "fobs", "rbudp"] {
        let mut recipe = shipped(name);
        registry().set(&mut recipe, "object.first_limit", "1MB").unwrap();
        let len = 10_000_000;
        let mut path = Path::up_to(1_000_000, &recipe, len, 0.0, 11);
        // Nothing above the limit is sent while the limit stands.
        path.run(Span::from_millis(400));
        assert!(path.ends[0].stats().bytes_sent < 1_100_000, "{name}: {:?}", path.ends[0].stats());
        path.sink_state.lock().unwrap().limit = u64::MAX;
        path.run(Span::from_secs(10));
        path.assert_complete(len);
        assert_eq!(path.ends[1].stats().violations, 0, "{name}");
    }
}

/// As the receiver of files does: memory is free again when its bytes are written, and missing bytes take
/// none.
#[test]
fn retransmissions_arrive_while_the_receiver_accepts_no_new_data() {
    for name in ["bulk", "fobs", "rbudp"] {
        let mut recipe = shipped(name);
        registry().set(&mut recipe, "object.first_limit", "1MB").unwrap();
        let len = 30_000_000;
        let mut path = Path::up_to(1_000_000, &recipe, len, 0.1, 17);
        while path.now < Time::ZERO + Span::from_secs(60)
            && path.sink_state.lock().unwrap().complete.is_none()
        {
            path.step();
            let mut sink_state = path.sink_state.lock().unwrap();
            sink_state.limit = sink_state.delivered + 1_000_000;
        }
        path.run(Span::from_secs(60));
        path.assert_complete(len);
    }
}

#[test]
fn the_rate_changes_during_a_transfer() {
    let mut recipe = shipped("fobs");
    registry().set(&mut recipe, "rate_control.rate", "8Mbit").unwrap();
    let len = 4_000_000;
    let mut path = Path::new(&recipe, len, 0.0, 13);
    path.run(Span::from_millis(500));
    let slow = path.ends[0].stats().bytes_sent;
    assert!((400_000..=560_000).contains(&slow), "{slow} bytes in half a second");
    registry().set(&mut recipe, "rate_control.rate", "400Mbit").unwrap();
    path.ends[0].reconfigure(path.now, &recipe).unwrap();
    path.run(Span::from_secs(1));
    path.assert_complete(len);
    assert!(path.events[0].contains(&StackEvent::Reconfigured), "{:?}", path.events);
}

#[test]
fn missing_required_parts_are_named() {
    let registry = Arc::new(registry());
    let compile = |recipe: &Recipe| registry.compile(recipe, 16).unwrap_err().to_string();
    assert_eq!(compile(&shipped("bulk").without("retransmit")), "object needs retransmit");
    assert_eq!(compile(&shipped("bulk").without("bitmap_ack")), "object needs bitmap_ack");
    let mut recipe = shipped("bulk");
    registry.set(&mut recipe, "rate_control.controller", "warp").unwrap();
    assert!(compile(&recipe).contains("there is no controller `warp`"), "{}", compile(&recipe));
    registry.set(&mut recipe, "rate_control.controller", "fixed").unwrap();
    assert!(compile(&recipe).contains("needs a rate"), "{}", compile(&recipe));
}

#[test]
fn a_session_accepts_only_object_recipes() {
    for (name, lack) in [
        ("bulk", None),
        ("fobs", None),
        ("rbudp", None),
        ("viz", Some("a session that moves files or memory needs object")),
        ("msg", Some("a session that moves files or memory needs object")),
        ("sensor", Some("a session that moves files or memory needs object")),
    ] {
        let error = check_object_recipe(&shipped(name), 16).err().map(|error| error.to_string());
        assert_eq!(error.as_deref(), lack, "{name}");
    }
    let error_of = |recipe: &Recipe| check_object_recipe(recipe, 16).unwrap_err().to_string();
    for part in ["seal", "liveness"] {
        assert!(error_of(&shipped("fobs").without(part)).ends_with(&format!("needs {part}")));
    }
    let mut copies = shipped("fobs");
    registry().set(&mut copies, "retransmit.keep", "copies").unwrap();
    assert!(error_of(&copies).contains("`retransmit.keep = copies`"), "{}", error_of(&copies));
    // The default.
    let bare = shipped("fobs").without("retransmit").with("retransmit");
    assert!(error_of(&bare).contains("keep = \"object\""), "{}", error_of(&bare));
}

#[test]
fn object_recipes_can_have_additional_parts() {
    for (seed, recipe) in [
        (31, shipped("rbudp").with("fec")),
        (32, shipped("fobs").with("statistics").with("rate_stats")),
        (33, shipped("bulk").with("transport_driver")),
    ] {
        check_object_recipe(&recipe, 16).unwrap();
        let mut path = Path::new(&recipe, 5_000_000, 0.03, seed);
        path.run(Span::from_secs(20));
        path.assert_complete(5_000_000);
    }
}

#[test]
fn a_window_of_any_width_advances_with_acknowledgements() {
    for (name, window) in [("bulk", "1024"), ("fobs", "64"), ("rbudp", "1500")] {
        let mut recipe = shipped(name);
        registry().set(&mut recipe, "retransmit.window", window).unwrap();
        let len = 3_000_000;
        let mut path = Path::new(&recipe, len, 0.01, 41);
        path.run(Span::from_secs(20));
        path.assert_complete(len);
    }
}

/// Only a report empties the window of a control law, and there is none before the end of a round.
#[test]
fn a_round_ends_when_the_window_of_the_control_law_is_full() {
    let mut recipe = shipped("rbudp");
    registry().set(&mut recipe, "rate_control.controller", "delivery").unwrap();
    let len = 3_000_000;
    let mut path = Path::new(&recipe, len, 0.01, 43);
    path.run(Span::from_secs(60));
    path.assert_complete(len);
}
