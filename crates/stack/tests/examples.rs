//! Runs the example to its end.

#![expect(unreachable_pub, reason = "examples are programs, and modules here")]

#[path = "../examples/raises.rs"]
mod raises;

#[test]
fn the_example_runs() {
    raises::main().unwrap_or_else(|error| panic!("{error}"));
}
