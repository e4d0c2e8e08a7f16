//! The last window of a transmission is reported too, and all windows together account for each lost packet.

use std::collections::BTreeSet;

use haul_base::{CauseCounts, Time};
use haul_stack::Recipe;

use super::at;
use crate::config::Evidence;
use crate::control::LossRun;
use crate::micro::events::ENDED;
use crate::micro::shared::DiagnosedWindows;
use crate::micro::stats::{KeepObjectStats, RateControlStats};
use crate::micro::testing::{Pair, Path, T0, object_recipe, stats};
use crate::{ChosenLaw, DiagnosedWindow, LAW_CHOSEN, LawChange};

/// Windows of 2 MB, about 1,700 packets.
fn small_windows(diagnosis: &str) -> Recipe {
    let mut recipe = object_recipe("100Mbit");
    crate::micro::registry().set(&mut recipe, "rate_control.unit_window", "2MB").unwrap();
    crate::micro::registry().set(&mut recipe, "rate_control.diagnosis", diagnosis).unwrap();
    recipe
}

/// A transmission whose windows are recorded from its start.
struct Watched {
    pair: Pair,
    windows: Vec<DiagnosedWindow>,
    sent: usize,
    is_reversed: bool,
}

impl Watched {
    fn of(recipe: &Recipe, bytes: u64) -> Self {
        let mut watched =
            Self { pair: Pair::of_object(recipe, bytes).0, windows: Vec::new(), sent: 0, is_reversed: false };
        watched.take();
        watched.pair.exchange(T0, &mut Path::default());
        watched
    }

    fn take(&mut self) {
        self.windows.extend(DiagnosedWindows::all_of(&mut self.pair.a));
    }

    /// Continues until then; one packet in 37 and one run of 9 in 500 is lost.
    fn run_until(&mut self, until: Time) {
        let sent = &mut self.sent;
        let mut lose = |_| {
            *sent += 1;
            sent.is_multiple_of(37) || *sent % 500 < 9
        };
        // Reports are duplicated and reordered.
        let mut path =
            Path { lose: Some(&mut lose), duplicate: true, reverse: self.is_reversed, ..Path::default() };
        self.pair.run_until(until, &mut path);
        self.take();
    }

    fn lost(&self) -> u64 {
        stats::<KeepObjectStats>(&self.pair.a).lost
    }

    fn runs(&self) -> impl Iterator<Item = LossRun> + '_ {
        self.windows.iter().flat_map(|window| &window.attributions).map(|one| one.run)
    }

    /// Checks that each lost packet is in the list of one window, and in the counts.
    fn is_complete(&self) {
        let lost = self.lost();
        assert!(lost > 0);
        assert_eq!(self.runs().map(|run| run.packets).sum::<u64>(), lost);
        let each: BTreeSet<u64> =
            self.runs().flat_map(|run| run.first_pn..run.first_pn + run.packets).collect();
        assert_eq!(each.len() as u64, lost);
        assert_eq!(self.windows.iter().map(|window| window.counts.total()).sum::<u64>(), lost);
        let mut by_cause = CauseCounts::default();
        self.windows.iter().for_each(|window| by_cause.merge(&window.counts));
        assert_eq!(stats::<RateControlStats>(&self.pair.a).lost_by_cause, by_cause);
    }
}

#[test]
fn windows_of_any_object_contain_each_lost_packet() {
    for diagnosis in ["on", "signature", "kernel"] {
        for bytes in [60_000, 400_000, 1_900_000, 1_950_000, 2_000_000, 2_100_000, 3_000_000, 9_000_000] {
            let mut watched = Watched::of(&small_windows(diagnosis), bytes);
            watched.is_reversed = bytes > 2_000_000;
            watched.run_until(at(5_000));
            assert_eq!(watched.pair.a.unfinished(), 0);
            watched.is_complete();
            let numbers: Vec<u64> = watched.windows.iter().map(|window| window.number).collect();
            assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>());
            let signed: u64 = watched.windows.iter().map(|window| window.sample.lost).sum();
            assert_eq!(signed, watched.lost());
        }
    }
}

/// As many as the window's own packets, so that the last window has none.
#[test]
fn an_object_of_one_window_has_that_and_one_for_retransmissions() {
    let mut recipe = small_windows("on");
    let mut watched = Watched::of(&recipe, 2_000_000);
    watched.pair.run_until(at(5_000), &mut Path::default());
    watched.take();
    let first = &watched.windows[0];
    assert_eq!((watched.windows.len(), first.number, first.sample.lost), (2, 0, 0));
    let sent = stats::<RateControlStats>(&watched.pair.a).sent.bytes;
    crate::micro::registry().set(&mut recipe, "rate_control.unit_window", &format!("{sent}B")).unwrap();
    let mut watched = Watched::of(&recipe, 2_000_000);
    watched.pair.run_until(at(5_000), &mut Path::default());
    watched.take();
    assert_eq!(watched.windows.len(), 1);
    let mut watched = Watched::of(&recipe, 2_000_000);
    watched.run_until(at(5_000));
    assert_eq!(watched.windows.len(), 2);
    watched.is_complete();
}

#[test]
fn an_aborted_transmission_has_reported_its_losses() {
    for (millis, silent) in [(3, false), (90, false), (170, false), (170, true), (400, false), (401, true)] {
        let mut watched = Watched::of(&small_windows("on"), 50_000_000);
        watched.run_until(at(millis));
        if silent {
            // The reverse path is cut.
            let mut path = Path { cut: [false, true], ..Path::default() };
            watched.pair.run_until(at(millis + 3_000), &mut path);
        }
        for _ in 0..2 {
            watched.pair.a.raise(at(millis + 3_000), ENDED, &mut ());
            watched.take();
        }
        if watched.lost() > 0 {
            watched.is_complete();
        }
        let packets: u64 = watched.windows.iter().map(|window| window.sample.packets).sum();
        assert!(packets <= stats::<RateControlStats>(&watched.pair.a).sent.packets + 100);
        assert!(millis < 10 || watched.windows.last().unwrap().sample.packets > 0);
    }
}

/// A window is listed also if the law, or the evidence, is another one at its end.
#[test]
fn a_window_with_a_law_change_has_each_packet() {
    let mut recipe = small_windows("on");
    let part = recipe.part_mut("rate_control").unwrap();
    let mut change = |name: &str, value: &str| {
        let change = LawChange::parse(part, &[(name, value)]).unwrap();
        ChosenLaw::change(part, &change).unwrap()
    };
    let changes = [
        ("controller", "udt"),
        ("controller", "fixed"),
        ("mode", "window"),
        ("diagnosis", "signature"),
        ("diagnosis", "kernel"),
        ("diagnosis", "on"),
    ];
    let mut changes: Vec<ChosenLaw> = changes.iter().map(|(name, value)| change(name, value)).collect();
    let mut watched = Watched::of(&small_windows("on"), 20_000_000);
    for (n, law) in changes.iter_mut().enumerate() {
        watched.run_until(at(100 + 100 * n as u64));
        watched.pair.a.raise(at(100 + 100 * n as u64), LAW_CHOSEN, law);
    }
    watched.run_until(at(60_000));
    assert_eq!(watched.pair.a.unfinished(), 0);
    watched.is_complete();
}

#[test]
fn without_a_diagnosis_there_are_no_windows_and_no_causes() {
    let mut watched = Watched::of(&small_windows("off"), 5_000_000);
    watched.run_until(at(5_000));
    watched.pair.a.raise(at(5_000), ENDED, &mut ());
    watched.take();
    assert!(watched.lost() > 0 && watched.windows.is_empty(), "{:?}", watched.windows);
    assert_eq!(stats::<RateControlStats>(&watched.pair.a).lost_by_cause, CauseCounts::default());
}

/// A diagnosis that starts in the middle lists what was lost since.
#[test]
fn a_late_diagnosis_lists_later_losses() {
    let mut recipe = small_windows("off");
    let part = recipe.part_mut("rate_control").unwrap();
    let change = LawChange::of(part, |law| law.diagnosis = Evidence::All);
    let mut on = ChosenLaw::change(part, &change).unwrap();
    let mut watched = Watched::of(&small_windows("off"), 5_000_000);
    watched.run_until(at(100));
    let before = watched.lost();
    watched.pair.a.raise(at(100), LAW_CHOSEN, &mut on);
    watched.run_until(at(5_000));
    let listed: u64 = watched.runs().map(|run| run.packets).sum();
    assert!(before > 0 && watched.windows[0].signature.packets() == 0, "{:?}", watched.windows[0]);
    assert_eq!(listed, watched.lost() - before);
}
