//! What a copy amounts to, before anything is done: which way, and from where to where.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use haul_base::printable_bytes;
use haul_engine::{HaulUrl, Secret};

use crate::endpoint::Endpoint;
use crate::fault::{self, Fault};
use crate::output::Lines;
use crate::ssh::{SshHost, SshPlan};

/// A copy in one of the ways there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CopyPlan {
    /// From this machine to a server.
    Upload {
        /// What to send.
        sources: Vec<PathBuf>,
        /// The server, with the destination as its path.
        to: HaulUrl,
    },
    /// From a server to this machine.
    Download {
        /// The server, with the first source as its path.
        from: HaulUrl,
        /// All sources: paths below the server's root.
        sources: Vec<Vec<u8>>,
        /// Where to.
        to: PathBuf,
    },
    /// With machines that ssh leads to.
    Ssh(SshPlan),
    /// From several machines to this one, at the same time.
    Many(Vec<CopyPlan>),
    /// Within this machine.
    Local {
        /// What to copy.
        sources: Vec<PathBuf>,
        /// Where to.
        to: PathBuf,
    },
}

/// What makes sources those of one session.
#[derive(PartialEq, Eq)]
enum Machine {
    /// The same machine by another port is another one: a container, or what a tunnel leads to.
    Ssh(SshHost),
    Server {
        authority: String,
        secret: Secret,
    },
}

impl CopyPlan {
    /// Reads the words of `haul cp`: sources, then the destination.
    ///
    /// # Errors
    /// Too few words, words that are no endpoints, and combinations that this release cannot copy.
    pub(crate) fn parse(words: &[OsString]) -> Result<Self, Fault> {
        let (destination, sources) = match words {
            [] | [_] => {
                let what =
                    if words.is_empty() { "a source and a destination are" } else { "a destination is" };
                return Err(fault::usage(format!("{what} missing"), "haul cp [OPTIONS] SRC... DST"));
            }
            [sources @ .., destination] => (Endpoint::parse(destination)?, sources),
        };
        let sources: Vec<Endpoint> =
            sources.iter().map(|word| Endpoint::parse(word)).collect::<Result<_, _>>()?;
        if let Endpoint::Local(to) = &destination
            && let Some(plans) = Self::from_many(&sources, to)?
        {
            return Ok(Self::Many(plans));
        }
        if SshPlan::concerns(&sources, &destination) {
            return SshPlan::new(sources, destination).map(Self::Ssh);
        }
        match destination {
            Endpoint::Ssh(_) => Err(not_here()),
            Endpoint::Url(url) => Ok(Self::Upload { to: url, sources: all_local(sources)? }),
            Endpoint::Local(to) if sources.iter().any(Endpoint::is_remote) => Self::download(sources, to),
            Endpoint::Local(to) => Ok(Self::Local { sources: all_local(sources)?, to }),
        }
    }

    /// A plan for each machine that sources are on, if there are several of them; `None` otherwise.
    fn from_many(sources: &[Endpoint], to: &Path) -> Result<Option<Vec<Self>>, Fault> {
        let mut machines: Vec<(Machine, Vec<Endpoint>)> = Vec::new();
        for source in sources {
            let machine = match source {
                Endpoint::Local(_) => return Ok(None),
                Endpoint::Ssh(path) => Machine::Ssh(path.host.clone()),
                Endpoint::Url(url) => {
                    Machine::Server { authority: url.authority(), secret: url.secret.clone() }
                }
            };
            match machines.iter_mut().find(|(known, _)| *known == machine) {
                Some((_, all)) => all.push(source.clone()),
                None => machines.push((machine, vec![source.clone()])),
            }
        }
        if machines.len() < 2 {
            return Ok(None);
        }
        // The slash at its end says that it is a directory.
        let to = to.join("");
        let plan = |(_, sources): (Machine, Vec<Endpoint>)| match &sources[0] {
            Endpoint::Ssh(_) => SshPlan::new(sources, Endpoint::Local(to.clone())).map(Self::Ssh),
            _ => Self::download(sources, to.clone()),
        };
        machines.into_iter().map(plan).collect::<Result<_, _>>().map(Some)
    }

    fn download(sources: Vec<Endpoint>, to: PathBuf) -> Result<Self, Fault> {
        let urls = sources.into_iter().map(|source| match source {
            Endpoint::Url(url) => Ok(url),
            Endpoint::Ssh(_) => Err(not_here()),
            Endpoint::Local(path) => Err(fault::usage(
                format!("sources on this machine ({}) and on a server are mixed", path.display()),
                "copy them with two commands",
            )),
        });
        let urls: Vec<HaulUrl> = urls.collect::<Result<_, _>>()?;
        let from = urls[0].clone();
        if urls.iter().any(|url| (url.authority(), &url.secret) != (from.authority(), &from.secret)) {
            return Err(fault::usage(
                "the sources are on different servers",
                "use one command for each server",
            ));
        }
        let sources = urls.into_iter().map(|url| url.path).collect();
        Ok(Self::Download { from, sources, to })
    }

    /// How many sources there are.
    pub(crate) fn sources(&self) -> usize {
        match self {
            Self::Upload { sources, .. } | Self::Local { sources, .. } => sources.len(),
            Self::Download { sources, .. } => sources.len(),
            Self::Ssh(plan) => plan.sources(),
            Self::Many(plans) => plans.iter().map(Self::sources).sum(),
        }
    }

    /// What would be done, for people.
    pub(crate) fn actions(&self) -> Vec<String> {
        let server = |url: &HaulUrl, path: &[u8]| format!("{}:/{}", url.authority(), printable_bytes(path));
        match self {
            Self::Upload { sources, to } => {
                let to_server = |s: &PathBuf| format!("send {} to {}", s.display(), server(to, &to.path));
                sources.iter().map(to_server).collect()
            }
            Self::Download { from, sources, to } => {
                let from_server = |s: &Vec<u8>| format!("fetch {} to {}", server(from, s), to.display());
                sources.iter().map(from_server).collect()
            }
            Self::Ssh(plan) => plan.actions(),
            Self::Many(plans) => plans.iter().flat_map(Self::actions).collect(),
            Self::Local { sources, to } => {
                sources.iter().map(|s| format!("copy {} to {}", s.display(), to.display())).collect()
            }
        }
    }
}

fn all_local(endpoints: Vec<Endpoint>) -> Result<Vec<PathBuf>, Fault> {
    let path = |endpoint| match endpoint {
        Endpoint::Local(path) => Ok(path),
        Endpoint::Ssh(_) => Err(not_here()),
        Endpoint::Url(_) => Err(fault::usage(
            "copying from one server to another is not in this release",
            "copy to this machine first, then on to the other server",
        )),
    };
    endpoints.into_iter().map(path).collect()
}

/// Where ssh takes part, [`SshPlan`] has been asked before.
fn not_here() -> Fault {
    fault::usage("copies over ssh are planned elsewhere", "")
}

/// The bytes of paths, as they travel.
pub(crate) fn path_bytes(paths: &[PathBuf]) -> Vec<Vec<u8>> {
    paths.iter().map(|path| path.as_os_str().as_bytes().to_vec()).collect()
}

/// What `--dry-run` says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DryRun {
    /// What would be done, one line each.
    pub actions: Vec<String>,
    /// What was agreed on with the server; empty without a server.
    pub negotiated: Vec<(&'static str, String)>,
}

impl DryRun {
    /// The plan as one line of JSON.
    pub(crate) fn json(&self) -> String {
        self.value().to_string()
    }

    /// The plan as a JSON object.
    pub(crate) fn value(&self) -> serde_json::Value {
        let negotiated: serde_json::Map<String, serde_json::Value> =
            self.negotiated.iter().map(|(key, value)| ((*key).to_owned(), value.clone().into())).collect();
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
        assert!(matches!(&up, CopyPlan::Upload { sources, to } if sources.len() == 2 && to.path == b"in"));
        assert_eq!(up.actions(), ["send a to h:1:/in", "send b to h:1:/in"]);
        let down = parse(&[&url(1, "x"), &url(1, "y"), "."]).unwrap();
        assert!(matches!(&down, CopyPlan::Download { sources, .. } if *sources == [b"x", b"y"]));
        assert_eq!(down.actions()[1], "fetch h:1:/y to .");
        assert!(matches!(parse(&["a", "b"]).unwrap(), CopyPlan::Local { .. }));
    }

    #[test]
    fn several_machines_are_pulled_from_at_the_same_time() {
        let (one, other) = (url(1, "x"), url(2, "y"));
        let CopyPlan::Many(plans) = parse(&[&one, &other, "me@far:z", &one, "in"]).unwrap() else { panic!() };
        assert_eq!(plans.iter().map(CopyPlan::sources).collect::<Vec<_>>(), [2, 1, 1]);
        assert!(matches!(&plans[1], CopyPlan::Download { to, .. } if to.as_os_str() == "in/"));
        assert!(matches!(&plans[2], CopyPlan::Ssh(_)));
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
            negotiated: vec![("cipher", "aes-128-gcm".to_owned())],
        };
        assert_eq!(Lines::from(&plan).to_string(), "would copy a to b\ncipher: aes-128-gcm\n");
        let json: serde_json::Value = serde_json::from_str(&plan.json()).unwrap();
        assert_eq!(json["negotiated"]["cipher"], "aes-128-gcm");
    }
}
