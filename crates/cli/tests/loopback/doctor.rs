//! `haul doctor` on this machine, and on the path to a server.

use haul_testing::attempts;
use serde_json::Value;

use crate::support::{Server, exits, haul, lossy, object, run, text};

#[test]
fn doctor_checks_this_machine_and_measures_a_path_both_ways() {
    let output = run(&["doctor"]);
    exits(&output, 0);
    assert!(text(&output.stdout).lines().all(|line| line.starts_with("here: ")), "{}", text(&output.stdout));
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path(), &[]);
    let output = run(&["doctor", "--time", "300ms", &server.at("")]);
    exits(&output, 0);
    let words = text(&output.stdout);
    for expected in ["From here to there:", "From there to here:", "Carried ", "Limited by: "] {
        assert!(words.contains(expected), "{expected}: {words}");
    }
    let count = |what| words.matches(what).count();
    let known = 2 - count("Limited by: unknown");
    assert_eq!((count("What to do: "), count("Gain to expect: ")), (known, known), "{words}");
    let measure = || {
        let output = run(&["doctor", "--json", "--time", "300ms", &server.at("")]);
        exits(&output, 0);
        object(&output)
    };
    let is_fast = |way: &Value| way["goodput_bps"].as_f64().unwrap() > 1e6;
    let report = attempts(measure, |report| is_fast(&report["there"]) && is_fast(&report["back"]));
    for way in ["there", "back"] {
        assert!(is_fast(&report[way]), "{report}");
        assert!(report[way]["advice"].is_string() || report[way]["limited_by"].is_null(), "{report}");
        assert!(report[way]["lost_by_cause"]["receiver_host"].is_u64(), "{report}");
    }
    assert!(report["findings"].is_array());
}

#[test]
fn a_path_that_cannot_be_measured_is_an_error() {
    let output = run(&["doctor", "--json", "@/nowhere/url"]);
    assert_ne!(output.status.code(), Some(0));
    assert_eq!(object(&output)["ok"], false);
}

/// Regression test: it measured with the defaults and ignored the environment and the configuration files.
#[test]
fn doctor_measures_with_the_given_settings() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path(), &[]);
    let config = root.path().join("config.toml");
    std::fs::write(&config, "controller = \"cubic\"\n").unwrap();
    let measure = || {
        let mut doctor = haul();
        doctor.args(["doctor", "--json", "--time", "300ms", "--rate", "90Mbit", &server.at("")]);
        let output =
            doctor.env("HAUL_CONFIG", &config).env("HAUL_SET", "crypto=chacha20-poly1305").output().unwrap();
        exits(&output, 0);
        object(&output)
    };
    let is_limited = |way: &Value| way["limited_by"] == "rate_ceiling";
    let report = attempts(measure, |report| is_limited(&report["there"]) && is_limited(&report["back"]));
    for way in ["there", "back"] {
        let way = &report[way];
        let chosen = (way["controller"].as_str(), way["cipher"].as_str());
        assert_eq!(chosen, (Some("cubic"), Some("chacha20-poly1305")), "{way}");
        assert!(is_limited(way), "{way}");
    }
    let output = haul().arg("doctor").env("HAUL_SET", "crypto=rot13").output().unwrap();
    exits(&output, 2);
    assert!(lossy(&output.stderr).contains("HAUL_SET"), "{}", lossy(&output.stderr));
}
