//! Group transport: many senders and one receiver that assigns each a rate (GTP). The receiver's capacity is
//! divided max-min fair: no sender gets more than it can use, and the remainder is divided among the others,
//! by weight.
//!
//! Demands are not announced. A sender that uses its quota is assumed to want more; one that does not is
//! assigned its usage plus some headroom, with which it can show that it wants more again.

use std::num::NonZeroU32;

use haul_base::{Rate, Span};

/// Demand and weight of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Most that the sender would use; [`Rate::MAX`] if unknown.
    pub rate: Rate,
    /// Relative share of the capacity.
    pub weight: NonZeroU32,
}

/// Divides `capacity` max-min fair: no quota can be raised without lowering one that is smaller by its weight
/// (Bertsekas and Gallager, *Data Networks*, section 6.5.2; with a single bottleneck, water-filling finds
/// it).
///
/// Quotas never exceed the demands, nor their sum the capacity; rounding costs less than 1 bit/s each.
pub fn max_min(capacity: Rate, demands: &[Demand]) -> Vec<Rate> {
    let mut order: Vec<usize> = (0..demands.len()).collect();
    // Serve the smallest demands per weight first: each gets its demand, or an equal share of the remainder.
    order.sort_by(|&a, &b| {
        let by_weight =
            |a: usize, b: usize| u128::from(demands[a].rate.as_bps()) * u128::from(demands[b].weight.get());
        by_weight(a, b).cmp(&by_weight(b, a))
    });
    let mut remaining = u128::from(capacity.as_bps());
    let mut weights: u128 = demands.iter().map(|demand| u128::from(demand.weight.get())).sum();
    let mut quotas = vec![Rate::ZERO; demands.len()];
    for at in order {
        let weight = u128::from(demands[at].weight.get());
        let share = remaining * weight / weights;
        let quota = share.min(u128::from(demands[at].rate.as_bps()));
        quotas[at] = Rate::from_bps(u64::try_from(quota).unwrap_or(u64::MAX));
        remaining -= quota;
        weights -= weight;
    }
    quotas
}

/// A sender that uses at least this share of its quota is assumed to want more.
const USED: f64 = 0.95;
/// Factor from a sender's usage to its quota. A satisfied sender uses less than [`USED`] of the product.
const HEADROOM: f64 = 1.125;
/// Smallest quota, as a share of an equal division: enough to notice new demand.
const MIN_SHARE: f64 = 0.01;

/// Identifies a sender of a [`QuotaAssigner`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SenderId(u32);

#[derive(Debug)]
struct Sender {
    id: SenderId,
    demand: Demand,
    quota: Rate,
}

/// Assigns rates to senders in rounds. A round should last at least two round-trip times, so that the
/// measurement covers data sent at the new rate.
///
/// With constant demands, quotas are stable after as many rounds as there are different demands by weight,
/// plus one: each round finds all senders satisfied that want less than the equal share at that time, shares
/// only grow as more senders are found satisfied, and a round without a new one changes nothing.
#[derive(Debug)]
pub struct QuotaAssigner {
    capacity: Rate,
    senders: Vec<Sender>,
    next: u32,
}

impl QuotaAssigner {
    /// Creates an assigner of `capacity`, in bit/s of UDP payload like all its rates.
    pub fn new(capacity: Rate) -> Self {
        Self { capacity, senders: Vec::new(), next: 0 }
    }

    /// Sets the capacity, from the next round on.
    pub fn set_capacity(&mut self, capacity: Rate) {
        self.capacity = capacity;
    }

    /// Adds a sender, assumed to want as much as possible. The next round sets the new quotas.
    pub fn add(&mut self, weight: NonZeroU32) -> SenderId {
        let id = SenderId(self.next);
        self.next += 1;
        let demand = Demand { rate: Rate::MAX, weight };
        self.senders.push(Sender { id, demand, quota: Rate::ZERO });
        id
    }

    /// Removes a sender; the next round divides its share among the others.
    pub fn remove(&mut self, id: SenderId) {
        self.senders.retain(|sender| sender.id != id);
    }

    /// Returns a sender's quota.
    pub fn quota(&self, id: SenderId) -> Option<Rate> {
        self.senders.iter().find(|sender| sender.id == id).map(|sender| sender.quota)
    }

    /// Ends a round in which `measured` was received from each sender, and assigns quotas for the next.
    pub fn round(&mut self, measured: impl Fn(SenderId) -> Rate) {
        let count = self.senders.len().max(1) as f64;
        let least = self.capacity.mul_f64(MIN_SHARE / count);
        for sender in &mut self.senders {
            let used = measured(sender.id);
            let is_satisfied = used < sender.quota.mul_f64(USED);
            sender.demand.rate = if is_satisfied { used.mul_f64(HEADROOM).max(least) } else { Rate::MAX };
        }
        let demands: Vec<Demand> = self.senders.iter().map(|sender| sender.demand).collect();
        for (sender, quota) in self.senders.iter_mut().zip(max_min(self.capacity, &demands)) {
            sender.quota = quota;
        }
    }
}

/// A sender of a [`Group`], as seen by its receiver.
pub trait Member {
    /// Returns the total number of bytes received from it.
    fn received(&self) -> u64;

    /// Sends it its rate. Returns false if that was not possible; the next round tries again.
    fn set_rate(&mut self, rate: Rate) -> bool;
}

#[derive(Debug)]
struct Entry<M> {
    id: SenderId,
    member: M,
    /// Bytes received when the last round ended.
    bytes: u64,
    /// Rate last sent to it.
    sent: Option<Rate>,
}

/// Senders with their byte counts: measures usage, runs a [`QuotaAssigner`] and sends the quotas.
#[derive(Debug)]
pub struct Group<M> {
    assigner: QuotaAssigner,
    entries: Vec<Entry<M>>,
}

impl<M: Member> Group<M> {
    /// Creates a group without senders with a total capacity in bit/s of UDP payload.
    pub fn new(capacity: Rate) -> Self {
        Self { assigner: QuotaAssigner::new(capacity), entries: Vec::new() }
    }

    /// Sets the capacity, from the next round on.
    pub fn set_capacity(&mut self, capacity: Rate) {
        self.assigner.set_capacity(capacity);
    }

    /// Adds a sender of this weight and starts a new round; the others' quotas fall now.
    pub fn add(&mut self, member: M, weight: NonZeroU32) -> SenderId {
        let id = self.assigner.add(weight);
        self.entries.push(Entry { id, member, bytes: 0, sent: None });
        self.restart();
        id
    }

    /// Removes the senders for which `is_kept` returns false. If any, starts a new round and returns true.
    pub fn retain(&mut self, mut is_kept: impl FnMut(SenderId, &M) -> bool) -> bool {
        let before = self.entries.len();
        let assigner = &mut self.assigner;
        self.entries.retain(|entry| {
            let is_kept = is_kept(entry.id, &entry.member);
            if !is_kept {
                assigner.remove(entry.id);
            }
            is_kept
        });
        let has_removed = self.entries.len() < before;
        if has_removed {
            self.restart();
        }
        has_removed
    }

    /// Ends a round that lasted `elapsed`: a sender that used less than its quota gets a smaller one.
    pub fn round(&mut self, elapsed: Span) {
        let mut used = Vec::with_capacity(self.entries.len());
        for entry in &mut self.entries {
            let bytes = entry.member.received();
            used.push((entry.id, Rate::from_transfer(bytes.saturating_sub(entry.bytes), elapsed)));
            entry.bytes = bytes;
        }
        let measured = |id| used.iter().find(|(known, _)| *known == id).map_or(Rate::ZERO, |(_, rate)| *rate);
        self.assigner.round(measured);
        self.send_quotas();
    }

    /// Returns the senders and their quotas.
    pub fn shares(&self) -> impl Iterator<Item = (&M, Rate)> {
        let quota = |id| self.assigner.quota(id).unwrap_or(Rate::ZERO);
        self.entries.iter().map(move |entry| (&entry.member, quota(entry.id)))
    }

    /// Starts a new round, as after a change of membership: until measured, every sender is assumed to want
    /// everything.
    pub fn restart(&mut self) {
        for entry in &mut self.entries {
            entry.bytes = entry.member.received();
        }
        self.assigner.round(|_| Rate::MAX);
        self.send_quotas();
    }

    fn send_quotas(&mut self) {
        for entry in &mut self.entries {
            let Some(rate) = self.assigner.quota(entry.id).filter(|rate| entry.sent != Some(*rate)) else {
                continue;
            };
            if entry.member.set_rate(rate) {
                entry.sent = Some(rate);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    fn weight(weight: u32) -> NonZeroU32 {
        NonZeroU32::new(weight).unwrap()
    }

    fn demands() -> impl Strategy<Value = Vec<Demand>> {
        let rate = prop_oneof![Just(u64::MAX), 0u64..10_000_000_000];
        let one =
            (rate, 1u32..100).prop_map(|(rate, w)| Demand { rate: Rate::from_bps(rate), weight: weight(w) });
        prop::collection::vec(one, 1..40)
    }

    /// A member with a demand, the quotas sent to it, and whether it accepts any.
    #[derive(Debug)]
    struct Fake {
        demand: Rate,
        quotas: Vec<Rate>,
        accepts: bool,
        sent: Cell<u64>,
    }

    impl Fake {
        fn new(mbps: u64) -> Self {
            Self { demand: Rate::from_mbps(mbps), quotas: Vec::new(), accepts: true, sent: Cell::new(0) }
        }

        fn send(&self, time: Span) {
            let rate = self.quotas.last().map_or(Rate::ZERO, |quota| self.demand.min(*quota));
            self.sent.set(self.sent.get() + rate.bytes_in(time));
        }
    }

    impl Member for Fake {
        fn received(&self) -> u64 {
            self.sent.get()
        }

        fn set_rate(&mut self, rate: Rate) -> bool {
            if self.accepts {
                self.quotas.push(rate);
            }
            self.accepts
        }
    }

    fn last_quotas(group: &Group<Fake>) -> Vec<u64> {
        let last = |sender: &Fake| sender.quotas.last().map_or(0, |rate| rate.as_bps() / 1_000_000);
        group.shares().map(|(sender, _)| last(sender)).collect()
    }

    #[test]
    fn a_group_measures_demand_and_sends_each_new_quota_once() {
        let (mut group, round) = (Group::new(Rate::from_mbps(100)), Span::from_millis(500));
        group.add(Fake::new(10), NonZeroU32::MIN);
        let second = group.add(Fake::new(1_000), NonZeroU32::MIN);
        group.add(Fake::new(1_000), weight(2));
        assert_eq!(last_quotas(&group), [25, 25, 50]);
        for _ in 0..4 {
            group.shares().for_each(|(sender, _)| sender.send(round));
            group.round(round);
        }
        assert_eq!(last_quotas(&group), [11, 29, 59]);
        let often: Vec<usize> = group.shares().map(|(sender, _)| sender.quotas.len()).collect();
        assert_eq!(often, [4, 3, 2], "no quota is sent twice");
        // One leaves; its earlier traffic is not measured again, and a new round starts.
        assert!(group.retain(|id, _| id != second) && !group.retain(|_, _| true));
        assert_eq!(last_quotas(&group), [33, 66]);
    }

    #[test]
    fn an_unsent_quota_is_sent_after_the_next_round() {
        let mut group = Group::new(Rate::from_mbps(100));
        group.add(Fake { accepts: false, ..Fake::new(1_000) }, NonZeroU32::MIN);
        assert_eq!(last_quotas(&group), [0]);
        group.entries[0].member.accepts = true;
        group.round(Span::from_millis(500));
        assert!(last_quotas(&group)[0] > 0);
    }

    proptest! {
        #[test]
        fn no_quota_can_be_raised_without_lowering_a_smaller_one(capacity in 0u64..20_000_000_000, demands in demands()) {
            let quotas = max_min(Rate::from_bps(capacity), &demands);
            let sum: u128 = quotas.iter().map(|quota| u128::from(quota.as_bps())).sum();
            prop_assert!(sum <= u128::from(capacity));
            let total: u128 = demands.iter().map(|demand| u128::from(demand.rate.as_bps())).sum();
            let rounding = demands.len() as u128;
            prop_assert!(sum + rounding >= total.min(u128::from(capacity)), "{sum} of {capacity}");
            for (demand, quota) in demands.iter().zip(&quotas) {
                prop_assert!(*quota <= demand.rate);
                if *quota < demand.rate {
                    // Unsatisfied: then nobody has more by weight, except for rounding.
                    let ours = quota.as_bps() as f64 / f64::from(demand.weight.get());
                    for (other, theirs) in demands.iter().zip(&quotas) {
                        let theirs = theirs.as_bps() as f64 / f64::from(other.weight.get());
                        prop_assert!(theirs <= ours + 1.0 + ours * 1e-9 + rounding as f64, "{theirs} > {ours}");
                    }
                }
            }
        }

        #[test]
        fn the_rounds_terminate_with_fair_shares(
            demands in prop::collection::vec((1u64..1_000, 1u32..4), 1..20),
        ) {
            let capacity = Rate::from_mbps(1_000);
            let mut assigner = QuotaAssigner::new(capacity);
            let senders: Vec<_> =
                demands.iter().map(|&(mbps, w)| (assigner.add(weight(w)), Rate::from_mbps(mbps))).collect();
            let mut rates = vec![Rate::ZERO; senders.len()];
            let mut last_change = 0;
            for round in 0..2 * senders.len() + 3 {
                let before: Vec<_> = senders.iter().map(|&(id, _)| assigner.quota(id)).collect();
                assigner.round(|id| rates[id.0 as usize]);
                let after: Vec<_> = senders.iter().map(|&(id, _)| assigner.quota(id)).collect();
                if before != after {
                    last_change = round;
                }
                for (rate, &(id, demand)) in rates.iter_mut().zip(&senders) {
                    *rate = demand.min(assigner.quota(id).unwrap());
                }
                let total: u64 = rates.iter().map(|rate| rate.as_bps()).sum();
                prop_assert!(total <= capacity.as_bps());
            }
            let mut different = demands.clone();
            different.sort_by(|a, b| (a.0 * u64::from(b.1)).cmp(&(b.0 * u64::from(a.1))));
            different.dedup_by(|a, b| a.0 * u64::from(b.1) == b.0 * u64::from(a.1));
            prop_assert!(last_change <= different.len(), "{} rounds", last_change);
            // Satisfied senders have their demand; nobody has much less than the fair share.
            let fair = max_min(
                capacity,
                &demands.iter().map(|&(mbps, w)| Demand { rate: Rate::from_mbps(mbps).mul_f64(HEADROOM), weight: weight(w) }).collect::<Vec<_>>(),
            );
            for ((rate, fair), &(_, demand)) in rates.iter().zip(&fair).zip(&senders) {
                let due = (*fair).min(demand).as_bps() as f64;
                prop_assert!(rate.as_bps() as f64 >= 0.95 * due - 2.0, "{rate} of {due}");
            }
        }
    }

    #[test]
    fn rising_demand_is_noticed_and_leaving_senders_free_their_share() {
        let mut assigner = QuotaAssigner::new(Rate::from_mbps(100));
        let (small, large) = (assigner.add(weight(1)), assigner.add(weight(1)));
        let round = |assigner: &mut QuotaAssigner, demand: u64| {
            for _ in 0..3 {
                let before = [assigner.quota(small).unwrap(), assigner.quota(large).unwrap()];
                assigner
                    .round(|id| if id == small { before[0].min(Rate::from_mbps(demand)) } else { before[1] });
            }
            (assigner.quota(small).unwrap(), assigner.quota(large).unwrap())
        };
        assert_eq!(round(&mut assigner, 8), (Rate::from_mbps(9), Rate::from_mbps(91)));
        assert_eq!(round(&mut assigner, 500), (Rate::from_mbps(50), Rate::from_mbps(50)));
        assigner.remove(small);
        assigner.round(|_| Rate::from_mbps(50));
        assert_eq!((assigner.quota(small), assigner.quota(large)), (None, Some(Rate::from_mbps(100))));
    }

    #[test]
    fn a_silent_sender_keeps_a_minimum_quota() {
        let mut assigner = QuotaAssigner::new(Rate::from_mbps(100));
        let (silent, _) = (assigner.add(weight(1)), assigner.add(weight(1)));
        for _ in 0..5 {
            assigner.round(|id| if id == silent { Rate::ZERO } else { Rate::MAX });
        }
        assert_eq!(assigner.quota(silent), Some(Rate::from_bps(500_000)));
    }
}
