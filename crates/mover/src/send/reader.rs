//! Reads the files ahead of the data path, in order, and hashes them on the way.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use crossbeam_channel::{Receiver, TryRecvError};
use haul_wire::control::{ControlMessage, Fault, FaultCode, FileDigest, encoded_len};
use rustix::fs::{Advice, OFlags, fadvise, fstat};
use rustix::io::Errno;

use crate::batch::next_part;
use crate::fault::{Side, Trouble, show};
use crate::send::blocks::{BLOCK, Block, SentFile};
use crate::send::shared::Shared;
use crate::send::walk::Identity;

/// Digests sent in one message.
const DIGEST_BATCH: usize = 256;

/// Files from this size on are announced to the kernel as read in order.
const ADVISE_ABOVE: u64 = 1 << 20;

/// A regular file to read.
#[derive(Debug)]
pub(crate) struct PlannedFile {
    pub(crate) entry: u32,
    pub(crate) identity: Identity,
    pub(crate) file: Arc<SentFile>,
}

/// Why reading a file ends early.
enum Halt {
    /// The job is over.
    Stopped,
    /// The file cannot be sent as it was announced; the others go on.
    File(Fault),
}

pub(crate) struct Reader {
    shared: Arc<Shared>,
    incoming: Receiver<PlannedFile>,
    buffer: Vec<u8>,
    used: usize,
    /// Where the buffer begins in the object.
    offset: u64,
    digests: Vec<FileDigest>,
}

impl Reader {
    pub(crate) fn new(shared: Arc<Shared>, incoming: Receiver<PlannedFile>) -> Self {
        let buffer = shared.store().take_buffer();
        Self { shared, incoming, buffer, used: 0, offset: 0, digests: Vec::new() }
    }

    /// Reads until there are no more files, or until the job is over.
    pub(crate) fn run(mut self) {
        if let Err(fault) = self.read_all() {
            self.shared.fail_silently(fault);
        }
    }

    fn read_all(&mut self) -> Result<(), Fault> {
        while let Some(planned) = self.next_file()? {
            if self.shared.stopped() || !self.read_file(&planned) {
                return Ok(());
            }
            if self.digests.len() >= DIGEST_BATCH {
                self.flush_digests()?;
            }
        }
        if self.shared.ledger().complete {
            self.shared.end();
        }
        Ok(())
    }

    /// The next file. Before waiting for it, everything read so far goes out.
    fn next_file(&mut self) -> Result<Option<PlannedFile>, Fault> {
        match self.incoming.try_recv() {
            Ok(planned) => return Ok(Some(planned)),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
        }
        self.publish();
        self.flush_digests()?;
        Ok(self.incoming.recv().ok())
    }

    fn flush_digests(&mut self) -> Result<(), Fault> {
        while !self.digests.is_empty() {
            let part = next_part(&mut self.digests, DIGEST_BATCH, encoded_len);
            self.shared.link.send(ControlMessage::Digests(part))?;
        }
        Ok(())
    }

    /// Reads one file, fills what is missing with zeros, and notes its digest. False: the job is over.
    fn read_file(&mut self, planned: &PlannedFile) -> bool {
        self.shared.progress.set_current(&planned.file.path);
        self.shared.store().add_file(planned.file.clone());
        let mut hasher = blake3::Hasher::new();
        let mut left = planned.file.size;
        let result = match self.copy(planned, &mut left, &mut hasher) {
            Ok(()) => Ok(*hasher.finalize().as_bytes()),
            Err(Halt::File(fault)) => Err(fault),
            Err(Halt::Stopped) => return false,
        };
        if !self.zeros(left) {
            return false;
        }
        if let Ok(digest) = result {
            self.shared.ledger().table.set_digest(planned.entry, digest);
        }
        self.digests.push(FileDigest { entry: planned.entry.into(), result });
        if self.used > 0 && self.shared.hungry() {
            self.publish();
        }
        true
    }

    fn copy(
        &mut self,
        planned: &PlannedFile,
        left: &mut u64,
        hasher: &mut blake3::Hasher,
    ) -> Result<(), Halt> {
        let path = &planned.file.path;
        let trouble = |doing, errno| Halt::File(Trouble::new(Side::Source, doing, path, errno).fault);
        let opened = planned.file.top.open(path, OFlags::RDONLY | OFlags::NONBLOCK);
        let file = File::from(opened.map_err(|errno| match errno {
            // It was a file when it was found, and is a link or gone now.
            Errno::LOOP => Halt::File(changed(path, "was replaced")),
            errno => trouble("open", errno),
        })?);
        let same = |file: &File| {
            Ok(Identity::of(&fstat(file).map_err(|e| trouble("look at", e))?) == planned.identity)
        };
        if !same(&file)? {
            return Err(Halt::File(changed(path, "was changed or replaced after it was found")));
        }
        if planned.file.size >= ADVISE_ABOVE {
            // Only advice.
            let _ = fadvise(&file, 0, None, Advice::Sequential);
        }
        self.copy_bytes(&file, planned, left, hasher)?;
        if !same(&file)? {
            return Err(Halt::File(changed(path, "changed while it was read")));
        }
        Ok(())
    }

    fn copy_bytes(
        &mut self,
        file: &File,
        planned: &PlannedFile,
        left: &mut u64,
        hasher: &mut blake3::Hasher,
    ) -> Result<(), Halt> {
        let path = &planned.file.path;
        let fail = |e: std::io::Error| {
            let errno = e.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
            Halt::File(Trouble::new(Side::Source, "read", path, errno).fault)
        };
        if *left == 0 && file.read_at(&mut [0], 0).map_err(fail)? > 0 {
            return Err(Halt::File(sizeless(path)));
        }
        while *left > 0 {
            let room = self.room().ok_or(Halt::Stopped)?;
            let want = (*left).min(room as u64) as usize;
            let into = &mut self.buffer[self.used..self.used + want];
            let got = match file.read_at(into, planned.file.size - *left) {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                got => got.map_err(fail)?,
            };
            if got == 0 {
                return Err(Halt::File(changed(path, "became shorter while it was read")));
            }
            hasher.update(&into[..got]);
            self.used += got;
            *left -= got as u64;
        }
        Ok(())
    }

    /// Keeps the places of bytes that could not be read. False: the job is over.
    fn zeros(&mut self, mut left: u64) -> bool {
        while left > 0 {
            let Some(room) = self.room() else { return false };
            let len = left.min(room as u64) as usize;
            self.buffer[self.used..self.used + len].fill(0);
            self.used += len;
            left -= len as u64;
        }
        true
    }

    /// Free bytes of the buffer, at least 1; waits for memory. `None`: the job is over.
    fn room(&mut self) -> Option<usize> {
        if self.used == BLOCK {
            self.publish();
        }
        if self.used == 0 && !self.shared.wait_for_room() {
            return None;
        }
        Some(BLOCK - self.used)
    }

    fn publish(&mut self) {
        if self.used == 0 {
            return;
        }
        let data = if self.used >= BLOCK / 2 {
            let next = self.shared.store().take_buffer();
            let mut data = std::mem::replace(&mut self.buffer, next);
            data.truncate(self.used);
            data
        } else {
            self.buffer[..self.used].to_vec()
        };
        let block = Block { offset: self.offset, data };
        self.offset = block.end();
        self.used = 0;
        self.shared.publish(block);
    }
}

fn changed(path: &[u8], how: &str) -> Fault {
    let message = format!("`{}` {how}", show(path));
    Fault::new(FaultCode::SourceChanged, message, "copy it again when nothing writes to it")
}

fn sizeless(path: &[u8]) -> Fault {
    let message = format!("`{}` has contents but no size, as files of /proc do", show(path));
    Fault::new(FaultCode::Unreadable, message, "copy it to a regular file first")
}
