//! Tests of laws with parameters at the limits of their ranges.

use haul_base::{Rate, Span};
use haul_stack::{ParameterKind, ParameterSpec};

use super::registry::built_in_laws;
use super::testing::{Harness, Loss, PathModel, config};
use super::{ControllerError, LawRegistration, MAX_PAUSE, MIN_RATE, MIN_WINDOW, Permit, hand_over};

const CEILING: Rate = Rate::from_mbps(95);

fn bounds(spec: &ParameterSpec) -> Vec<String> {
    let nanos = |span: Span| format!("{}ns", span.as_nanos());
    let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
    match spec.kind {
        ParameterKind::Rate => texts(&["1bit", "unlimited"]),
        ParameterKind::Bytes => texts(&["0B", "1000GB"]),
        ParameterKind::Span => texts(&["0ns", "1000s"]),
        ParameterKind::RateIn(least, most) => vec![least.exact(), most.exact()],
        ParameterKind::BytesIn(least, most) => vec![format!("{}B", least.0), format!("{}B", most.0)],
        ParameterKind::SpanIn(least, most) => vec![nanos(least), nanos(most)],
        ParameterKind::Integer(least, most) => vec![least.to_string(), most.to_string()],
        ParameterKind::Number(least, most) => vec![least.to_string(), most.to_string()],
        ParameterKind::Flag => texts(&["false", "true"]),
        ParameterKind::Choice(words) => texts(words),
        ParameterKind::Text => Vec::new(),
    }
}

type Settings = Vec<(&'static str, String)>;

/// Each parameter at each of its limits, the others at their defaults; then all at their first, and last.
fn cases(law: &LawRegistration) -> Vec<Settings> {
    let values = || law.parameters.iter().map(|spec| (spec.name, bounds(spec)));
    let each = values().flat_map(|(name, values)| values.into_iter().map(move |value| vec![(name, value)]));
    let first = values().filter_map(|(name, values)| Some((name, values.into_iter().next()?))).collect();
    let last = values().filter_map(|(name, mut values)| Some((name, values.pop()?))).collect();
    each.chain([first, last]).collect()
}

fn run_for(run: &mut Harness, span: Span, what: &str) {
    for _ in 0..50 {
        run.run_for(span / 50);
        match run.law.permit() {
            Permit::Go(limits) => {
                assert!(limits.rate > Rate::ZERO && limits.rate <= CEILING, "{what}: {limits:?}");
                assert!((1_472..=65_507).contains(&limits.burst), "{what}: {limits:?}");
                assert!(limits.window.is_none_or(|window| window >= MIN_WINDOW), "{what}: {limits:?}");
            }
            Permit::Pause(until) => assert!(until <= run.now + MAX_PAUSE, "{what} holds until {until:?}"),
        }
    }
}

/// Runs a law on a lossy path that gets ten times as long, is idle for ten minutes, and is then restored.
fn run_case(law: &LawRegistration, settings: &Settings) {
    let what = format!("{} {settings:?}", law.name);
    let texts: Vec<_> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let built = match law.build(&texts, &config(Some(CEILING))) {
        // Incompatible parameters are refused with the reason.
        Err(ControllerError::Unsuitable { .. }) => return,
        built => built.unwrap(),
    };
    let path = PathModel { loss: Loss::Random(0.01), chunk: 10_000_000, ..PathModel::default() };
    let mut run = Harness::new(built, path);
    let (before, seconds) = (run.path.rtt, Span::from_secs(1));
    run_for(&mut run, seconds, &what);
    run.path.rtt = before * 10;
    run_for(&mut run, seconds, &what);
    (run.path.rtt, run.has_data) = (before, false);
    run_for(&mut run, Span::from_secs(600), &what);
    (run.has_data, run.path.loss) = (true, Loss::None);
    let sent = run.sent_bytes();
    run_for(&mut run, seconds * 5, &what);
    assert!(run.sent_bytes() > sent, "{what} sends nothing after a pause");
}

#[test]
fn laws_with_extreme_parameters_have_sane_limits_and_continue_after_a_pause() {
    for law in built_in_laws() {
        for settings in cases(law) {
            run_case(law, &settings);
        }
    }
}

/// Without the hand-over, two laws needed more than five minutes, three more than one.
#[test]
fn a_law_that_replaces_a_stopped_one_has_half_of_the_path_within_a_minute() {
    let path = PathModel::bottleneck(Rate::from_mbps(100), Span::from_millis(40), 1.0);
    let seconds = Span::from_secs(1);
    for law in built_in_laws() {
        for rate in [Rate::ZERO, Rate::from_bps(1), MIN_RATE, MIN_RATE.mul_f64(9.0)] {
            let mut run = Harness::new(law.build(&[], &config(Some(CEILING))).unwrap(), path.clone());
            hand_over(&mut *run.law, rate, &run.rtt);
            let has_half = (0..60).any(|_| run.measure(seconds).goodput >= Rate::from_mbps(50));
            assert!(has_half, "{} from {rate}", law.name);
        }
    }
}
