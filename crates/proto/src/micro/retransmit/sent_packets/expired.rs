//! Transmissions that were repeated because nothing was heard, until it is known whether they were lost.

use std::collections::VecDeque;

use crate::micro::events::LossBoundary;

/// More wait only while nothing is heard for some minutes: then nothing is said of the oldest.
const MOST: usize = 256;

/// A transmission that is taken for lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    /// Its packet number.
    pub(crate) pn: u64,
    /// When it left, wrapped microseconds of the sender's clock.
    pub(crate) sent_at: u32,
}

#[derive(Clone, Copy, Debug)]
struct Repeated {
    seq: u64,
    first: Lost,
    /// Payload bytes.
    len: u16,
    /// The next transmission of the same packet, once it has left.
    again: Option<Lost>,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Expired {
    list: VecDeque<Repeated>,
    /// Packets that came to the other side again, and that no transmission here is known to be.
    duplicates: u64,
}

/// What a report says of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    Missing,
    Arrived,
    NeverSent,
}

impl Expired {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// A packet of `len` payload bytes is to leave again; `first` is its latest transmission so far.
    pub(super) fn add(&mut self, seq: u64, first: Lost, len: u16) {
        if self.list.len() == MOST {
            self.list.pop_front();
        }
        self.list.push_back(Repeated { seq, first, len, again: None });
    }

    /// A packet has left again.
    pub(super) fn on_resent(&mut self, seq: u64, again: Lost) {
        if let Some(one) = self.list.iter_mut().find(|one| one.seq == seq && one.again.is_none()) {
            one.again = Some(again);
        }
    }

    /// Hands out those that a report shows to have been lost, each with its payload bytes. If a packet has arrived and
    /// its repetition can have, one of the two was lost unless it came twice (RFC 3522 tells that from a timestamp).
    /// The newest of several repetitions is the likeliest to have come.
    pub(super) fn settle(
        &mut self,
        rule: &LossBoundary,
        duplicates: u64,
        said: impl Fn(u64) -> Said,
        mut lost: impl FnMut(Lost, u16),
    ) {
        let mut left = self.duplicates.saturating_add(duplicates);
        let list = std::mem::take(&mut self.list);
        let mut found = Vec::new();
        for one in list.iter().rev() {
            let is_passed = rule.is_passed(one.first.pn, one.first.sent_at);
            match one.again {
                _ if is_passed && said(one.seq) == Said::Missing => found.push((one.first, one.len)),
                // It has arrived before it was repeated.
                None if is_passed => {}
                Some(again) if is_passed && again.pn <= rule.largest_pn => {
                    if left > 0 {
                        left -= 1;
                        continue;
                    }
                    let which = if has_first_arrived(&list, one.seq, &said) { again } else { one.first };
                    found.push((which, one.len));
                }
                _ => self.list.push_front(*one),
            }
        }
        found.into_iter().rev().for_each(|(which, len)| lost(which, len));
        self.duplicates = if self.list.is_empty() { 0 } else { left };
    }
}

/// Whether it was the first transmission of a packet that has arrived: then so has the next packet, which was not
/// repeated.
fn has_first_arrived(list: &VecDeque<Repeated>, seq: u64, said: impl Fn(u64) -> Said) -> bool {
    let is_repeated = |seq: u64| list.iter().any(|one| one.seq == seq);
    // One of so many is not among them.
    let mut next = seq + 1..seq + 2 + list.len() as u64;
    next.find(|seq| !is_repeated(*seq)).is_some_and(|seq| said(seq) == Said::Arrived)
}
