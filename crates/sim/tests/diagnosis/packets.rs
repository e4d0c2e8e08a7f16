//! Attribution of single packets, compared with the true cause of each loss.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use haul_base::{Cause, Span, Time};
use haul_proto::{DiagnosedWindow, Sender};
use haul_sim::{Exit, NodeId, Outage, SessionNode, World};
use haul_stack::{GENERATION_BIT, Recipe};

use super::{RTT, bursts, channel, host, recipe};
use crate::common::Channel;
use crate::senses::{FAIR, Run};

/// Kinds of packets with object data (docs/wire-format.md): DATA, `DATA_FIN`, `DATA_PART`.
const DATA: [u8; 3] = [1, 2, 7];

/// Dropped packets of a transfer by number, and the windows diagnosed by its sender.
#[derive(Clone, Debug, Default)]
pub(super) struct RecordedWindows {
    died: Arc<Mutex<BTreeMap<u64, Cause>>>,
    windows: Arc<Mutex<Vec<DiagnosedWindow>>>,
}

impl RecordedWindows {
    pub(super) fn new(run: &mut Run) -> Self {
        let recorded = Self::default();
        let (died, data) = (recorded.died.clone(), run.data);
        run.world.set_trace(move |event| {
            let Exit::Dropped(reason) = event.exit else { return };
            for payload in event.payloads().filter(|_| event.parcel.flow() == data) {
                let start = u64::from_be_bytes(*payload.first_chunk().unwrap());
                if DATA.contains(&((start >> 56) as u8 & !GENERATION_BIT)) {
                    died.lock().unwrap().insert(start >> 8 & 0xFFFF_FFFF_FFFF, reason.cause().unwrap());
                }
            }
        });
        collect_windows(&mut run.world, run.session.sender, recorded.windows.clone());
        recorded
    }

    /// Returns the F1 score for `cause`, over the packets of finished windows.
    pub(super) fn f1(&self, cause: Cause) -> f64 {
        let windows = self.windows.lock().unwrap();
        let last = windows.last().unwrap();
        let end = last.first_pn + last.sample.packets;
        let diagnosed = windows.iter().flat_map(|window| &window.attributions);
        let diagnosed = diagnosed.filter(|one| one.causes.likeliest() == cause).map(|one| one.run);
        let diagnosed: BTreeSet<u64> =
            diagnosed.flat_map(|run| run.first_pn..run.first_pn + run.packets).collect();
        let died = self.died.lock().unwrap();
        let died: BTreeSet<u64> =
            died.iter().filter(|(_, found)| **found == cause).map(|(pn, _)| *pn).collect();
        let of = |set: &BTreeSet<u64>| set.range(..end).count();
        let right = diagnosed.intersection(&died).filter(|pn| **pn < end).count();
        println!("{cause:?}: {right} correct of {} attributed and {} true", of(&diagnosed), of(&died));
        2.0 * right as f64 / (of(&diagnosed) + of(&died)) as f64
    }
}

fn collect_windows(world: &mut World, sender: NodeId, into: Arc<Mutex<Vec<DiagnosedWindow>>>) {
    let node = world.node_mut::<SessionNode<Sender>>(sender).unwrap();
    into.lock().unwrap().extend(std::iter::from_fn(|| node.machine_mut().take_window()));
    let next: Time = world.now() + Span::from_millis(10);
    world.at(next, move |world| collect_windows(world, sender, into));
}

fn recorded(recipe: &Recipe, channel: &Channel, buffer: u64, busy: bool) -> RecordedWindows {
    let loads = if busy { vec![bursts(), bursts()] } else { Vec::new() };
    let mut run = Run::over(recipe, 1 << 40, RTT, channel, host(FAIR, buffer, loads));
    let recorded = RecordedWindows::new(&mut run);
    run.run(Span::from_secs(20));
    recorded
}

/// The receiver reports its socket's drops, so they can be distinguished from concurrent losses. Between a
/// permanently full queue and a lossy medium, single packets cannot be attributed, so that is not tested
/// here.
#[test]
fn each_packet_is_attributed_to_the_cause_of_its_loss() {
    let at = |rate| recipe("bulk", &[("controller", "fixed"), ("rate", rate)]);
    let lossy = |loss| Channel { loss, ..channel(1_000) };
    let (host, queue, random) = (Cause::ReceiverHost, Cause::Congestion, Cause::Random);
    for (name, recipe, channel, busy, expected) in [
        ("a busy host", at("300Mbit"), channel(1_000), true, &[(host, 0.999)][..]),
        ("a full queue", at("303Mbit"), channel(300), false, &[(queue, 0.999)]),
        ("a host and 0.1 % at random", at("300Mbit"), lossy(0.001), true, &[(host, 0.995), (random, 0.99)]),
        ("a host and 1 % at random", at("300Mbit"), lossy(0.01), true, &[(host, 0.99), (random, 0.995)]),
        ("a host and a full queue", at("305Mbit"), channel(300), true, &[(host, 0.975), (queue, 0.995)]),
    ] {
        let buffer = if busy { 128 << 10 } else { 4 << 20 };
        let recorded = recorded(&recipe, &channel, buffer, busy);
        for (cause, least) in expected {
            let found = recorded.f1(*cause);
            assert!(found >= *least, "{name}: F1 {found} of {cause:?}");
        }
    }
}

/// For transfers shorter than a window, of one window and slightly more, each dropped packet is in exactly
/// one window, and in the counts by cause.
#[test]
fn all_lost_packets_of_any_transfer_are_attributed() {
    let recipe = recipe("bulk", &[("controller", "fixed"), ("rate", "300Mbit")]);
    // A window has 100 MB of UDP payload, including headers, tags and retransmissions.
    for bytes in [20_000, 2_000_000, 94_000_000, 97_000_000, 100_000_000, 130_000_000] {
        let channel = Channel { loss: 0.004, ..channel(1_000) };
        let mut run =
            Run::over(&recipe, bytes, RTT, &channel, host(FAIR, 128 << 10, vec![bursts(), bursts()]));
        let recorded = RecordedWindows::new(&mut run);
        let mut run = run.run(Span::from_secs(20));
        let sender = run.world.node_mut::<SessionNode<Sender>>(run.session.sender).unwrap().machine_mut();
        let stats = sender.stats();
        assert!(sender.is_delivered(), "{bytes}: {stats:?}");
        let mut windows = recorded.windows.lock().unwrap();
        windows.extend(std::iter::from_fn(|| sender.take_window()));
        let runs = windows.iter().flat_map(|window| &window.attributions).map(|one| one.run);
        let each: Vec<u64> = runs.flat_map(|run| run.first_pn..run.first_pn + run.packets).collect();
        let diagnosed: BTreeSet<u64> = each.iter().copied().collect();
        let died: BTreeSet<u64> = recorded.died.lock().unwrap().keys().copied().collect();
        let by_cause: u64 = windows.iter().map(|window| window.counts.total()).sum();
        println!("{bytes}: {} windows, {} lost, {} died", windows.len(), stats.lost, died.len());
        assert_eq!(
            (each.len() as u64, diagnosed.len() as u64, by_cause),
            (stats.lost, stats.lost, stats.lost)
        );
        assert_eq!(stats.lost_by_cause.total(), stats.lost);
        assert_eq!(diagnosed, died);
    }
}

/// Transfers of 1 to 200 packets. The last packets are often lost; no later packet reveals this, and the
/// probe timer retransmits them, as in an outage.
#[test]
fn losses_found_by_the_probe_timer_are_attributed() {
    let down = Outage { at: Span::from_millis(15), length: Span::from_millis(150), every: None };
    for (packets, seed) in
        [1, 2, 5, 20, 200].into_iter().flat_map(|packets| (1..=8).map(move |seed| (packets, seed)))
    {
        let recipe = recipe("bulk", &[("controller", "cubic")]);
        let lossy = Channel { loss: 0.25, outages: vec![down], ..channel(100) };
        let (channels, host) = ([&lossy, &channel(100)], host(FAIR, 4 << 20, vec![]));
        let mut run = Run::between(seed, &recipe, packets * 1_400, RTT, channels, host);
        let recorded = RecordedWindows::new(&mut run);
        let mut run = run.run(Span::from_secs(60));
        let sender = run.world.node_mut::<SessionNode<Sender>>(run.session.sender).unwrap().machine_mut();
        let stats = sender.stats();
        assert!(sender.is_delivered(), "{packets}, seed {seed}: {stats:?}");
        let died = recorded.died.lock().unwrap().len() as u64;
        // A spurious retransmission is not a loss, and sometimes counts in place of one.
        let least = died - u64::from(stats.receiver_duplicates);
        assert!((least..=died).contains(&stats.lost), "{packets}, seed {seed}: {died} died, {stats:?}");
        assert_eq!(stats.lost_by_cause.total(), stats.lost);
    }
}
