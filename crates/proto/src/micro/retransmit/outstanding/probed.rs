//! What becomes of packets that left again because the probe timer fired. Nobody had missed them, and an acknowledgement
//! does not say which of a packet's transmissions has arrived. As with TCP's loss probes (RFC 8985 section 7.4), the
//! receiver's count of packets that came again tells: one transmission brought the packet, as many others as it counts
//! came again, and the rest were lost. A segment that goes in parts counts as its last packet.

use super::{LossBoundary, Record};

/// One transmission of such a packet.
#[derive(Clone, Copy, Debug)]
struct Transmission {
    seq: u64,
    pn: u64,
    /// Wrapped microseconds of the sender's clock.
    sent_at: u32,
    len: u16,
    /// The packet has arrived by another one.
    has_arrived: bool,
}

/// All transmissions of these packets whose fate is not known, in the order in which they left.
#[derive(Debug, Default)]
pub(super) struct Probed {
    list: Vec<Transmission>,
    /// How far the receiver's count of packets that came again is explained.
    explained: u32,
}

impl Probed {
    fn has(&self, seq: u64) -> bool {
        self.list.iter().any(|one| one.seq == seq && !one.has_arrived)
    }

    /// The timer takes the packet's newest transmission for lost, and it will leave again.
    pub(super) fn on_timeout(&mut self, seq: u64, record: &Record) {
        if self.list.iter().all(|one| one.pn != record.pn) {
            self.add(seq, record);
        }
    }

    /// A packet has left again.
    pub(super) fn on_resent(&mut self, seq: u64, record: &Record) {
        if self.has(seq) {
            self.add(seq, record);
        }
    }

    fn add(&mut self, seq: u64, record: &Record) {
        let Record { pn, sent_at, len, .. } = *record;
        self.list.push(Transmission { seq, pn, sent_at, len, has_arrived: false });
    }

    /// The packet has not arrived: gives number and payload bytes of those transmissions that count as lost. Returns
    /// whether the packet is one of these at all.
    pub(super) fn on_missing(
        &mut self,
        seq: u64,
        rule: &LossBoundary,
        mut lost: impl FnMut(u64, u16),
    ) -> bool {
        let is_known = self.has(seq);
        self.list.retain(|one| {
            let is_lost = one.seq == seq && !one.has_arrived && rule.is_behind(one.pn, one.sent_at);
            if is_lost {
                lost(one.pn, one.len);
            }
            !is_lost
        });
        is_known
    }

    /// A report has been taken in, by which `duplicates` packets came again in all, wrapping. Gives number and payload
    /// bytes of those transmissions that were lost, of packets that have arrived. Without a rule that can never be told.
    pub(super) fn on_report(
        &mut self,
        has_arrived: impl Fn(u64) -> bool,
        duplicates: u32,
        rule: Option<&LossBoundary>,
        mut lost: impl FnMut(u64, u16),
    ) {
        let mut unexplained = duplicates.wrapping_sub(self.explained).cast_signed().max(0);
        if self.list.is_empty() {
            self.explained = self.explained.wrapping_add(unexplained.cast_unsigned());
            return;
        }
        while let Some(arrived) = self.list.iter().position(|one| !one.has_arrived && has_arrived(one.seq)) {
            self.on_arrived(self.list[arrived].seq, rule);
        }
        let Some(rule) = rule else { return self.list.retain(|one| !one.has_arrived) };
        self.list.retain(|one| {
            let is_known = one.pn == rule.largest_pn || rule.is_behind(one.pn, one.sent_at);
            if !one.has_arrived || !is_known {
                return true;
            }
            if unexplained > 0 {
                unexplained -= 1;
                self.explained = self.explained.wrapping_add(1);
            } else {
                lost(one.pn, one.len);
            }
            false
        });
    }

    /// The packet has arrived. Had a late transmission brought it, a report would have said so soon: the newest did if the
    /// report is about its time, else the first did, and the silence was one of the way back.
    fn on_arrived(&mut self, seq: u64, rule: Option<&LossBoundary>) {
        let is_of_now = |one: &Transmission| {
            rule.is_some_and(|rule| one.pn <= rule.largest_pn && !rule.is_behind(one.pn, one.sent_at))
        };
        let newest = self.list.iter().rposition(|one| one.seq == seq && is_of_now(one));
        let by = newest.or_else(|| self.list.iter().position(|one| one.seq == seq));
        if let Some(by) = by {
            self.list.remove(by);
        }
        self.list.iter_mut().filter(|one| one.seq == seq).for_each(|one| one.has_arrived = true);
    }
}
