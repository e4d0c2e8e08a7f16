//! What the receiver is told about a walk besides the entries, in particular about names missing from it.

use std::sync::Arc;

use haul_wire::control::{
    ControlMessage, ExcludedNames, Extent, Fault, FileSystems, Filtered, IgnoreFiles, RelPath, Rule,
    Selection, encoded_len,
};

use crate::link::{ControlLink, send_list};
use crate::root::copies_content;

/// Whether the receiver cannot distinguish names that were left out from names that the sources do not have.
/// It is always told the rules, and the names left out by ignore files, sizes and other file systems if the
/// selection requests that; names left out by a list of paths are unknown, because only the list is walked.
pub fn has_unknown_exclusions(selection: &Selection) -> bool {
    let is_not_sent = selection.left_out == ExcludedNames::NotSent;
    selection.paths.is_some() || is_not_sent && leaves_out_unseen(selection)
}

/// Whether the selection leaves out entries by anything other than rules and a list of paths.
pub fn leaves_out_unseen(selection: &Selection) -> bool {
    selection.ignore_files == IgnoreFiles::Obey
        || selection.file_systems == FileSystems::One
        || selection.min_bytes.or(selection.max_bytes).is_some()
}

/// Maximum number of names or entries of one message.
pub(crate) const BATCH: usize = 1024;

/// Target size of one message in bytes; the last name or entry may exceed it.
pub(crate) const BATCH_BYTES: usize = 64 << 10;

/// Tells the receiver what it needs to remove the names that the set does not have: its extent, the rules that
/// left something out, and if the selection requests them the names left out in other ways.
pub(crate) struct Completeness {
    link: Arc<dyn ControlLink>,
    extent: Extent,
    rules: Vec<Rule>,
    /// Names to send; `None` if the selection does not request them, or cannot leave out names in this way.
    filtered: Option<Filtered>,
    bytes: usize,
    sent: Result<(), Fault>,
}

impl Completeness {
    pub(crate) fn new(link: Arc<dyn ControlLink>, sources: &[Vec<u8>], selection: &Selection) -> Self {
        let content = sources.iter().any(|source| copies_content(source));
        let extent = match content {
            // The receiver must not take names that were left out for names that the sources do not have.
            _ if has_unknown_exclusions(selection) => Extent::Part,
            true => Extent::Destination,
            false => Extent::Directories,
        };
        let is_requested = selection.left_out == ExcludedNames::Sent && leaves_out_unseen(selection);
        let filtered = || Filtered { paths: Vec::new(), ignore_files: selection.ignore_files };
        let (rules, filtered) = (selection.rules.clone(), is_requested.then(filtered));
        Self { link, extent, rules, filtered, bytes: 0, sent: Ok(()) }
    }

    /// Reports a name that is left out. A name that cannot be sent cannot exist at the receiver either.
    pub(crate) fn leave_out(&mut self, path: &[u8]) {
        let (Some(filtered), Ok(path)) = (&mut self.filtered, RelPath::new(path.to_vec())) else { return };
        self.bytes += encoded_len(&path);
        filtered.paths.push(path);
        if filtered.paths.len() >= BATCH || self.bytes >= BATCH_BYTES {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.bytes = 0;
        if let Some(Filtered { paths, ignore_files }) = &mut self.filtered {
            let filtered = Filtered { paths: std::mem::take(paths), ignore_files: *ignore_files };
            self.send(ControlMessage::Filtered(filtered));
        }
    }

    /// Sends a message. Its error, if any, is returned by [`finish`](Self::finish).
    pub(crate) fn send(&mut self, message: ControlMessage) {
        if self.sent.is_ok() {
            self.sent = self.link.send(message);
        }
    }

    /// Sends the remaining names and, if names are requested, whether ignore files are obeyed, even if no name
    /// is left; then rules and extent, but only a partial extent unless the walk `is_complete`.
    pub(crate) fn finish(mut self, is_complete: bool) -> Result<(), Fault> {
        self.flush();
        self.sent?;
        if !is_complete || self.extent == Extent::Part {
            return self.link.send(ControlMessage::Extent(Extent::Part));
        }
        send_list(&*self.link, self.rules, usize::MAX, ControlMessage::LeftOut)?;
        self.link.send(ControlMessage::Extent(self.extent))
    }
}
