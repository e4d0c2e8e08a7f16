//! Tells the receiver what a walk leaves out by other means than rules, so that it is not removed there.

use std::sync::Arc;

use haul_wire::control::{
    ControlMessage, Fault, IgnoreFiles, LeftOutNames, RelPath, Selection, Withheld, encoded_len,
};

use super::claim::leaves_out_unseen;
use crate::link::ControlLink;

/// Names in one message.
const BATCH: usize = 1024;

/// Bytes of names in one message; the last may exceed it.
const BATCH_BYTES: usize = 64 << 10;

/// Collects names until a message is full.
pub(crate) struct Withholder {
    link: Arc<dyn ControlLink>,
    ignore_files: IgnoreFiles,
    paths: Vec<RelPath>,
    bytes: usize,
    sent: Result<(), Fault>,
}

impl Withholder {
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
    ///
    /// # Errors
    /// The receiver was not told all.
    pub(crate) fn finish(mut self) -> Result<(), Fault> {
        self.flush();
        self.sent
    }

    fn flush(&mut self) {
        self.bytes = 0;
        let (paths, ignore_files) = (std::mem::take(&mut self.paths), self.ignore_files);
        if self.sent.is_ok() {
            self.sent = self.link.send(ControlMessage::Withheld(Withheld { paths, ignore_files }));
        }
    }
}
