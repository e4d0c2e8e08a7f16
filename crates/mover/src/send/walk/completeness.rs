//! What the receiver is told about names missing from a walk: its extent, and the names left out.

use std::sync::Arc;

use haul_wire::control::{
    ControlMessage, Extent, Fault, FileSystems, Filtered, IgnoreFiles, LeftOutNames, RelPath, Rule,
    Selection, encoded_len,
};

use crate::link::{ControlLink, send_list};
use crate::root::copies_content;

/// Extent of the set and the rules that left something out, by which the receiver may remove other names.
#[derive(Debug)]
pub(crate) struct Completeness {
    extent: Extent,
    rules: Vec<Rule>,
}

/// Whether the receiver cannot distinguish names that were left out from names that the sources do not have.
/// It is always told the rules, and the names left out by ignore files, sizes and other file systems if the
/// selection requests that; names left out by a list of paths are unknown, because only the list is walked.
pub fn is_untellable(selection: &Selection) -> bool {
    let is_untold = selection.left_out == LeftOutNames::Untold;
    selection.paths.is_some() || is_untold && leaves_out_unseen(selection)
}

/// Whether the selection leaves out entries by anything other than rules and a list of paths.
pub fn leaves_out_unseen(selection: &Selection) -> bool {
    selection.ignore_files == IgnoreFiles::Obey
        || selection.file_systems == FileSystems::One
        || selection.min_bytes.or(selection.max_bytes).is_some()
}

impl Completeness {
    pub(crate) fn of(sources: &[Vec<u8>], selection: &Selection) -> Self {
        let content = sources.iter().any(|source| copies_content(source));
        let extent = match content {
            // The receiver must not take names that were left out for names that the sources do not have.
            _ if is_untellable(selection) => Extent::Part,
            true => Extent::Destination,
            false => Extent::Directories,
        };
        Self { extent, rules: selection.rules.clone() }
    }

    /// Sends rules and extent to the receiver; only a partial extent unless the walk `is_whole`.
    pub(crate) fn tell(self, link: &dyn ControlLink, is_whole: bool) -> Result<(), Fault> {
        if !is_whole || self.extent == Extent::Part {
            return link.send(ControlMessage::Extent(Extent::Part));
        }
        send_list(link, self.rules, usize::MAX, ControlMessage::LeftOut)?;
        link.send(ControlMessage::Extent(self.extent))
    }
}

const BATCH: usize = 1024;

/// Target size of one message in bytes; the last name may exceed it.
const BATCH_BYTES: usize = 64 << 10;

pub(crate) struct FilteredReporter {
    link: Arc<dyn ControlLink>,
    ignore_files: IgnoreFiles,
    paths: Vec<RelPath>,
    bytes: usize,
    sent: Result<(), Fault>,
}

impl FilteredReporter {
    /// Returns `None` if the selection does not request the names, or leaves out none in this way.
    pub(crate) fn new(link: &Arc<dyn ControlLink>, selection: &Selection) -> Option<Self> {
        let wanted = selection.left_out == LeftOutNames::Told && leaves_out_unseen(selection);
        let (link, ignore_files) = (link.clone(), selection.ignore_files);
        wanted.then(|| Self { link, ignore_files, paths: Vec::new(), bytes: 0, sent: Ok(()) })
    }

    /// Reports a name that is left out. A name that cannot be sent cannot exist at the receiver either.
    pub(crate) fn add(&mut self, path: &[u8]) {
        let Ok(path) = RelPath::new(path.to_vec()) else { return };
        self.bytes += encoded_len(&path);
        self.paths.push(path);
        if self.paths.len() >= BATCH || self.bytes >= BATCH_BYTES {
            self.flush();
        }
    }

    /// Sends the rest, and in any case whether ignore files are obeyed.
    pub(crate) fn finish(mut self) -> Result<(), Fault> {
        self.flush();
        self.sent
    }

    fn flush(&mut self) {
        self.bytes = 0;
        let (paths, ignore_files) = (std::mem::take(&mut self.paths), self.ignore_files);
        if self.sent.is_ok() {
            self.sent = self.link.send(ControlMessage::Filtered(Filtered { paths, ignore_files }));
        }
    }
}
