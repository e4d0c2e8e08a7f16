//! Many to one: several machines send to one receiver at the same time, each at its assigned rate.

use std::path::Path;

use crate::support::{LIMIT, Mtu, Net, Running, Server, assert_same_file, directory, file, haul, names, run};

#[test]
fn several_servers_are_pulled_from_below_one_rate() {
    let Some(net) = Net::new(Mtu::Ethernet) else { return };
    let (one, two, here) = (directory(), directory(), directory());
    file(&one.path().join("a"), 1, 12 << 20);
    file(&two.path().join("b"), 2, 12 << 20);
    let mut first = Server::start(&net, one.path(), &[]);
    let mut second = Server::start_at(&net, two.path(), 7001);
    let to = here.path().join("all");
    let urls = [first.at("a"), second.at("b")];
    let words = ["cp", "--json", "--rate", "100Mbit", &urls[0], &urls[1]];
    let outcome = run(&net.client, words.map(Path::new).into_iter().chain([&*to])).exits(0);
    assert_same_file(&one.path().join("a"), &to.join("a"));
    assert_same_file(&two.path().join("b"), &to.join("b"));
    assert_eq!(names(&to), ["a", "b"]);
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!((report["files"].as_u64(), report["bytes"].as_u64()), (Some(2), Some(24 << 20)));
    // Each sender alone may use 100 Mbit/s. The margin allows for data sent before the rates are assigned.
    let rate = report["goodput_bps"].as_f64().unwrap();
    assert!(rate < 125e6, "{rate}");
    assert!(first.process.is_running() && second.process.is_running());
}

#[test]
fn concurrent_uploads_share_the_servers_capacity() {
    let Some(net) = Net::new(Mtu::Ethernet) else { return };
    let (here, root) = (directory(), directory());
    for name in ["a", "b", "c"] {
        file(&here.path().join(name), 1, 8 << 20);
    }
    let mut server = Server::start(&net, root.path(), &["--capacity", "100Mbit"]);
    let started = std::time::Instant::now();
    let upload = |name: &str, to: String| {
        Running::start(haul(&net.client, ["cp", "-q"]).arg(here.path().join(name)).arg(to))
    };
    let running: Vec<Running> = ["a", "b", "c"].map(|name| upload(name, server.at(name))).into();
    for copy in running {
        copy.wait(LIMIT).exits(0);
    }
    let elapsed = started.elapsed().as_secs_f64();
    for name in ["a", "b", "c"] {
        assert_same_file(&here.path().join(name), &root.path().join(name));
    }
    // A shorter time would mean a rate above the capacity; the margin allows for data sent before the first
    // assignment.
    assert!(24.0 * 8.0 * 1.048_576 / elapsed < 125.0, "{elapsed} s");
    assert!(server.process.is_running());
}
