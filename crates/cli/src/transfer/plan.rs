//! What a copy amounts to, before anything is done: which way, and from where to where.

use std::borrow::Cow;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use haul_base::printable_bytes;
use haul_engine::HaulUrl;

use crate::endpoint::Endpoint;
use crate::fault::{self, Fault};
use crate::output::Lines;
use crate::ssh::{Permit, SshHost, SshPath};
use crate::transfer::context::Context;

/// A machine at the other end of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Server {
    /// It runs `haul serve`. The path of its URL does not count.
    Url(HaulUrl),
    /// ssh starts a server there.
    Ssh(SshHost),
}

impl Server {
    /// The machine and the path of an end that is not on this one, which is given back.
    fn split(end: Endpoint) -> Result<(Self, Vec<u8>), PathBuf> {
        match end {
            Endpoint::Local(path) => Err(path),
            Endpoint::Url(mut url) => {
                let path = std::mem::take(&mut url.path);
                Ok((Self::Url(url), path))
            }
            Endpoint::Ssh(SshPath { host, path }) => Ok((Self::Ssh(host), path)),
        }
    }

    /// Whether sources on both are those of one session. The same machine by another port of ssh is another one: a
    /// container, or what a tunnel leads to.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Url(a), Self::Url(b)) => (a.authority(), &a.secret) == (b.authority(), &b.secret),
            _ => self == other,
        }
    }

    /// Its name for people.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Url(url) => url.authority(),
            Self::Ssh(host) => match host.port {
                Some(port) => format!("{host} (port {port})"),
                None => host.to_string(),
            },
        }
    }

    /// A path on it, for people.
    fn place(&self, path: &[u8]) -> String {
        match self {
            Self::Url(url) => format!("{}:/{}", url.authority(), printable_bytes(path)),
            Self::Ssh(host) => host.place(path),
        }
    }
}

/// A copy in one of the ways there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CopyPlan {
    /// From this machine to another one.
    Upload { sources: Vec<PathBuf>, to: Server, path: Vec<u8> },
    /// From another machine to this one.
    Download { from: Server, sources: Vec<Vec<u8>>, to: PathBuf },
    /// Between two other machines.
    Third(Third),
    /// From several machines to this one, at the same time.
    Many(Vec<CopyPlan>),
    /// Within this machine.
    Local { sources: Vec<PathBuf>, to: PathBuf },
}

impl CopyPlan {
    /// Reads the words of `haul cp`: sources, then the destination.
    pub(crate) fn parse(words: &[OsString]) -> Result<Self, Fault> {
        let (destination, sources) = match words {
            [] | [_] => {
                let what =
                    if words.is_empty() { "a source and a destination are" } else { "a destination is" };
                return Err(fault::usage(format!("{what} missing"), "haul cp [OPTIONS] SRC... DST"));
            }
            [sources @ .., destination] => (Endpoint::parse(destination)?, sources),
        };
        let (local, machines) = grouped(sources)?;
        match (Server::split(destination), machines.is_empty()) {
            (Err(to), true) => Ok(Self::Local { sources: local, to }),
            (Ok((to, path)), true) => Ok(Self::Upload { sources: local, to, path }),
            (_, false) if !local.is_empty() => Err(fault::usage(
                "sources on different machines are mixed",
                "copy them with a command for each machine",
            )),
            (Err(to), false) => Ok(Self::to_here(machines, to)),
            (Ok((to, path)), false) => Self::elsewhere(&machines, to, path).map(Self::Third),
        }
    }

    /// From one machine, or from several at the same time.
    fn to_here(mut machines: Vec<OnServer>, to: PathBuf) -> Self {
        let download = |(from, sources), to| Self::Download { from, sources, to };
        if machines.len() == 1 {
            return download(machines.remove(0), to);
        }
        // The slash at its end says that it is a directory.
        let to = to.join("");
        Self::Many(machines.into_iter().map(|machine| download(machine, to.clone())).collect())
    }

    /// Between other machines, one of which ssh has to lead to: it connects.
    fn elsewhere(machines: &[OnServer], to: Server, path: Vec<u8>) -> Result<Third, Fault> {
        let there = |paths: &[Vec<u8>]| paths.iter().cloned().map(Location::There).collect();
        match (machines, to) {
            ([(Server::Ssh(at), paths)], Server::Ssh(host)) => Ok(Third {
                at: at.clone(),
                serves: Some(host),
                sources: there(paths),
                to: Location::Served(path),
            }),
            ([(Server::Ssh(at), paths)], Server::Url(url)) => {
                let to = Location::Url(HaulUrl { path, ..url });
                Ok(Third { at: at.clone(), serves: None, sources: there(paths), to })
            }
            (all, to) => Self::from_servers(all, to, path),
        }
    }

    /// From servers that URLs name to a machine that ssh leads to.
    fn from_servers(machines: &[OnServer], to: Server, path: Vec<u8>) -> Result<Third, Fault> {
        let sources = machines.iter().map(|(from, paths)| urls(from, paths)).collect::<Option<Vec<_>>>();
        match (sources, to) {
            (Some(sources), Server::Ssh(at)) => {
                Ok(Third { at, serves: None, sources: sources.concat(), to: Location::There(path) })
            }
            (Some(_), Server::Url(_)) => Err(fault::usage(
                "copying from one server to another is not in this release",
                "copy to this machine first, then on to the other server",
            )),
            (None, _) => {
                Err(fault::usage("the sources are on different machines", "use one command for each machine"))
            }
        }
    }

    /// Whether this machine sends.
    pub(crate) fn is_sent_from_here(&self) -> bool {
        matches!(self, Self::Upload { .. } | Self::Local { .. })
    }

    /// The machine at the other end if this one takes part, and what a server that ssh starts there is to do.
    pub(crate) fn other_end(&self, context: &Context) -> Option<(&Server, Permit)> {
        match self {
            Self::Upload { to, path, .. } => Some((
                to,
                Permit::Put(path.clone(), context.transfer.receive_policy, context.transfer.preserve),
            )),
            Self::Download { from, sources, .. } => Some((from, Permit::Get(sources.clone()))),
            Self::Third(_) | Self::Many(_) | Self::Local { .. } => None,
        }
    }

    /// The URL of the server at the other end, if one names it.
    pub(crate) fn url_mut(&mut self) -> Option<&mut HaulUrl> {
        match self {
            Self::Upload { to: Server::Url(url), .. } | Self::Download { from: Server::Url(url), .. } => {
                Some(url)
            }
            _ => None,
        }
    }

    pub(crate) fn sources(&self) -> usize {
        match self {
            Self::Upload { sources, .. } | Self::Local { sources, .. } => sources.len(),
            Self::Download { sources, .. } => sources.len(),
            Self::Third(third) => third.sources.len(),
            Self::Many(plans) => plans.iter().map(Self::sources).sum(),
        }
    }

    /// What would be done, for people.
    pub(crate) fn actions(&self) -> Vec<String> {
        match self {
            Self::Upload { sources, to, path } => {
                let to = to.place(path);
                sources.iter().map(|s| format!("send {} to {to}", s.display())).collect()
            }
            Self::Download { from, sources, to } => {
                sources.iter().map(|s| format!("fetch {} to {}", from.place(s), to.display())).collect()
            }
            Self::Third(third) => third.actions(),
            Self::Many(plans) => plans.iter().flat_map(Self::actions).collect(),
            Self::Local { sources, to } => {
                sources.iter().map(|s| format!("copy {} to {}", s.display(), to.display())).collect()
            }
        }
    }
}

type OnServer = (Server, Vec<Vec<u8>>);

/// The sources on this machine, and those on others, together what is on the same one.
fn grouped(words: &[OsString]) -> Result<(Vec<PathBuf>, Vec<OnServer>), Fault> {
    let (mut local, mut machines) = (Vec::new(), Vec::<OnServer>::new());
    for word in words {
        match Server::split(Endpoint::parse(word)?) {
            Err(path) => local.push(path),
            Ok((server, path)) => match machines.iter_mut().find(|(known, _)| known.is_same(&server)) {
                Some((_, paths)) => paths.push(path),
                None => machines.push((server, vec![path])),
            },
        }
    }
    Ok((local, machines))
}

/// Paths on a server, if a URL names it.
fn urls(server: &Server, paths: &[Vec<u8>]) -> Option<Vec<Location>> {
    let Server::Url(url) = server else { return None };
    let with = |path: &Vec<u8>| Location::Url(HaulUrl { path: path.clone(), ..url.clone() });
    Some(paths.iter().map(with).collect())
}

/// The bytes of paths, as they travel.
pub(crate) fn path_bytes(paths: &[PathBuf]) -> Vec<Vec<u8>> {
    paths.iter().map(|path| path.as_os_str().as_bytes().to_vec()).collect()
}

/// What two machines have agreed on, by name.
pub(crate) type Negotiated = Vec<(Cow<'static, str>, String)>;

/// What `--dry-run` says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DryRun {
    /// What would be done, one line each.
    pub actions: Vec<String>,
    /// What was agreed on with the server; empty without a server.
    pub negotiated: Negotiated,
}

impl DryRun {
    /// The plan as a JSON object.
    pub(crate) fn value(&self) -> serde_json::Value {
        let negotiated: serde_json::Map<String, serde_json::Value> =
            self.negotiated.iter().map(|(key, value)| (key.to_string(), value.clone().into())).collect();
        serde_json::json!({
            "schema": 1, "ok": true, "dry_run": true, "actions": self.actions, "negotiated": negotiated,
        })
    }
}

impl From<&DryRun> for Lines {
    fn from(dry: &DryRun) -> Self {
        let mut lines = Self::default();
        dry.actions.iter().for_each(|action| lines.push(format_args!("would {action}")));
        dry.negotiated.iter().for_each(|(key, value)| lines.push(format_args!("{key}: {value}")));
        lines
    }
}

/// A copy that passes this machine by. One end is a machine behind ssh that connects, `at`; the other is
/// behind ssh too, or a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Third {
    pub at: SshHost,
    /// The machine that is to serve; `None` if a URL names a server.
    pub serves: Option<SshHost>,
    pub sources: Vec<Location>,
    pub to: Location,
}

/// One end of a copy between two other machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Location {
    /// A path on the machine that connects.
    There(Vec<u8>),
    /// A path on the machine that serves.
    Served(Vec<u8>),
    Url(HaulUrl),
}

impl Third {
    /// What would be done, for people.
    pub(crate) fn actions(&self) -> Vec<String> {
        let to = self.shown(&self.to);
        self.sources.iter().map(|source| format!("copy {} to {to}", self.shown(source))).collect()
    }

    /// A place for people, without a URL's secret.
    fn shown(&self, place: &Location) -> String {
        match (place, &self.serves) {
            (Location::There(path), _) => self.at.place(path),
            (Location::Served(path), Some(host)) => host.place(path),
            (Location::Served(path), None) => printable_bytes(path),
            (Location::Url(url), _) => url.without_key(),
        }
    }
}

impl Location {
    /// The word of a command line for a path on the machine that connects; it cannot be taken for anything
    /// else there.
    pub(crate) fn local_word(path: &[u8]) -> OsString {
        if path.starts_with(b"/") {
            return OsString::from_vec(path.to_vec());
        }
        OsString::from_vec([b"./", path].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(port: u16, path: &str) -> String {
        let (fingerprint, secret) = ([1; 32], [2; 32].into());
        let path = path.as_bytes().to_vec();
        HaulUrl { host: "h".to_owned(), port, path, fingerprint, secret, expires: None }.to_string()
    }

    fn parse(words: &[&str]) -> Result<CopyPlan, Fault> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        CopyPlan::parse(&words)
    }

    #[test]
    fn the_three_ways_are_told_apart() {
        let up = parse(&["a", "b", &url(1, "in")]).unwrap();
        assert!(matches!(&up, CopyPlan::Upload { sources, path, .. } if sources.len() == 2 && path == b"in"));
        assert_eq!(up.actions(), ["send a to h:1:/in", "send b to h:1:/in"]);
        let down = parse(&[&url(1, "x"), &url(1, "y"), "."]).unwrap();
        assert!(matches!(&down, CopyPlan::Download { sources, .. } if *sources == [b"x", b"y"]));
        assert_eq!(down.actions()[1], "fetch h:1:/y to .");
        assert!(matches!(parse(&["a", "b"]).unwrap(), CopyPlan::Local { .. }));
    }

    #[test]
    fn who_connects_to_whom_follows_from_the_ends() {
        let up = parse(&["a", "b", "far:/in/"]).unwrap();
        assert_eq!(up.actions(), ["send a to far:/in/", "send b to far:/in/"]);
        let down = parse(&["me@far:x", "me@far:", "."]).unwrap();
        assert_eq!(down.actions(), ["fetch me@far:x to .", "fetch me@far:. to ."]);
        let third = parse(&["a:x", "b:"]).unwrap();
        assert_eq!(third.actions(), ["copy a:x to b:."]);
        assert!(
            matches!(&third, CopyPlan::Third(third) if third.at.destination == "a" && third.serves.is_some())
        );
        let to_server = parse(&["a:x", &url(1, "in")]).unwrap();
        assert_eq!(to_server.actions(), ["copy a:x to haul://h:1/in"]);
        let from_server = parse(&[&url(1, "x"), "b:y"]).unwrap();
        assert!(matches!(&from_server, CopyPlan::Third(third) if third.at.destination == "b"));
        assert_eq!(from_server.actions(), ["copy haul://h:1/x to b:y"]);
    }

    #[test]
    fn several_machines_are_pulled_from_at_the_same_time() {
        let (one, other) = (url(1, "x"), url(2, "y"));
        let CopyPlan::Many(plans) = parse(&[&one, &other, "me@far:z", &one, "in"]).unwrap() else { panic!() };
        assert_eq!(plans.iter().map(CopyPlan::sources).collect::<Vec<_>>(), [2, 1, 1]);
        assert!(matches!(&plans[1], CopyPlan::Download { to, .. } if to.as_os_str() == "in/"));
        assert!(matches!(&plans[2], CopyPlan::Download { from: Server::Ssh(_), .. }));
        let ports =
            parse(&["ssh://far:2201/x", "ssh://far:2202/x", "far:x", "ssh://far:2201/y", "in"]).unwrap();
        assert!(matches!(&ports, CopyPlan::Many(plans) if plans.len() == 3), "{ports:?}");
    }

    #[test]
    fn what_cannot_be_copied_is_said_with_a_way_out() {
        let (one, other) = (url(1, "x"), url(2, "x"));
        for (words, needle) in [
            (vec![], "are missing"),
            (vec!["a"], "a destination is missing"),
            (vec![one.as_str(), "a", "."], "mixed"),
            (vec![one.as_str(), other.as_str()], "from one server to another"),
            (vec!["a", "haul://h:1/x"], "no key"),
            (vec!["a", "host:b", "."], "different machines"),
            (vec!["a", "far:x", "b:"], "different machines"),
            (vec!["a:x", "b:x", "c:"], "different machines"),
            (vec![one.as_str(), "a:x", "b:"], "different machines"),
        ] {
            let fault = parse(&words).unwrap_err();
            assert!(fault.message.contains(needle), "{fault}");
            assert!(!fault.hint.is_empty(), "{fault}");
        }
    }

    #[test]
    fn a_dry_run_reads_well_and_is_json_too() {
        let plan = DryRun {
            actions: vec!["copy a to b".to_owned()],
            negotiated: vec![("cipher".into(), "aes-128-gcm".to_owned())],
        };
        assert_eq!(Lines::from(&plan).to_string(), "would copy a to b\ncipher: aes-128-gcm\n");
        let json = plan.value();
        assert_eq!(json["negotiated"]["cipher"], "aes-128-gcm");
    }
}

#[cfg(test)]
mod plan_tests {
    use super::*;

    #[test]
    fn a_path_there_is_never_taken_for_an_option_or_a_host() {
        for (path, word) in [("-x", "./-x"), ("a:b", "./a:b"), ("/a:b", "/a:b"), (".", "./."), ("~x", "./~x")]
        {
            assert_eq!(Location::local_word(path.as_bytes()), word);
        }
    }
}
