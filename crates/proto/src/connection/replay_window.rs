//! Anti-replay window (RFC 4303, section 3.4.3): each packet number is accepted once.

/// Length of the window in words of 64 packet numbers: a packet overtaken by more is refused.
const WINDOW_WORDS: usize = 16;

/// Set of the latest packet numbers received. Unlike a window over sequence numbers it ends at the highest: a
/// lost packet number never arrives, so nothing waits for it, and an idle connection needs only 64 bits.
#[derive(Debug, Default)]
pub struct ReplayWindow {
    /// Highest packet number received, plus one.
    end: u64,
    /// While idle: bit `pn % 64` for each of the last 64; older ones count as received.
    latest: u64,
    /// While active: bit `pn % 1024` for each of the last 1,024.
    seen: Option<Box<[u64; WINDOW_WORDS]>>,
}

impl ReplayWindow {
    /// Number of packet numbers covered while active.
    pub const LEN: u64 = 64 * WINDOW_WORDS as u64;

    fn place(pn: u64) -> (usize, u64) {
        ((pn / 64) as usize % WINDOW_WORDS, 1 << (pn % 64))
    }

    /// Returns the highest packet number received, plus one.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Whether a packet number is acceptable: not received yet, and not too old to know.
    pub fn is_new(&self, pn: u64) -> bool {
        let (word, bit) = Self::place(pn);
        let within = |len: u64| pn + len >= self.end;
        pn >= self.end
            || match &self.seen {
                Some(seen) => within(Self::LEN) && seen[word] & bit == 0,
                None => within(64) && self.latest & bit == 0,
            }
    }

    /// Records an authentic packet with this number.
    pub fn mark(&mut self, pn: u64) {
        let end = self.end;
        let mut seen = self.seen.take().unwrap_or_else(|| Box::new(self.expand()));
        if pn >= end {
            if pn - end >= Self::LEN {
                seen.fill(0);
            } else {
                for skipped in end..pn {
                    let (word, bit) = Self::place(skipped);
                    seen[word] &= !bit;
                }
            }
            self.end = pn + 1;
        }
        let (word, bit) = Self::place(pn);
        seen[word] |= bit;
        self.seen = Some(seen);
    }

    /// Expands the latest 64 bits to the whole window; older packet numbers count as received.
    fn expand(&self) -> [u64; WINDOW_WORDS] {
        let mut seen = [u64::MAX; WINDOW_WORDS];
        for pn in self.end.saturating_sub(64)..self.end {
            let (word, bit) = Self::place(pn);
            if self.latest & bit == 0 {
                seen[word] &= !bit;
            }
        }
        seen
    }

    /// Keeps only the latest 64 packet numbers.
    pub fn release_idle(&mut self) {
        let Some(seen) = self.seen.take() else { return };
        self.latest = (self.end.saturating_sub(64)..self.end)
            .map(Self::place)
            .fold(0, |latest, (word, bit)| latest | seen[word] & bit);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The window accepts no number twice, and refuses no new one that is not too old: after idleness,
        /// not one within 64 of the end at that time.
        #[test]
        fn the_window_behaves_like_a_set(steps in prop::collection::vec((0u64..3_000, 0u32..20), 1..400)) {
            let (mut window, mut seen, mut end, mut floor) = (ReplayWindow::default(), HashSet::new(), 0u64, 0);
            for (pn, idle) in steps {
                if idle == 0 {
                    window.release_idle();
                    floor = floor.max(end.saturating_sub(64));
                }
                let fresh = !seen.contains(&pn);
                let expected = fresh && pn >= floor && pn + ReplayWindow::LEN >= end;
                prop_assert_eq!(window.is_new(pn), expected, "pn {}", pn);
                if expected {
                    window.mark(pn);
                    seen.insert(pn);
                    end = end.max(pn + 1);
                }
            }
        }
    }
}
