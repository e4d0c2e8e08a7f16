//! What a server that ssh has started is to do: one thing, and nothing else. The machine that connects to it
//! need not be the one that started it, and is trusted with no more than this.

use haul_base::Bytes;
use haul_wire::control::{Cipher, Durability, Fault, FaultCode, Preserve, ReceivePolicy, Request, Selection};
use serde::{Deserialize, Serialize};

use crate::args::TransferOptions;

/// The longest line that is read as a permit, in bytes.
pub(crate) const MAX_PERMIT: u64 = 16 << 20;

/// The one request that such a server serves, besides looking whether packets get through.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Permit {
    /// Files may be written to this place, in this manner, and be given this of what they have.
    Put(Vec<u8>, ReceivePolicy, Preserve),
    /// A stream may be written to this file, which counts as received then.
    PutStream(Vec<u8>, Durability),
    /// These files may be read.
    Get(Vec<Vec<u8>>),
}

impl Permit {
    /// What files may be given beside contents, names, permissions and times.
    pub(crate) fn preserve(&self) -> Preserve {
        match self {
            Self::Put(_, _, preserve) => *preserve,
            Self::PutStream(..) | Self::Get(_) => Preserve::default(),
        }
    }

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
        Err(Fault::new(
            FaultCode::NotPermitted,
            "this server was started over ssh for another copy",
            "start a copy of your own: it gets a server of its own",
        ))
    }
}

/// The longest line that is read as a job, in bytes: what was chosen by a list goes along.
pub(crate) const MAX_JOB: u64 = 1 << 30;

/// One copy between that machine and a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The server's URL, whose path does not count.
    pub server: String,
    /// Where it may be found; empty: where its URL says.
    pub hosts: Vec<String>,
    /// Whether the server sends.
    pub fetches: bool,
    pub sources: Vec<Vec<u8>>,
    pub destination: Vec<u8>,
    pub selection: Selection,
    pub transfer: TransferOptions,
    /// Go on when nobody listens any more.
    pub detach: bool,
    /// What it amounts to, for people.
    pub actions: Vec<String>,
    /// The ports that the server was told to use, for the words of a failure.
    pub ports: Option<String>,
    /// What the transport is made of, TOML.
    pub recipe: String,
    /// As [`Settings`](crate::settings::Settings) have it, like the next two.
    pub crypto: Option<Cipher>,
    pub offload: bool,
    pub socket_buffer: Bytes,
}

#[cfg(test)]
mod tests {
    use haul_wire::control::{Extraneous, Growth, Layout, RunMode, Selection};

    use super::*;

    #[test]
    fn only_what_was_asked_for_is_served() {
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
    fn it_travels_unchanged() {
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
    fn items_arrive_as_they_were_and_never_lead_out() {
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
        fn any_names_make_the_round_trip(
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
