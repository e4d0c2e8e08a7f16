//! Memory use does not grow with the size of the transfer.

use crate::support::{LIMIT, Mtu, Net, Running, Server, directory, haul};

/// Memory limit for either side.
const MOST: u64 = 256 << 20;

#[test]
fn neither_side_needs_more_than_256_mib_for_a_gibibyte() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    let root = directory();
    let mut server = Server::start(&net, root.path(), &[]);
    for direction in [&[][..], &["--reverse"]] {
        let mut command = haul(&net.client, ["bench", "--bytes", "1GiB"]);
        let client = Running::start(command.args(direction).arg(&server.url)).wait(LIMIT).exits(0);
        let peaks = [client.peak_memory, server.process.peak_memory()];
        assert!(peaks.iter().all(|peak| (1 << 20..=MOST).contains(peak)), "{peaks:?} bytes");
    }
}
