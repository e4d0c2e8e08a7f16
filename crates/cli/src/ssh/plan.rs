//! Copies in which a machine behind ssh takes part.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use haul_base::printable_bytes;
use haul_engine::HaulUrl;

use super::{SshHost, SshPath};
use crate::endpoint::Endpoint;
use crate::fault::{self, Fault};

/// A copy with at least one `HOST:PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SshPlan {
    /// From this machine to another one.
    Upload {
        /// What to send.
        sources: Vec<PathBuf>,
        /// Where to.
        to: SshPath,
    },
    /// From another machine to this one.
    Download {
        /// The machine.
        from: SshHost,
        /// What to fetch there.
        sources: Vec<Vec<u8>>,
        /// Where to.
        to: PathBuf,
    },
    /// Between two other machines.
    Third(Third),
}

/// A copy that passes this machine by. One end is a machine behind ssh that connects, `at`; the other is
/// behind ssh too, or a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Third {
    /// The machine that connects.
    pub at: SshHost,
    /// The machine that is to serve; `None` if a URL names a server.
    pub serves: Option<SshHost>,
    /// What to copy.
    pub sources: Vec<Location>,
    /// Where to.
    pub to: Location,
}

/// One end of a copy between two other machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A path on the machine that connects.
    There(Vec<u8>),
    /// A path on the machine that serves.
    Served(Vec<u8>),
    /// The URL of a server.
    Url(HaulUrl),
}

impl SshPlan {
    /// How many sources it has.
    pub(crate) fn sources(&self) -> usize {
        match self {
            Self::Upload { sources, .. } => sources.len(),
            Self::Download { sources, .. } => sources.len(),
            Self::Third(third) => third.sources.len(),
        }
    }

    /// Whether the endpoints make such a copy.
    pub(crate) fn concerns(sources: &[Endpoint], destination: &Endpoint) -> bool {
        sources.iter().chain([destination]).any(|end| matches!(end, Endpoint::Ssh(_)))
    }

    /// Finds out who connects to whom.
    ///
    /// # Errors
    /// Sources of several kinds or machines.
    pub(crate) fn new(sources: Vec<Endpoint>, destination: Endpoint) -> Result<Self, Fault> {
        match Group::of(sources)? {
            Group::Local(sources) => match destination {
                Endpoint::Ssh(to) => Ok(Self::Upload { sources, to }),
                Endpoint::Local(_) | Endpoint::Url(_) => Err(mixed()),
            },
            Group::Ssh(from, sources) => Ok(match destination {
                Endpoint::Local(to) => Self::Download { from, sources, to },
                Endpoint::Url(url) => Self::Third(Third {
                    at: from,
                    serves: None,
                    sources: sources.into_iter().map(Location::There).collect(),
                    to: Location::Url(url),
                }),
                Endpoint::Ssh(to) => Self::Third(Third {
                    at: from,
                    serves: Some(to.host),
                    sources: sources.into_iter().map(Location::There).collect(),
                    to: Location::Served(to.path),
                }),
            }),
            Group::Urls(urls) => match destination {
                Endpoint::Ssh(to) => Ok(Self::Third(Third {
                    at: to.host,
                    serves: None,
                    sources: urls.into_iter().map(Location::Url).collect(),
                    to: Location::There(to.path),
                })),
                Endpoint::Local(_) | Endpoint::Url(_) => Err(mixed()),
            },
        }
    }

    /// What would be done, for people.
    pub(crate) fn actions(&self) -> Vec<String> {
        let on =
            |host: &SshHost, path: &Vec<u8>| SshPath { host: host.clone(), path: path.clone() }.to_string();
        match self {
            Self::Upload { sources, to } => {
                sources.iter().map(|source| format!("send {} to {to}", source.display())).collect()
            }
            Self::Download { from, sources, to } => {
                let fetch = |source| format!("fetch {} to {}", on(from, source), to.display());
                sources.iter().map(fetch).collect()
            }
            Self::Third(third) => third.actions(),
        }
    }
}

impl Third {
    /// What would be done, for people.
    pub(crate) fn actions(&self) -> Vec<String> {
        let to = self.shown(&self.to);
        self.sources.iter().map(|source| format!("copy {} to {to}", self.shown(source))).collect()
    }

    /// A place for people, without a URL's secret.
    fn shown(&self, place: &Location) -> String {
        let on =
            |host: &SshHost, path: &[u8]| SshPath { host: host.clone(), path: path.to_vec() }.to_string();
        match (place, &self.serves) {
            (Location::There(path), _) => on(&self.at, path),
            (Location::Served(path), Some(host)) => on(host, path),
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

/// Sources of one kind.
enum Group {
    Local(Vec<PathBuf>),
    Ssh(SshHost, Vec<Vec<u8>>),
    Urls(Vec<HaulUrl>),
}

impl Group {
    fn of(sources: Vec<Endpoint>) -> Result<Self, Fault> {
        let (mut local, mut urls, mut far) = (Vec::new(), Vec::new(), Vec::new());
        for source in sources {
            match source {
                Endpoint::Local(path) => local.push(path),
                Endpoint::Url(url) => urls.push(url),
                Endpoint::Ssh(path) => far.push(path),
            }
        }
        match (local.is_empty(), urls.is_empty(), far.first().map(|first| first.host.clone())) {
            (false, true, None) => Ok(Self::Local(local)),
            (true, false, None) => Ok(Self::Urls(urls)),
            (true, true, Some(host)) if far.iter().all(|path| path.host == host) => {
                Ok(Self::Ssh(host, far.into_iter().map(|path| path.path).collect()))
            }
            (true, true, Some(_)) => {
                Err(fault::usage("the sources are on different machines", "use one command for each machine"))
            }
            _ => Err(mixed()),
        }
    }
}

fn mixed() -> Fault {
    fault::usage("sources on different machines are mixed", "copy them with a command for each machine")
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    /// The URL of a path on a server.
    fn url(path: &str) -> String {
        let path = path.as_bytes().to_vec();
        let (host, fingerprint, secret) = ("h".to_owned(), [1; 32], [2; 32].into());
        HaulUrl { host, port: 1, path, fingerprint, secret, expires: None }.to_string()
    }

    fn plan(words: &[&str]) -> Result<SshPlan, Fault> {
        let mut ends: Vec<_> = words.iter().map(|word| Endpoint::parse(OsStr::new(word)).unwrap()).collect();
        let destination = ends.pop().unwrap();
        assert!(SshPlan::concerns(&ends, &destination));
        SshPlan::new(ends, destination)
    }

    #[test]
    fn who_connects_to_whom_follows_from_the_ends() {
        let up = plan(&["a", "b", "far:/in/"]).unwrap();
        assert_eq!(up.actions(), ["send a to far:/in/", "send b to far:/in/"]);
        let down = plan(&["me@far:x", "me@far:", "."]).unwrap();
        assert_eq!(down.actions(), ["fetch me@far:x to .", "fetch me@far:. to ."]);
        let third = plan(&["a:x", "b:"]).unwrap();
        assert_eq!(third.actions(), ["copy a:x to b:."]);
        assert!(
            matches!(&third, SshPlan::Third(third) if third.at.destination == "a" && third.serves.is_some())
        );
        let to_server = plan(&["a:x", &url("in")]).unwrap();
        assert_eq!(to_server.actions(), ["copy a:x to haul://h:1/in"]);
        let from_server = plan(&[&url("x"), "b:y"]).unwrap();
        assert!(matches!(&from_server, SshPlan::Third(third) if third.at.destination == "b"));
        assert_eq!(from_server.actions(), ["copy haul://h:1/x to b:y"]);
    }

    #[test]
    fn mixtures_are_refused() {
        for words in
            [&["a", "far:x", "."][..], &["a", "far:x", "b:"], &["a:x", "b:x", "."], &[&url(""), "a:x", "."]]
        {
            let fault = plan(words).unwrap_err();
            assert!(fault.message.contains("machines") && !fault.hint.is_empty(), "{words:?}: {fault}");
        }
    }

    #[test]
    fn a_path_there_is_never_taken_for_an_option_or_a_host() {
        for (path, word) in [("-x", "./-x"), ("a:b", "./a:b"), ("/a:b", "/a:b"), (".", "./."), ("~x", "./~x")]
        {
            assert_eq!(Location::local_word(path.as_bytes()), word);
        }
    }
}
