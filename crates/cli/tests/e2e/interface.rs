//! The command line's interface: JSON, exit codes, dry runs, units.

use std::path::Path;

use serde_json::Value;

use crate::support::{Mtu, Net, Outcome, Server, directory, file, names, run, run_here};

/// The JSON object on stdout, which must be the only output there.
#[track_caller]
fn json(outcome: &Outcome) -> Value {
    let mut lines = outcome.stdout.lines();
    let line = lines.next().unwrap_or_else(|| panic!("no JSON: {outcome:?}"));
    assert_eq!(lines.next(), None, "{}", outcome.stdout);
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

/// Asserts that every documented key is present and has its type.
#[track_caller]
fn assert_contract(result: &Value) {
    assert_eq!(result["schema"], 1);
    assert!(result["ok"].is_boolean());
    for key in ["bytes", "files", "packets_sent", "packets_resent", "resumed_bytes"] {
        assert!(result[key].is_u64(), "{key}: {result}");
    }
    for key in ["seconds", "goodput_bps", "loss_rate"] {
        assert!(result[key].is_number(), "{key}: {result}");
    }
    for key in ["preset", "controller"] {
        assert!(result[key].is_string(), "{key}: {result}");
    }
    for cause in ["receiver_host", "congestion", "random", "outage", "inconclusive"] {
        assert!(result["lost_by_cause"][cause].is_u64(), "{cause}: {result}");
    }
    for key in ["rtt_ms", "limited_by", "digest", "error"] {
        assert!(result.get(key).is_some(), "{key}: {result}");
    }
    for side in ["sender", "receiver"] {
        assert!(result["cpu_seconds"].get(side).is_some(), "{side}: {result}");
    }
}

/// Fields that are set only after a run that transferred something.
#[track_caller]
fn assert_success(result: &Value) {
    assert_contract(result);
    assert!(result["ok"] == true && result["error"].is_null(), "{result}");
    assert!(result["rtt_ms"].is_number() && result["limited_by"].is_string(), "{result}");
    assert!(result["packets_sent"].as_u64() > Some(0), "{result}");
    assert!(result["goodput_bps"].as_f64() > Some(0.0), "{result}");
    assert!(!result["controller"].as_str().unwrap_or_default().is_empty(), "{result}");
    // Each side reports its CPU time to the other.
    let cpu = &result["cpu_seconds"];
    assert!(cpu["sender"].is_number() && cpu["receiver"].is_number(), "{result}");
}

#[track_caller]
fn assert_failure(result: &Value, code: &str) {
    assert_contract(result);
    assert_eq!(result["ok"], false, "{result}");
    let error = &result["error"];
    assert_eq!(error["code"], code, "{result}");
    assert!(error["message"].as_str().is_some_and(|text| !text.is_empty()), "{result}");
    assert!(error["hint"].as_str().is_some_and(|text| !text.is_empty()), "{result}");
    assert!(error["retryable"].is_boolean(), "{result}");
}

#[test]
fn json_has_every_key_in_both_directions_and_for_every_outcome() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    let (here, root) = (directory(), directory());
    let source = here.path().join("file");
    file(&source, 1, 3_000_000);
    let server = Server::start(&net, root.path(), &[]);
    let (up, down) = (server.at("copy"), here.path().join("copy"));
    let cp = |from: &Path, to: &Path| run(&net.client, [Path::new("cp"), Path::new("--json"), from, to]);
    let mut digests = Vec::new();
    for (from, to) in [(source.as_path(), Path::new(&up)), (Path::new(&up), down.as_path())] {
        let result = json(&cp(from, to).exits(0));
        assert_success(&result);
        assert_eq!((&result["bytes"], &result["files"]), (&3_000_000.into(), &1.into()), "{result}");
        assert_eq!(result["resumed_bytes"], 0);
        assert!(result["digest"].as_str().is_some_and(|digest| digest.len() >= 64), "{result}");
        digests.push(result["digest"].clone());
    }
    assert_eq!(digests.len(), 2);
    assert_failure(&json(&cp(&here.path().join("missing"), Path::new(&up)).exits(7)), "no_such_path");
    assert_failure(&json(&run_here(["cp", "--json", "one"]).exits(2)), "usage");
    assert_failure(&json(&run_here(["cp", "--json", "--rate", "800", "a", "b"]).exits(2)), "usage");
}

#[test]
fn bench_in_both_directions_by_time_and_by_size() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    let root = directory();
    let server = Server::start(&net, root.path(), &[]);
    for direction in [&[][..], &["--reverse"]] {
        for amount in [["--bytes", "50MB"], ["--time", "500ms"]] {
            let arguments = [&["bench", "--json"], direction, &amount, &[&server.url]].concat();
            let result = json(&run(&net.client, arguments).exits(0));
            assert_success(&result);
            assert_eq!(result["files"], 0, "{result}");
            let exact = amount[0] == "--bytes";
            assert_eq!(result["bytes"] == 50_000_000, exact, "{result}");
        }
    }
    assert!(names(root.path()).is_empty());
}

#[test]
fn the_rate_is_never_exceeded() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    let root = directory();
    let server = Server::start(&net, root.path(), &[]);
    for direction in [&[][..], &["--reverse"]] {
        let arguments =
            [&["bench", "--json", "--bytes", "8MB", "--rate", "40Mbit"], direction, &[&server.url]];
        let result = json(&run(&net.client, arguments.concat()).exits(0));
        assert!(result["goodput_bps"].as_f64() < Some(40e6), "{result}");
    }
}

#[test]
fn a_dry_run_moves_nothing() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    let (here, root) = (directory(), directory());
    let tree = here.path().join("tree");
    file(&tree.join("file"), 1, 10_000);
    file(&root.path().join("remote"), 2, 10_000);
    let server = Server::start(&net, root.path(), &[]);
    let (up, down) = (server.at("tree"), server.at("remote"));
    for (from, to) in [(tree.as_path(), Path::new(&up)), (Path::new(&down), &here.path().join("got"))] {
        let outcome = run(&net.client, [Path::new("cp"), Path::new("--dry-run"), from, to]).exits(0);
        assert!(!outcome.stdout.is_empty(), "{outcome:?}");
        run(&net.client, [Path::new("cp"), Path::new("--dry-run"), Path::new("--json"), from, to]).exits(0);
    }
    run(&net.client, ["bench", "--dry-run", &server.url]).exits(0);
    assert_eq!(names(root.path()), ["remote"]);
    assert_eq!(names(here.path()), ["tree", "tree/file"]);
}

#[test]
fn the_summary_ends_with_the_amount_moved_and_its_limit() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    let (here, root) = (directory(), directory());
    let source = here.path().join("file");
    file(&source, 1, 3_000_000);
    let server = Server::start(&net, root.path(), &[]);
    let url = server.at("copy");
    let outcome = run(&net.client, [Path::new("cp"), &source, Path::new(&url)]).exits(0);
    let last: Vec<&str> = outcome.stderr.lines().rev().take(2).collect();
    let [limit, moved] = last[..] else { panic!("{}", outcome.stderr) };
    assert!(limit.starts_with("Limited by: "), "{}", outcome.stderr);
    for word in ["3.0", "1 file", "resent", "verified"] {
        assert!(moved.contains(word), "{word}: {moved}");
    }
    assert!(outcome.stdout.is_empty(), "{}", outcome.stdout);
    let quiet = run(&net.client, [Path::new("cp"), Path::new("--quiet"), &source, Path::new(&url)]).exits(0);
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
}

#[test]
fn encryption_is_disabled_only_if_both_sides_agree() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    let root = directory();
    let server = Server::start(&net, root.path(), &[]);
    let bench = |server: &Server, cipher: &str| {
        let set = format!("crypto={cipher}");
        run(&net.client, ["bench", "--json", "--bytes", "1MB", "--set", &set, &server.url])
    };
    assert_failure(&json(&bench(&server, "none").exits(6)), "not_permitted");
    drop(server);
    let server = Server::start(&net, root.path(), &["--set", "crypto=none"]);
    // The server permits `none`; `auto` must still not choose it.
    let result = json(&bench(&server, "auto").exits(0));
    assert_ne!(result["cipher"], "none", "{result}");
    assert_eq!(json(&bench(&server, "none").exits(0))["cipher"], "none");
}

#[test]
fn usage_errors_suggest_a_correction() {
    let url = "haul://h:1/?k=x";
    let cases: [(&[&str], &str); 10] = [
        (&["cp", "--rate", "800", "a", "b"], "Mbit"),
        (&["bench", "--bytes", "100", url], "B"),
        (&["bench", "--time", "10", url], "s"),
        (&["cp", "--set", "chnk=1MB", "a", url], "chunk"),
        (&["cp", "--preset", "nonsense", "a", url], "preset"),
        (&["cp", "--preset", "viz", "a", url], "needs object"),
        (&["bench", "--preset", "msg", url], "needs object"),
        (&["cp", "a"], "DST"),
        (&["serve", "--listen", "1.2.3.4"], "port"),
        (&["frobnicate"], "help"),
    ];
    for (arguments, word) in cases {
        let outcome = run_here(arguments.iter().copied()).exits(2);
        assert!(outcome.stderr.contains("error") && outcome.stderr.contains(word), "{outcome:?}");
        assert!(outcome.stdout.is_empty(), "{outcome:?}");
    }
}

#[test]
fn a_server_that_cannot_start_reports_the_reason() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    let root = directory();
    let _server = Server::start(&net, root.path(), &[]);
    let serve = |arguments: &[&str]| run(&net.server, [&["serve"], arguments].concat());
    let root = root.path().to_str().unwrap();
    let taken = serve(&["--listen", "0.0.0.0:7000", "--root", root]);
    assert!(matches!(taken.code, Some(5 | 7)), "{taken:?}");
    taken.assert_shows(&["7000"]);
    serve(&["--listen", "0.0.0.0:7001", "--root", "/nonexistent"]).exits(7).assert_shows(&["/nonexistent"]);
}

#[test]
fn only_the_owner_can_read_the_url_file() {
    use std::os::unix::fs::PermissionsExt;
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    let directory = directory();
    let file = directory.path().join("url");
    std::fs::write(&file, "old").unwrap();
    let mut command = crate::support::haul(&net.server, ["serve", "--listen", "0.0.0.0:7000", "--url-file"]);
    command.arg(&file).arg("--root").arg(directory.path());
    let server = crate::support::Running::start(&mut command);
    crate::support::until("the URL", || {
        std::fs::read_to_string(&file).is_ok_and(|url| url.contains("haul://"))
    });
    let mode = std::fs::metadata(&file).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    drop(server);
}
