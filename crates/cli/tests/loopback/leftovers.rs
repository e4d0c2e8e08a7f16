//! `haul status` and `haul clean` with the journals of an interrupted job and of a running one.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, SystemTime};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, mkdirat, openat};
use serde_json::Value;

use crate::serving::until;
use crate::support::{haul, text};

/// A journal in version 1 of the format, with the id 1234abcd: temporary files are in `d`; file 300 is `d/f`,
/// 4,096 bytes long, of which bytes 5 to 1,005 are written.
const JOURNAL: &str = concat!(
    "4841554c4a524e4c0100cdab3412030000008b0170983f6e4aa90001642b0000007099cae8bc5cb7",
    "1e01ac0203642f6680200d0503030303030303030303030303030303030303030303030303030303",
    "0303030306000000a3bc2a92b12303a702ac0205e807",
);
const NAME: &str = ".haul-1234abcd.journal";
const PART: &str = "d/.haul-1234abcd-300.part";

fn haul_in(arguments: &[&str], here: &Path) -> Output {
    haul().current_dir(here).args(arguments).output().unwrap()
}

#[track_caller]
fn stdout(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[track_caller]
fn object(output: &Output, code: i32) -> Value {
    let stdout = stdout(output, code);
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    serde_json::from_str(&stdout).unwrap()
}

/// Creates what a job leaves in `below/at` when it is killed, one minute old.
fn leave(here: &Path, below: &str) -> PathBuf {
    let at = here.join(below);
    fs::create_dir_all(at.join("d")).unwrap();
    let byte = |from: usize| u8::from_str_radix(&JOURNAL[from..from + 2], 16).unwrap();
    fs::write(at.join(NAME), (0..JOURNAL.len()).step_by(2).map(byte).collect::<Vec<_>>()).unwrap();
    let file = File::options().append(true).open(at.join(NAME)).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(60)).unwrap();
    fs::write(at.join(PART), [7; 1005]).unwrap();
    fs::write(at.join("d/.haul-1234abcd-7.part"), "small").unwrap();
    fs::write(at.join("d/mine.part"), "mine").unwrap();
    at
}

#[test]
fn status_shows_what_can_be_resumed_and_changes_nothing() {
    let here = tempfile::tempdir().unwrap();
    leave(here.path(), ".");
    for _ in 0..2 {
        let shown = stdout(&haul_in(&["status"], here.path()), 0);
        assert!(
            shown.starts_with(&format!("./{NAME}  leftover, can be resumed, 1 min old, 2 temp")),
            "{shown}"
        );
        assert!(shown.ends_with("\n    d/f  1.0 kB of 4.1 kB\n"), "{shown}");
    }
    let result = object(&haul_in(&["status", "--json"], here.path()), 0);
    assert_eq!((&result["schema"], &result["ok"], &result["error"]), (&1.into(), &true.into(), &Value::Null));
    let journal = &result["journals"][0];
    assert_eq!((&journal["state"], &journal["journal"]), (&"left_over".into(), &NAME.into()));
    assert_eq!((&journal["have_bytes"], &journal["temporary_files"]), (&1000.into(), &2.into()));
    assert!(journal["age_seconds"].as_f64().unwrap() >= 60.0);
    let file = &journal["files"][0];
    assert_eq!((&file["path"], &file["have"], &file["size"]), (&"d/f".into(), &1000.into(), &4096.into()));
}

#[test]
fn clean_removes_the_journal_and_its_temporary_files_and_nothing_else() {
    let here = tempfile::tempdir().unwrap();
    let at = leave(here.path(), ".");
    let dry = stdout(&haul_in(&["clean", "-n"], here.path()), 0);
    assert!(dry.starts_with(&format!("would remove ./{NAME} with 2 temporary files")), "{dry}");
    assert!(at.join(NAME).exists() && at.join(PART).exists());
    let done = stdout(&haul_in(&["clean"], here.path()), 0);
    assert!(done.starts_with(&format!("removed ./{NAME} with 2 temporary files")), "{done}");
    let remaining: Vec<_> = fs::read_dir(at.join("d")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(remaining, ["mine.part"]);
    assert!(!at.join(NAME).exists());
    let repeated = haul_in(&["clean"], here.path());
    assert_eq!(stdout(&repeated, 0), "");
    assert_eq!(text(&repeated.stderr), "Nothing to remove (-r includes subdirectories).\n");
}

#[test]
fn files_of_a_running_job_are_shown_and_never_removed() {
    let here = tempfile::tempdir().unwrap();
    let at = leave(here.path(), ".");
    let running = File::open(at.join(NAME)).unwrap();
    flock(&running, FlockOperation::LockExclusive).unwrap();
    let shown = stdout(&haul_in(&["status"], here.path()), 0);
    assert!(shown.contains("  running, "), "{shown}");
    let output = haul_in(&["clean"], here.path());
    assert_eq!(stdout(&output, 0), "");
    assert!(text(&output.stderr).contains("its transfer is running"), "{}", text(&output.stderr));
    assert!(at.join(NAME).exists() && at.join(PART).exists());
    drop(running);
    // Children of other tests hold the inherited lock until they call exec.
    until("the lock is free", || stdout(&haul_in(&["clean"], here.path()), 0).starts_with("removed "));
}

#[test]
fn clean_can_keep_recent_files_and_descend() {
    let here = tempfile::tempdir().unwrap();
    let (deep, other) = (leave(here.path(), "a/b"), leave(here.path(), "c"));
    assert_eq!(stdout(&haul_in(&["clean"], here.path()), 0), "");
    let spared = object(&haul_in(&["clean", "-r", "--older-than", "1h", "--json"], here.path()), 0);
    assert_eq!((&spared["removed"], spared["left"].as_array().unwrap().len()), (&Value::Array(vec![]), 2));
    assert_eq!(spared["left"][0]["why"], "it is younger than 1 h");
    let one = object(&haul_in(&["clean", "-r", "--older-than", "30s", "--json", "a"], here.path()), 0);
    assert_eq!(one["removed"][0]["directory"], "a/b");
    assert!(!deep.join(PART).exists() && other.join(PART).exists());
    assert!(stdout(&haul_in(&["status", "-r"], here.path()), 0).starts_with("./c/.haul-1234abcd.journal"));
}

#[test]
fn leftovers_below_long_paths_are_shown_and_removed() {
    let here = tempfile::tempdir().unwrap();
    let name = "n".repeat(200);
    let mut at = openat(CWD, here.path(), OFlags::PATH, Mode::empty()).unwrap();
    for _ in 0..50 {
        mkdirat(&at, &name, Mode::RWXU).unwrap();
        at = openat(&at, &name, OFlags::PATH, Mode::empty()).unwrap();
    }
    // A short path to the deep directory.
    leave(&PathBuf::from(format!("/proc/self/fd/{}", at.as_raw_fd())), "at");
    let shown = object(&haul_in(&["status", "-r", "--json"], here.path()), 0);
    assert_eq!(shown["journals"][0]["have_bytes"], 1000, "{shown}");
    let removed = object(&haul_in(&["clean", "-r", "--json"], here.path()), 0);
    assert_eq!(removed["removed"][0]["temporary_files"], 2, "{removed}");
    assert_eq!(text(&haul_in(&["clean", "-r"], here.path()).stderr), "Nothing to remove.\n");
}

#[test]
fn foreign_files_are_named_and_kept() {
    let here = tempfile::tempdir().unwrap();
    let at = leave(here.path(), ".");
    let mut later = fs::read(at.join(NAME)).unwrap();
    later[8] = 9;
    fs::write(at.join(NAME), later).unwrap();
    let result = object(&haul_in(&["status", "--json"], here.path()), 0);
    assert_eq!(result["journals"][0]["state"], "not_ours");
    let output = haul_in(&["clean"], here.path());
    assert_eq!(stdout(&output, 0), "");
    assert!(text(&output.stderr).contains("another version of haul"), "{}", text(&output.stderr));
    assert!(at.join(NAME).exists() && at.join(PART).exists());
}

#[test]
fn impossible_requests_are_errors() {
    let here = tempfile::tempdir().unwrap();
    let result = object(&haul_in(&["status", "--json", "nowhere"], here.path()), 7);
    assert_eq!((&result["ok"], &result["error"]["code"]), (&false.into(), &"no_such_path".into()));
    let at = leave(here.path(), ".");
    fs::create_dir(at.join("d/.haul-1234abcd-8.part")).unwrap();
    let result = object(&haul_in(&["clean", "--json"], here.path()), 7);
    assert_eq!((&result["ok"], &result["removed"]), (&false.into(), &Value::Array(vec![])));
    assert!(at.join(NAME).exists(), "the journal must stay for another attempt");
}

#[test]
fn a_journal_of_another_version_is_reported_with_a_hint() {
    let here = tempfile::tempdir().unwrap();
    leave(here.path(), ".");
    let mut bytes = fs::read(here.path().join(NAME)).unwrap();
    // The version field (docs/mover.md).
    bytes[8] = 77;
    fs::write(here.path().join(NAME), bytes).unwrap();
    fs::create_dir(here.path().join("from")).unwrap();
    let remaining = format!(
        "note: `{NAME}` at the destination was left alone: it was written by another version of haul (format 77)"
    );
    fs::write(here.path().join("from/one"), "contents").unwrap();
    for options in [&["-n"][..], &[], &["--ignore-times"]] {
        let done = haul_in(&[&["cp"], options, &["from/one", "."]].concat(), here.path());
        stdout(&done, 0);
        let stderr = text(&done.stderr);
        assert_eq!(stderr.lines().filter(|line| line.starts_with(&remaining)).count(), 1, "{stderr}");
        assert!(stderr.contains("`.haul-1234abcd-*.part`") && !stderr.contains("WARN"), "{stderr}");
        assert_eq!(
            text(&haul_in(&[&["cp", "-q"], options, &["from/one", "."]].concat(), here.path()).stderr),
            ""
        );
    }
    let report = object(&haul_in(&["cp", "--json", "from/one", "."], here.path()), 0);
    assert_eq!((&report["noted"], report["notes"].as_array().unwrap().len()), (&1.into(), 1));
    assert!(stdout(&haul_in(&["status"], here.path()), 0).contains("delete it together"));
    assert!(text(&haul_in(&["clean"], here.path()).stderr).contains("delete it together"));
    assert!(here.path().join(NAME).exists() && here.path().join(PART).exists());
}
