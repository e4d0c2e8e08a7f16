//! The object, the concatenated contents of the regular files, as read by the data path.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use haul_proto::{Available, ObjectSource, SourceWait};
use rustix::fs::OFlags;

use crate::identity::FileId;
use crate::job;
use crate::send::blocks::{Block, SourceFile};
use crate::send::shared::Shared;
use crate::storage::{Inherited, fstat, read_exact_at};

pub(crate) struct FileSource {
    shared: Arc<Shared>,
    current: Option<Arc<Block>>,
    /// The file that was reopened last; without a descriptor if it cannot be opened or is another file now.
    open_file: Option<(Arc<SourceFile>, Option<File>)>,
    storage: Inherited,
}

impl FileSource {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, current: None, open_file: None, storage: Inherited::here() }
    }

    /// Returns the block with the byte at `offset`; takes no lock while reads stay in the same block.
    fn block_at(&mut self, offset: u64) -> Option<&Block> {
        let is_current = self.current.as_ref().is_some_and(|b| b.offset <= offset && offset < b.end());
        if !is_current {
            self.current = self.shared.store.lock().block_at(offset);
        }
        self.current.as_deref()
    }

    /// Re-reads bytes that are no longer in memory and returns their number. Bytes that cannot be read are
    /// sent as zeros; verification then fails.
    fn reread(&mut self, offset: u64, into: &mut [u8]) -> usize {
        let Some((part, opened)) = self.shared.store.lock().part_at(offset) else {
            into.fill(0);
            return into.len();
        };
        let (in_stream, section) = part.sections.locate(offset - part.at);
        let (in_file, run) = part.file.shape.locate(in_stream);
        let len = run.min(section).min(into.len() as u64) as usize;
        let into = &mut into[..len];
        let switches_before = job::voluntary_switches();
        let file = opened.as_deref().or_else(|| self.reopened(&part.file));
        if file.is_none_or(|f| read_exact_at(f, into, in_file).is_err()) {
            into.fill(0);
        }
        if job::voluntary_switches() > switches_before {
            self.shared.store.lock().keep_more();
        }
        len
    }

    fn reopened(&mut self, file: &Arc<SourceFile>) -> Option<&File> {
        if self.open_file.as_ref().is_none_or(|(known, _)| !Arc::ptr_eq(known, file)) {
            let opened = file.source_root.open(&file.path, OFlags::RDONLY | OFlags::NONBLOCK).map(File::from);
            // No data is sent from another file under the same name.
            let is_same =
                |opened: &File| fstat(opened).is_ok_and(|stat| FileId::of(&stat) == file.identity.id);
            self.open_file = Some((file.clone(), opened.ok().filter(is_same)));
        }
        self.open_file.as_ref().and_then(|(_, opened)| opened.as_ref())
    }
}

impl ObjectSource for FileSource {
    fn available(&mut self) -> Available {
        self.shared.available()
    }

    fn read(&mut self, mut offset: u64, into: &mut [u8]) {
        let mut remaining = into;
        while !remaining.is_empty() {
            let filled = if let Some(block) = self.block_at(offset) {
                let from = &block.data()[(offset - block.offset) as usize..];
                let len = from.len().min(remaining.len());
                remaining[..len].copy_from_slice(&from[..len]);
                len
            } else {
                self.storage.clone().run(|| self.reread(offset, remaining))
            };
            remaining = &mut remaining[filled..];
            offset += filled as u64;
        }
        // Holding a block prevents the reuse of its memory.
        self.current.take_if(|block| block.end() <= offset);
        self.shared.note_sent(offset);
    }

    fn is_urgent(&mut self) -> bool {
        self.shared.is_idle()
    }

    fn waits_for(&mut self) -> SourceWait {
        if self.shared.waits_for_receiver() {
            SourceWait::Receiver
        } else if self.shared.disk_is_slow.load(Relaxed) {
            SourceWait::Storage
        } else {
            SourceWait::Work
        }
    }

    fn release(&mut self, offset: u64) {
        self.current.take_if(|block| block.end() <= offset);
        self.shared.store.lock().release(offset);
        self.shared.progress.bytes_done.raise_to(offset);
    }
}
