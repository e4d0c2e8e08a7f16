//! What the sender learns from feedback.

use haul_base::{Rate, Span, Time};
use haul_wire::packet::{FeedbackHeader, FeedbackView, PacketKind};

use super::outstanding::{Change, LossRule};
use super::{Sender, SenderEvent};
use crate::control::FeedbackSample;

/// Smallest and largest reordering window. RFC 8985 section 6.2.1 takes a quarter of the smallest round trip;
/// the floor keeps a receiver's batched reading from looking like reordering.
const REORDERING_MIN: Span = Span::from_micros(500);
const REORDERING_MAX: Span = Span::from_millis(50);
/// RFC 8985 section 6.2.1 bounds the number of steps by the smoothed round trip; this is our bound.
const MAX_REORDERING_STEPS: u32 = 16;

impl Sender {
    pub(super) fn on_packet(&mut self, now: Time, packet: &mut [u8]) {
        let Some(opened) = self.link.open(packet) else {
            return;
        };
        match opened.kind {
            PacketKind::Feedback => match FeedbackView::parse(opened.body) {
                Ok(view) if self.is_possible(&view.header) => self.on_feedback(now, opened.pn, &view),
                _ => self.link.reject(),
            },
            _ => self.link.reject(),
        }
    }

    /// A receiver cannot have what was never sent.
    fn is_possible(&self, header: &FeedbackHeader) -> bool {
        header.largest_pn < self.link.next_pn() && header.highest <= self.outstanding.next_seq()
    }

    fn on_feedback(&mut self, now: Time, pn: u64, view: &FeedbackView<'_>) {
        let newest = self.newest_feedback.is_none_or(|newest| pn > newest);
        self.stats.feedback += 1;
        self.note_life(now, view.header.packets);
        let delivery_rate = newest.then(|| self.on_scalars(now, pn, &view.header)).flatten();
        let change = self.on_statements(view);
        if change.acked_packets > 0 {
            self.timeouts_in_row = 0;
            self.timer_base = now;
        }
        self.stats.acked += change.acked_packets;
        self.stats.object_acked += change.acked_bytes;
        self.stats.lost += change.lost_packets;
        let sample = FeedbackSample {
            now,
            acked_packets: change.acked_packets,
            lost_packets: change.lost_packets,
            in_flight: self.outstanding.in_flight(),
            rtt: &self.rtt,
            delivery_rate,
            app_limited: view.header.largest_pn < self.app_limited_below,
        };
        self.controller.on_feedback(&sample);
        self.after_feedback();
    }

    /// Feedback is a sign of life in both directions only if it tells of packets that have arrived since, or if
    /// nothing is on its way.
    fn note_life(&mut self, now: Time, arrived: u64) {
        let nothing_sent = self.outstanding.is_empty() && !self.outstanding.has_lost();
        if arrived > self.heard_of || nothing_sent {
            self.heard_of = self.heard_of.max(arrived);
            self.heard_at = now;
            self.silent = false;
        }
    }

    fn on_scalars(&mut self, now: Time, pn: u64, header: &FeedbackHeader) -> Option<Rate> {
        self.newest_feedback = Some(pn);
        self.limit = self.limit.max(header.limit);
        if header.duplicates != self.stats.receiver_duplicates && self.stats.resent > 0 {
            self.reordering_steps = (self.reordering_steps + 1).min(MAX_REORDERING_STEPS);
        }
        self.stats.receiver_drops = header.socket_drops;
        self.stats.receiver_duplicates = header.duplicates;
        self.stats.ecn_ce = header.ecn_ce;
        if self.mtu.on_received(now, header.last_probe) {
            self.events.push_back(SenderEvent::PathMtu(self.mtu.current()));
        }
        if header.highest == 0 {
            return None;
        }
        if self.largest_acked_pn.is_none_or(|largest| header.largest_pn > largest) {
            self.largest_acked_pn = Some(header.largest_pn);
            self.on_echo(now, header);
        }
        let span = self.rtt.smoothed();
        let rate = self.meter.on_feedback(header.received_at, header.bytes, span);
        if let Some(rate) = rate {
            self.stats.peak_delivery_bps = self.stats.peak_delivery_bps.max(rate.as_bps());
        }
        rate
    }

    /// A round trip, from the echo of the newest transmission's timestamp.
    fn on_echo(&mut self, now: Time, header: &FeedbackHeader) {
        let elapsed = now.as_wrapped_micros().wrapping_sub(header.echo_timestamp);
        let sample = u64::from(elapsed).saturating_sub(u64::from(header.echo_delay_us));
        // More than a minute is a wrong clock or a lie.
        if sample < 60_000_000 {
            self.rtt.on_sample(Span::from_micros(sample.max(1)));
        }
    }

    fn reordering_window(&self) -> Span {
        let base = (self.rtt.min() / 4).max(REORDERING_MIN);
        (base * u64::from(self.reordering_steps)).min(REORDERING_MAX)
    }

    fn on_statements(&mut self, view: &FeedbackView<'_>) -> Change {
        let header = &view.header;
        if header.highest == 0 {
            return Change::default();
        }
        let rule = LossRule {
            largest_pn: header.largest_pn,
            echo_ts: header.echo_timestamp,
            reordering: self.reordering_window(),
        };
        let mut total = self.outstanding.on_complete_below(header.complete_below);
        for block in view.blocks() {
            for i in 0..block.words {
                let word = block.word(i);
                total += self.outstanding.on_word(u64::from(block.segment), block.first_word + i, word, rule);
            }
        }
        total += self.outstanding.on_nothing_from(header.highest, rule);
        self.outstanding.retire_complete();
        total
    }

    fn after_feedback(&mut self) {
        if let Some(offset) = self.outstanding.released().filter(|&offset| offset > self.released) {
            self.released = offset;
            self.source.release(offset);
        }
        if self.fin_sent && !self.delivered && self.outstanding.is_empty() {
            self.delivered = true;
            self.source.release(self.next_offset);
            self.events.push_back(SenderEvent::Delivered);
        }
    }
}
