use proptest::prelude::*;

use super::*;

/// Returns distinguishable datagrams.
fn datagrams(count: u32, size: usize) -> Vec<Vec<u8>> {
    (0..count).map(|number| number.to_be_bytes().iter().copied().cycle().take(size).collect()).collect()
}

/// Returns what is sent if `sent` is passed in.
fn pass_through(plan: &str, sent: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut faults = Faults::new(FaultPlan::parse(plan).unwrap());
    for datagram in sent {
        faults.pass(datagram);
    }
    queued_datagrams(&faults)
}

fn queued_datagrams(faults: &Faults) -> Vec<Vec<u8>> {
    faults.queue.iter().flat_map(|run| run.bytes.chunks(run.segment).map(<[u8]>::to_vec)).collect()
}

#[test]
fn each_fault_has_its_named_effect() {
    let sent = datagrams(1_000, 100);
    assert_eq!(pass_through("seed=1", &sent), sent);
    assert!(pass_through("loss=1", &sent).is_empty());
    let twice: Vec<_> = sent.iter().flat_map(|d| [d.clone(), d.clone()]).collect();
    assert_eq!(pass_through("duplicate=1", &sent), twice);
    let damaged = pass_through("corrupt=1", &sent);
    let bits = |(a, b): (&Vec<u8>, &Vec<u8>)| a.iter().zip(b).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>();
    assert!(damaged.len() == sent.len() && sent.iter().zip(&damaged).all(|pair| bits(pair) == 1));
    assert!(pass_through("truncate=1", &sent).iter().all(|d| (1..100).contains(&d.len())));
}

#[test]
fn delayed_datagrams_arrive_later_unchanged() {
    let sent = datagrams(10_000, 64);
    let received = pass_through("reorder=0.2,seed=3", &sent);
    assert_ne!(received, sent);
    let mut sorted = received.clone();
    sorted.sort();
    sorted.dedup();
    assert_eq!(sorted.len(), received.len(), "none twice");
    assert!(received.len() > 9_900 && received.iter().all(|datagram| sent.contains(datagram)));
}

#[test]
fn replays_repeat_earlier_datagrams() {
    let sent = datagrams(2_000, 64);
    let received = pass_through("replay=0.5,seed=3", &sent);
    assert!(received.len() > 2_800);
    let mut firsts = received.clone();
    let mut seen = std::collections::HashSet::new();
    firsts.retain(|datagram| seen.insert(datagram.clone()));
    assert_eq!(seen.len(), sent.len());
}

#[test]
fn equal_seeds_give_equal_faults() {
    let sent = datagrams(500, 200);
    let plan =
        |seed| format!("loss=0.1,duplicate=0.1,reorder=0.1,corrupt=0.1,truncate=0.1,replay=0.1,seed={seed}");
    assert_eq!(pass_through(&plan(7), &sent), pass_through(&plan(7), &sent));
    assert_ne!(pass_through(&plan(7), &sent), pass_through(&plan(8), &sent));
}

#[test]
fn invalid_plans_are_refused() {
    for text in ["loss", "loss=2", "loss=-0.1", "loss=NaN", "delay=1", "seed=x", "=1"] {
        assert!(FaultPlan::parse(text).is_err(), "{text}");
    }
    assert_eq!(FaultPlan::parse("").unwrap(), FaultPlan::default());
    assert_eq!(
        FaultPlan::parse(" loss=0.5 , seed=9 ").unwrap(),
        FaultPlan { loss: 0.5, seed: 9, ..FaultPlan::default() }
    );
}

proptest! {
    #[test]
    fn any_mix_of_sizes_passes_unchanged_without_faults(
        sizes in prop::collection::vec(1_usize..9_000, 1..100),
    ) {
        let sent: Vec<Vec<u8>> = sizes.iter().enumerate().map(|(i, &size)| vec![i as u8; size]).collect();
        let mut faults = Faults::new(FaultPlan::default());
        for datagram in &sent {
            faults.pass(datagram);
        }
        prop_assert!(faults.queue.iter().all(|run| run.bytes.len() <= MAX_MESSAGE));
        prop_assert_eq!(queued_datagrams(&faults), sent);
    }

    #[test]
    fn nothing_panics(text in "[a-z]{0,9}=?[0-9.]{0,4},?seed=[0-9]{1,3}", datagram in prop::collection::vec(any::<u8>(), 0..50)) {
        if let Ok(plan) = FaultPlan::parse(&text) {
            let mut faults = Faults::new(plan);
            (0..200).for_each(|_| faults.pass(&datagram));
        }
    }
}
