//! Runs the checks of the fuzz targets everywhere, on their corpora and on seeded inputs.

use haul_base::Rng;
use haul_testing::fuzz::drive;
use haul_wire::check;
use haul_wire::url::HaulUrl;

const HOSTS: [&str; 4] = ["data.example.org", "192.0.2.7", "2001:db8::7", "fe80::1%eth0"];

#[test]
fn url() {
    let valid = |rng: &mut Rng| {
        let mut path = vec![0; rng.below(30) as usize];
        rng.fill(&mut path);
        let url = HaulUrl {
            host: HOSTS[rng.below(4) as usize].to_owned(),
            port: 1 + rng.below(65_535) as u16,
            path,
            fingerprint: [rng.next_u64() as u8; 32],
            secret: [rng.next_u64() as u8; 32].into(),
            expires: rng.chance(0.5).then(|| rng.next_u64()),
        };
        url.to_string().into_bytes()
    };
    drive("url", 20_000, valid, check::url);
}

/// Found by the fuzzer: the check required that the shown text not contain the key's text, but here it is the
/// path.
#[test]
fn a_url_with_its_key_as_path() {
    let url = HaulUrl {
        host: "data".to_owned(),
        port: 13_431,
        path: Vec::new(),
        fingerprint: [7; 32],
        secret: [9; 32].into(),
        expires: None,
    };
    let text = url.to_string();
    let (place, key) = text.split_once("?k=").unwrap();
    assert!(check::url(format!("{place}{key}?k={key}").as_bytes()));
}
