//! Standard streams that the caller has closed.

use std::fs;
use std::process::Output;

use crate::support::{Server, exits, lossy, starting};

/// Runs the program with its descriptors as the shell's `redirection` leaves them.
fn redirected(redirection: &str, arguments: &[&str]) -> Output {
    let script = format!("exec \"$@\" {redirection}");
    starting(&["sh", "-c", &script, "sh"]).args(arguments).output().unwrap()
}

#[test]
fn a_closed_stdout_takes_no_files_and_the_null_device_takes_all() {
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
fn a_closed_stdin_is_no_empty_file_and_the_null_device_is_one() {
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
fn a_pipe_needs_the_stream_that_it_carries_and_a_listener_its_stderr() {
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

#[test]
fn what_is_closed_and_not_used_does_no_harm() {
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
