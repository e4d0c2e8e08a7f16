//! A source file open for reading, with checks that it is still the one found by the walk.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use blake3::Hasher;
use haul_wire::control::{Fault, FaultCode, Growth};
use rustix::fs::{Advice, OFlags, fadvise};
use rustix::io::Errno;

use crate::fault::{of_path, of_source};
use crate::identity::Identity;
use crate::progress::Progress;
use crate::send::blocks::SourceFile;
use crate::storage::{fstat, read_at};

/// Minimum size in bytes of files for which the kernel is advised of sequential reading.
const MIN_ADVISED_SIZE: u64 = 1 << 20;

const SINCE_FOUND: &str = "was modified or replaced after it was found";

pub(crate) struct Opened<'a> {
    source: &'a SourceFile,
    pub(crate) file: Arc<File>,
}

impl<'a> Opened<'a> {
    pub(crate) fn open(source: &'a SourceFile) -> Result<Self, Fault> {
        let path = &source.path;
        let opened = source.source_root.open(path, OFlags::RDONLY | OFlags::NONBLOCK);
        let file = Arc::new(File::from(opened.map_err(|errno| match errno {
            // It was a regular file when found, and is now a link.
            Errno::LOOP => changed(path, "was replaced"),
            errno => of_source("open", path, errno),
        })?));
        let opened = Self { source, file };
        opened.must_be_same(SINCE_FOUND)?;
        opened.must_have_a_size()?;
        if source.shape.len >= MIN_ADVISED_SIZE {
            // Errors are irrelevant: it is only advice.
            let _ = fadvise(&*opened.file, 0, None, Advice::Sequential);
        }
        Ok(opened)
    }

    /// Checks after the last read that all data comes from one state of the file.
    pub(crate) fn finish(self) -> Result<(), Fault> {
        self.must_be_same("was modified while it was read")
    }

    fn must_be_same(&self, how: &str) -> Result<(), Fault> {
        let path = &self.source.path;
        let stat = fstat(&*self.file).map_err(|errno| of_source("look at", path, errno))?;
        let (now, then) = (Identity::of(&stat), self.source.identity);
        let same = now == then || (self.source.growth == Growth::Accept && now.has_grown_from(then));
        if same { Ok(()) } else { Err(changed(path, how)) }
    }

    /// Rejects files that report size 0 but have contents, as in `/proc`.
    fn must_have_a_size(&self) -> Result<(), Fault> {
        let path = &self.source.path;
        if self.source.shape.size > 0 {
            return Ok(());
        }
        match read_at(&self.file, &mut [0], 0) {
            Ok(0) => Ok(()),
            // It was empty when found and has grown.
            Ok(_) if fstat(&*self.file).is_ok_and(|stat| stat.st_size > 0) => self.must_be_same(SINCE_FOUND),
            Ok(_) => {
                let what = "has contents but no size, as files of /proc do";
                Err(of_path(FaultCode::Unreadable, path, what, "copy it to a regular file first"))
            }
            Err(errno) => Err(of_source("read", path, errno)),
        }
    }

    /// Reads bytes of the stream at `offset`; returns their number, at least 1.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize, Fault> {
        let path = &self.source.path;
        let (at, run) = self.source.shape.locate(offset);
        let want = run.min(into.len() as u64) as usize;
        match read_at(&self.file, &mut into[..want], at) {
            Err(errno) => Err(of_source("read", path, errno)),
            Ok(0) => Err(changed(path, "became shorter while it was read")),
            Ok(got) => Ok(got),
        }
    }

    pub(crate) fn hash(
        &self,
        progress: &Progress,
        stream_range: Range<u64>,
        buffer: &mut [u8],
        hasher: &mut Hasher,
    ) -> Result<(), Fault> {
        let mut at = stream_range.start;
        while at < stream_range.end {
            let len = (stream_range.end - at).min(buffer.len() as u64) as usize;
            let got = self.read(at, &mut buffer[..len])?;
            hasher.update(&buffer[..got]);
            progress.other_steps.add(1);
            at += got as u64;
        }
        Ok(())
    }
}

fn changed(path: &[u8], how: &str) -> Fault {
    of_path(FaultCode::SourceChanged, path, how, "copy it again when nothing is writing to it")
}
