//! The server's kernel sandbox (Landlock), and what a server can do inside it.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::serving::{LoggedServer, idle, until};
#[cfg(feature = "faults")]
use crate::support::lossy;
use crate::support::{exits, run};

/// A server that reports its restriction; `None` if the kernel has no Landlock.
fn restricted(starter: &[&str], root: &Path, options: &[&str]) -> Option<LoggedServer> {
    let mut logged_server = LoggedServer::started_by(starter, root, options);
    let stderr = logged_server.stderr_until("restricted by Landlock");
    let line = stderr.lines().last().unwrap();
    if line.starts_with("not restricted") {
        eprintln!("SKIPPED a server in {}: {line}", root.display());
        return None;
    }
    let offer = if options.contains(&"--read-only") { "reading" } else { "reading and writing" };
    let within = format!("restricted by Landlock to {offer} in {} (ABI ", root.display());
    assert!(line.starts_with(&within), "{stderr}");
    Some(logged_server)
}

/// A tree with nested directories, a file of many packets, and a hard link to it in another directory.
fn tree(root: &Path) {
    fs::create_dir_all(root.join("a/b/c")).unwrap();
    fs::create_dir(root.join("d")).unwrap();
    fs::write(root.join("a/b/c/file"), vec![7; 3_000_000]).unwrap();
    fs::write(root.join("a/old"), "old").unwrap();
    fs::hard_link(root.join("a/b/c/file"), root.join("d/again")).unwrap();
    symlink("../a/old", root.join("d/link")).unwrap();
}

#[track_caller]
fn is_tree(root: &Path) {
    assert_eq!(fs::read(root.join("a/b/c/file")).unwrap(), vec![7; 3_000_000]);
    let inode = |name: &str| fs::metadata(root.join(name)).unwrap().ino();
    assert_eq!(inode("a/b/c/file"), inode("d/again"));
    assert_eq!(fs::read_link(root.join("d/link")).unwrap(), Path::new("../a/old"));
}

#[test]
fn a_restricted_server_accepts_uploads_downloads_and_deletions() {
    let [here, root, beside] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let (source, url_file) = (here.path().join("tree"), beside.path().join("url"));
    tree(&source);
    let options = ["--url-file", url_file.to_str().unwrap(), "--min-free", "1MB"];
    let Some(mut logged_server) = restricted(&[], root.path(), &options) else { return };
    logged_server.server.url = fs::read_to_string(&url_file).unwrap().trim().to_owned();
    let (contents, there) = (format!("{}/.", source.display()), logged_server.server.at("copy"));
    exits(&run(&["cp", "-a", &contents, &there]), 0);
    is_tree(&root.path().join("copy"));
    let back = here.path().join("back");
    exits(&run(&["cp", "-a", &logged_server.server.at("copy/."), back.to_str().unwrap()]), 0);
    is_tree(&back);
    fs::remove_file(source.join("a/old")).unwrap();
    fs::rename(source.join("a/b/c"), source.join("d/c")).unwrap();
    exits(&run(&["cp", "-a", "--delete", &contents, &there]), 0);
    let is_deleted = |name: &str| !root.path().join("copy").join(name).exists();
    assert!(is_deleted("a/old") && is_deleted("a/b/c") && !is_deleted("d/c/file"));
    assert_eq!(fs::read_dir(beside.path()).unwrap().count(), 1, "only the URL file");
}

/// Under memory pressure the kernel drops unused entries of `/proc` from its cache; mounting it again has the
/// same effect.
#[test]
fn a_restricted_server_keeps_access_to_proc() {
    let (here, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let starter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let enters = Command::new(starter[0]).args(&starter[1..]).arg("true").output();
    if !enters.is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED a_restricted_server_keeps_access_to_proc: needs root");
        return;
    }
    let Some(logged_server) = restricted(&starter, root.path(), &[]) else { return };
    let file = here.path().join("file");
    fs::write(&file, vec![7; 8_000_000]).unwrap();
    // The receiving server reads the load of its host from /proc, again for each copy.
    let known = |name: &str| {
        let (events, there) = (here.path().join(name), logged_server.server.at(name));
        let options = ["--rate", "100Mbit", "--events", events.to_str().unwrap()];
        exits(&run(&[&["cp"], &options[..], &[file.to_str().unwrap(), &there]].concat()), 0);
        let trace = fs::read_to_string(&events).unwrap();
        let lines = trace.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let mut hosts =
            lines.map(|line| line["data"]["receiver_host"].clone()).filter(|host| !host.is_null());
        let last = hosts.next_back().unwrap_or_else(|| panic!("no host in {trace}"));
        ["run_delay_ms", "steal_ms", "cpu_pressure_percent"].map(|key| last[key].is_number())
    };
    let before = known("before");
    assert!(before[1], "{before:?}");
    let server = logged_server.server.child.id().to_string();
    let remount = ["--target", &server, "--mount", "mount", "-o", "remount", "/proc"];
    assert!(Command::new("nsenter").args(remount).status().unwrap().success());
    assert_eq!(known("after"), before);
}

#[test]
fn a_restricted_read_only_server_serves_downloads() {
    let (here, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    tree(&root.path().join("tree"));
    let Some(logged_server) = restricted(&[], root.path(), &["--read-only"]) else { return };
    let back = here.path().join("back");
    exits(&run(&["cp", "-a", &logged_server.server.at("tree/."), back.to_str().unwrap()]), 0);
    is_tree(&back);
}

#[test]
fn all_threads_that_handle_clients_are_restricted() {
    let [root, beside] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    // The thread that writes the URL file is not restricted: the file is outside the root.
    let url_file = beside.path().join("url");
    let Some(logged_server) = restricted(&[], root.path(), &["--url-file", url_file.to_str().unwrap()])
    else {
        return;
    };
    let _session = idle(fs::read_to_string(&url_file).unwrap().trim()).unwrap();
    let tasks = format!("/proc/{}/task", logged_server.server.child.id());
    // A thread without it cannot be restricted (landlock_restrict_self(2)).
    let is_free = |task: &Path| {
        let status = fs::read_to_string(task.join("status")).unwrap_or_default();
        status.contains("NoNewPrivs:\t0")
    };
    if !is_free(Path::new("/proc/self")) {
        eprintln!(
            "SKIPPED all_threads_that_handle_clients_are_restricted: these tests have no new privileges either"
        );
        return;
    }
    let names = |is_counted: &dyn Fn(&Path) -> bool| {
        let tasks =
            fs::read_dir(&tasks).unwrap().map(|task| task.unwrap().path()).filter(|task| is_counted(task));
        tasks.map(|task| fs::read_to_string(task.join("comm")).unwrap_or_default()).collect::<Vec<_>>()
    };
    until("a session", || names(&|_| true).iter().any(|name| name.starts_with("haul-session")));
    // The thread that wrote the URL has ended.
    assert_eq!(names(&is_free), ["haul-signals\n"]);
}

/// A fault makes the program follow every link; only the kernel stops it.
#[cfg(feature = "faults")]
#[test]
fn a_bug_does_not_lead_out_of_the_root() {
    let [here, root, elsewhere] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    fs::create_dir(root.path().join("inside")).unwrap();
    fs::write(root.path().join("inside/file"), "offered").unwrap();
    fs::write(elsewhere.path().join("file"), "secret").unwrap();
    // Both links are absolute; the program itself never follows those.
    symlink(root.path().join("inside"), root.path().join("within")).unwrap();
    symlink(elsewhere.path(), root.path().join("out")).unwrap();
    let Some(logged_server) = restricted(&["env", "HAUL_DISK_ESCAPES=1"], root.path(), &[]) else { return };
    let got = here.path().join("got");
    let get = |path: &str| run(&["cp", &logged_server.server.at(path), got.to_str().unwrap()]);
    exits(&get("within/file"), 0);
    assert_eq!(fs::read(&got).unwrap(), b"offered", "the fault must make the program follow links");
    fs::remove_file(&got).unwrap();
    let refused = get("out/file");
    assert!(!refused.status.success() && !got.exists());
    assert!(lossy(&refused.stderr).contains("Permission denied"), "{}", lossy(&refused.stderr));
    let new = here.path().join("new");
    fs::write(&new, "new").unwrap();
    let upload = |path: &str| run(&["cp", new.to_str().unwrap(), &logged_server.server.at(path)]);
    exits(&upload("within/new"), 0);
    assert!(!upload("out/new").status.success());
    assert!(!upload("out/file").status.success());
    assert_eq!(fs::read(elsewhere.path().join("file")).unwrap(), b"secret");
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 1);
}
