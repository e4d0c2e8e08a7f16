//! Tests with hand-computed and measured numbers.

use proptest::prelude::*;

use super::super::Nice;
use super::*;

fn at(ms: u64) -> Time {
    Time::ZERO + Span::from_millis(ms)
}

fn spec(nice: i8) -> TaskSpec {
    TaskSpec { nice: Nice::new(nice), sleep_average: Span::ZERO }
}

fn core(run_to_parity: bool) -> Fair {
    let mut core = Fair::new(FairConfig { run_to_parity, ..FairConfig::default() }, Time::ZERO);
    core.ledger_mut().set_trace(Some(super::super::Trace::new(100_000, Span::ZERO)));
    core
}

fn advance(core: &mut Fair, to: Time) {
    while let Some(next) = core.next_event().filter(|&next| next <= to) {
        core.advance(next);
    }
}

fn run_ms(core: &Fair, id: TaskId, now: Time) -> f64 {
    core.ledger().run_time(id, now).as_millis_f64()
}

#[test]
fn equal_tasks_alternate_by_slices() {
    let mut core = core(false);
    for _ in 0..2 {
        core.spawn(Time::ZERO, &spec(0));
    }
    advance(&mut core, at(13));
    let ms = |time: Time| time.as_nanos() / 1_000_000;
    let trace = core.ledger().trace().unwrap();
    let slices: Vec<_> = trace.slices().iter().map(|s| (s.task.0, ms(s.from), ms(s.to))).collect();
    // The new task runs before its equal: half a slice, 1.5 ms, rounded up to the next tick; then 3 ms each.
    assert_eq!(slices, [(1, 0, 2), (0, 2, 4), (1, 4, 7), (0, 7, 10), (1, 10, 13)]);
}

#[test]
fn equal_weights_get_equal_shares() {
    for run_to_parity in [false, true] {
        let mut core = core(run_to_parity);
        let ids: Vec<TaskId> = (0..7).map(|_| core.spawn(Time::ZERO, &spec(0))).collect();
        advance(&mut core, at(7_000));
        for &id in &ids {
            let run = run_ms(&core, id, at(7_000));
            assert!((run - 1_000.0).abs() <= 6.0, "{id:?} ran {run} ms");
        }
    }
}

#[test]
fn shares_follow_the_weights() {
    let mut core = core(false);
    let ids = [0, 5, -5].map(|nice| core.spawn(Time::ZERO, &spec(nice)));
    advance(&mut core, at(20_000));
    // 1,024 : 335 : 3,121 of 4,480.
    for (id, weight) in ids.into_iter().zip([1_024.0, 335.0, 3_121.0]) {
        let (run, fair) = (run_ms(&core, id, at(20_000)), 20_000.0 * weight / 4_480.0);
        assert!((run - fair).abs() <= 10.0, "{id:?}: {run} ms, fair {fair} ms");
    }
}

#[test]
fn a_waking_task_with_positive_lag_preempts_at_once() {
    for run_to_parity in [false, true] {
        let mut core = core(run_to_parity);
        core.spawn(Time::ZERO, &spec(0));
        core.spawn(Time::ZERO, &spec(0));
        advance(&mut core, at(2));
        // One has run for 2 ms, the other, whose turn it is, not at all: its lag is 1 ms when it sleeps.
        let sleeper = core.running().unwrap();
        assert_eq!(core.ledger().run_time(sleeper, at(2)), Span::ZERO);
        core.sleep(at(2), SleepKind::Interruptible);
        assert_ne!(core.running(), Some(sleeper));
        let woken = at(6) + Span::from_micros(500);
        advance(&mut core, woken);
        core.wake(woken, sleeper, Waker::Interrupt);
        // Its lag makes the other task ineligible.
        assert_eq!(core.running(), Some(sleeper));
    }
}

#[test]
fn an_earlier_deadline_preempts_unless_run_to_parity() {
    for (run_to_parity, expected) in [(false, 1), (true, 0)] {
        let mut core = core(run_to_parity);
        core.spawn(Time::ZERO, &spec(0));
        // Half a slice at weight 3,121 is 0.49 ms of virtual time, against 1.5 ms.
        core.spawn(Time::ZERO, &spec(-5));
        assert_eq!(core.running(), Some(TaskId(expected)));
    }
}

#[test]
fn a_long_sleep_earns_no_more_than_the_bounded_lag() {
    let mut core = core(false);
    let sleeper = core.spawn(Time::ZERO, &spec(0));
    let burner = core.spawn(Time::ZERO, &spec(0));
    advance(&mut core, at(2));
    core.sleep(at(2), SleepKind::Interruptible);
    advance(&mut core, at(60_000));
    core.wake(at(60_000), sleeper, Waker::Interrupt);
    advance(&mut core, at(60_100));
    // Half of 100 ms, plus at most two slices.
    let run = run_ms(&core, sleeper, at(60_100));
    assert!((44.0..=56.0).contains(&run), "{run} ms");
    assert!(run_ms(&core, burner, at(60_100)) > 60_000.0 - 2.0 + 44.0 - 1.0);
}

proptest! {
    #[test]
    fn no_time_is_lost_or_invented(
        run_to_parity: bool,
        ops in prop::collection::vec((0u8..5, 0u32..8, 0u64..9_000_000, -20i8..20), 1..200),
    ) {
        let mut core = core(run_to_parity);
        let mut now = Time::ZERO;
        for (op, which, wait, nice) in ops {
            now += Span::from_nanos(wait);
            advance(&mut core, now);
            let tasks = core.ledger().tasks() as u32;
            match op {
                0 if tasks < 12 => { core.spawn(now, &spec(nice)); }
                1 | 2 if tasks > 0 => core.wake(now, TaskId(which % tasks), Waker::Interrupt),
                3 => core.sleep(now, SleepKind::Interruptible),
                4 if tasks > 4 && which == 0 => core.kill(now, TaskId(tasks - 1)),
                _ => {}
            }
            let ids = (0..core.ledger().tasks() as u32).map(TaskId);
            let run = ids.clone().fold(Span::ZERO, |sum, id| sum + core.ledger().run_time(id, now));
            prop_assert_eq!(run + core.ledger().idle_time(now), now.since(Time::ZERO));
            prop_assert_eq!(core.running().is_some(), ids.clone().any(|id| core.view(id).runnable));
        }
    }

    /// No task falls behind its fair share by more than two slices of every task, whatever the weights.
    #[test]
    fn lag_stays_bounded(nices in prop::collection::vec(-10i8..10, 2..6)) {
        let mut core = core(false);
        let ids: Vec<_> = nices.iter().map(|&nice| core.spawn(Time::ZERO, &spec(nice))).collect();
        let total = core.weight() as f64;
        for step in 1..60u64 {
            let now = at(step * 50);
            advance(&mut core, now);
            for &id in &ids {
                let fair = step as f64 * 50.0 * core.task(id).weight as f64 / total;
                let lag = fair - run_ms(&core, id, now);
                prop_assert!(lag.abs() <= 4.0 * nices.len() as f64 + 4.0, "{id:?} lags {lag} ms");
            }
        }
    }
}
