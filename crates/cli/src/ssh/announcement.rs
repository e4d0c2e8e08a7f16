//! The first words of `haul` on the other side of ssh, and how they are found among those of a login shell.

use haul_wire::control::{Fault, FaultCode, PROTOCOL_VERSION};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::SshHost;

/// What stands before the announcement in its line.
const MARKER: &[u8] = b"#haul-over-ssh# ";
/// What a login shell may print before it, the announcement included.
pub(super) const MOST: usize = 64 << 10;
/// Addresses that are taken from an announcement.
pub(super) const MOST_HOSTS: usize = 8;

/// What the other side says when it is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Announcement {
    pub program: String,
    pub protocol: u16,
    /// The URL of its server, if it serves. It names no host that counts.
    #[serde(default)]
    pub url: Option<String>,
    /// Addresses by which it may be reached.
    #[serde(default)]
    pub hosts: Vec<String>,
    #[serde(default)]
    pub fault: Option<Fault>,
}

impl Announcement {
    /// Of this program.
    pub(crate) fn ours() -> Self {
        let program = env!("CARGO_PKG_VERSION").to_owned();
        Self { program, protocol: PROTOCOL_VERSION, url: None, hosts: Vec::new(), fault: None }
    }

    /// Its line on stdout, with the line end.
    pub(crate) fn line(&self) -> Vec<u8> {
        let json = serde_json::to_string(self).expect("texts and numbers always have a JSON form");
        [MARKER, json.as_bytes(), b"\n"].concat()
    }

    /// Reads what a [`Scanner`] has found.
    pub(super) fn read(json: &Value, host: &SshHost) -> Result<Self, Fault> {
        // The versions first: what else another version says may have another form.
        let theirs = json["protocol"].as_u64().unwrap_or_default();
        if theirs != u64::from(PROTOCOL_VERSION) {
            return Err(other_version(
                json["program"].as_str().unwrap_or("of an unknown version"),
                theirs,
                host,
            ));
        }
        let mut read: Self = serde_json::from_value(json.clone()).map_err(|error| {
            let message =
                format!("haul on {host} said something that this side does not understand: {error}");
            Fault::new(FaultCode::VersionMismatch, message, "install the same version of haul on both sides")
        })?;
        read.hosts.truncate(MOST_HOSTS);
        read.fault.take().map_or(Ok(read), Err)
    }
}

fn other_version(program: &str, protocol: u64, host: &SshHost) -> Fault {
    let ours = env!("CARGO_PKG_VERSION");
    Fault::new(
        FaultCode::VersionMismatch,
        format!(
            "haul on {host} is {program} with version {protocol} of the protocol, haul here is {ours} with version \
             {PROTOCOL_VERSION}"
        ),
        "upgrade the older side; --remote-binary names another haul there",
    )
}

/// Looks for an announcement in what comes from ssh.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    heard: Vec<u8>,
}

/// What a [`Scanner`] knows by now.
#[derive(Debug, PartialEq)]
pub(super) enum Scan {
    More,
    /// The announcement, and what came behind its line.
    Found(Value, Vec<u8>),
    /// So much came that there will be none.
    TooMuch,
}

impl Scanner {
    /// Takes what came next.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Scan {
        self.heard.extend_from_slice(bytes);
        let mut from = 0;
        while let Some(at) = find(&self.heard[from..], MARKER) {
            let start = from + at + MARKER.len();
            let Some(len) = self.heard[start..].iter().position(|&b| b == b'\n') else { break };
            let json = serde_json::from_slice(&self.heard[start..start + len]);
            if let Some(json) = json.ok().filter(Value::is_object) {
                return Scan::Found(json, self.heard.split_off(start + len + 1));
            }
            from = start;
        }
        if self.heard.len() > MOST { Scan::TooMuch } else { Scan::More }
    }

    /// The first line that came and says anything, for people.
    pub(super) fn first_line(&self) -> Option<String> {
        let text = String::from_utf8_lossy(&self.heard[..self.heard.len().min(400)]);
        let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
        Some(line.chars().take(120).collect())
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use proptest::prelude::*;

    use super::*;
    use crate::ssh::SshPath;

    fn host() -> SshHost {
        SshPath::parse(OsStr::new("far:x")).unwrap().unwrap().host
    }

    fn announcement() -> Announcement {
        Announcement {
            url: Some("haul://h:1/?k=x".to_owned()),
            hosts: vec!["::1".to_owned()],
            ..Announcement::ours()
        }
    }

    #[test]
    fn another_version_is_named_with_both_sides() {
        let mut json = serde_json::to_value(announcement()).unwrap();
        json["protocol"] = 99.into();
        json["program"] = "7.5.3".into();
        json["hosts"] = "in another form".into();
        let fault = Announcement::read(&json, &host()).unwrap_err();
        assert_eq!(fault.code, FaultCode::VersionMismatch);
        for word in ["far", "7.5.3", "99", env!("CARGO_PKG_VERSION")] {
            assert!(fault.message.contains(word), "{fault}");
        }
        assert!(fault.hint.contains("--remote-binary"), "{fault}");
    }

    #[test]
    fn a_fault_of_the_other_side_is_passed_on() {
        let fault = Fault::new(FaultCode::Io, "no free port", "choose others");
        let json =
            serde_json::to_value(Announcement { fault: Some(fault.clone()), ..announcement() }).unwrap();
        assert_eq!(Announcement::read(&json, &host()), Err(fault));
    }

    #[test]
    fn what_only_looks_like_an_announcement_is_passed_over() {
        let mut scanner = Scanner::default();
        assert_eq!(scanner.feed(b"#haul-over-ssh# nonsense\n#haul-over-ssh# 5\n#haul-over"), Scan::More);
        assert_eq!(scanner.feed(b"-ssh# {"), Scan::More);
        assert_eq!(scanner.feed(b"}x\n"), Scan::More, "a broken line does not end the search");
        assert_eq!(scanner.feed(b"#haul-over-ssh# {}\n!"), Scan::Found(serde_json::json!({}), b"!".to_vec()));
    }

    #[test]
    fn a_flood_is_given_up() {
        let mut scanner = Scanner::default();
        assert_eq!(scanner.feed(&vec![b'y'; MOST]), Scan::More);
        assert_eq!(scanner.feed(b"y"), Scan::TooMuch);
        assert_eq!(scanner.first_line().unwrap().len(), 120);
    }

    proptest! {
        #[test]
        fn an_announcement_is_found_behind_any_banner_however_it_is_cut(
            banner in prop::collection::vec(any::<u8>(), 0..200),
            behind in prop::collection::vec(any::<u8>(), 0..50),
            cuts in prop::collection::vec(1usize..40, 1..40),
        ) {
            prop_assume!(find(&banner, MARKER).is_none());
            let mut stream = banner;
            stream.extend(announcement().line());
            let end = stream.len();
            stream.extend(&behind);
            let (mut scanner, mut from, mut found) = (Scanner::default(), 0, None);
            for cut in cuts.iter().cycle() {
                let to = (from + cut).min(stream.len());
                match scanner.feed(&stream[from..to]) {
                    Scan::Found(json, rest) => found = Some((json, rest, to)),
                    scan => prop_assert_eq!(scan, Scan::More),
                }
                from = to;
                if found.is_some() || from == stream.len() {
                    break;
                }
            }
            let (json, rest, to) = found.expect("it is there");
            prop_assert_eq!(Announcement::read(&json, &host()), Ok(announcement()));
            prop_assert_eq!(rest, &stream[end..to]);
        }

        #[test]
        fn nothing_panics(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 0..5)) {
            let mut scanner = Scanner::default();
            for chunk in chunks {
                let _ = scanner.feed(&chunk);
                let _ = scanner.first_line();
            }
        }
    }
}
