//! The laws that may be the default, beside each other. `cargo test -p haul-proto --lib comparison -- --nocapture` prints the table.

use super::testing::{run_scenario, scenarios};

#[test]
fn candidates_for_the_default_on_paths_that_change() {
    for scenario in scenarios() {
        for law in ["delivery", "bbr"] {
            println!("{:<40} {law:<9}{}", scenario.name, run_scenario(law, &[], &scenario));
        }
    }
}

#[test]
fn trace() {
    use super::testing::*;
    use haul_base::*;
    let which = std::env::var("CASE").unwrap_or_default();
    let path = super::testing::scenarios().into_iter().find(|s| s.name.contains(&which)).unwrap().path;
    let mut run = Harness::new(built("bbr", &[], Rate::MAX), path.clone());
    let begun = run.now;
    let mut last = "";
    for _ in 0..12000 * (path.rtt.as_micros() / 40_000 + 1) {
        run.run_for(Span::from_millis(1));
        let state = run.law.state();
        if state.phase != last {
            last = state.phase;
            let limits = run.limits().unwrap();
            println!(
                "{} {:<9} rate {} window {} in flight {} rtt {}",
                run.now.since(begun),
                state.phase,
                state.rate,
                limits.window.unwrap() / 1472,
                run.in_flight() / 1472,
                run.rtt.latest()
            );
        }
    }
}
