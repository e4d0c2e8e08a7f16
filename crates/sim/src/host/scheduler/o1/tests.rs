//! Tests with hand-computed and measured numbers.

use proptest::prelude::*;

use super::super::Nice;
use super::*;

fn at(ms: u64) -> Time {
    Time::ZERO + Span::from_millis(ms)
}

fn spec(nice: i8, sleep_average_ms: u64) -> TaskSpec {
    TaskSpec { nice: Nice::new(nice), sleep_average: Span::from_millis(sleep_average_ms) }
}

fn core() -> O1 {
    let mut core = O1::new(O1Config::default(), Time::ZERO);
    core.ledger_mut().set_trace(Some(super::super::Trace::new(100_000, Span::ZERO)));
    core
}

fn advance(core: &mut O1, to: Time) {
    while let Some(next) = core.next_event().filter(|&next| next <= to) {
        core.advance(next);
    }
}

/// Returns task, start and end of each slice, in ms.
fn slices(core: &O1) -> Vec<(u32, u64, u64)> {
    let ms = |time: Time| time.as_nanos() / 1_000_000;
    let trace = core.ledger().trace().unwrap();
    trace.slices().iter().map(|slice| (slice.task.0, ms(slice.from), ms(slice.to))).collect()
}

#[test]
fn time_slices_are_the_kernels() {
    // static_prio_timeslice, in ms.
    let expected = [(-20, 800), (-10, 600), (-1, 420), (0, 100), (10, 50), (15, 25), (19, 5)];
    for (nice, ms) in expected {
        assert_eq!(slice_for(NICE_0 + nice), Span::from_millis(ms), "nice {nice}");
    }
}

#[test]
fn a_bonus_of_ten_levels_follows_from_the_sleep_average() {
    let mut core = core();
    for (average, priority) in
        [(0, 125), (99, 125), (100, 124), (500, 120), (799, 118), (999, 116), (1_000, 115)]
    {
        let id = core.spawn(Time::ZERO, &spec(0, average));
        assert_eq!(core.view(id).priority, priority, "{average} ms");
    }
    // The scale is clamped at both ends.
    let best = core.spawn(Time::ZERO, &spec(-20, 1_000));
    let worst = core.spawn(Time::ZERO, &spec(19, 0));
    assert_eq!((core.view(best).priority, core.view(worst).priority), (100, 139));
}

#[test]
fn what_counts_as_interactive_depends_on_nice() {
    // The table in kernel/sched.c: nice -20 always almost, 0 from +2, 19 never.
    let margins = [-20, -10, 0, 10, 19].map(|nice| interactive_margin(NICE_0 + nice));
    assert_eq!(margins, [-3, -1, 2, 4, 6]);
    assert_eq!(sleep_ceiling(NICE_0, Span::from_millis(1)), 799_000_000);
}

#[test]
fn two_busy_tasks_alternate_every_100_ms() {
    let mut core = core();
    core.spawn(Time::ZERO, &spec(0, 0));
    core.spawn(Time::ZERO, &spec(0, 0));
    advance(&mut core, at(401));
    assert_eq!(slices(&core), [(0, 0, 100), (1, 100, 200), (0, 200, 300), (1, 300, 400)]);
}

#[test]
fn nice_values_determine_shares_by_slices() {
    let mut core = core();
    core.spawn(Time::ZERO, &spec(0, 0));
    core.spawn(Time::ZERO, &spec(19, 0));
    advance(&mut core, at(211));
    // 100 ms at nice 0, then the expired array waits until nice 19 has had its 5 ms.
    assert_eq!(slices(&core), [(0, 0, 100), (1, 100, 105), (0, 105, 205), (1, 205, 210)]);
}

#[test]
fn a_task_that_slept_preempts_one_that_did_not() {
    let mut core = core();
    let burner = core.spawn(Time::ZERO, &spec(0, 0));
    let sleeper = core.spawn(Time::ZERO, &spec(0, 200));
    assert_eq!(core.running(), Some(sleeper));
    core.sleep(Time::ZERO, SleepKind::Interruptible);
    assert_eq!(core.running(), Some(burner));
    advance(&mut core, at(50));
    core.wake(at(50), sleeper, Waker::Interrupt);
    // 200 + 50 ms of sleep: bonus 2 against 0.
    assert_eq!(core.running(), Some(sleeper));
    assert_eq!(core.view(sleeper).sleep_average, Span::from_millis(250));
    assert_eq!(core.view(sleeper).priority, 123);
}

#[test]
fn one_long_sleep_is_limited_to_the_ceiling_as_is_disk_sleep() {
    for kind in [SleepKind::Interruptible, SleepKind::Uninterruptible] {
        let mut core = core();
        let id = core.spawn(Time::ZERO, &spec(0, 0));
        core.sleep(Time::ZERO, kind);
        core.wake(at(60_000), id, Waker::Interrupt);
        assert_eq!(core.view(id).sleep_average, Span::from_millis(799), "{kind:?}");
        assert_eq!(core.view(id).priority, 118);
    }
    // Many short sleeps reach the end of the scale, unless they are waits for a disk.
    for (kind, average, priority) in
        [(SleepKind::Interruptible, 1_000, 115), (SleepKind::Uninterruptible, 799, 118)]
    {
        let mut core = core();
        let id = core.spawn(Time::ZERO, &spec(0, 0));
        for cycle in 0..60 {
            core.sleep(at(20 * cycle), kind);
            core.wake(at(20 * cycle + 20), id, Waker::Task);
        }
        assert_eq!(core.view(id).sleep_average, Span::from_millis(average), "{kind:?}");
        assert_eq!(core.view(id).priority, priority);
    }
}

#[test]
fn running_reduces_the_average_less_at_a_higher_bonus() {
    for (average, expected) in [(90, 40), (199, 149), (250, 225), (1_000, 995)] {
        let mut core = core();
        let id = core.spawn(Time::ZERO, &spec(0, average));
        // 50 ms of running: all of it at bonus 0 and 1, half at 2, a tenth at 10.
        core.sleep(at(50), SleepKind::Interruptible);
        assert_eq!(core.view(id).sleep_average, Span::from_millis(expected), "{average} ms");
    }
}

#[test]
fn waiting_for_the_core_after_an_interrupt_counts_as_sleep() {
    for (waker, gain) in [(Waker::Interrupt, 60_000_000), (Waker::Task, 60_000_000 * 38 / 128)] {
        let mut core = core();
        core.spawn(Time::ZERO, &spec(0, 0));
        let waiter = core.spawn(Time::ZERO, &spec(0, 0));
        // The first burner's slice ends at 100 ms; the waiter sleeps for zero time in the middle of its own.
        advance(&mut core, at(120));
        core.sleep(at(120), SleepKind::Interruptible);
        // The burner got a new slice from the expired array.
        core.wake(at(160), waiter, waker);
        // 40 ms of sleep: no bonus, no preemption.
        assert_eq!(core.view(waiter).priority, 125);
        assert_eq!(core.running(), Some(TaskId(0)));
        advance(&mut core, at(220));
        assert_eq!(core.running(), Some(waiter));
        assert_eq!(core.view(waiter).sleep_average, Span::from_nanos(40_000_000 + gain), "{waker:?}");
    }
}

#[test]
fn an_interactive_task_returns_to_the_active_array_until_others_starve() {
    let mut core = core();
    let burner = core.spawn(Time::ZERO, &spec(0, 0));
    let interactive = core.spawn(Time::ZERO, &spec(0, 1_000));
    advance(&mut core, at(2_150));
    // 21 consecutive slices, each returning to the active array.
    assert_eq!(core.running(), Some(interactive));
    assert_eq!(core.ledger().run_time(burner, at(2_150)), Span::ZERO);
    advance(&mut core, at(2_201));
    // The expired array has waited since 100 ms, longer than 1 s times the two runnable tasks.
    assert_eq!(core.running(), Some(burner));
}

#[test]
fn equal_interactive_tasks_alternate_within_their_slices() {
    // TIMESLICE_GRANULARITY: 10 ms at bonus 10 and 9, doubling with each lower level.
    for (average, turn) in [(1_000, 10), (850, 20), (750, 40)] {
        let mut core = core();
        core.spawn(Time::ZERO, &spec(0, average));
        core.spawn(Time::ZERO, &spec(0, average));
        advance(&mut core, at(81));
        let expected: Vec<_> = (0..80 / turn).map(|n| (n as u32 % 2, n * turn, (n + 1) * turn)).collect();
        assert_eq!(slices(&core), expected, "{average} ms");
    }
}

proptest! {
    /// For any input, run times and idle time add up to the elapsed time, the averages stay in bounds, and a
    /// task runs whenever one is runnable.
    #[test]
    fn no_time_is_lost_or_invented(
        ops in prop::collection::vec((0u8..6, 0u32..6, 0u64..30_000_000, -20i8..20), 1..200),
    ) {
        let mut core = O1::new(O1Config::default(), Time::ZERO);
        let mut now = Time::ZERO;
        for (op, which, wait, nice) in ops {
            now += Span::from_nanos(wait);
            advance(&mut core, now);
            let tasks = core.ledger().tasks() as u32;
            match op {
                0 if tasks < 12 => { core.spawn(now, &spec(nice, u64::from(which) * 200)); }
                1 if tasks > 0 => core.wake(now, TaskId(which % tasks), Waker::Interrupt),
                2 if tasks > 0 => core.wake(now, TaskId(which % tasks), Waker::Task),
                3 => core.sleep(now, SleepKind::Interruptible),
                4 => core.sleep(now, SleepKind::Uninterruptible),
                5 if tasks > 4 && which == 0 => core.kill(now, TaskId(tasks - 1)),
                _ => {}
            }
            let ids = (0..core.ledger().tasks() as u32).map(TaskId);
            let run = ids.clone().fold(Span::ZERO, |sum, id| sum + core.ledger().run_time(id, now));
            prop_assert_eq!(run + core.ledger().idle_time(now), now.since(Time::ZERO));
            for view in ids.clone().map(|id| core.view(id)) {
                prop_assert!(view.sleep_average <= Span::from_secs(1));
                prop_assert!((100..140).contains(&view.priority));
            }
            prop_assert_eq!(core.running().is_some(), ids.clone().any(|id| core.view(id).runnable));
            prop_assert!(core.running().is_none_or(|id| core.view(id).runnable));
        }
    }
}
