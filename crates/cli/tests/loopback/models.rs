//! Loss models in a transfer: `--diagnosis-model`.

use std::fs;
use std::path::Path;

#[cfg(feature = "faults")]
use haul_testing::attempts;
#[cfg(feature = "faults")]
use serde_json::Value;

#[cfg(feature = "faults")]
use crate::support::object;
use crate::support::{Server, exits, haul, run, text};

/// A model in which every measured value indicates the host, and none the network.
const EVERYTHING_IS_THE_HOSTS: &str = r#"
format = 1
word_length = 12
complexity_range = { from = 0.0005, to = 0.05 }
success_range = { from = 0.00008, to = 0.0005 }
negligible = 0.000001
both_measures = true

[host]
complexity = [{ amount = 0.5, scale = 0.001 }]
complexity_deviation = 10.0
success_proportion = { mean = 0.5, deviation = 10.0 }

[network]
complexity = [{ amount = 9.0, scale = 0.0001 }]
complexity_deviation = 0.001
success_proportion = { mean = 9.0, deviation = 0.001 }

[provenance]
data = "none"
data_hash = ""
host_windows = 0
network_windows = 0
system = ""
date = ""
"#;

fn write(dir: &Path, name: &str, content: &str) -> String {
    let path = dir.join(name);
    fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The model that the trace of a bench names.
#[cfg(feature = "faults")]
fn named(dir: &Path) -> Value {
    let trace = fs::read_to_string(dir.join("trace")).unwrap();
    let mut events = trace.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.find(|event| event["event"] == "session").unwrap()["diagnosis_model"].take()
}

/// The report of a bench at `url`, and the results for its windows' signatures, one of which is long enough;
/// the client's own packets are lost at random.
#[cfg(feature = "faults")]
fn bench(dir: &Path, url: &str, options: &[&str]) -> (Value, Vec<String>) {
    let trace = dir.join("trace");
    let mut command = haul();
    command.env("HAUL_FAULTS", "loss=0.02,seed=3").args(["bench", "--json", "--bytes", "400MB", "--events"]);
    command.arg(&trace).args(["--diagnosis", "signature", "--controller", "fixed", "--rate", "1Gbit"]);
    let output = command.args(options).arg(url).output().unwrap();
    exits(&output, 0);
    let trace = fs::read_to_string(trace).unwrap();
    let events = trace.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let causes = events.filter_map(|event| event["by_signature"].as_str().map(str::to_owned));
    (object(&output), causes.collect())
}

#[cfg(feature = "faults")]
#[test]
fn the_sender_diagnoses_its_losses_with_the_given_model() {
    let dir = tempfile::tempdir().unwrap();
    let model = write(dir.path(), "model.toml", EVERYTHING_IS_THE_HOSTS);
    let server = Server::start(dir.path(), &[]);
    let by_host = |report: &Value| report["lost_by_cause"]["receiver_host"].as_u64().unwrap();
    // A busy host may drop some packets itself, or have no window that is long enough.
    let is_none = |(report, causes): &(Value, Vec<String>)| {
        !causes.is_empty() && !causes.contains(&"receiver_host".to_owned()) && by_host(report) == 0
    };
    let without = attempts(|| bench(dir.path(), &server.url, &[]), is_none);
    assert!(is_none(&without), "{without:?}");
    assert_eq!(named(dir.path()), Value::Null);
    let is_all = |(report, causes): &(Value, Vec<String>)| {
        !causes.is_empty() && causes.iter().all(|cause| cause == "receiver_host") && by_host(report) > 0
    };
    let with = attempts(|| bench(dir.path(), &server.url, &["--diagnosis-model", &model]), is_all);
    assert!(is_all(&with), "{with:?}");
    assert_eq!(named(dir.path()).as_str().map(str::len), Some(64));
    // If the server sends, the server's model applies.
    let lossy = ["env", "HAUL_FAULTS=loss=0.02,seed=3"];
    for (options, is_hosts) in [(&[][..], false), (&["--diagnosis-model", &model], true)] {
        let server = Server::started_by(&lossy, dir.path(), options);
        let is_right = |(report, _): &(Value, Vec<String>)| (by_host(report) > 0) == is_hosts;
        let result = attempts(|| bench(dir.path(), &server.url, &["--reverse"]), is_right);
        assert!(is_right(&result), "{result:?}");
    }
}

#[test]
fn an_invalid_model_is_refused_before_anything_is_moved() {
    let (dir, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = Server::start(root.path(), &[]);
    let data = write(dir.path(), "data", "data");
    let good = EVERYTHING_IS_THE_HOSTS;
    let another = good.replacen("format = 1", "format = 7", 1);
    let wrong = good.replacen("word_length", "word_size", 1);
    let impossible = good.replacen("word_length = 12", "word_length = 25", 1);
    let absent = dir.path().join("absent").to_str().unwrap().to_owned();
    for (model, code, words, hint) in [
        (write(dir.path(), "another", &another), 2, "format 7", "haul train"),
        (write(dir.path(), "wrong", &wrong), 2, "word_size", "haul train"),
        (write(dir.path(), "impossible", &impossible), 2, "impossible word_length", "haul train"),
        (absent, 7, "No such file", "check the name"),
    ] {
        let trace = dir.path().join("trace");
        let options = ["--diagnosis-model", &model, "--events", trace.to_str().unwrap()];
        for command in [&["cp", &data, &server.url][..], &["bench", &server.url], &["cp", "-n", &data, "x"]] {
            let output = run(&[command, &options].concat());
            exits(&output, code);
            let stderr = text(&output.stderr);
            assert!(stderr.contains(words) && stderr.contains(hint), "{stderr}");
            assert!(!trace.exists() && fs::read_dir(root.path()).unwrap().next().is_none());
        }
        let root = root.path().to_str().unwrap();
        exits(&run(&["pipe", "--diagnosis-model", &model, &server.url]), code);
        let serve = ["serve", "--listen", "127.0.0.1:0", "--root", root, "--diagnosis-model", &model];
        exits(&run(&serve), code);
    }
}

#[test]
fn an_unused_model_option_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let model = write(dir.path(), "model.toml", EVERYTHING_IS_THE_HOSTS);
    let data = write(dir.path(), "data", "data");
    let server = Server::start(dir.path(), &[]);
    let got = dir.path().join("got").to_str().unwrap().to_owned();
    let typed = ["--diagnosis-model", &model];
    for (command, words) in [
        (&["cp", &server.at("data"), &got][..], "the sending side"),
        (&["cp", "-n", &server.at("data"), &got], "the sending side"),
        (&["cp", &server.at("data"), "-"], "the sending side"),
        (&["cp", "hostA:data", "hostB:"], "the sending side"),
        (&["bench", "--reverse", &server.url], "the sending side"),
        (&["cp", "--diagnosis", "kernel", &data, &got], "this recipe uses none"),
        (&["bench", "--set", "rate_control.diagnosis=off", &server.url], "this recipe uses none"),
        (&["pipe", "--reverse", &server.url], "the sending side"),
        (&["pipe", "--listen", "127.0.0.1:0"], "the sending side"),
        (&["pipe", "--preset", "msg", &server.url], "this recipe uses none"),
    ] {
        let output = run(&[command, &typed].concat());
        exits(&output, 2);
        let stderr = text(&output.stderr);
        assert!(stderr.contains(words) && stderr.contains(" hint: "), "{stderr}");
    }
    assert!(!Path::new(&got).exists());
    // A configuration file applies to all copies, so its model is no error in a copy that only receives.
    let config = write(dir.path(), "config.toml", &format!("diagnosis_model = \"{model}\"\n"));
    let mut command = haul();
    let output = command.env("HAUL_CONFIG", config).args(["cp", &server.at("data"), &got]).output().unwrap();
    exits(&output, 0);
    // A copy within this machine sends as well.
    exits(&run(&[&["cp", "--checksum", &data, &got][..], &typed].concat()), 0);
}
