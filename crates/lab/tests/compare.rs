//! `haul-lab compare`: short runs of single cases in both worlds.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::process::{Command, Stdio};

use haul_testing::{attempts, privileged};

fn compare(args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_haul-lab"));
    let output = command.arg("compare").args(args).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the cells of the first table row whose name starts with `name`.
fn cells(text: &str, name: &str) -> Vec<String> {
    let line = text.lines().find(|line| line.starts_with(&format!("| {name}"))).unwrap();
    line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
}

#[test]
fn simulator_and_emulator_drop_the_same_packets() {
    if !privileged("simulator_and_emulator_drop_the_same_packets") {
        return;
    }
    let compare = || {
        let only = ["--only", "Gilbert-Elliott 0.02"];
        let text = compare(&[&["--time", "1s", "--seed", "5", "--simulations", "1"][..], &only].concat());
        println!("{text}");
        cells(&text, "Gilbert-Elliott")
    };
    // Loss in theory, simulated, simulated with the emulator's times, emulated, and the emulator's own
    // losses.
    let loss = attempts(compare, |loss| loss[6] == "0" && loss[4] == loss[5]);
    assert_eq!(loss[2], "16.667");
    assert_eq!(loss[6], "0", "the machine was too busy for the emulator");
    assert_eq!(loss[4], loss[5]);
    assert!(loss[5].parse::<f64>().unwrap() > 5.0);
}

#[test]
fn linux_tcp_is_compared_with_its_model() {
    if !privileged("linux_tcp_is_compared_with_its_model") {
        return;
    }
    let name = "reno 50.0 Mbit/s 50.000 ms queue 0.25";
    let text = compare(&["--time", "2s", "--simulations", "2", "--only", name]);
    println!("{text}");
    let cells = cells(&text, "reno");
    assert_eq!((cells.len(), cells[0].as_str()), (9, name));
    let (simulated, emulated): (f64, f64) = (cells[1].parse().unwrap(), cells[3].parse().unwrap());
    assert!(simulated > 10.0 && emulated > 1.0 && emulated < 50.0, "{simulated} {emulated}");
}

#[test]
fn the_simulated_half_is_reproducible_to_the_byte() {
    let args = ["--no-emulator", "--time", "1s", "--simulations", "3", "--seed", "7", "--only", "bbr+bbr"];
    let text = compare(&args);
    assert_eq!(text, compare(&args));
    let [first, .., last] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
    assert_eq!(first, "seed 7, 1.000 s a run");
    assert!(last.starts_with("| bbr+bbr 50.0 Mbit/s 100.000 ms queue 1: bbr 2 |"), "{last}");
}
