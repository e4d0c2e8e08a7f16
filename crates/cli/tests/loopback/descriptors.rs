//! Standard streams closed by the caller, and limits on descriptors and threads.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Output, Stdio};
use std::time::Duration;

use crate::serving::until;
use crate::support::{Server, exits, haul, lossy, run, starting};

/// Runs the program with its descriptors set by the shell's `redirection`.
fn redirected(redirection: &str, arguments: &[&str]) -> Output {
    let script = format!("exec \"$@\" {redirection}");
    starting(&["sh", "-c", &script, "sh"]).args(arguments).output().unwrap()
}

#[test]
fn a_closed_stdout_is_refused_and_the_null_device_accepts_files() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("file"), "contents").unwrap();
    let server = Server::start(root.path(), &[]);
    let local = root.path().join("file");
    for source in [&server.at("file"), local.to_str().unwrap()] {
        let copy = ["cp", "-q", source, "-"];
        let refused = redirected(">&-", &copy);
        exits(&refused, 2);
        let words = lossy(&refused.stderr);
        assert!(words.contains("stdout is closed") && words.contains("hint: "), "{words}");
        exits(&redirected(">/dev/null", &copy), 0);
        exits(&redirected("2>&-", &copy), 0);
    }
    exits(&redirected("<&-", &["cp", "-q", &server.at("file"), "-"]), 0);
}

#[test]
fn a_closed_stdin_is_refused_and_the_null_device_is_an_empty_file() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path(), &[]);
    let local = root.path().join("local");
    for (destination, name) in [(&*server.at("stored"), "stored"), (local.to_str().unwrap(), "local")] {
        let copy = ["cp", "-q", "-", destination];
        let refused = redirected("<&-", &copy);
        exits(&refused, 2);
        let words = lossy(&refused.stderr);
        assert!(words.contains("stdin is closed") && words.contains("hint: "), "{words}");
        assert!(!root.path().join(name).exists());
        exits(&redirected("</dev/null", &copy), 0);
        assert_eq!(fs::read(root.path().join(name)).unwrap(), b"");
    }
}

#[test]
fn a_list_from_stdin_needs_an_open_stdin_of_its_own() {
    let root = tempfile::tempdir().unwrap();
    let [source, copy] = ["source", "copy"].map(|name| root.path().join(name).display().to_string());
    fs::create_dir(&source).unwrap();
    let list = |redirection: &str, other: &[&str], code: i32| {
        let words = [&["cp", "-q", "--files-from", "-", &*source, &*copy], other].concat();
        let output = redirected(redirection, &words);
        exits(&output, code);
        lossy(&output.stderr)
    };
    let said = list("<&-", &[], 2);
    assert!(said.contains("stdin is closed"), "{said}");
    for list_of_rules in [&["--exclude-from", "-"][..], &["--exclude-from=-", "--exclude-from=-"]] {
        let said = list("</dev/null", list_of_rules, 2);
        assert!(said.contains("only one list can come from stdin"), "{said}");
    }
    list("</dev/null", &[], 0);
}

#[test]
fn a_pipe_requires_its_stream_and_a_listener_its_stderr() {
    let (url, listen) = ("haul://127.0.0.1:1/?k=x", ["pipe", "--listen", "127.0.0.1:0"]);
    for (redirection, arguments, words) in [
        ("<&-", &["pipe", url][..], "stdin is closed"),
        (">&-", &["pipe", "--reverse", url], "stdout is closed"),
        (">&-", &listen, "stdout is closed"),
        ("<&-", &[&listen[..], &["--reverse"]].concat(), "stdin is closed"),
        ("2>&- >/dev/null", &listen, ""),
    ] {
        let refused = redirected(redirection, arguments);
        exits(&refused, 2);
        assert!(lossy(&refused.stderr).contains(words), "{arguments:?}: {}", lossy(&refused.stderr));
    }
}

/// As Python's `subprocess.DEVNULL` does.
#[test]
fn a_null_device_opened_for_both_directions_is_explained() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file").display().to_string();
    fs::write(&file, "contents").unwrap();
    for (redirection, words) in [("1<>/dev/null", ["cp", &file, "-"]), ("<>/dev/null", ["cp", "-", &file])] {
        let refused = redirected(redirection, &words);
        exits(&refused, 2);
        let said = lossy(&refused.stderr);
        assert!(said.contains("or is /dev/null opened for both reading and writing"), "{said}");
    }
}

#[test]
fn unused_closed_descriptors_are_harmless() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("file"), "contents").unwrap();
    let server = Server::start(root.path(), &[]);
    let copy = root.path().join("copy");
    for redirection in [">&-", "<&-", "2>&-", "<&- >&- 2>&-"] {
        let arguments = ["cp", &server.at("file"), copy.to_str().unwrap()];
        exits(&redirected(redirection, &arguments), 0);
        assert_eq!(fs::read_to_string(&copy).unwrap(), "contents");
        fs::remove_file(&copy).unwrap();
    }
}

/// Regression test: the client reported the server's error as one of its own host.
#[test]
fn a_client_reports_that_its_server_has_no_descriptors() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("file"), "contents").unwrap();
    let copy = root.path().join("copy");
    let mut reported = 0;
    for most in 17..24 {
        let limit = format!("ulimit -n {most}; exec \"$@\"");
        let server = Server::started_by(&["sh", "-c", &limit, "sh"], root.path(), &[]);
        if server.url.is_empty() {
            continue;
        }
        for arguments in [
            &["cp", "-q", &server.at("file"), copy.to_str().unwrap()][..],
            &["bench", "-q", "--bytes", "1MB", &server.url],
        ] {
            let words = lossy(&run(arguments).stderr);
            assert!(!words.contains("here: "), "{most} {words}");
            reported += usize::from(words.contains("on 127.0.0.1: "));
        }
    }
    assert!(reported > 0);
}

/// Regression test: the server started without a warning, then logged 20 times a second that it cannot accept
/// a connection.
#[test]
fn a_server_without_descriptors_logs_it_without_flooding() {
    let root = tempfile::tempdir().unwrap();
    let log_file = root.path().join("said");
    let started = (10..24).find_map(|most| {
        let limit = format!("ulimit -n {most}; exec \"$@\"");
        let mut command = starting(&["sh", "-c", &limit, "sh"]);
        command.args(["serve", "--listen", "127.0.0.1:0", "--root"]).arg(root.path());
        command.stdout(Stdio::piped()).stderr(fs::File::create(&log_file).unwrap());
        let server = Server::of(command.spawn().unwrap());
        (!server.url.is_empty()).then_some(server)
    });
    let server = started.unwrap();
    let address = server.url.split(['/', '@']).find(|part| part.starts_with("127.0.0.1:")).unwrap();
    let _clients = [(); 24].map(|()| TcpStream::connect(address).unwrap());
    let words = || fs::read_to_string(&log_file).unwrap();
    let failures = || words().matches("cannot accept a connection").count();
    until("a connection that cannot be accepted", || failures() > 0);
    // Time for ten more attempts.
    std::thread::sleep(Duration::from_millis(500));
    assert!(words().contains("files may be open in this process"), "{}", words());
    assert_eq!(failures(), 1, "{}", words());
}

/// Regression test: a copy within the machine panicked.
#[test]
fn a_thread_limit_is_an_error_and_not_a_crash() {
    if !rustix::process::geteuid().is_root() {
        println!(
            "SKIPPED a_thread_limit_is_an_error_and_not_a_crash: needs root, to be a user without processes"
        );
        return;
    }
    let root = tempfile::tempdir().unwrap();
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(root.path().join("file"), "contents").unwrap();
    // The program may be in a directory that only root can enter.
    let program = root.path().join("haul");
    haul_testing::copy_program(haul().get_program().as_ref(), &program);
    for most in 1..8 {
        let limit = format!("ulimit -u {most}; cd \"$1\"; exec ./haul cp -q file copy");
        let mut starter =
            vec!["setpriv", "--reuid=64231", "--regid=64231", "--clear-groups", "bash", "-c", &limit];
        starter.extend(["bash", root.path().to_str().unwrap()]);
        let output = starting(&starter).output().unwrap();
        let words = lossy(&output.stderr);
        assert!(words.starts_with("error: ") && output.status.code() < Some(101), "{most} {words}");
    }
}
