//! Path MTU discovery by probing (DPLPMTUD, RFC 8899). All sizes are UDP payload.

use haul_base::{Span, Time};

/// Datagram size that every path is assumed to carry (`BASE_PLPMTU`, RFC 8899, section 5.1.2).
pub const BASE_DATAGRAM: u16 = 1_200;

/// Sizes to probe first: Ethernet and jumbo frames, over IPv6 and IPv4 each.
const CANDIDATE_SIZES: [u16; 4] = [1_452, 1_472, 8_952, 8_972];

/// Lost probes of one size after which it counts as too large (`MAX_PROBES`, RFC 8899, section 5.1.2).
const MAX_PROBES: u8 = 3;

/// Size difference at which the search ends.
const RESOLUTION: u16 = 16;

/// Time after which a finished search probes larger sizes again (`PMTU_RAISE_TIMER`, RFC 8899, section
/// 5.1.1).
const RAISE_INTERVAL: Span = Span::from_secs(600);

/// Searches for the largest datagram that the path carries in one direction.
#[derive(Clone, Debug)]
pub struct MtuSearch {
    /// Largest size known to work.
    current: u16,
    /// Smallest size known or assumed not to work.
    ceiling: u16,
    /// Largest size that the local interface and the peer accept.
    limit: u16,
    likely: u16,
    probe: Option<Probe>,
    /// When the next probe may be sent.
    next_at: Time,
}

#[derive(Clone, Copy, Debug)]
struct Probe {
    size: u16,
    tries: u8,
    in_flight: bool,
}

impl MtuSearch {
    /// Starts a search at `validated` (at least [`BASE_DATAGRAM`]). It probes `likely` first if that is
    /// larger, and never exceeds `limit`.
    pub fn new(validated: u16, likely: u16, limit: u16) -> Self {
        let limit = limit.max(BASE_DATAGRAM);
        let current = validated.clamp(BASE_DATAGRAM, limit);
        let mut search = Self {
            current,
            ceiling: limit.saturating_add(1),
            limit,
            likely,
            probe: None,
            next_at: Time::ZERO,
        };
        search.choose();
        search
    }

    /// Returns the largest size that is safe to send.
    pub fn current(&self) -> u16 {
        self.current
    }

    /// Returns the size to probe now, if a probe is due. `alive`: other packets have arrived since the last
    /// probe was sent; otherwise the loss of the probe says nothing about its size.
    pub fn poll_probe(&mut self, now: Time, timeout: Span, alive: bool) -> Option<u16> {
        if now < self.next_at {
            return None;
        }
        if self.probe.is_none() {
            // The search had finished: search again, as larger sizes may work now.
            self.ceiling = self.limit.saturating_add(1);
            self.choose();
        } else if let Some(probe) = self.probe.as_mut().filter(|p| p.in_flight) {
            if alive {
                self.on_timeout(now);
            } else {
                probe.tries -= 1;
            }
        }
        let Some(probe) = self.probe.as_mut() else {
            self.next_at = now + RAISE_INTERVAL;
            return None;
        };
        probe.tries += 1;
        probe.in_flight = true;
        self.next_at = now + timeout;
        Some(probe.size)
    }

    /// Returns when to call [`MtuSearch::poll_probe`] next.
    pub fn deadline(&self) -> Time {
        self.next_at
    }

    /// Handles the peer's report that it received a probe of `size`. Returns whether the safe size grew. Only
    /// the probe in flight counts: a size that worked earlier may not work now.
    pub fn on_received(&mut self, now: Time, size: u16) -> bool {
        self.probe.is_some_and(|p| p.in_flight && p.size == size) && self.on_passed(now, size)
    }

    /// Records that datagrams of `size` currently pass. Returns whether the safe size grew.
    pub fn on_passed(&mut self, now: Time, size: u16) -> bool {
        if size <= self.current || size > self.limit {
            return false;
        }
        self.current = size;
        self.ceiling = self.ceiling.max(size.saturating_add(1));
        self.choose();
        self.next_at = if self.probe.is_some() { now } else { now + RAISE_INTERVAL };
        true
    }

    /// Handles `EMSGSIZE` from the local stack for a datagram of `size`: a probe, or, if the interface's MTU
    /// has shrunk, a packet of the current size.
    pub fn on_refused(&mut self, now: Time, size: u16) {
        if self.probe.is_some_and(|p| p.size == size) {
            self.fail(now);
        } else if (BASE_DATAGRAM + 1..=self.current).contains(&size) {
            self.on_black_hole(now);
            self.ceiling = size;
            self.choose();
        }
    }

    /// Falls back to [`BASE_DATAGRAM`] and restarts the search: full-size packets are lost while small ones
    /// pass (black hole, RFC 8899, section 4.3).
    pub fn on_black_hole(&mut self, now: Time) {
        self.ceiling = self.current;
        self.likely = BASE_DATAGRAM;
        self.current = BASE_DATAGRAM;
        self.choose();
        self.next_at = now;
    }

    fn on_timeout(&mut self, now: Time) {
        if self.probe.is_some_and(|p| p.tries >= MAX_PROBES) {
            self.fail(now);
        }
    }

    fn fail(&mut self, now: Time) {
        if let Some(probe) = self.probe.take() {
            self.ceiling = self.ceiling.min(probe.size);
            self.choose();
            self.next_at = if self.probe.is_some() { now } else { now + RAISE_INTERVAL };
        }
    }

    /// Picks the next size: the next step of the ladder within the bracket, else the bracket's middle.
    fn choose(&mut self) {
        let inside = |size: u16| size > self.current && size < self.ceiling;
        let step =
            [self.likely].into_iter().chain(CANDIDATE_SIZES).chain([self.limit]).find(|&size| inside(size));
        let middle = self.current + (self.ceiling - self.current) / 2;
        let size = step.or((self.ceiling - self.current > RESOLUTION).then_some(middle));
        self.probe = size.map(|size| Probe { size, tries: 0, in_flight: false });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TIMEOUT: Span = Span::from_millis(100);

    /// Runs the search on a path that carries `path` bytes; returns the size found and the number of probes.
    fn search(path: u16, limit: u16) -> (u16, usize) {
        let mut search = MtuSearch::new(BASE_DATAGRAM, BASE_DATAGRAM, limit);
        let (mut now, mut probes) = (Time::ZERO, 0);
        while now < Time::ZERO + Span::from_secs(60) {
            if let Some(size) = search.poll_probe(now, TIMEOUT, true) {
                probes += 1;
                assert!(size <= limit);
                if size <= path {
                    search.on_received(now, size);
                }
            }
            now += Span::from_millis(10);
        }
        (search.current(), probes)
    }

    #[test]
    fn ethernet_and_jumbo_frames_are_found_exactly() {
        assert_eq!(search(1_472, 8_972).0, 1_472);
        assert_eq!(search(8_972, 8_972).0, 8_972);
        assert_eq!(search(1_472, 1_472).0, 1_472);
    }

    #[test]
    fn a_lost_probe_is_tried_again() {
        let mut search = MtuSearch::new(BASE_DATAGRAM, BASE_DATAGRAM, 1_472);
        let first = search.poll_probe(Time::ZERO, TIMEOUT, true).unwrap();
        assert_eq!(search.poll_probe(Time::ZERO + Span::from_millis(50), TIMEOUT, true), None);
        let second = search.poll_probe(Time::ZERO + TIMEOUT, TIMEOUT, true).unwrap();
        assert_eq!(first, second);
    }

    #[test]
    fn probes_lost_while_nothing_arrives_do_not_count() {
        let mut search = MtuSearch::new(BASE_DATAGRAM, BASE_DATAGRAM, 1_472);
        let mut now = Time::ZERO;
        let first = search.poll_probe(now, TIMEOUT, false).unwrap();
        for _ in 0..20 {
            now += TIMEOUT;
            assert_eq!(search.poll_probe(now, TIMEOUT, false), Some(first));
        }
        assert!(search.on_received(now, first));
    }

    #[test]
    fn a_refused_packet_of_the_size_in_force_falls_back_to_the_base_at_once() {
        let mut search = MtuSearch::new(8_972, 8_972, 8_972);
        search.on_refused(Time::ZERO, 8_972);
        assert_eq!(search.current(), BASE_DATAGRAM);
        let size = search.poll_probe(Time::ZERO, TIMEOUT, true).unwrap();
        assert!((BASE_DATAGRAM + 1..8_972).contains(&size), "{size}");
        // Batches of the old size already queued at the socket change nothing more.
        search.on_refused(Time::ZERO, 8_972);
        assert_eq!(search.poll_probe(Time::ZERO + TIMEOUT, TIMEOUT, true), Some(size));
    }

    #[test]
    fn a_black_hole_falls_back_to_the_base_and_searches_below() {
        let mut search = MtuSearch::new(1_472, 1_472, 1_472);
        search.on_black_hole(Time::ZERO);
        assert_eq!(search.current(), BASE_DATAGRAM);
        let size = search.poll_probe(Time::ZERO, TIMEOUT, true).unwrap();
        assert!(size > BASE_DATAGRAM && size < 1_472, "{size}");
    }

    proptest! {
        #[test]
        fn the_size_found_works_and_is_close_to_the_largest(path in 1_200u16..9_100, limit in 1_200u16..9_100) {
            let (found, probes) = search(path, limit);
            let best = path.min(limit);
            prop_assert!(found <= best);
            prop_assert!(best - found <= RESOLUTION, "found {} of {}", found, best);
            prop_assert!(probes < 60, "{} probes", probes);
        }
    }
}
