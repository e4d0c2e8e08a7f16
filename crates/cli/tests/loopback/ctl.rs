//! `haul ctl`: the owner of a running copy lists it, inspects it and changes it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Server, exits, haul, lossy, object, text};

/// At this rate the file takes a minute.
const SLOW: &str = "16Mbit";
const LEN: usize = 120_000_000;

/// A directory with a running copy, in either direction.
struct World {
    place: TempDir,
    server: Server,
    copy: Child,
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.copy.kill();
        let _ = self.copy.wait();
    }
}

fn haul_in(runtime: &Path, arguments: &[&str]) -> Command {
    let mut command = haul();
    command.args(arguments).env("XDG_RUNTIME_DIR", runtime);
    command
}

impl World {
    fn of(ends: impl Fn(&Server, &str) -> [String; 2]) -> Self {
        Self::of_command(|server, place| {
            let copy = ["cp", "--rate", SLOW].map(str::to_owned);
            [&copy[..], &ends(server, place)].concat()
        })
    }

    fn of_command(arguments: impl Fn(&Server, &str) -> Vec<String>) -> Self {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("root");
        fs::create_dir(&root).unwrap();
        let content: Vec<u8> =
            (0..LEN as u64).map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect();
        for path in [root.join("there"), place.path().join("here")] {
            fs::write(path, &content).unwrap();
        }
        let server = Server::start(&root, &[]);
        let arguments = arguments(&server, place.path().to_str().unwrap());
        let mut command = haul_in(place.path(), &arguments.iter().map(String::as_str).collect::<Vec<_>>());
        let copy = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let world = Self { place, server, copy };
        world.wait_for_its_socket();
        world
    }

    fn wait_for_its_socket(&self) {
        let begun = Instant::now();
        while !self.socket().exists() {
            assert!(begun.elapsed() < Duration::from_secs(60), "timed out");
            sleep(Duration::from_millis(10));
        }
    }

    fn socket(&self) -> std::path::PathBuf {
        self.place.path().join("haul").join(self.name())
    }

    fn name(&self) -> String {
        self.copy.id().to_string()
    }

    fn ctl(&self, arguments: &[&str]) -> Output {
        haul_in(self.place.path(), &[&["ctl"], arguments].concat()).output().unwrap()
    }

    fn shown(&self, arguments: &[&str]) -> Value {
        let output = self.ctl(&[&["--json", &self.name()], arguments].concat());
        exits(&output, 0);
        object(&output)["copy"].clone()
    }
}

#[test]
fn a_running_upload_is_sped_up_without_data_loss() {
    let mut world = World::of(|server, place| [format!("{place}/here"), server.at("copied")]);
    let list = text(&world.ctl(&[]).stdout);
    assert!(list.contains(&world.name()) && list.contains("sends"), "{list}");
    let shown = world.shown(&[]);
    assert_eq!((&shown["side"], &shown["rate_control"]["rate"]), (&"sends".into(), &"16Mbit".into()));

    // Only the owner can connect to it.
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&world.place.path().join("haul")), mode(&world.socket())), (0o700, 0o600));

    let before = text(&world.ctl(&[&world.name()]).stdout);
    for (wrong, words) in [
        ("controller=frobnicate", "frobnicate"),
        ("rate=0bit", "above zero"),
        ("speed=9", "speed"),
        ("rate", "KEY=VALUE"),
    ] {
        let output = world.ctl(&[&world.name(), wrong]);
        exits(&output, 2);
        assert!(lossy(&output.stderr).contains(words), "{}", lossy(&output.stderr));
    }
    let after = text(&world.ctl(&[&world.name()]).stdout);
    let parameters = |text: &str| text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(parameters(&after), parameters(&before), "a refused change has no effect");

    // A client that connects and sends nothing does not block it.
    let _silent = UnixStream::connect(world.socket()).unwrap();
    let shown = world.shown(&["rate_control.rate=400Mbit"]);
    assert_eq!(shown["rate_control"]["rate"], "400Mbit");
    let shown = world.shown(&["controller=reno", "rate=unlimited"]);
    assert_eq!(shown["rate_control"]["controller"], "reno");
    let begun = Instant::now();
    assert!(world.copy.wait().unwrap().success());
    assert!(begun.elapsed() < Duration::from_secs(40), "at {SLOW} it would have taken a minute");
    let copied = fs::read(world.place.path().join("root/copied")).unwrap();
    assert_eq!(copied, fs::read(world.place.path().join("here")).unwrap());
    assert!(!world.place.path().join("haul").exists(), "the directory of control sockets is left");
    exits(&world.ctl(&[&world.name()]), 2);
}

#[test]
fn a_running_download_is_sped_up_and_invalid_changes_are_refused_locally() {
    let mut world = World::of(|server, place| [server.at("there"), format!("{place}/copied")]);
    let shown = world.shown(&[]);
    assert_eq!((&shown["side"], &shown["rate_control"]["rate"]), (&"receives".into(), &"16Mbit".into()));
    for (wrong, words) in [("controller=frobnicate", "frobnicate"), ("rate=0bit", "above zero")] {
        let output = world.ctl(&[&world.name(), wrong]);
        exits(&output, 2);
        let stderr = lossy(&output.stderr);
        assert!(stderr.contains(words) && stderr.contains("haul presets"), "{stderr}");
    }
    assert_eq!(world.shown(&[])["rate_control"], shown["rate_control"], "a refused change has no effect");

    let shown = world.shown(&["controller=cubic", "rate=unlimited"]);
    assert_eq!(shown["rate_control"]["controller"], "cubic");
    let begun = Instant::now();
    assert!(world.copy.wait().unwrap().success());
    assert!(begun.elapsed() < Duration::from_secs(40), "at {SLOW} it would have taken a minute");
    let stderr = std::io::read_to_string(world.copy.stderr.take().unwrap()).unwrap();
    assert!(
        !stderr.contains("% of the ceiling"),
        "no percentage of a maximum rate that was changed: {stderr}"
    );
    assert!(stderr.contains("controller cubic"), "{stderr}");
    let copied = fs::read(world.place.path().join("copied")).unwrap();
    assert_eq!(copied, fs::read(world.place.path().join("root/there")).unwrap());
}

#[test]
fn a_receiving_bench_makes_its_server_send_faster() {
    let mut world = World::of_command(|server, _| {
        ["bench", "--reverse", "--bytes", "120MB", "--rate", SLOW, &server.at("")].map(str::to_owned).into()
    });
    world.shown(&["rate=unlimited"]);
    let begun = Instant::now();
    assert!(world.copy.wait().unwrap().success());
    assert!(begun.elapsed() < Duration::from_secs(40), "at {SLOW} it would have taken a minute");
}

#[test]
fn leftovers_of_killed_copies_are_removed_and_foreign_directories_not_used() {
    let mut world = World::of(|server, place| [format!("{place}/here"), server.at("copied")]);
    world.copy.kill().unwrap();
    world.copy.wait().unwrap();
    assert!(world.socket().exists());
    let output = world.ctl(&["--json"]);
    exits(&output, 0);
    assert_eq!(object(&output)["copies"], Value::Array(Vec::new()));
    assert!(!world.socket().exists());

    // Whatever else is in the directory stays, also if that is a link to another one.
    let home = tempfile::tempdir().unwrap();
    fs::set_permissions(home.path(), PermissionsExt::from_mode(0o700)).unwrap();
    for name in ["notes.txt", "4711"] {
        fs::write(home.path().join(name), "thesis").unwrap();
    }
    drop(UnixListener::bind(home.path().join("agent")).unwrap());
    let runtime = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(home.path(), runtime.path().join("haul")).unwrap();
    let output = haul_in(runtime.path(), &["ctl"]).output().unwrap();
    exits(&output, 7);
    assert!(lossy(&output.stderr).contains("accessible only by you"), "{}", lossy(&output.stderr));
    fs::remove_file(runtime.path().join("haul")).unwrap();
    fs::rename(home.path(), runtime.path().join("haul")).unwrap();
    exits(&haul_in(runtime.path(), &["ctl"]).output().unwrap(), 0);
    assert_eq!(fs::read_dir(runtime.path().join("haul")).unwrap().count(), 3);

    // The copy runs without a control socket.
    let open = tempfile::tempdir().unwrap();
    fs::create_dir(open.path().join("haul")).unwrap();
    fs::set_permissions(open.path().join("haul"), PermissionsExt::from_mode(0o777)).unwrap();
    let (file, copied) = (world.place.path().join("root/there"), open.path().join("copied"));
    let words = ["cp", &world.server.at("there"), copied.to_str().unwrap()];
    exits(&haul_in(open.path(), &words).output().unwrap(), 0);
    assert_eq!(fs::metadata(copied).unwrap().size(), fs::metadata(file).unwrap().size());
    assert_eq!(fs::read_dir(open.path().join("haul")).unwrap().count(), 0);
}

#[test]
fn an_answer_that_is_no_object_is_an_error() {
    let runtime = tempfile::tempdir().unwrap();
    let directory = runtime.path().join("haul");
    fs::create_dir(&directory).unwrap();
    fs::set_permissions(&directory, PermissionsExt::from_mode(0o700)).unwrap();
    let socket = UnixListener::bind(directory.join("4711")).unwrap();
    let answers = std::thread::spawn(move || {
        let (mut stream, _) = socket.accept().unwrap();
        BufReader::new(&stream).read_line(&mut String::new()).unwrap();
        stream.write_all(b"[]\n").unwrap();
    });
    let output = haul_in(runtime.path(), &["ctl", "4711"]).output().unwrap();
    answers.join().unwrap();
    exits(&output, 7);
    assert!(lossy(&output.stderr).contains("copy 4711 does not respond"), "{}", lossy(&output.stderr));
}
