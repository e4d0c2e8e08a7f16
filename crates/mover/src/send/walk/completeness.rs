//! What a walk may say about names that it does not find, and the names that it leaves out.

use std::sync::Arc;

use haul_wire::control::{
    ControlMessage, Extent, Fault, FileSystems, Filtered, IgnoreFiles, LeftOutNames, RelPath, Rule,
    Selection, encoded_len,
};

use crate::link::{ControlLink, send_list};
use crate::root::copies_content;

/// How much a set says about names that it does not have, and what was left out of it by rules.
#[derive(Debug)]
pub(crate) struct Completeness {
    extent: Extent,
    rules: Vec<Rule>,
}

/// Whether the receiver cannot tell what is left out from what the sources do not have. What rules leave out it is
/// told, and what ignore files, sizes and other file systems leave out if the selection asks for that; of what a list
/// of paths leaves out nothing is known, because nothing but the list is walked.
pub fn is_untellable(selection: &Selection) -> bool {
    // Following links changes what stands for a name, not which names there are.
    let Selection { rules: _, paths, links: _, left_out, .. } = selection;
    paths.is_some() || *left_out == LeftOutNames::Untold && leaves_out_unseen(selection)
}

/// Whether anything but rules and a list of paths leaves something out.
pub fn leaves_out_unseen(selection: &Selection) -> bool {
    let Selection { ignore_files, file_systems, min_bytes, max_bytes, .. } = selection;
    *ignore_files == IgnoreFiles::Obey
        || *file_systems == FileSystems::One
        || min_bytes.is_some()
        || max_bytes.is_some()
}

impl Completeness {
    pub(crate) fn of(sources: &[Vec<u8>], selection: &Selection) -> Self {
        let content = sources.iter().any(|source| copies_content(source));
        let extent = match content {
            // What was left out is not to be taken for what the sources do not have.
            _ if is_untellable(selection) => Extent::Part,
            true => Extent::Destination,
            false => Extent::Directories,
        };
        Self { extent, rules: selection.rules.clone() }
    }

    /// Tells the receiver, if the walk `is_whole`.
    pub(crate) fn tell(&self, link: &dyn ControlLink, is_whole: bool) -> Result<(), Fault> {
        if !is_whole || self.extent == Extent::Part {
            return link.send(ControlMessage::Extent(Extent::Part));
        }
        send_list(link, self.rules.clone(), usize::MAX, ControlMessage::LeftOut)?;
        link.send(ControlMessage::Extent(self.extent))
    }
}

const BATCH: usize = 1024;

/// Bytes of names in one message; the last may exceed it.
const BATCH_BYTES: usize = 64 << 10;

pub(crate) struct FilteredReporter {
    link: Arc<dyn ControlLink>,
    ignore_files: IgnoreFiles,
    paths: Vec<RelPath>,
    bytes: usize,
    sent: Result<(), Fault>,
}

impl FilteredReporter {
    /// `None`: nobody wants to know, or nothing is left out in such a way.
    pub(crate) fn new(link: &Arc<dyn ControlLink>, selection: &Selection) -> Option<Self> {
        let wanted = selection.left_out == LeftOutNames::Told && leaves_out_unseen(selection);
        let (link, ignore_files) = (link.clone(), selection.ignore_files);
        wanted.then(|| Self { link, ignore_files, paths: Vec::new(), bytes: 0, sent: Ok(()) })
    }

    /// Something has this name and is left out. What cannot travel has no such name at the receiver either.
    pub(crate) fn add(&mut self, path: &[u8]) {
        let Ok(path) = RelPath::new(path.to_vec()) else { return };
        self.bytes += encoded_len(&path);
        self.paths.push(path);
        if self.paths.len() >= BATCH || self.bytes >= BATCH_BYTES {
            self.flush();
        }
    }

    /// Tells the rest, and in any case whether ignore files are obeyed.
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
