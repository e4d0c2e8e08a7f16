//! `haul pipe` with every preset over 40 ms and 1 % of loss in each direction.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::thread::{JoinHandle, spawn};

use haul_base::{Rng, Span};
use haul_sim::DropReason;
use haul_testing::privileged;
use haul_wan::{Emulator, V4};

use super::{emulator, haul, lossy, url_in};

/// Exit code, stdout and stderr.
type Ended = (Option<i32>, Vec<u8>, String);

fn start(command: &mut Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Writes `input` to a process and waits for its end.
fn end(mut side: Child, input: Vec<u8>) -> JoinHandle<Ended> {
    let mut stdin = side.stdin.take().unwrap();
    // A process that stops reading is detected by its exit code.
    spawn(move || drop(stdin.write_all(&input)));
    spawn(move || {
        let output = side.wait_with_output().unwrap();
        (output.status.code(), output.stdout, String::from_utf8_lossy(&output.stderr).into_owned())
    })
}

/// The output of a pipe, and the reports of both sides. Asserts that packets were lost in both directions.
fn through(emulator: &Emulator, preset: &str, options: &[&str], input: &[u8]) -> (Vec<u8>, String) {
    let lost = || emulator.snapshots().unwrap().map(|way| way.drops.of(DropReason::Random));
    let before = lost();
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("url");
    let mut listen = haul(&emulator.world.b.namespace);
    listen.args(["pipe", "--listen", "0.0.0.0:2640", "--host", &V4[1].to_string(), "--url-file"]).arg(&file);
    let receiver = end(start(&mut listen), Vec::new());
    let mut send = haul(&emulator.world.a.namespace);
    send.args(["pipe", "--preset", preset]).args(options).arg(url_in(&file));
    let sender = end(start(&mut send), input.to_vec());
    let (code, _, stderr) = sender.join().unwrap();
    let (other, got, words) = receiver.join().unwrap();
    assert_eq!((code, other), (Some(0), Some(0)), "{preset}: {stderr} {words}");
    assert!(lost()[0] > before[0], "{preset}: nothing was lost on the way there");
    (got, stderr + &words)
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    Rng::from_seed(seed).fill(&mut data);
    data
}

#[test]
fn byte_streams_arrive_unchanged_with_every_object_recipe() {
    if !privileged("byte_streams_arrive_unchanged_with_every_object_recipe") {
        return;
    }
    let (_alone, emulator) = emulator(31, &lossy(0.01, Span::from_millis(20)), None);
    // More than one side buffers.
    let input = bytes(31, 80_000_000);
    for preset in ["bulk", "fobs", "rbudp"] {
        let (got, stderr) = through(&emulator, preset, &["--rate", "150Mbit"], &input);
        assert!(got == input, "{preset}: {} of {} bytes", got.len(), input.len());
        assert!(stderr.contains("Limited by: ") && stderr.contains("lost "), "{preset}: {stderr}");
    }
    let input = bytes(32, 5_000_000);
    for preset in ["default", "fixed"] {
        let (got, _) = through(&emulator, preset, &["--rate", "150Mbit"], &input);
        assert!(got == input, "{preset}: {} of {} bytes", got.len(), input.len());
    }
}

#[test]
fn messages_arrive_as_each_recipe_guarantees() {
    if !privileged("messages_arrive_as_each_recipe_guarantees") {
        return;
    }
    let (_alone, emulator) = emulator(33, &lossy(0.01, Span::from_millis(20)), None);
    let lines: Vec<u8> =
        (0..4_000).flat_map(|n| format!("line {n} {}\n", "x".repeat(n % 300)).into_bytes()).collect();
    let (got, _) = through(&emulator, "msg", &[], &lines);
    assert!(got == lines, "msg: {} of {} bytes", got.len(), lines.len());
    unrepeated(&emulator);
    suppressed(&emulator);
}

/// `viz`: each frame arrives whole and at most once; missing frames are reported.
fn unrepeated(emulator: &Emulator) {
    const FRAMES: u32 = 8_000;
    let input: Vec<u8> =
        (0..FRAMES).flat_map(|n| [n.to_be_bytes().to_vec(), vec![7; 996]].concat()).collect();
    let (got, words) = through(emulator, "viz", &["--rate", "40Mbit", "--frame", "1000B"], &input);
    assert_eq!(got.len() % 1_000, 0);
    let numbers: Vec<u32> =
        got.chunks(1_000).map(|frame| u32::from_be_bytes(frame[..4].try_into().unwrap())).collect();
    let distinct: BTreeSet<_> = numbers.iter().collect();
    assert_eq!(distinct.len(), numbers.len(), "none twice");
    let share = numbers.len() as f64 / f64::from(FRAMES);
    assert!(share > 0.97 && share < 1.0, "{share} of the frames: {words}");
    assert!(got.chunks(1_000).all(|frame| frame[4..].iter().all(|&byte| byte == 7)));
    assert!(words.contains("more were lost"), "{words}");
}

/// `sensor`: delivers every reading that differs from the one before, and no other.
fn suppressed(emulator: &Emulator) {
    let reading = |n: usize| format!("reading {:06} {}\n", n, n * n).into_bytes();
    let input: Vec<u8> = (0..3_000).flat_map(|n| reading(n / 3)).collect();
    let (got, words) = through(emulator, "sensor", &[], &input);
    let mut lines: Vec<&[u8]> = got.split_inclusive(|&byte| byte == b'\n').collect();
    lines.sort_unstable();
    let expected: Vec<_> = (0..1_000).map(reading).collect();
    assert_eq!(lines.len(), expected.len(), "{words}");
    assert!(lines == expected, "{words}");
}
