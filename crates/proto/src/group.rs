//! Group transport: many senders, one receiver that assigns each a rate (GTP). The receiver's capacity is divided
//! max-min fair: nobody gets more than he can use, and what he leaves is divided among the others, by weight.
//!
//! Demands are not announced. A sender that uses what it was assigned is taken to want more; one that does not is
//! assigned what it uses and a little more, by which it can show that it wants more again.

use std::num::NonZeroU32;

use haul_base::{Rate, Span};

/// What a sender would use, and how much it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// It would use no more; [`Rate::MAX`] if that is not known.
    pub demand: Rate,
    /// Its part of what there is, beside those of the others.
    pub weight: NonZeroU32,
}

/// Divides `capacity` max-min fair: no quota can be raised without lowering one that is smaller by its weight
/// (Bertsekas and Gallager, *Data Networks*, section 6.5.2; with a single bottleneck, water-filling finds it).
///
/// The quotas never exceed the demands, nor their sum the capacity; rounding costs less than one bit per second each.
pub fn max_min(capacity: Rate, wants: &[Want]) -> Vec<Rate> {
    let mut order: Vec<usize> = (0..wants.len()).collect();
    // Those who want least by their weight are served first: a whole demand, or else all the rest gets equal shares.
    order.sort_by(|&a, &b| {
        let by_weight =
            |a: usize, b: usize| u128::from(wants[a].demand.as_bps()) * u128::from(wants[b].weight.get());
        by_weight(a, b).cmp(&by_weight(b, a))
    });
    let mut left = u128::from(capacity.as_bps());
    let mut weights: u128 = wants.iter().map(|want| u128::from(want.weight.get())).sum();
    let mut quotas = vec![Rate::ZERO; wants.len()];
    for at in order {
        let weight = u128::from(wants[at].weight.get());
        let share = left * weight / weights;
        let quota = share.min(u128::from(wants[at].demand.as_bps()));
        quotas[at] = Rate::from_bps(u64::try_from(quota).unwrap_or(u64::MAX));
        left -= quota;
        weights -= weight;
    }
    quotas
}

/// A sender that uses at least so much of its rate is taken to want more.
const USED: f64 = 0.95;
/// What a sender gets beyond what it uses. It must use less than [`USED`] of the sum to be known as content.
const HEADROOM: f64 = 1.125;
/// The least that anybody is assigned, as a part of an equal share: enough to be noticed.
const LEAST: f64 = 0.01;

/// Names a sender of a [`QuotaAssigner`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SenderId(u32);

#[derive(Debug)]
struct Sender {
    id: SenderId,
    want: Want,
    quota: Rate,
}

/// Assigns rates to senders, round by round. A round should last two round-trip times at least, so that what is
/// measured was sent at the new rate.
///
/// With demands that stay, the quotas stay after as many rounds as there are different demands by weight, and one
/// more: in each round all those show themselves content who want less than what an equal share is by then, shares only
/// grow as others prove content, and a round without a new one changes nothing.
#[derive(Debug)]
pub struct QuotaAssigner {
    capacity: Rate,
    senders: Vec<Sender>,
    next: u32,
}

impl QuotaAssigner {
    /// An assigner of `capacity`, UDP payload bits per second like all its rates.
    pub fn new(capacity: Rate) -> Self {
        Self { capacity, senders: Vec::new(), next: 0 }
    }

    /// Another capacity; in force with the next round.
    pub fn set_capacity(&mut self, capacity: Rate) {
        self.capacity = capacity;
    }

    /// A new sender, taken to want all that it can get. The next round tells everybody's rate.
    pub fn add(&mut self, weight: NonZeroU32) -> SenderId {
        let id = SenderId(self.next);
        self.next += 1;
        let want = Want { demand: Rate::MAX, weight };
        self.senders.push(Sender { id, want, quota: Rate::ZERO });
        id
    }

    /// A sender has gone; the others get its part with the next round.
    pub fn remove(&mut self, id: SenderId) {
        self.senders.retain(|sender| sender.id != id);
    }

    /// What a sender is assigned.
    pub fn quota(&self, id: SenderId) -> Option<Rate> {
        self.senders.iter().find(|sender| sender.id == id).map(|sender| sender.quota)
    }

    /// Ends a round in which `measured` was received from each sender, and assigns rates for the next.
    pub fn round(&mut self, measured: impl Fn(SenderId) -> Rate) {
        let count = self.senders.len().max(1) as f64;
        let least = self.capacity.mul_f64(LEAST / count);
        for sender in &mut self.senders {
            let used = measured(sender.id);
            let content = used < sender.quota.mul_f64(USED);
            sender.want.demand = if content { used.mul_f64(HEADROOM).max(least) } else { Rate::MAX };
        }
        let wants: Vec<Want> = self.senders.iter().map(|sender| sender.want).collect();
        for (sender, quota) in self.senders.iter_mut().zip(max_min(self.capacity, &wants)) {
            sender.quota = quota;
        }
    }
}

/// A sender of a [`Group`], as its receiver knows it.
pub trait Member {
    /// Bytes that have come from it so far, in all.
    fn received(&self) -> u64;

    /// Tells it the rate at which it may send; whether that was possible, or is to be tried again after the next round.
    fn tell(&mut self, rate: Rate) -> bool;
}

#[derive(Debug)]
struct Entry<M> {
    id: SenderId,
    member: M,
    /// Bytes that had come from it when the last round ended.
    bytes: u64,
    /// What it was told last.
    told: Option<Rate>,
}

/// Senders with what has come from each: a [`QuotaAssigner`] that measures for itself, and tells.
#[derive(Debug)]
pub struct Group<M> {
    assigner: QuotaAssigner,
    entries: Vec<Entry<M>>,
}

impl<M: Member> Group<M> {
    /// A group without senders, and what they may send altogether: UDP payload bits per second.
    pub fn new(capacity: Rate) -> Self {
        Self { assigner: QuotaAssigner::new(capacity), entries: Vec::new() }
    }

    /// Another capacity; in force with the next round.
    pub fn set_capacity(&mut self, capacity: Rate) {
        self.assigner.set_capacity(capacity);
    }

    /// Another sender, which counts `weight` times. A new round begins, and from now on all have less.
    pub fn add(&mut self, member: M, weight: NonZeroU32) -> SenderId {
        let id = self.assigner.add(weight);
        self.entries.push(Entry { id, member, bytes: 0, told: None });
        self.share();
        id
    }

    /// Those senders leave of whom `stays` says so; whether there were any. Then a new round begins.
    pub fn retain(&mut self, mut stays: impl FnMut(SenderId, &M) -> bool) -> bool {
        let before = self.entries.len();
        let assigner = &mut self.assigner;
        self.entries.retain(|entry| {
            let stays = stays(entry.id, &entry.member);
            if !stays {
                assigner.remove(entry.id);
            }
            stays
        });
        let left = self.entries.len() < before;
        if left {
            self.share();
        }
        left
    }

    /// Ends a round that has lasted for `elapsed`: whoever has used less than he was assigned is assigned less.
    pub fn round(&mut self, elapsed: Span) {
        let mut used = Vec::with_capacity(self.entries.len());
        for entry in &mut self.entries {
            let bytes = entry.member.received();
            used.push((entry.id, Rate::from_transfer(bytes.saturating_sub(entry.bytes), elapsed)));
            entry.bytes = bytes;
        }
        let measured = |id| used.iter().find(|(known, _)| *known == id).map_or(Rate::ZERO, |(_, rate)| *rate);
        self.assigner.round(measured);
        self.tell();
    }

    /// The senders and what each is assigned.
    pub fn shares(&self) -> impl Iterator<Item = (&M, Rate)> {
        let quota = |id| self.assigner.quota(id).unwrap_or(Rate::ZERO);
        self.entries.iter().map(move |entry| (&entry.member, quota(entry.id)))
    }

    /// Somebody has come or gone: until it is known who wants what, all want all.
    fn share(&mut self) {
        for entry in &mut self.entries {
            entry.bytes = entry.member.received();
        }
        self.assigner.round(|_| Rate::MAX);
        self.tell();
    }

    fn tell(&mut self) {
        for entry in &mut self.entries {
            let Some(rate) = self.assigner.quota(entry.id).filter(|rate| entry.told != Some(*rate)) else {
                continue;
            };
            if entry.member.tell(rate) {
                entry.told = Some(rate);
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

    fn wants() -> impl Strategy<Value = Vec<Want>> {
        let demand = prop_oneof![Just(u64::MAX), 0u64..10_000_000_000];
        let want = (demand, 1u32..100)
            .prop_map(|(demand, w)| Want { demand: Rate::from_bps(demand), weight: weight(w) });
        prop::collection::vec(want, 1..40)
    }

    /// What one that would send at `wants` has been told, if it reads.
    #[derive(Debug)]
    struct Fake {
        wants: Rate,
        told: Vec<Rate>,
        reads: bool,
        sent: Cell<u64>,
    }

    impl Fake {
        fn new(mbps: u64) -> Self {
            Self { wants: Rate::from_mbps(mbps), told: Vec::new(), reads: true, sent: Cell::new(0) }
        }

        fn send(&self, time: Span) {
            let rate = self.told.last().map_or(Rate::ZERO, |told| self.wants.min(*told));
            self.sent.set(self.sent.get() + rate.bytes_in(time));
        }
    }

    impl Member for Fake {
        fn received(&self) -> u64 {
            self.sent.get()
        }

        fn tell(&mut self, rate: Rate) -> bool {
            if self.reads {
                self.told.push(rate);
            }
            self.reads
        }
    }

    fn told(group: &Group<Fake>) -> Vec<u64> {
        let last = |sender: &Fake| sender.told.last().map_or(0, |rate| rate.as_bps() / 1_000_000);
        group.shares().map(|(sender, _)| last(sender)).collect()
    }

    #[test]
    fn a_group_measures_what_its_senders_want_and_tells_them_what_is_new_once() {
        let (mut group, round) = (Group::new(Rate::from_mbps(100)), Span::from_millis(500));
        group.add(Fake::new(10), NonZeroU32::MIN);
        let second = group.add(Fake::new(1_000), NonZeroU32::MIN);
        group.add(Fake::new(1_000), weight(2));
        assert_eq!(told(&group), [25, 25, 50]);
        for _ in 0..4 {
            group.shares().for_each(|(sender, _)| sender.send(round));
            group.round(round);
        }
        assert_eq!(told(&group), [11, 29, 59]);
        let often: Vec<usize> = group.shares().map(|(sender, _)| sender.told.len()).collect();
        assert_eq!(often, [4, 3, 2], "nobody is told what he knows");
        // One goes; what he sent before is not measured again, and a round begins anew.
        assert!(group.retain(|id, _| id != second) && !group.retain(|_, _| true));
        assert_eq!(told(&group), [33, 66]);
    }

    #[test]
    fn who_could_not_be_told_is_told_after_the_next_round() {
        let mut group = Group::new(Rate::from_mbps(100));
        group.add(Fake { reads: false, ..Fake::new(1_000) }, NonZeroU32::MIN);
        assert_eq!(told(&group), [0]);
        group.entries[0].member.reads = true;
        group.round(Span::from_millis(500));
        assert!(told(&group)[0] > 0);
    }

    proptest! {
        #[test]
        fn no_quota_can_be_raised_without_lowering_a_smaller_one(capacity in 0u64..20_000_000_000, wants in wants()) {
            let quotas = max_min(Rate::from_bps(capacity), &wants);
            let sum: u128 = quotas.iter().map(|quota| u128::from(quota.as_bps())).sum();
            prop_assert!(sum <= u128::from(capacity));
            let wanted: u128 = wants.iter().map(|want| u128::from(want.demand.as_bps())).sum();
            let rounding = wants.len() as u128;
            prop_assert!(sum + rounding >= wanted.min(u128::from(capacity)), "{sum} of {capacity}");
            for (want, quota) in wants.iter().zip(&quotas) {
                prop_assert!(*quota <= want.demand);
                if *quota < want.demand {
                    // Discontent: then nobody has more by his weight, but for rounding.
                    let own = quota.as_bps() as f64 / f64::from(want.weight.get());
                    for (other, theirs) in wants.iter().zip(&quotas) {
                        let theirs = theirs.as_bps() as f64 / f64::from(other.weight.get());
                        prop_assert!(theirs <= own + 1.0 + own * 1e-9 + rounding as f64, "{theirs} > {own}");
                    }
                }
            }
        }

        #[test]
        fn the_rounds_end_when_they_should_and_the_shares_are_fair(
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
            // Those who get all that they want have it; nobody has much less than the fair share of all.
            let fair = max_min(
                capacity,
                &demands.iter().map(|&(mbps, w)| Want { demand: Rate::from_mbps(mbps).mul_f64(HEADROOM), weight: weight(w) }).collect::<Vec<_>>(),
            );
            for ((rate, fair), &(_, demand)) in rates.iter().zip(&fair).zip(&senders) {
                let due = (*fair).min(demand).as_bps() as f64;
                prop_assert!(rate.as_bps() as f64 >= 0.95 * due - 2.0, "{rate} of {due}");
            }
        }
    }

    #[test]
    fn a_sender_that_wants_more_again_is_noticed_and_one_that_goes_leaves_its_part() {
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
    fn a_silent_sender_keeps_enough_to_be_heard() {
        let mut assigner = QuotaAssigner::new(Rate::from_mbps(100));
        let (silent, _) = (assigner.add(weight(1)), assigner.add(weight(1)));
        for _ in 0..5 {
            assigner.round(|id| if id == silent { Rate::ZERO } else { Rate::MAX });
        }
        assert_eq!(assigner.quota(silent), Some(Rate::from_bps(500_000)));
    }
}
