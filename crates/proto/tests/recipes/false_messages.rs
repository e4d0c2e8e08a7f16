//! A receiver that acknowledges what was never sent, in each way in which a recipe acknowledges, over UDP:
//! each lie is refused, counted and has no effect, and too many of them end the session with an error that
//! names the micro-protocol.

use std::sync::{Arc, Mutex};

use haul_base::{Ecn, Machine, PathId, Received, Rng, Span, Time};
use haul_proto::micro::registry;
use haul_proto::presets::preset;
use haul_stack::{Ends, PACKET_HEADER_LEN, Recipe, Seal, SendOptions, Setup, Stack, StackEvent};
use haul_wire::packet::{FEEDBACK_HEADER_LEN, FeedbackView, FeedbackWriter};
use proptest::prelude::*;

use crate::channel::{Checksum, TAG};
use crate::common::{PatternSource, Shared, SinkState};

const SEQUENCE: &str = "sequence";
const U48: usize = 6;
/// Number of lies that a session survives (`MAX_VIOLATIONS` of `haul-stack`).
const SURVIVED: usize = 64;

/// Claim of a lie.
#[derive(Clone, Copy, Debug)]
enum Claim {
    /// A packet number that was not sent.
    Packet,
    /// A sequence number that was not sent, and all below it.
    Below,
    /// A sequence number that was not sent, after a gap.
    Range,
}

/// A way to acknowledge.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    recipe: &'static str,
    /// Parameters to set on it.
    set: &'static [(&'static str, &'static str)],
    kind: u8,
    claims: &'static [Claim],
    falsify: fn(Claim, &mut Vec<u8>, u64),
}

const ALL: &[Claim] = &[Claim::Packet, Claim::Below, Claim::Range];

/// An object at a rate that leaves most of it unsent.
const fn bitmap(when: &'static [(&'static str, &'static str)]) -> Case {
    Case {
        name: "bitmap_ack",
        recipe: "bulk",
        set: when,
        kind: 3,
        claims: &[Claim::Packet, Claim::Below],
        falsify: |claim, body, number| {
            let mut header = FeedbackView::parse(body).unwrap().header;
            match claim {
                Claim::Packet => header.largest_pn = number,
                Claim::Below | Claim::Range => (header.complete_below, header.highest) = (number, number),
            }
            let mut written = vec![0; FEEDBACK_HEADER_LEN + 64];
            let len = FeedbackWriter::new(&mut written, &header).unwrap().finish();
            written.truncate(len);
            *body = written;
        },
    }
}

const CASES: &[Case] = &[
    Case { name: "positive_ack", recipe: "msg", set: &[], kind: 8, claims: ALL, falsify: falsify_ack },
    Case { name: "cumulative_ack", recipe: "msg", set: &[], kind: 11, claims: ALL, falsify: falsify_ack },
    Case { name: "positive_ack", recipe: "streams", set: &[], kind: 8, claims: ALL, falsify: falsify_ack },
    Case {
        name: "negative_ack",
        recipe: "sensor",
        set: &[],
        kind: 9,
        claims: &[Claim::Packet, Claim::Below],
        falsify: |claim, body, number| match claim {
            Claim::Packet => write_number(&mut body[2..8], number),
            Claim::Below | Claim::Range => {
                body.truncate(20);
                write_number(&mut body[8..14], number);
                write_number(&mut body[14..20], number);
            }
        },
    },
    Case {
        name: "receiver_report",
        recipe: "streams",
        set: &[],
        kind: 19,
        claims: &[Claim::Packet],
        falsify: |_, body, number| {
            body[..8].copy_from_slice(&number.to_be_bytes());
            body[24..32].copy_from_slice(&(number / 64).to_be_bytes());
        },
    },
    bitmap(&[("bitmap_ack.when", "interval")]),
    bitmap(&[("bitmap_ack.when", "law"), ("rate_control.controller", "asynch")]),
    bitmap(&[("bitmap_ack.when", "segment"), ("retransmit.probe", "false")]),
    bitmap(&[("bitmap_ack.when", "chunk"), ("object.chunk", "100kB"), ("retransmit.probe", "false")]),
    bitmap(&[("bitmap_ack.when", "round"), ("retransmit.probe", "false")]),
];

fn write_number(into: &mut [u8], number: u64) {
    into.copy_from_slice(&number.to_be_bytes()[2..]);
}

fn falsify_ack(claim: Claim, body: &mut Vec<u8>, number: u64) {
    match claim {
        Claim::Packet => write_number(&mut body[8..14], number),
        Claim::Below => write_number(&mut body[14..20], number),
        Claim::Range => {
            body.truncate(20);
            let below = number.saturating_sub(9);
            write_number(&mut body[14..20], below);
            body.extend([0, 3]);
            body.extend(((number - below - 3) as u16).to_be_bytes());
        }
    }
}

impl Case {
    fn recipe(&self) -> Recipe {
        let mut recipe = preset(self.recipe).unwrap().unwrap();
        if !recipe.has(self.name) {
            recipe = recipe.without("positive_ack").with(self.name);
        }
        let rate = [("fixed_rate", "fixed_rate.rate"), ("rate_control", "rate_control.rate")];
        for (part, key) in rate {
            if recipe.has(part) {
                registry().set(&mut recipe, key, "4Mbit").unwrap();
            }
        }
        self.set.iter().for_each(|(key, value)| registry().set(&mut recipe, key, value).unwrap());
        recipe
    }
}

/// Two ends, with 5 ms in each direction.
struct Joined {
    now: Time,
    ends: [Stack; 2],
    sequence: std::ops::Range<usize>,
    clear: usize,
    rng: Rng,
    loss: f64,
    /// Packets in flight: arrival time and receiving end.
    flying: Vec<(Time, usize, Vec<u8>)>,
    /// Next packet number and next segment number of the sender.
    next: [u64; 2],
    /// The last acknowledgement of the required kind.
    honest: Option<Vec<u8>>,
    kind: u8,
    false_messages: u64,
    events: Vec<StackEvent>,
    sink_state: Arc<Mutex<SinkState>>,
    got: usize,
}

const OBJECT: u64 = 600_000;
const MESSAGES: usize = 300;

impl Joined {
    fn new(case: &Case, seed: u64, loss: f64) -> Self {
        let compiled = Arc::new(registry()).compile(&case.recipe(), TAG).unwrap();
        let attributes = compiled.layout().attributes();
        let at = attributes.iter().find(|attribute| attribute.name == SEQUENCE).unwrap();
        let sequence = usize::from(at.offset)..usize::from(at.offset + at.len);
        let clear = compiled.layout().clear_len();
        let sink_state = Arc::new(Mutex::new(SinkState { limit: u64::MAX >> 16, ..SinkState::default() }));
        let moves_object = case.recipe().has("object");
        let stack = |initiator: bool| {
            let source = PatternSource { len: OBJECT, released: Arc::default() };
            let ends = match (moves_object, initiator) {
                (false, _) => Ends::default(),
                (true, true) => Ends { object_source: Some(Box::new(source)), ..Ends::default() },
                (true, false) => {
                    Ends { object_sink: Some(Box::new(Shared(sink_state.clone()))), ..Ends::default() }
                }
            };
            let keys: Option<(Box<dyn Seal>, _)> = Some((Box::new(Checksum), Box::new(Checksum) as _));
            let (identity, initial_rtt) = (7, Span::from_millis(10));
            Stack::new(
                compiled.clone(),
                Setup { initiator, identity, keys, initial_rtt, ends, ..Setup::new(Time::ZERO) },
            )
            .unwrap()
        };
        let mut ends = [stack(true), stack(false)];
        if !moves_object {
            for n in 0..MESSAGES {
                // Each reports something new.
                let body = [&[n as u8, (n / 256) as u8][..], &[n as u8; 300]].concat();
                ends[0].send(Time::ZERO, &body, SendOptions::default()).unwrap();
            }
        }
        Self {
            now: Time::ZERO,
            ends,
            sequence,
            clear,
            rng: Rng::from_seed(seed),
            loss,
            flying: Vec::new(),
            next: [0; 2],
            honest: None,
            kind: case.kind,
            false_messages: 0,
            events: Vec::new(),
            sink_state,
            got: 0,
        }
    }

    fn record(&mut self, from: usize, packet: &[u8]) {
        let number = |at: &[u8]| at.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        if from == 1 && packet[0] == self.kind {
            self.honest = Some(packet.to_vec());
        } else if from == 0 {
            self.next[0] = self.next[0].max(number(&packet[1..=U48]) + 1);
            if packet[0] <= 2 {
                self.next[1] = self.next[1].max(number(&packet[self.sequence.clone()]) + 1);
            }
        }
    }

    /// Advances the clock by 1 ms.
    fn step(&mut self) {
        self.now += Span::from_millis(1);
        let mut slot = vec![0; 65_536];
        for from in 0..2 {
            self.ends[from].on_deadline(self.now);
            while let Some(sent) = self.ends[from].poll_transmit(self.now, &mut slot) {
                for packet in slot[..sent.len].chunks(sent.segment_size) {
                    self.record(from, packet);
                    if packet.len() <= 1_472 && !self.rng.chance(self.loss) {
                        self.flying.push((self.now + Span::from_millis(5), 1 - from, packet.to_vec()));
                    }
                }
            }
        }
        let (arrived, flying) =
            std::mem::take(&mut self.flying).into_iter().partition(|(at, ..)| *at <= self.now);
        self.flying = flying;
        for (_, to, packet) in arrived {
            self.arrive(to, packet);
        }
        self.events.extend(std::iter::from_fn(|| self.ends[0].poll_event()));
        while self.ends[1].poll_event().is_some() {}
        while let Some((_, body)) = self.ends[1].recv() {
            self.got += 1;
            self.ends[1].recycle(body);
        }
    }

    fn arrive(&mut self, to: usize, mut data: Vec<u8>) {
        let stride = data.len();
        let (arrival, path, ecn) = (None, PathId::default(), Ecn::NotEct);
        let mut received = Received { data: &mut data, stride, arrival, path, ecn, socket_drops: None };
        self.ends[to].on_receive(self.now, &mut received);
    }

    /// Runs until there is an acknowledgement to be changed; returns whether there is.
    fn until_acknowledged(&mut self) -> bool {
        (0..4_000).any(|_| {
            self.step();
            self.honest.is_some()
        })
    }

    /// Sends a claim of the receiver for a number that far beyond what was sent.
    fn falsify(&mut self, case: &Case, claim: Claim, excess: u64) {
        let honest = self.honest.clone().unwrap();
        let mut body = honest[self.clear..honest.len() - TAG].to_vec();
        let next = self.next[usize::from(!matches!(claim, Claim::Packet))];
        // As a limit, the number after the last one sent is the truth.
        let number = next + excess + u64::from(!matches!(claim, Claim::Packet));
        (case.falsify)(claim, &mut body, number);
        self.false_messages += 1;
        let pn = (1 << 40) + self.false_messages;
        let mut packet = [&honest[..self.clear], &body, &[0; TAG]].concat();
        write_number(&mut packet[1..PACKET_HEADER_LEN], pn);
        let stride = packet.len();
        Checksum.seal_batch(&mut packet, stride, self.clear, pn);
        self.arrive(0, packet);
    }

    fn is_complete(&self, case: &Case) -> bool {
        if case.recipe().has("object") {
            let sink_state = self.sink_state.lock().unwrap();
            sink_state.complete == Some(OBJECT)
                && sink_state.wrong == 0
                && self.events.contains(&StackEvent::Delivered)
        } else {
            self.got == MESSAGES
        }
    }
}

/// Way, claim, and distance from the truth.
fn false_messages() -> impl Strategy<Value = (&'static Case, Claim, u64)> {
    let excess = prop_oneof![2 => 0u64..3, 1 => 0u64..1 << 40];
    (prop::sample::select(CASES), excess).prop_flat_map(|(case, excess)| {
        prop::sample::select(case.claims).prop_map(move |claim| (leaked(case), claim, excess))
    })
}

fn leaked(case: Case) -> &'static Case {
    Box::leak(Box::new(case))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn acknowledging_unsent_packets_is_refused_and_finally_ends_the_session_by_name(
        (case, claim, excess) in false_messages(), millis in 0u64..200, seed: u64,
    ) {
        let mut joined = Joined::new(case, seed, 0.05);
        prop_assert!(joined.until_acknowledged());
        (0..millis).for_each(|_| joined.step());
        let before = joined.ends[0].stats().violations;
        let (outstanding, unfinished) = (joined.ends[0].outstanding(), joined.ends[0].unfinished());
        for n in 1..=SURVIVED as u64 {
            joined.falsify(case, claim, excess);
            prop_assert_eq!(joined.ends[0].stats().violations, before + n, "{:?} {:?}", case, claim);
        }
        prop_assert_eq!((joined.ends[0].outstanding(), joined.ends[0].unfinished()), (outstanding, unfinished));
        prop_assert!(!joined.ends[0].has_failed());
        joined.falsify(case, claim, excess);
        joined.step();
        let names = |event: &StackEvent| match event {
            StackEvent::Failed { message, .. } => message.ends_with(&format!("the last for `{}`", case.name)),
            _ => false,
        };
        prop_assert!(joined.events.iter().any(names), "{:?}: {:?}", case, joined.events);
    }

    /// Lies that the session survives, between true reports, do no harm: all arrives, nothing too early.
    #[test]
    fn a_few_false_messages_do_not_harm_a_session(
        (case, claim, excess) in false_messages(), every in 1u64..20, loss in 0.0..0.1f64, seed: u64,
    ) {
        let mut joined = Joined::new(case, seed, loss);
        let mut is_complete = false;
        for n in 0..120_000u64 {
            joined.step();
            if joined.honest.is_some() && joined.false_messages < SURVIVED as u64 && n.is_multiple_of(every) {
                joined.falsify(case, claim, excess);
            }
            is_complete = joined.is_complete(case);
            if is_complete {
                break;
            }
        }
        prop_assert!(is_complete, "{:?} {:?}: {} of {MESSAGES}; {:?}", case, claim, joined.got, joined.ends[0]);
        prop_assert_eq!(joined.ends[0].stats().violations, joined.false_messages);
    }
}
