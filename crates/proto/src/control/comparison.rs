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
