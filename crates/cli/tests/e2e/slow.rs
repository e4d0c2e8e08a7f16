//! A disk slower than the network slows the sender down without packet loss, and the report names the disk as
//! the limit.

use haul_testing::attempts;

use crate::support::{LIMIT, Mtu, Net, Running, Server, assert_same_file, directory, file, haul};

/// More than the receiver may buffer, so that flow control stops the sender.
const SIZE: usize = 240 << 20;
/// The disk's bytes per second: a tenth of the network's rate.
const DISK: &str = "20000000";

#[test]
fn a_disk_at_a_tenth_of_the_network_rate_causes_no_packet_loss() {
    let Some(net) = Net::new(Mtu::Ethernet) else { return };
    let here = directory();
    file(&here.path().join("large"), 1, SIZE);
    let lost_by_host = || {
        let root = directory();
        let server = Server::start_slow(&net, root.path(), DISK);
        let mut command = haul(&net.client, ["cp", "--json", "--sync", "none", "--rate", "1600Mbit"]);
        let copy = Running::start(command.arg(here.path().join("large")).arg(server.at("copy")));
        let json: serde_json::Value = serde_json::from_str(&copy.wait(LIMIT).exits(0).stdout).unwrap();
        println!("{json}");
        assert_same_file(&here.path().join("large"), &root.path().join("copy"));
        json["lost_by_cause"]["receiver_host"].clone()
    };
    assert_eq!(attempts(lost_by_host, |lost| lost == 0), 0);
}

/// The reported limit of a copy whose sender's disk is this slow.
fn limit_of_a_copy(net: &Net, disk: &str) -> serde_json::Value {
    let (here, root) = (directory(), directory());
    file(&here.path().join("source"), 2, 60 << 20);
    let server = Server::start(net, root.path(), &[]);
    let mut command = haul(&net.client, ["cp", "--json", "--sync", "none"]);
    command.env("HAUL_DISK_RATE", disk).arg(here.path().join("source")).arg(server.at("copy"));
    let copy = Running::start(&mut command);
    let json: serde_json::Value = serde_json::from_str(&copy.wait(LIMIT).exits(0).stdout).unwrap();
    assert_same_file(&here.path().join("source"), &root.path().join("copy"));
    println!("{json}");
    json["limited_by"].clone()
}

#[test]
fn a_slow_sender_disk_is_named_and_slow_computation_is_not_called_a_disk() {
    let Some(net) = Net::new(Mtu::Ethernet) else { return };
    let limit_is = |expected: &str, disk: &str| {
        assert_eq!(attempts(|| limit_of_a_copy(&net, disk), |limit| limit == expected), expected);
    };
    limit_is("sender_storage", DISK);
    // The data path waits for the same time, but the reading thread is busy rather than blocked.
    limit_is("sender_cpu", &format!("{DISK} of work"));
}

/// The sender has nothing to send until the receiver has read its files and sent its requests.
#[test]
fn a_slow_disk_of_a_comparing_receiver_is_named() {
    let Some(net) = Net::new(Mtu::Ethernet) else { return };
    let (here, root) = (directory(), directory());
    for (place, changed) in [(&here, 0), (&root, 100)] {
        for number in 0..20 {
            let seed = if number % 8 == 3 { number + changed } else { number };
            file(&place.path().join(format!("tree/{number}")), seed, 4 << 20);
        }
    }
    let server = Server::start_slow(&net, root.path(), DISK);
    let mut command = haul(&net.client, ["cp", "--json", "--sync", "none", "--checksum"]);
    let copy = Running::start(command.arg(here.path().join("tree")).arg(server.at("")));
    let json: serde_json::Value = serde_json::from_str(&copy.wait(LIMIT).exits(0).stdout).unwrap();
    assert_eq!((&json["files"], &json["limited_by"]), (&3.into(), &"receiver_storage".into()), "{json}");
}
