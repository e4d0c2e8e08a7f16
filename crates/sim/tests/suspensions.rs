//! The scheduler model of RAPID+ (section 5.2) beside the simulated O(1) scheduler: given where each task goes when its time
//! slice has ended, both say for how long the receiving task stays without the core.

use haul_base::{Probability, Span, Time};
use haul_proto::suspension::{Ahead, Case, Reentry};
use haul_sim::host::scheduler::{Nice, O1, O1Config, Scheduler, TaskId, TaskSpec, Trace};

const fn ms(millis: u64) -> Span {
    Span::from_millis(millis)
}

/// A task that never sleeps: its nice value, and the sleep average with which it begins, ms.
type Burner = (i8, u64);

/// The first suspension of the first task after it has run, beside `others`.
fn suspended(receiver: Burner, others: &[Burner]) -> Span {
    let mut core = O1::new(O1Config::default(), Time::ZERO);
    core.ledger_mut().set_trace(Some(Trace::new(1_000, Span::ZERO)));
    let mut spawn = |(nice, sleep_average): Burner| {
        core.spawn(Time::ZERO, &TaskSpec { nice: Nice::new(nice), sleep_average: ms(sleep_average) })
    };
    let receiver = spawn(receiver);
    for &other in others {
        spawn(other);
    }
    while let Some(next) = core.next_event().filter(|&next| next <= Time::ZERO + ms(10_000)) {
        core.advance(next);
    }
    let trace = core.ledger().trace().expect("it was set");
    let of_receiver = |task: TaskId| task == receiver;
    let mut own = trace.slices().iter().filter(|slice| of_receiver(slice.task));
    let (first, second) = (own.next().expect("it ran"), own.next().expect("it ran again"));
    second.from.since(first.to)
}

#[test]
fn case_i_the_others_of_the_active_array_run_once() {
    // The receiver is interactive and re-enters the active array. Its equals at nice -10 are not, and have 600 ms each.
    let model = Ahead { active: &[ms(2 * 600)], expired: &[], levels_ahead: 0, waiting: Span::ZERO };
    assert_eq!(model.suspension(Case::I), Some(suspended((0, 1_000), &[(-10, 0), (-10, 0)])));
}

#[test]
fn case_iv_the_others_come_behind_it_in_the_expired_array() {
    let slices = [ms(3 * 100)];
    let model = Ahead { active: &slices, expired: &slices, levels_ahead: 1, waiting: Span::ZERO };
    assert_eq!(model.suspension(Case::IV), Some(suspended((0, 0), &[(0, 0), (0, 0), (0, 0)])));
}

#[test]
fn case_v_better_ones_of_the_expired_array_run_before_it() {
    // Nice -1 and -3 have 420 and 460 ms, and have run before the receiver when its own slice ends.
    let expired = [ms(460), ms(420), ms(100)];
    let model = Ahead { active: &[], expired: &expired, levels_ahead: 2, waiting: Span::ZERO };
    assert_eq!(model.suspension(Case::V), Some(suspended((0, 0), &[(-1, 0), (-3, 0)])));
}

/// The first suspension of the first task if `others` are there when its first time slice has ended, and the
/// share of their slice ends after which they came back ahead of it.
fn overtaken(receiver: Burner, others: &[Burner], slice: Span) -> (Span, Probability) {
    let mut core = O1::new(O1Config::default(), Time::ZERO);
    core.ledger_mut().set_trace(Some(Trace::new(1_000, Span::ZERO)));
    let spawn = |core: &mut O1, at, (nice, sleep_average): Burner| {
        core.spawn(at, &TaskSpec { nice: Nice::new(nice), sleep_average: ms(sleep_average) })
    };
    let run = |core: &mut O1, until: Time| {
        while let Some(next) = core.next_event().filter(|&next| next <= until) {
            core.advance(next);
        }
    };
    let receiver = spawn(&mut core, Time::ZERO, receiver);
    let ended = Time::ZERO + ms(100);
    run(&mut core, ended);
    for &other in others {
        spawn(&mut core, ended, other);
    }
    run(&mut core, Time::ZERO + ms(20_000));
    let trace = core.ledger().trace().expect("it was set");
    let mut own = trace.slices().iter().filter(|slice| slice.task == receiver);
    let (first, second) = (own.next().expect("it ran"), own.next().expect("it ran again"));
    let of_others = trace.slices().iter().filter(|run| run.task != receiver && run.to <= second.from);
    let ran = of_others.fold(Span::ZERO, |sum, run| sum + run.to.since(run.from));
    let ends = ran.as_nanos() as f64 / slice.as_nanos() as f64;
    let share = Probability::new(1.0 - others.len() as f64 / ends).expect("a share");
    (second.from.since(first.to), share)
}

fn assert_near(model: Option<Span>, found: Span) {
    let model = model.expect("they do not come back for ever");
    let difference = model.saturating_sub(found).max(found.saturating_sub(model));
    assert!(difference < Span::from_micros(1), "{model} and {found}");
}

#[test]
fn case_ii_others_that_re_enter_the_active_array_behind_it_run_once() {
    // The receiver has lost a level by running; so do the others, and then queue behind it.
    let (found, share) = overtaken((0, 1_000), &[(0, 1_000), (0, 1_000)], ms(100));
    let model = Ahead { active: &[ms(2 * 100)], expired: &[], levels_ahead: 0, waiting: Span::ZERO };
    assert_eq!((model.suspension(Case::II), share), (Some(found), Probability::ZERO));
}

#[test]
fn case_iii_others_that_re_enter_ahead_of_it_run_again() {
    // Nice -4 has 480 ms, and is ahead until its sleep average is used up.
    let (found, share) = overtaken((0, 1_000), &[(-4, 1_000), (-4, 1_000)], ms(480));
    let model = Ahead { active: &[ms(2 * 480)], expired: &[], levels_ahead: 1, waiting: Span::ZERO };
    assert!(share.get() > 0.5, "{share:?}");
    assert_near(model.suspension(Case::III(Reentry::Constant(share))), found);
}

#[test]
fn case_vi_interactive_ones_run_again_before_the_arrays_change_places() {
    let (found, share) = overtaken((0, 0), &[(0, 1_000), (0, 1_000)], ms(100));
    let model = Ahead { active: &[ms(2 * 100)], expired: &[], levels_ahead: 1, waiting: Span::ZERO };
    assert!(share.get() > 0.5, "{share:?}");
    assert_near(model.suspension(Case::VI(Reentry::Constant(share))), found);
}
