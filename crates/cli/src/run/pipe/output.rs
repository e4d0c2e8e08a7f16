//! Stdout, whose reader may go away.

use std::io::{self, Write};

use haul_wire::control::Fault;

use crate::fault;

pub(super) struct Output {
    stdout: io::Stdout,
}

/// Whether anybody still reads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    There,
    Gone,
}

impl Reader {
    pub(super) fn is_closed(self) -> bool {
        self == Self::Gone
    }
}

impl Output {
    pub(super) fn new() -> Self {
        Self { stdout: io::stdout() }
    }

    /// Writes at once: whoever reads a pipe wants what there is.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<Reader, Fault> {
        let mut stdout = self.stdout.lock();
        match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
            Ok(()) => Ok(Reader::There),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
            Err(error) => Err(fault::io("cannot write to stdout", &error)),
        }
    }
}
