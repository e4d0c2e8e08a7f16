//! A path that corrupts packets. The receiving kernel drops packets with a wrong UDP checksum and includes
//! them in the socket's drop count, although the host is not the cause of the loss.

use haul_sim::{CorruptionSpec, Effect};
use haul_testing::attempts;

use super::*;

#[test]
fn damaged_packets_are_not_attributed_to_the_receiving_host() {
    if !privileged("damaged_packets_are_not_attributed_to_the_receiving_host") {
        return;
    }
    let mut path = lossy(0.0, Span::from_millis(10));
    let (share, effect) = (Probability::new(0.02).unwrap(), Effect::Flip);
    path.stages.push(StageSpec::Corruption(CorruptionSpec { share, effect }));
    let far = Far::beyond(37, &path, &[]);
    let bench = || far.succeed(&["bench", "--json", "--rate", "40Mbit", "--bytes", "20MB", &far.url]);
    // A busy host itself drops some packets.
    let is_right = |report: &Value| {
        let causes = report["lost_by_cause"].as_object().unwrap();
        let all: f64 = causes.values().map(|count| count.as_f64().unwrap()).sum();
        println!("{causes:?}, {} at {}", report["limited_by"], report["goodput_bps"]);
        all > 150.0
            && causes["receiver_host"].as_f64().unwrap() <= 0.02 * all
            && report["limited_by"] != "receiver_host"
    };
    let report = attempts(bench, is_right);
    assert!(is_right(&report), "{report}");
}
