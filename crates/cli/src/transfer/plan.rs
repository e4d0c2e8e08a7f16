//! Plan of a copy: direction, sources and destination.

use std::borrow::Cow;
use std::ffi::OsString;

use haul_base::printable_bytes;
use haul_engine::HaulUrl;
use haul_wire::control::Selection;

use crate::endpoint::{Machine, place};
use crate::fault::{self, Fault};
use crate::output::Lines;
use crate::ssh::SshHost;

impl Machine {
    /// Whether sources on both share a session. Another port of ssh is another machine, such as a container.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Url(a), Self::Url(b)) => (a.authority(), &a.secret) == (b.authority(), &b.secret),
            _ => self == other,
        }
    }

    pub(crate) fn name(&self) -> String {
        match self {
            Self::Here => "here".to_owned(),
            Self::Url(url) => url.authority(),
            Self::Ssh(host) => match host.port {
                Some(port) => format!("{host} (port {port})"),
                None => host.to_string(),
            },
        }
    }

    fn place(&self, path: &[u8]) -> String {
        match self {
            Self::Here => String::from_utf8_lossy(path).into_owned(),
            Self::Url(url) => format!("{}:/{}", url.authority(), printable_bytes(path)),
            Self::Ssh(host) => host.place(path),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CopyPlan {
    /// Paths by machine.
    pub sources: Vec<(Machine, Vec<Vec<u8>>)>,
    pub to: Machine,
    pub path: Vec<u8>,
    pub selection: Selection,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Route<'a> {
    Send(&'a [Vec<u8>]),
    /// From another machine to this one.
    Fetch(&'a Machine, &'a [Vec<u8>]),
    /// From several machines to this one.
    Many,
    /// Between two others: ssh runs the client on the first, and a server on the second unless a URL names one.
    Between(&'a SshHost, Option<&'a SshHost>),
}

impl CopyPlan {
    /// Parses the arguments of `haul cp`: sources, then the destination.
    pub(crate) fn parse(words: &[OsString]) -> Result<Self, Fault> {
        let [words @ .., destination] = words else { return Err(missing("a source and a destination are")) };
        if words.is_empty() {
            return Err(missing("a destination is"));
        }
        let (to, path) = place(destination)?;
        let mut plan = Self { sources: Vec::new(), to, path, selection: Selection::default() };
        for word in words {
            let (machine, path) = place(word)?;
            match plan.sources.iter_mut().find(|(known, _)| known.is_same(&machine)) {
                Some((_, paths)) => paths.push(path),
                None => plan.sources.push((machine, vec![path])),
            }
        }
        if plan.route()? == Route::Many && !plan.path.ends_with(b"/") {
            // Marks it as a directory.
            plan.path.push(b'/');
        }
        Ok(plan)
    }

    pub(crate) fn has_ssh(&self) -> bool {
        let sources = self.sources.iter().map(|(machine, _)| machine);
        sources.chain([&self.to]).any(|machine| matches!(machine, Machine::Ssh(_)))
    }

    pub(crate) fn route(&self) -> Result<Route<'_>, Fault> {
        use Machine::{Here, Ssh, Url};
        let are_urls = self.sources.iter().all(|(machine, _)| matches!(machine, Url(_)));
        let has_local = self.sources.iter().any(|(machine, _)| *machine == Here);
        let (message, hint) = match (self.sources.as_slice(), &self.to) {
            ([(Here, paths)], _) => return Ok(Route::Send(paths)),
            ([(from, paths)], Here) => return Ok(Route::Fetch(from, paths)),
            (_, Here) if !has_local => return Ok(Route::Many),
            ([(Ssh(at), _)], Ssh(host)) => return Ok(Route::Between(at, Some(host))),
            ([(Ssh(at), _)], Url(_)) | ([(Url(_), _)], Ssh(at)) => return Ok(Route::Between(at, None)),
            (_, Url(_)) if are_urls => (
                "copying from one server to another is not supported",
                "copy to this machine first, then on to the other server",
            ),
            _ => ("the sources are on different machines", "use a separate command for each machine"),
        };
        Err(fault::usage(message, hint))
    }

    pub(crate) fn of_each_machine(&self) -> Vec<Self> {
        let sources = self.sources.iter().cloned();
        sources.map(|one| Self { sources: vec![one], ..self.clone() }).collect()
    }

    pub(crate) fn is_sent_from_here(&self) -> bool {
        matches!(self.route(), Ok(Route::Send(_)))
    }

    pub(crate) fn count(&self) -> usize {
        self.sources.iter().map(|(_, paths)| paths.len()).sum()
    }

    pub(crate) fn actions(&self) -> Vec<String> {
        let is_between = matches!(self.route(), Ok(Route::Between(..)));
        let shown = |machine: &Machine, path: &Vec<u8>| match machine {
            Machine::Url(url) if is_between => HaulUrl { path: path.clone(), ..url.clone() }.without_key(),
            machine => machine.place(path),
        };
        let to = shown(&self.to, &self.path);
        let sources =
            self.sources.iter().flat_map(|(from, paths)| paths.iter().map(move |path| (from, path)));
        let action = |(from, path): (&Machine, _)| {
            let verb = match (*from == Machine::Here, self.to == Machine::Here) {
                (true, false) => "send",
                (false, true) => "fetch",
                _ => "copy",
            };
            format!("{verb} {} to {to}", shown(from, path))
        };
        sources.map(action).collect()
    }
}

fn missing(what: &str) -> Fault {
    fault::usage(format!("{what} missing"), "haul cp [OPTIONS] SRC... DST")
}

pub(crate) type Negotiated = Vec<(Cow<'static, str>, String)>;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DryRun {
    pub actions: Vec<String>,
    /// Empty without a server.
    pub negotiated: Negotiated,
}

impl DryRun {
    pub(crate) fn value(&self) -> serde_json::Value {
        let negotiated: serde_json::Value = self.negotiated.iter().cloned().collect();
        serde_json::json!({ "dry_run": true, "actions": self.actions, "negotiated": negotiated })
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
    fn uploads_downloads_and_local_copies_are_distinguished() {
        let up = parse(&["a", "b", &url(1, "in")]).unwrap();
        assert!(up.count() == 2 && up.path == b"in" && up.is_sent_from_here());
        assert_eq!(up.actions(), ["send a to h:1:/in", "send b to h:1:/in"]);
        let down = parse(&[&url(1, "x"), &url(1, "y"), "."]).unwrap();
        assert!(matches!(down.route(), Ok(Route::Fetch(_, sources)) if *sources == [b"x", b"y"]));
        assert_eq!(down.actions()[1], "fetch h:1:/y to .");
        let local = parse(&["a", "b"]).unwrap();
        assert!(local.to == Machine::Here && local.is_sent_from_here());
    }

    #[test]
    fn the_endpoints_determine_who_connects_to_whom() {
        let up = parse(&["a", "b", "far:/in/"]).unwrap();
        assert_eq!(up.actions(), ["send a to far:/in/", "send b to far:/in/"]);
        let down = parse(&["me@far:x", "me@far:", "."]).unwrap();
        assert_eq!(down.actions(), ["fetch me@far:x to .", "fetch me@far:. to ."]);
        let third = parse(&["a:x", "b:"]).unwrap();
        assert_eq!(third.actions(), ["copy a:x to b:."]);
        assert!(matches!(third.route(), Ok(Route::Between(at, Some(_))) if at.destination == "a"));
        let to_server = parse(&["a:x", &url(1, "in")]).unwrap();
        assert_eq!(to_server.actions(), ["copy a:x to haul://h:1/in"]);
        let from_server = parse(&[&url(1, "x"), "b:y"]).unwrap();
        assert!(matches!(from_server.route(), Ok(Route::Between(at, None)) if at.destination == "b"));
        assert_eq!(from_server.actions(), ["copy haul://h:1/x to b:y"]);
    }

    #[test]
    fn a_copy_from_several_machines_has_one_plan_for_each() {
        let (one, other) = (url(1, "x"), url(2, "y"));
        let plans = parse(&[&one, &other, "me@far:z", &one, "in"]).unwrap().of_each_machine();
        assert_eq!(plans.iter().map(CopyPlan::count).collect::<Vec<_>>(), [2, 1, 1]);
        assert!(plans[1].path == b"in/" && plans[1].to == Machine::Here);
        assert!(matches!(plans[2].route(), Ok(Route::Fetch(Machine::Ssh(_), _))));
        let ports =
            parse(&["ssh://far:2201/x", "ssh://far:2202/x", "far:x", "ssh://far:2201/y", "in"]).unwrap();
        assert!(ports.route() == Ok(Route::Many) && ports.sources.len() == 3, "{ports:?}");
    }

    #[test]
    fn impossible_copies_are_refused_with_a_hint() {
        let (one, other) = (url(1, "x"), url(2, "x"));
        for (words, needle) in [
            (vec![], "are missing"),
            (vec!["a"], "a destination is missing"),
            (vec![one.as_str(), "a", "."], "different machines"),
            (vec![one.as_str(), other.as_str()], "from one server to another"),
            (vec!["a", "haul://h:1/x"], "no key"),
            (vec!["a", "host:b", "."], "different machines"),
            (vec!["a", "far:x", "b:"], "different machines"),
            (vec!["a:x", "b:x", "c:"], "different machines"),
            (vec![one.as_str(), "a:x", "b:"], "different machines"),
            (vec![one.as_str(), other.as_str(), "b:"], "different machines"),
        ] {
            let fault = parse(&words).unwrap_err();
            assert!(fault.message.contains(needle), "{fault}");
            assert!(!fault.hint.is_empty(), "{fault}");
        }
    }

    #[test]
    fn a_dry_run_is_shown_as_text_and_as_json() {
        let plan = DryRun {
            actions: vec!["copy a to b".to_owned()],
            negotiated: vec![("cipher".into(), "aes-128-gcm".to_owned())],
        };
        assert_eq!(Lines::from(&plan).as_str(), "would copy a to b\ncipher: aes-128-gcm\n");
        let json = plan.value();
        assert_eq!(json["negotiated"]["cipher"], "aes-128-gcm");
    }
}
