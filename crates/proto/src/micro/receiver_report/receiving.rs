//! The receiver's side: records and reports arrivals.

use std::collections::VecDeque;

use haul_base::{Ecn, Span, Time};
use haul_stack::{Batch, Context};

use super::wire::{FIXED, Head, MAX_WORDS, REPORT};
use crate::micro::events::ReceiverCounters;
use crate::micro::stats::ReceiverReportStats;

/// Number of reports that cover the same packet.
const REPEATS: usize = 3;
/// Number of unreported words after which a report is due at once: a report holds [`MAX_WORDS`], and repeats
/// the words of the last reports.
const MAX_UNREPORTED: u64 = MAX_WORDS as u64 / (REPEATS as u64 + 1);

/// Arrivals of the newest packets: a bit each, in words of 64.
#[derive(Debug, Default)]
struct Packets {
    words: VecDeque<u64>,
    /// Number of the first word.
    first: u64,
}

impl Packets {
    /// Records a packet; returns whether it had already arrived. Ignores packets below the first word.
    fn insert(&mut self, pn: u64) -> bool {
        let word = pn / 64;
        if self.words.is_empty() {
            self.first = word;
        }
        let Some(mut at) = word.checked_sub(self.first) else { return false };
        let most = MAX_WORDS as u64;
        if at >= most {
            let passed = at - (most - 1);
            self.words.drain(..self.words.len().min(usize::try_from(passed).unwrap_or(usize::MAX)));
            self.first += passed;
            at = most - 1;
        }
        let at = at as usize;
        while self.words.len() <= at {
            self.words.push_back(0);
        }
        let known = self.words[at] >> (pn % 64) & 1 == 1;
        self.words[at] |= 1 << (pn % 64);
        known
    }

    /// Returns the words from number `from` on, and the number of the first.
    fn from(&self, from: u64) -> (u64, impl ExactSizeIterator<Item = u64> + '_) {
        let skipped = from.saturating_sub(self.first).min(self.words.len() as u64 - 1);
        (self.first + skipped, self.words.iter().skip(skipped as usize).copied())
    }
}

/// The newest packet received.
#[derive(Clone, Copy, Debug)]
struct Newest {
    pn: u64,
    /// When the kernel received it.
    at: Time,
}

/// State of the receiver's side.
#[derive(Debug)]
pub(super) struct Receiving {
    interval: Span,
    arrived: Packets,
    newest: Option<Newest>,
    bytes: u64,
    counters: ReceiverCounters,
    /// When the kernel received the last packets.
    arrived_at: Time,
    due: Option<Time>,
    reported: Option<Time>,
    /// The word of the newest packet in the last reports, oldest first.
    reported_words: VecDeque<u64>,
    reports: u64,
}

impl Receiving {
    pub(super) fn new(interval: Span) -> Self {
        Self {
            interval,
            arrived: Packets::default(),
            newest: None,
            bytes: 0,
            counters: ReceiverCounters::default(),
            arrived_at: Time::ZERO,
            due: None,
            reported: None,
            reported_words: VecDeque::new(),
            reports: 0,
        }
    }

    pub(super) fn set_interval(&mut self, interval: Span) {
        self.interval = interval;
    }

    /// When the next report is due, if there is anything to report.
    pub(super) fn due(&self) -> Option<Time> {
        self.due
    }

    pub(super) fn on_arrival(&mut self, batch: &Batch<'_>, context: &Context<'_>) {
        let (now, arrival) = (context.now(), context.arrival());
        let counters = &mut self.counters;
        let before = counters.packets;
        for i in batch.live() {
            let pn = batch.pn(i);
            counters.packets += 1;
            self.bytes += batch.size(i) as u64;
            counters.duplicates = counters.duplicates.wrapping_add(u32::from(self.arrived.insert(pn)));
            if self.newest.is_none_or(|newest| pn > newest.pn) {
                self.newest = Some(Newest { pn, at: arrival.at });
            }
        }
        if counters.packets == before {
            return;
        }
        if arrival.ecn == Ecn::Ce {
            counters.ecn_ce = counters.ecn_ce.wrapping_add((counters.packets - before) as u32);
        }
        counters.buffers = counters.buffers.wrapping_add(1);
        let read_delay = now.since(arrival.at).as_micros();
        counters.read_delay_us = u32::try_from(read_delay).unwrap_or(u32::MAX);
        self.arrived_at = arrival.at;
        let reported = self.reported_words.back().copied().unwrap_or(0);
        let is_full = self.newest.is_some_and(|newest| newest.pn / 64 >= reported + MAX_UNREPORTED);
        let regular = self.reported.map_or(now, |reported| (reported + self.interval).max(now));
        let next = if is_full { now } else { regular };
        self.due = Some(self.due.map_or(next, |due| due.min(next)));
    }

    /// Writes a report if one is due.
    pub(super) fn write(&mut self, batch: &mut Batch<'_>, context: &Context<'_>) {
        let now = context.now();
        let (Some(newest), true) = (self.newest, self.due.is_some_and(|due| due <= now)) else { return };
        let from = self.reported_words.front().copied().unwrap_or(0);
        let (first_word, words) = self.arrived.from(from);
        let head = Head {
            largest_pn: newest.pn,
            bytes: self.bytes,
            first_word,
            received_at: self.arrived_at.as_wrapped_micros(),
            echo_delay: now.since(newest.at),
            counters: ReceiverCounters { socket_drops: context.arrival().socket_drops, ..self.counters },
        };
        let Some(i) = batch.push(REPORT, FIXED + words.len() * 8) else { return };
        let (fixed, rest) = batch.payload_mut(i).split_at_mut(FIXED);
        head.write(fixed);
        rest.chunks_exact_mut(8)
            .zip(words)
            .for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_be_bytes()));
        (self.due, self.reported) = (None, Some(now));
        self.reported_words.push_back(newest.pn / 64);
        if self.reported_words.len() > REPEATS {
            self.reported_words.pop_front();
        }
        self.reports += 1;
    }

    pub(super) fn count(&self, stats: &mut ReceiverReportStats) {
        stats.packets_received = self.counters.packets;
        stats.bytes_received = self.bytes;
        stats.duplicates = self.counters.duplicates;
        stats.ecn_ce = self.counters.ecn_ce;
        stats.reports_sent = self.reports;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_packets_are_remembered() {
        let mut packets = Packets::default();
        assert!(!packets.insert(130) && !packets.insert(131) && packets.insert(130));
        assert!(!packets.insert(5), "below the first word");
        assert_eq!(packets.from(0).0, 2);
        assert_eq!(packets.from(0).1.collect::<Vec<_>>(), [0b1100]);
        let far = 64 * 1_000 + 1;
        assert!(!packets.insert(far) && !packets.insert(131) && !packets.insert(far - 64 * 63));
        let (first, words) = packets.from(0);
        let words: Vec<u64> = words.collect();
        assert_eq!((first, words.len(), words[0], words[63]), (937, 64, 0b10, 0b10));
        assert_eq!(packets.from(999).1.collect::<Vec<_>>(), [0, 0b10]);
    }
}
