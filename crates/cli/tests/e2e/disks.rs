//! Sources that cannot be read and destinations that cannot be written.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::support::{
    HAUL, LIMIT, Mtu, Net, Running, Server, assert_same_file, at, clean, directory, file, haul, names, run,
    skip, system, until,
};

/// A small mounted file system, unmounted when dropped.
struct Mounted {
    directory: TempDir,
}

impl Mounted {
    fn new(options: &str) -> Self {
        let directory = directory();
        system(Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(directory.path()));
        Self { directory }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A lazy unmount, because a process may still have it open. Errors are ignored.
        let _ = Command::new("umount").arg("-l").arg(self.path()).output();
    }
}

fn directories() -> (TempDir, TempDir) {
    (directory(), directory())
}

fn cp(net: &Net, from: impl AsRef<Path>, to: impl AsRef<Path>) -> crate::support::Outcome {
    run(&net.client, [Path::new("cp"), from.as_ref(), to.as_ref()])
}

#[test]
fn missing_sources() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    let (here, root) = directories();
    let server = Server::start(&net, root.path(), &[]);
    let missing = here.path().join("missing");
    cp(&net, &missing, server.at("x")).exits(7).assert_shows(&["missing"]);
    assert!(names(root.path()).is_empty());
    cp(&net, server.at("absent"), here.path().join("x")).exits(7).assert_shows(&["absent"]);
    assert!(names(here.path()).is_empty());
    // One of two sources exists: it is copied, and the missing one is reported.
    let present = here.path().join("present");
    file(&present, 1, 1_000);
    let mut command = haul(&net.client, ["cp"]);
    command.arg(&missing).arg(&present).arg(server.at("both"));
    Running::start(&mut command).wait(LIMIT).exits(3).assert_shows(&["missing"]);
    assert_same_file(&present, &root.path().join("both/present"));
}

#[test]
fn unreadable_sources() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    if Command::new("setpriv").arg("--version").output().is_err() {
        skip("setpriv is missing, so nothing can be run without root's rights");
        return;
    }
    let (here, root) = directories();
    // The program may be in a directory that only root can enter.
    let program = here.path().join("haul");
    haul_testing::copy_program(Path::new(HAUL), &program);
    fs::set_permissions(here.path(), Permissions::from_mode(0o755)).unwrap();
    let tree = here.path().join("tree");
    file(&tree.join("open"), 1, 10_000);
    file(&tree.join("closed"), 2, 10_000);
    file(&tree.join("also-open"), 3, 10_000);
    fs::set_permissions(tree.join("closed"), Permissions::from_mode(0o000)).unwrap();
    let server = Server::start(&net, root.path(), &[]);
    let cp = |from: &Path, to: &str| {
        let mut command = net.client.command("setpriv");
        clean(&mut command);
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
        Running::start(command.arg("cp").arg(from).arg(to)).wait(LIMIT)
    };
    cp(&tree, &server.at("tree")).exits(3).assert_shows(&["closed", "ermission"]);
    assert_same_file(&tree.join("open"), &root.path().join("tree/open"));
    assert_same_file(&tree.join("also-open"), &root.path().join("tree/also-open"));
    assert!(!root.path().join("tree/closed").exists());
    cp(&tree.join("closed"), &server.at("alone")).exits(7).assert_shows(&["closed", "ermission"]);
    assert!(!root.path().join("alone").exists());
}

#[test]
fn a_full_disk_at_either_side() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    let (here, files) = directories();
    let small = Mounted::new("size=2m");
    let source = here.path().join("large");
    file(&source, 1, 8 << 20);
    file(&files.path().join("large"), 1, 8 << 20);
    let server = Server::start(&net, small.path(), &[]);
    cp(&net, &source, server.at("copy")).exits(7).assert_shows(&["No space"]);
    assert!(names(small.path()).is_empty(), "{:?}", names(small.path()));
    drop(server);
    let server = Server::start(&net, files.path(), &[]);
    cp(&net, server.at("large"), small.path().join("copy")).exits(7).assert_shows(&["No space"]);
    assert!(names(small.path()).is_empty(), "{:?}", names(small.path()));
    // The server still works.
    cp(&net, server.at("large"), here.path().join("elsewhere")).exits(0);
}

#[test]
fn a_read_only_destination() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    let (here, root) = directories();
    let source = here.path().join("file");
    file(&source, 1, 100_000);
    file(&root.path().join("file"), 2, 100_000);
    let frozen = Mounted::new("ro");
    let server = Server::start(&net, frozen.path(), &[]);
    cp(&net, &source, server.at("copy")).exits(7).assert_shows(&["ead-only"]);
    drop(server);
    let server = Server::start(&net, root.path(), &["--read-only"]);
    cp(&net, &source, server.at("copy")).exits(6).assert_shows(&["read"]);
    assert_eq!(names(root.path()), ["file"]);
    cp(&net, server.at("file"), frozen.path().join("copy")).exits(7).assert_shows(&["ead-only"]);
}

#[test]
fn a_file_in_place_of_a_directory_and_the_reverse() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    let (here, root) = directories();
    let tree = here.path().join("tree");
    file(&tree.join("below/inside"), 1, 1_000);
    file(&tree.join("beside"), 2, 1_000);
    file(&root.path().join("file"), 3, 1_000);
    file(&root.path().join("target/tree/below"), 4, 1_000);
    let before = fs::read(root.path().join("file")).unwrap();
    let server = Server::start(&net, root.path(), &[]);
    cp(&net, &tree, server.at("file")).exits(7).assert_shows(&["directory"]);
    cp(&net, tree.join("beside"), server.at("file/below")).exits(7).assert_shows(&["file"]);
    assert_eq!(fs::read(root.path().join("file")).unwrap(), before);
    // Inside a tree only the blocked entries fail.
    cp(&net, &tree, server.at("target")).exits(3).assert_shows(&["below"]);
    assert_same_file(&tree.join("beside"), &root.path().join("target/tree/beside"));
    // A file never replaces a directory.
    fs::create_dir_all(root.path().join("directories/beside/full")).unwrap();
    cp(&net, tree.join("beside"), server.at("directories")).exits(7).assert_shows(&["beside"]);
    assert!(root.path().join("directories/beside/full").is_dir());
}

/// Copies a file slowly, calls `change` half-way, and returns the outcome.
fn changed_while_read(change: impl FnOnce(&PathBuf)) {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    let (here, root) = directories();
    let source = here.path().join("growing");
    file(&source, 1, 24 << 20);
    let server = Server::start(&net, root.path(), &[]);
    let mut command = haul(&net.client, ["cp", "--rate", "60Mbit"]);
    let copy = Running::start(command.arg(&source).arg(server.at("copy")));
    // Reading starts with the first bytes and ends about 3 s later.
    until("the first bytes at the server", || {
        fs::read_dir(root.path()).unwrap().flatten().any(|entry| entry.metadata().is_ok_and(|m| m.len() > 0))
    });
    change(&source);
    copy.wait(LIMIT).exits(8).assert_shows(&["growing", "while it was read"]);
    assert!(names(root.path()).is_empty(), "{:?}", names(root.path()));
    // Without further changes the copy succeeds.
    cp(&net, &source, server.at("copy")).exits(0);
    assert_same_file(&source, &root.path().join("copy"));
}

#[test]
fn a_source_growing_while_it_is_read() {
    changed_while_read(|path| {
        use std::io::Write;
        fs::OpenOptions::new().append(true).open(path).unwrap().write_all(b"more").unwrap();
    });
}

#[test]
fn a_source_truncated_while_it_is_read() {
    changed_while_read(|path| {
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len(100).unwrap();
    });
}

#[test]
fn a_source_overwritten_while_it_is_read() {
    changed_while_read(|path| {
        use std::os::unix::fs::FileExt;
        fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(b"other", 0).unwrap();
    });
}

#[test]
fn a_server_ends_on_request() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    let (_, root) = directories();
    for signal in [Signal::INT, Signal::TERM] {
        let server = Server::start(&net, root.path(), &[]);
        server.process.signal(signal);
        let Server { process, url } = server;
        let outcome = process.wait(LIMIT);
        assert!(matches!(outcome.code, Some(0 | 130)), "{outcome:?}");
        let from = at(&url, "x");
        cp(&net, Path::new(&from), root.path().join("x")).exits(5).assert_shows(&["7000"]);
    }
}
