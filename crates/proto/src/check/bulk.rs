//! Checks of the two ends of an object against arbitrary packets.

use std::sync::{Arc, Mutex, PoisonError};

use haul_base::{Machine as _, Piece, RangeSet, Span, Time};
use haul_stack::{Available, Kind, ObjectSink, ObjectSource};
use haul_wire::check::Steps;
use haul_wire::packet::{
    DATA_BODY_LEN, DataBody, FEEDBACK_HEADER_LEN, FeedbackHeader, FeedbackWriter, MAX_SEQ, PacketKind,
};

use super::machine::{Driven, Plain};
use crate::{
    ControllerConfig, Link, Receiver, ReceiverConfig, ReceiverEvent, Sender, SenderConfig, SenderEvent,
    build_controller,
};

/// Bytes that the receiver permits, and that the sender has.
const OBJECT: u64 = 1 << 20;
const INTERVAL: Span = Span::from_millis(2);
const SILENCE: Span = Span::from_secs(15);

fn link() -> Link {
    Link::new(Box::new(Plain), Box::new(Plain), 0)
}

/// Reads the big-endian number in `len` bytes of `body` from `at` on; missing bytes are zeros.
fn number(body: &[u8], at: usize, len: usize) -> u64 {
    (at..at + len).fold(0, |number, i| number << 8 | u64::from(body.get(i).copied().unwrap_or_default()))
}

#[derive(Debug, Default)]
struct SinkState {
    ranges: RangeSet,
    delivered: u64,
    complete: Option<u64>,
}

struct Sink(Arc<Mutex<SinkState>>);

impl ObjectSink for Sink {
    fn deliver(&mut self, data: &[u8], pieces: &[Piece]) {
        let mut sink_state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for piece in pieces {
            let len = data[piece.range.clone()].len() as u64;
            assert!(piece.offset + len <= OBJECT, "bytes behind the limit are delivered");
            assert!(sink_state.complete.is_none(), "bytes are delivered behind the end");
            sink_state.ranges.insert(piece.offset..piece.offset + len);
            sink_state.delivered += len;
        }
    }

    fn limit(&mut self) -> u64 {
        OBJECT
    }

    fn complete(&mut self, len: u64) {
        let mut sink_state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let end = sink_state.ranges.iter().last().map_or(0, |range| range.end);
        assert!(end <= len && len <= OBJECT, "{end} bytes of {len}");
        assert!(
            len == 0 || sink_state.ranges.covers(0..len),
            "complete with gaps: {:?} of {len}",
            sink_state.ranges
        );
        assert_eq!(sink_state.complete.replace(len), None, "completed twice");
    }
}

/// A data packet: whether it is the last (1 byte), sequence number (2), offset (3), length (2).
fn data(body: &[u8]) -> Vec<u8> {
    let kind = if number(body, 0, 1) % 2 == 1 { Kind::DATA_FIN } else { Kind::DATA };
    let mut packet = vec![0; 1 + DATA_BODY_LEN + number(body, 6, 2) as usize % 9_000];
    packet[0] = kind.0;
    let fields = DataBody { seq: number(body, 1, 2), offset: number(body, 3, 3), timestamp: 7 };
    fields.write(&mut packet[1..]);
    packet
}

/// Checks the receiver of an object: whatever arrives, it delivers no byte beyond the limit, beyond the end
/// or after completion, an object completes once and without gaps, the counters agree, no micro-protocol
/// fails except for inconsistent segments, and nothing continues for ever. Arbitrary bytes are [`Steps`]:
/// packets and time. Returns true if a byte was delivered.
///
/// # Panics
/// If a rule is violated.
pub fn bulk_receiver(bytes: &[u8]) -> bool {
    let sink_state = Arc::new(Mutex::new(SinkState::default()));
    let config = ReceiverConfig { feedback_interval: INTERVAL, feedback_datagram: 1_200, silence: SILENCE };
    let receiver = Receiver::new(Time::ZERO, config, link(), Box::new(Sink(sink_state.clone())));
    let mut driven = Driven::new(receiver);
    for (kind, body) in Steps::new(bytes).take(256) {
        match kind % 4 {
            0 => driven.receive(&data(body)),
            1 => driven.receive(body),
            2 => driven.pass(body),
            _ => driven.transmit(),
        }
        for event in driven.events() {
            match event {
                ReceiverEvent::Failed(why) => {
                    let expected = ["recipe:", "object: the sender's segment"];
                    assert!(expected.iter().any(|words| why.starts_with(words)), "{why}");
                }
                ReceiverEvent::Complete(len) => {
                    assert_eq!(sink_state.lock().unwrap_or_else(PoisonError::into_inner).complete, Some(len));
                }
                ReceiverEvent::Silent(_) => {}
            }
        }
    }
    driven.transmit();
    let sink_state = sink_state.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(driven.machine.stats().object_bytes, sink_state.delivered);
    !sink_state.ranges.is_empty()
}

/// A source of zeros.
struct Source {
    released: u64,
}

impl ObjectSource for Source {
    fn available(&mut self) -> Available {
        Available { upto: OBJECT, end: true }
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) {
        assert!(offset >= self.released, "it reads what was released");
        assert!(offset + into.len() as u64 <= OBJECT, "it reads behind the end");
        into.fill(0);
    }

    fn release(&mut self, offset: u64) {
        assert!((self.released..=OBJECT).contains(&offset), "{offset} is released");
        self.released = offset;
    }
}

/// A report: complete below (2 bytes), one more than the highest (2), largest packet number (2), packets (2),
/// limit (3), first word (1), its bits (8 each).
fn feedback(body: &[u8]) -> Vec<u8> {
    let complete_below = number(body, 0, 2);
    let header = FeedbackHeader {
        largest_pn: number(body, 4, 2),
        echo_timestamp: 7,
        echo_delay_us: 5,
        received_at: 9,
        packets: number(body, 6, 2),
        bytes: number(body, 6, 2) << 10,
        last_probe: 1,
        limit: number(body, 8, 3),
        complete_below,
        highest: number(body, 2, 2).max(complete_below).min(MAX_SEQ),
        ..FeedbackHeader::default()
    };
    let mut packet = vec![0; 1 + FEEDBACK_HEADER_LEN + 600];
    packet[0] = PacketKind::Feedback as u8;
    let words: Vec<u64> = body.get(12..).unwrap_or_default().chunks(8).map(|c| number(c, 0, 8)).collect();
    let mut len = 1 + FEEDBACK_HEADER_LEN;
    if let Ok(mut writer) = FeedbackWriter::new(&mut packet[1..], &header) {
        // What does not fit is omitted.
        let _ = (!words.is_empty() && words.len() < 16)
            .then(|| writer.push(0, number(body, 11, 1) as usize % 16, &words));
        len = 1 + writer.finish();
    }
    packet.truncate(len);
    packet
}

/// A sender that receives reports over the control channel, and pauses on request.
fn sender_over_control() -> Sender {
    let mut recipe = crate::presets::preset("fobs").and_then(Result::ok).expect("it is shipped");
    for (key, value) in [
        ("bitmap_ack.over", "control"),
        ("rate_control.controller", "stop_and_go"),
        ("rate_control.guess_at", "receiver"),
    ] {
        crate::micro::registry().set(&mut recipe, key, value).expect("the key is well-formed");
    }
    let config = SenderConfig { initial_rtt: Span::from_millis(10), ..SenderConfig::default() };
    let source = Box::new(Source { released: 0 });
    Sender::of_recipe(Time::ZERO, recipe, &config, link(), source, OBJECT / 2)
        .expect("a recipe that can be built")
}

fn sender() -> Sender {
    let config =
        ControllerConfig { ceiling: None, initial_rtt: Span::from_millis(10), feedback_interval: INTERVAL };
    let controller = build_controller("delivery", &config).expect("it is known");
    let config = SenderConfig { initial_rtt: config.initial_rtt, ..SenderConfig::default() };
    Sender::new(Time::ZERO, &config, link(), Box::new(Source { released: 0 }), controller, OBJECT / 2)
}

/// Checks the sender of an object: whatever is reported, it reads only bytes that exist and are not released,
/// no more is acknowledged than was sent, only a complete object counts as delivered, no micro-protocol
/// fails, and nothing continues for ever. Arbitrary bytes are [`Steps`]: packets and time; if the first has
/// its highest bit set, reports are messages of the control channel instead of packets. Returns true if a
/// report was accepted.
///
/// # Panics
/// If a rule is violated.
pub fn bulk_sender(bytes: &[u8]) -> bool {
    let over_control = bytes.first().is_some_and(|first| first & 0x80 != 0);
    let mut driven = Driven::new(if over_control { sender_over_control() } else { sender() });
    for _ in 0..20 {
        driven.pass(&[0, 1]);
        driven.transmit();
    }
    for (kind, body) in Steps::new(bytes).take(256) {
        match kind % 4 {
            0 if over_control => driven.machine.on_channel(driven.now, &feedback(body)),
            0 => driven.receive(&feedback(body)),
            1 if over_control => driven.machine.on_channel(driven.now, body),
            1 => driven.receive(body),
            2 => driven.pass(body),
            _ => driven.transmit(),
        }
        let stats = driven.machine.stats();
        assert!(stats.object_acked <= stats.object_sent && stats.object_sent <= OBJECT, "{stats:?}");
        for event in driven.events() {
            match event {
                SenderEvent::Failed(why) => assert!(why.starts_with("recipe:"), "{why}"),
                SenderEvent::Delivered => assert_eq!(stats.object_acked, OBJECT, "{stats:?}"),
                SenderEvent::PathMtu(_) | SenderEvent::Silent(_) => {}
            }
        }
    }
    driven.transmit();
    driven.machine.stats().feedback > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A segment: whether it is the last, its number, its offset and its length.
    type Segment = (bool, u64, u64, usize);

    /// Events of a receiver that gets these segments in order.
    fn received_events(segments: &[Segment]) -> Vec<ReceiverEvent> {
        let sink_state = Arc::new(Mutex::new(SinkState::default()));
        let config =
            ReceiverConfig { feedback_interval: INTERVAL, feedback_datagram: 1_200, silence: SILENCE };
        let mut driven = Driven::new(Receiver::new(Time::ZERO, config, link(), Box::new(Sink(sink_state))));
        for &(fin, seq, offset, len) in segments {
            let mut packet = vec![0; 1 + DATA_BODY_LEN + len];
            packet[0] = if fin { Kind::DATA_FIN.0 } else { Kind::DATA.0 };
            DataBody { seq, offset, timestamp: 7 }.write(&mut packet[1..]);
            driven.receive(&packet);
        }
        driven.events()
    }

    #[test]
    fn objects_with_gaps_are_incomplete_for_any_sequence_numbers() {
        let honest = [(false, 0, 0, 1_000), (false, 1, 1_000, 1_000), (true, 2, 2_000, 500)];
        assert_eq!(received_events(&honest), [ReceiverEvent::Complete(2_500)]);
        let lies: [&[Segment]; 6] = [
            // The same bytes twice, so that the total equals the object's length.
            &[(false, 0, 0, 1_000), (false, 1, 0, 1_000), (true, 2, 2_000, 500)],
            &[(true, 2, 2_000, 500), (false, 1, 0, 1_000), (false, 0, 0, 1_000)],
            // Not from the start; nothing at all.
            &[(false, 0, 500, 500), (true, 1, 1_000, 500)],
            &[(true, 0, 9_000, 0)],
            // The end after a gap; the last segment once more, longer.
            &[(false, 0, 0, 1_000), (true, 1, 5_000, 0)],
            &[(false, 0, 0, 1_000), (true, 0, 0, 5_000)],
        ];
        for lie in lies {
            let events = received_events(lie);
            let is_named = |event: &ReceiverEvent| matches!(event, ReceiverEvent::Failed(why) if why.contains("does not begin"));
            assert!(events.len() == 1 && events.iter().all(is_named), "{lie:?}: {events:?}");
        }
    }
}
