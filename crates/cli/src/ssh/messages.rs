//! Messages between two `haul` processes over ssh. The remote one prints an announcement, possibly after
//! output of the login shell; then it receives one permit or job.

use std::io::{BufRead, Read as _};

use haul_base::Bytes;
use haul_wire::control::{
    Cipher, Durability, Fault, FaultCode, PROTOCOL_VERSION, Preserve, ReceivePolicy, Request, Selection,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::SshHost;
use crate::args::TransferOptions;

/// Start of the announcement, behind which its JSON object takes the rest of the line.
const MARKER: &[u8] = b"#haul-over-ssh# ";
/// Maximum output up to the announcement's end, in bytes.
pub(super) const MAX_OUTPUT: usize = 64 << 10;
pub(super) const MAX_HOSTS: usize = 8;

/// Message that the remote haul prints when it is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Announcement {
    pub program: String,
    pub protocol: u16,
    /// URL of its server, with a placeholder for the host.
    pub url: Option<String>,
    #[serde(default)]
    pub hosts: Vec<String>,
    /// Why it cannot serve.
    pub fault: Option<Fault>,
}

impl Announcement {
    pub(crate) fn ours() -> Self {
        let program = env!("CARGO_PKG_VERSION").to_owned();
        Self { program, protocol: PROTOCOL_VERSION, url: None, hosts: Vec::new(), fault: None }
    }

    pub(crate) fn line(&self) -> Vec<u8> {
        let json = serde_json::to_string(self).expect("texts and numbers always have a JSON form");
        [MARKER, json.as_bytes(), b"\n"].concat()
    }

    pub(super) fn read(json: &Value, host: &SshHost) -> Result<Self, Fault> {
        // Another version may have another form.
        let theirs = json["protocol"].as_u64().unwrap_or_default();
        if theirs != u64::from(PROTOCOL_VERSION) {
            let program = json["program"].as_str().unwrap_or("of unknown version");
            let Self { program: ours, protocol, .. } = Self::ours();
            let message = format!(
                "haul on {host} is {program} with protocol version {theirs}; haul here is {ours} with protocol version {protocol}"
            );
            let hint = "upgrade the older one, or name another remote haul with --remote-binary";
            return Err(Fault::new(FaultCode::VersionMismatch, message, hint));
        }
        let mut read: Self = serde_json::from_value(json.clone()).map_err(|error| {
            let message = format!("the response of haul on {host} was not understood: {error}");
            Fault::new(FaultCode::VersionMismatch, message, "install the same version of haul on both sides")
        })?;
        read.hosts.truncate(MAX_HOSTS);
        read.fault.take().map_or(Ok(read), Err)
    }
}

/// Result of the search for an announcement; without one, the first nonblank line.
#[derive(Debug, PartialEq)]
pub(super) enum Scanned {
    Announced(Value),
    /// No announcement within [`MAX_OUTPUT`] bytes.
    TooMuch(Option<String>),
    End(Option<String>),
}

pub(super) fn scan_output(from: &mut impl BufRead) -> Scanned {
    let mut output = Vec::new();
    while output.len() <= MAX_OUTPUT {
        let start = output.len();
        let room = (MAX_OUTPUT + 1 - start) as u64;
        if !matches!(from.take(room).read_until(b'\n', &mut output), Ok(1..)) {
            return Scanned::End(first_line(&output));
        }
        if let Some(json) = announced(&output[start..]) {
            return Scanned::Announced(json);
        }
    }
    Scanned::TooMuch(first_line(&output))
}

/// Parses the announcement in a complete line, which may start with other output.
fn announced(line: &[u8]) -> Option<Value> {
    let line = line.strip_suffix(b"\n")?;
    let mut after = (MARKER.len()..=line.len()).filter(|&at| line[..at].ends_with(MARKER));
    after.find_map(|at| serde_json::from_slice(&line[at..]).ok().filter(Value::is_object))
}

fn first_line(output: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(&output[..output.len().min(400)]);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    Some(line.chars().take(120).collect())
}

pub(crate) const MAX_PERMIT: u64 = 16 << 20;

/// The only request that a server started over ssh accepts, besides path checks: its client need not be the
/// machine that started it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Permit {
    /// Writes files to this path, with this policy and these attributes.
    Put(Vec<u8>, ReceivePolicy, Preserve),
    /// Writes a stream to this file.
    PutStream(Vec<u8>, Durability),
    /// Reads these files.
    Get(Vec<Vec<u8>>),
}

impl Permit {
    pub(crate) fn check(&self, request: &Request) -> Result<(), Fault> {
        let is_permitted = match (self, request) {
            (_, Request::Check) => true,
            (Self::Put(place, permitted, _), Request::Put { destination, receive_policy, .. }) => {
                place == destination && permitted == receive_policy
            }
            (Self::PutStream(file, permitted), Request::PutStream { destination, durability }) => {
                file == destination && permitted == durability
            }
            (Self::Get(files), Request::Get { sources, .. }) => files == sources,
            _ => false,
        };
        if is_permitted {
            return Ok(());
        }
        let message = "this server was started over ssh for another copy";
        Err(Fault::new(FaultCode::NotPermitted, message, "start your own copy, which gets its own server"))
    }
}

/// Maximum length of a job's line, in bytes: it contains the entries of lists.
pub(crate) const MAX_JOB: u64 = 1 << 30;

/// One copy between the machine that receives this and a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The server's URL; its path is ignored.
    pub server: String,
    /// Possible addresses of the server, best first; if empty, the URL's host.
    pub hosts: Vec<String>,
    /// Whether the server sends.
    pub fetches: bool,
    pub sources: Vec<Vec<u8>>,
    pub destination: Vec<u8>,
    pub selection: Selection,
    pub transfer: TransferOptions,
    /// Whether to continue when the connection to the user's machine is lost.
    pub detach: bool,
    /// Description for users.
    pub actions: Vec<String>,
    /// Port range given to the server, for error messages.
    pub ports: Option<String>,
    /// The [`Settings`](crate::settings::Settings), with the recipe in TOML.
    pub recipe: String,
    pub crypto: Option<Cipher>,
    pub offload: bool,
    pub socket_buffer: Bytes,
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::io::{BufReader, Read};

    use proptest::prelude::*;

    use super::*;
    use crate::ssh::address;

    fn host() -> SshHost {
        address::parse(OsStr::new("far:x")).unwrap().unwrap().0
    }

    fn announcement() -> Announcement {
        Announcement {
            url: Some("haul://h:1/?k=x".to_owned()),
            hosts: vec!["::1".to_owned()],
            ..Announcement::ours()
        }
    }

    /// Bytes that come in pieces of these sizes.
    struct ShortReads<'a, I>(&'a [u8], I);

    impl<'a, I: Iterator<Item = &'a usize>> Read for ShortReads<'_, I> {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            let most = self.1.next().copied().unwrap_or_default().min(into.len());
            self.0.read(&mut into[..most])
        }
    }

    #[test]
    fn a_version_mismatch_names_both_sides() {
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
    fn lines_that_only_resemble_an_announcement_are_skipped() {
        let output =
            "#haul-over-ssh# nonsense\n#haul-over-ssh# 5\n#haul-over-ssh# {}x\n#haul-over-ssh# {}\n!";
        let mut from = output.as_bytes();
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
    fn the_search_stops_after_too_much_output() {
        let line = Some("y".repeat(120));
        assert_eq!(scan_output(&mut &vec![b'y'; MAX_OUTPUT][..]), Scanned::End(line.clone()));
        assert_eq!(scan_output(&mut &vec![b'y'; MAX_OUTPUT + 1][..]), Scanned::TooMuch(line));
    }

    proptest! {
        #[test]
        fn an_announcement_is_found_after_any_banner_in_pieces_of_any_size(
            banner in prop::collection::vec(any::<u8>(), 0..200),
            after in prop::collection::vec(any::<u8>(), 0..50),
            cuts in prop::collection::vec(1usize..40, 1..40),
        ) {
            prop_assume!(!banner.windows(MARKER.len()).any(|window| window == MARKER));
            let stream = [&banner[..], &announcement().line(), &after].concat();
            let mut from = BufReader::new(ShortReads(&stream, cuts.iter().cycle()));
            let Scanned::Announced(json) = scan_output(&mut from) else { panic!("it is there") };
            prop_assert_eq!(Announcement::read(&json, &host()), Ok(announcement()));
            let mut rest = Vec::new();
            from.read_to_end(&mut rest).unwrap();
            prop_assert_eq!(rest, after);
        }

        #[test]
        fn scanning_output_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = scan_output(&mut &bytes[..]);
        }
    }
}

#[cfg(test)]
mod permit_tests {
    use haul_wire::control::{Extraneous, Growth, Layout, RunMode, Selection};

    use super::*;

    #[test]
    fn a_permit_allows_only_the_request_that_was_asked_for() {
        let receive_policy = ReceivePolicy::default();
        let put = |to: &[u8]| Request::Put { destination: to.to_vec(), layout: Layout::As, receive_policy };
        let selection = Selection::default;
        let get = |of: &[&[u8]]| Request::Get {
            sources: of.iter().map(|path| path.to_vec()).collect(),
            selection: selection(),
            growth: Growth::Refuse,
            run: RunMode::Move,
            preserve: Preserve::default(),
        };
        let receive_policy = ReceivePolicy { extraneous: Extraneous::Delete, ..receive_policy };
        let delete = Request::Put { destination: b"in/".to_vec(), layout: Layout::As, receive_policy };
        let (up, down) = (
            Permit::Put(b"in/".to_vec(), ReceivePolicy::default(), Preserve::ALL),
            Permit::Get(vec![b"a".to_vec(), b"\xff".to_vec()]),
        );
        assert!(up.check(&put(b"in/")).is_ok() && down.check(&get(&[b"a", b"\xff"])).is_ok());
        assert!(up.check(&Request::Check).is_ok() && down.check(&Request::Check).is_ok());
        for wrong in
            [delete, put(b""), put(b"in/.."), get(&[b"in/"]), Request::BenchSend, Request::StreamReceive]
        {
            assert_eq!(up.check(&wrong).unwrap_err().code, FaultCode::NotPermitted, "{wrong:?}");
        }
        let stream = |durability| Request::PutStream { destination: b"f".to_vec(), durability };
        let into = Permit::PutStream(b"f".to_vec(), Durability::Synced);
        assert!(into.check(&stream(Durability::Synced)).is_ok());
        assert!(into.check(&stream(Durability::Cached)).is_err());
        for wrong in [put(b"a"), get(&[b"a"]), get(&[b"a", b"\xff", b"/etc/passwd"]), get(&[])] {
            assert!(down.check(&wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_permit_round_trips_through_json() {
        for permit in [
            Permit::Put(b"\xff".to_vec(), ReceivePolicy::default(), Preserve::ALL),
            Permit::Get(vec![Vec::new(), b"x".to_vec()]),
        ] {
            let line = serde_json::to_string(&permit).unwrap();
            assert_eq!(serde_json::from_str::<Permit>(&line).unwrap(), permit);
        }
    }
}

#[cfg(test)]
mod job_tests {
    use haul_wire::control::{Action, Item, RelPath, Rule, Verdict};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn items_round_trip_through_json_and_escaping_paths_are_refused() {
        for (path, action) in [(&b"a/b"[..], Action::Send { size: 5 }), (b"a\xff", Action::Delete)] {
            let item = Item { path: RelPath::new(path).unwrap(), action };
            let line = serde_json::to_string(&item).unwrap();
            assert_eq!(serde_json::from_str::<Item>(&line).unwrap(), item);
        }
        let leads_out = serde_json::json!({ "path": b"../x", "action": "Keep" });
        assert!(serde_json::from_value::<Item>(leads_out).is_err());
    }

    proptest! {
        #[test]
        fn a_job_with_any_names_round_trips_through_json(
            sources in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..5),
            text in ".{0,20}",
        ) {
            let rules = vec![Rule { verdict: Verdict::Exclude, pattern: text.clone().into_bytes() }];
            let job = Job {
                server: "haul://far:1/".to_owned(),
                hosts: vec!["far".to_owned()],
                fetches: false,
                sources,
                destination: text.into_bytes(),
                selection: Selection { rules, ..Selection::default() },
                transfer: TransferOptions::default(),
                detach: true,
                actions: vec!["copy a:x to b:y".to_owned()],
                ports: None,
                recipe: String::new(),
                crypto: Some(Cipher::None),
                offload: true,
                socket_buffer: Bytes(1),
            };
            let line = serde_json::to_string(&job).unwrap();
            prop_assert!(!line.contains('\n'));
            let read: Job = serde_json::from_str(&line).unwrap();
            prop_assert_eq!(read, job);
        }
    }
}
