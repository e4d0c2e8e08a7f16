//! Files that are shipped with the program.

use std::path::Path;
use std::process::Command;

/// Largest exposure that `systemd-analyze security` may report, in tenths: 0 is none, 100 is an unrestricted
/// root service.
const MOST_EXPOSED: &str = "--threshold=20";

#[test]
fn the_systemd_unit_is_hardened() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/haul-serve.service");
    let analysis = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--no-pager", MOST_EXPOSED])
        .arg(&unit)
        .output();
    let Ok(analysis) = analysis else {
        eprintln!("SKIPPED the_systemd_unit_is_hardened: systemd-analyze is missing");
        return;
    };
    let stderr = String::from_utf8_lossy(&analysis.stderr).into_owned();
    if stderr.contains("unrecognized option") || stderr.contains("Unknown") {
        eprintln!("SKIPPED the_systemd_unit_is_hardened: systemd-analyze is too old: {stderr}");
        return;
    }
    assert!(analysis.status.success(), "{}{stderr}", String::from_utf8_lossy(&analysis.stdout));
}
