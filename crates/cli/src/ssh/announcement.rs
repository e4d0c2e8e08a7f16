//! The first words of `haul` on the other side of ssh, and how they are found among those of a login shell.

use std::io::{BufRead, Read as _};

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
    #[serde(default)]
    pub hosts: Vec<String>,
    #[serde(default)]
    pub fault: Option<Fault>,
}

impl Announcement {
    pub(crate) fn ours() -> Self {
        let program = env!("CARGO_PKG_VERSION").to_owned();
        Self { program, protocol: PROTOCOL_VERSION, url: None, hosts: Vec::new(), fault: None }
    }

    /// Its line on stdout, with the line end.
    pub(crate) fn line(&self) -> Vec<u8> {
        let json = serde_json::to_string(self).expect("texts and numbers always have a JSON form");
        [MARKER, json.as_bytes(), b"\n"].concat()
    }

    pub(super) fn read(json: &Value, host: &SshHost) -> Result<Self, Fault> {
        // The versions first: what else another version says may have another form.
        let theirs = json["protocol"].as_u64().unwrap_or_default();
        if theirs != u64::from(PROTOCOL_VERSION) {
            let program = json["program"].as_str().unwrap_or("of an unknown version");
            let ours = env!("CARGO_PKG_VERSION");
            return Err(Fault::new(
                FaultCode::VersionMismatch,
                format!(
                    "haul on {host} is {program} with version {theirs} of the protocol, haul here is {ours} with version \
                     {PROTOCOL_VERSION}"
                ),
                "upgrade the older side; --remote-binary names another haul there",
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

/// What the output of ssh has up to an announcement. Without one: its first line that is not blank, for people.
#[derive(Debug, PartialEq)]
pub(super) enum Scanned {
    Announced(Value),
    /// No announcement within [`MOST`] bytes.
    TooMuch(Option<String>),
    End(Option<String>),
}

/// Looks for an announcement in the output of ssh. What follows its line stays unread.
pub(super) fn scan_output(from: &mut impl BufRead) -> Scanned {
    let mut output = Vec::new();
    while output.len() <= MOST {
        let start = output.len();
        let room = (MOST + 1 - start) as u64;
        if !matches!(from.take(room).read_until(b'\n', &mut output), Ok(1..)) {
            return Scanned::End(first_line(&output));
        }
        if let Some(json) = announced(&output[start..]) {
            return Scanned::Announced(json);
        }
    }
    Scanned::TooMuch(first_line(&output))
}

/// What is announced in a line that is whole.
fn announced(line: &[u8]) -> Option<Value> {
    let line = line.strip_suffix(b"\n")?;
    let mut behind = (MARKER.len()..=line.len()).filter(|&at| line[..at].ends_with(MARKER));
    behind.find_map(|at| serde_json::from_slice(&line[at..]).ok().filter(Value::is_object))
}

fn first_line(output: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(&output[..output.len().min(400)]);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    Some(line.chars().take(120).collect())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::io::{BufReader, Read};

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

    /// Bytes that come in pieces of these sizes.
    struct Cut<'a, I>(&'a [u8], I);

    impl<'a, I: Iterator<Item = &'a usize>> Read for Cut<'_, I> {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            let most = self.1.next().copied().unwrap_or_default().min(into.len());
            self.0.read(&mut into[..most])
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
        let said = "#haul-over-ssh# nonsense\n#haul-over-ssh# 5\n#haul-over-ssh# {}x\n#haul-over-ssh# {}\n!";
        let mut from = said.as_bytes();
        assert_eq!(
            scan_output(&mut from),
            Scanned::Announced(serde_json::json!({})),
            "a broken line does not end the search"
        );
        assert_eq!(from, b"!");
        let mut broken = &b"#haul-over-ssh# {}"[..];
        assert_eq!(
            scan_output(&mut broken),
            Scanned::End(Some("#haul-over-ssh# {}".to_owned())),
            "the line has no end"
        );
    }

    #[test]
    fn a_flood_is_given_up() {
        let line = Some("y".repeat(120));
        assert_eq!(scan_output(&mut &vec![b'y'; MOST][..]), Scanned::End(line.clone()));
        assert_eq!(scan_output(&mut &vec![b'y'; MOST + 1][..]), Scanned::TooMuch(line));
    }

    proptest! {
        #[test]
        fn an_announcement_is_found_behind_any_banner_however_it_is_cut(
            banner in prop::collection::vec(any::<u8>(), 0..200),
            behind in prop::collection::vec(any::<u8>(), 0..50),
            cuts in prop::collection::vec(1usize..40, 1..40),
        ) {
            prop_assume!(!banner.windows(MARKER.len()).any(|window| window == MARKER));
            let stream = [&banner[..], &announcement().line(), &behind].concat();
            let mut from = BufReader::new(Cut(&stream, cuts.iter().cycle()));
            let Scanned::Announced(json) = scan_output(&mut from) else { panic!("it is there") };
            prop_assert_eq!(Announcement::read(&json, &host()), Ok(announcement()));
            let mut rest = Vec::new();
            from.read_to_end(&mut rest).unwrap();
            prop_assert_eq!(rest, behind);
        }

        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = scan_output(&mut &bytes[..]);
        }
    }
}
