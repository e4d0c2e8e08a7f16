//! Transmissions that were repeated because of silence, until it is known whether they were lost.

use std::collections::VecDeque;

use crate::micro::events::LossBoundary;

/// Maximum number. More accumulate only during minutes of silence; the oldest are then not reported.
const MAX_EXPIRED: usize = 256;

/// A transmission declared lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    /// Packet number.
    pub(crate) pn: u64,
    /// Send time in wrapped microseconds of the sender's clock.
    pub(crate) sent_at: u32,
}

#[derive(Clone, Copy, Debug)]
struct Repeated {
    seq: u64,
    first: Lost,
    /// Payload bytes.
    len: u16,
    /// The next transmission of the same packet, once it was sent.
    again: Option<Lost>,
}

/// State of the repeated transmissions.
#[derive(Debug, Default)]
pub(super) struct Expired {
    list: VecDeque<Repeated>,
    /// Duplicates at the peer that are not yet matched with a transmission.
    duplicates: u64,
}

/// A report's information about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reported {
    Missing,
    Arrived,
    NeverSent,
}

impl Expired {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Records that a packet of `len` payload bytes will be repeated; `first` is its latest transmission so
    /// far.
    pub(super) fn add(&mut self, seq: u64, first: Lost, len: u16) {
        if self.list.len() == MAX_EXPIRED {
            self.list.pop_front();
        }
        self.list.push_back(Repeated { seq, first, len, again: None });
    }

    /// Records that a packet was repeated.
    pub(super) fn on_resent(&mut self, seq: u64, again: Lost) {
        if let Some(one) = self.list.iter_mut().find(|one| one.seq == seq && one.again.is_none()) {
            one.again = Some(again);
        }
    }

    /// Passes those that a report shows to have been lost to `lost`, each with its payload bytes. If a packet
    /// has arrived and its repetition must have arrived too, one of the two was lost unless there was a
    /// duplicate (RFC 3522 uses timestamps). The newest of several repetitions is the likeliest to have
    /// arrived.
    pub(super) fn settle(
        &mut self,
        rule: &LossBoundary,
        duplicates: u64,
        reported: impl Fn(u64) -> Reported,
        mut lost: impl FnMut(Lost, u16),
    ) {
        let mut remaining = self.duplicates.saturating_add(duplicates);
        let list = std::mem::take(&mut self.list);
        let mut found = Vec::new();
        for one in list.iter().rev() {
            let is_passed = rule.is_passed(one.first.pn, one.first.sent_at);
            match one.again {
                _ if is_passed && reported(one.seq) == Reported::Missing => found.push((one.first, one.len)),
                // It arrived before it was repeated.
                None if is_passed => {}
                Some(again) if is_passed && again.pn <= rule.largest_pn => {
                    if remaining > 0 {
                        remaining -= 1;
                        continue;
                    }
                    let which = if has_first_arrived(&list, one.seq, &reported) { again } else { one.first };
                    found.push((which, one.len));
                }
                _ => self.list.push_front(*one),
            }
        }
        found.into_iter().rev().for_each(|(which, len)| lost(which, len));
        self.duplicates = if self.list.is_empty() { 0 } else { remaining };
    }
}

/// Whether it was the first transmission of a packet that has arrived: then the next packet that was not
/// repeated has arrived too.
fn has_first_arrived(list: &VecDeque<Repeated>, seq: u64, reported: impl Fn(u64) -> Reported) -> bool {
    let is_repeated = |seq: u64| list.iter().any(|one| one.seq == seq);
    // At least one of this many is not in the list.
    let mut next = seq + 1..seq + 2 + list.len() as u64;
    next.find(|seq| !is_repeated(*seq)).is_some_and(|seq| reported(seq) == Reported::Arrived)
}
