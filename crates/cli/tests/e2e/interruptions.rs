//! Ctrl-C and killed processes: no partial file has a final name, and the next copy works.

use std::fs;
use std::path::Path;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::support::{
    LIMIT, Mtu, Net, Outcome, Running, Server, assert_same_file, directory, file, haul, names, run, until,
    until_heeds_interrupts,
};

/// A file of 24 MiB on each side, which takes about 10 s to copy.
struct World {
    net: Net,
    here: TempDir,
    root: TempDir,
    server: Server,
}

impl World {
    fn new() -> Option<Self> {
        let net = Net::new(Mtu::Ethernet)?;
        let (here, root) = (directory(), directory());
        file(&here.path().join("up"), 1, 24 << 20);
        file(&root.path().join("down"), 2, 24 << 20);
        let server = Server::start(&net, root.path(), &[]);
        Some(Self { net, here, root, server })
    }

    fn start(&self, from: &Path, to: &Path) -> Running {
        let mut command = haul(&self.net.client, ["cp", "--rate", "20Mbit"]);
        Running::start(command.arg(from).arg(to))
    }

    /// A running upload.
    fn upload(&self) -> Running {
        let to = self.server.at("copy");
        let running = self.start(&self.here.path().join("up"), Path::new(&to));
        until_bytes_are_in(self.root.path(), 2);
        running
    }

    /// A running download.
    fn download(&self) -> Running {
        let from = self.server.at("down");
        let running = self.start(Path::new(&from), &self.here.path().join("copy"));
        until_bytes_are_in(self.here.path(), 2);
        running
    }

    /// Only the two original files have final names.
    #[track_caller]
    fn assert_nothing_half_written(&self) {
        assert_eq!(names(self.here.path()), ["up"]);
        assert_eq!(names(self.root.path()), ["down"]);
    }

    /// Removes resumable state as soon as no process holds it, so that the next copy starts from zero.
    #[track_caller]
    fn clean(&self) {
        let all = |directory: &TempDir| fs::read_dir(directory.path()).unwrap().count();
        until("leftovers to be free", || {
            run(&self.net.server, ["clean".as_ref(), self.here.path(), self.root.path()]).exits(0);
            all(&self.here) == 1 && all(&self.root) == 1
        });
    }

    /// Makes a complete copy in each direction.
    #[track_caller]
    fn assert_works(&self) {
        let (up, down) = (self.here.path().join("up"), self.root.path().join("down"));
        let (to, from) = (self.server.at("copy"), self.server.at("down"));
        let copied = self.here.path().join("copy");
        let cp = |from: &Path, to: &Path| run(&self.net.client, [Path::new("cp"), from, to]).exits(0);
        cp(&up, Path::new(&to));
        assert_same_file(&up, &self.root.path().join("copy"));
        cp(Path::new(&from), &copied);
        assert_same_file(&down, &copied);
    }
}

/// Waits until `directory` holds `files` files with allocated blocks.
#[track_caller]
fn until_bytes_are_in(directory: &Path, files: usize) {
    use std::os::unix::fs::MetadataExt;
    let has_bytes = |entry: fs::DirEntry| entry.metadata().is_ok_and(|metadata| metadata.blocks() > 0);
    until("bytes at the destination", || {
        fs::read_dir(directory).unwrap().flatten().filter_map(|e| has_bytes(e).then_some(())).count() >= files
    });
}

fn interrupted(outcome: Outcome) {
    let outcome = outcome.exits(130);
    assert!(outcome.stderr.contains("cp --rate 20Mbit"), "the command is printed: {}", outcome.stderr);
    assert!(!outcome.stderr.contains("panicked"), "{}", outcome.stderr);
}

#[test]
fn ctrl_c_during_an_upload_and_a_download() {
    let Some(mut world) = World::new() else { return };
    for signal in [Signal::INT, Signal::TERM] {
        let upload = world.upload();
        upload.signal(signal);
        interrupted(upload.wait(LIMIT));
        world.assert_nothing_half_written();
        world.clean();
        let download = world.download();
        download.signal(signal);
        interrupted(download.wait(LIMIT));
        world.assert_nothing_half_written();
        world.clean();
    }
    assert!(world.server.process.is_running());
    world.assert_works();
}

#[test]
fn ctrl_c_works_while_the_server_does_not_answer() {
    let Some(world) = World::new() else { return };
    world.net.server.firewall("-A", "-p tcp --dport 7000 -j DROP");
    let (to, source) = (world.server.at("copy"), world.here.path().join("up"));
    let copy = world.start(&source, Path::new(&to));
    until_heeds_interrupts(copy.id());
    copy.signal(Signal::INT);
    interrupted(copy.wait(LIMIT));
}

#[test]
fn the_server_is_killed() {
    let Some(mut world) = World::new() else { return };
    for upload in [true, false] {
        let copy = if upload { world.upload() } else { world.download() };
        world.server.process.signal(Signal::KILL);
        copy.wait(LIMIT).exits(5).assert_shows(&["same command"]);
        world.assert_nothing_half_written();
        world.clean();
        world.server = Server::start(&world.net, world.root.path(), &[]);
    }
    world.assert_works();
}

#[test]
fn the_client_is_killed() {
    let Some(mut world) = World::new() else { return };
    for upload in [true, false] {
        let copy = if upload { world.upload() } else { world.download() };
        copy.signal(Signal::KILL);
        assert_eq!(copy.wait(LIMIT).signal, Some(9));
        world.assert_nothing_half_written();
        world.clean();
        assert!(world.server.process.is_running());
    }
    world.assert_works();
}

#[test]
fn the_server_is_stopped_during_a_transfer() {
    let Some(world) = World::new() else { return };
    let copy = world.upload();
    world.server.process.signal(Signal::INT);
    let outcome = copy.wait(LIMIT);
    outcome.exits(5).assert_shows(&["the server was stopped by SIGINT", "same command"]);
    world.assert_nothing_half_written();
}
