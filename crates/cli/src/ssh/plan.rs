//! Copies between two other machines.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use haul_base::printable_bytes;
use haul_engine::HaulUrl;

use super::SshHost;

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

    #[test]
    fn a_path_there_is_never_taken_for_an_option_or_a_host() {
        for (path, word) in [("-x", "./-x"), ("a:b", "./a:b"), ("/a:b", "/a:b"), (".", "./."), ("~x", "./~x")]
        {
            assert_eq!(Location::local_word(path.as_bytes()), word);
        }
    }
}
