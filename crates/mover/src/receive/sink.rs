//! The object as the data path delivers it.

use std::sync::Arc;

use haul_base::Piece;
use haul_proto::ObjectSink;

use crate::fault::protocol;
use crate::receive::shared::Shared;

/// Takes received pieces; files are written by other threads.
pub(crate) struct FileSink {
    shared: Arc<Shared>,
    /// Bytes leave memory in whatever order they come.
    takes_any_order: bool,
}

impl FileSink {
    /// Of a receiver that may need what is missing before it is rid of what has come.
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, takes_any_order: false }
    }

    /// Of a receiver that writes each byte to its place.
    pub(crate) fn in_any_order(shared: Arc<Shared>) -> Self {
        Self { shared, takes_any_order: true }
    }
}

impl ObjectSink for FileSink {
    fn deliver(&mut self, data: &[u8], pieces: &[Piece]) {
        if !self.shared.queue.push(data, pieces) {
            self.shared.fail(protocol("more was sent than the receiver permitted"));
        }
    }

    fn limit(&mut self) -> u64 {
        self.shared.queue.limit()
    }

    fn takes_any_order(&self) -> bool {
        self.takes_any_order
    }

    fn complete(&mut self, len: u64) {
        self.shared.queue.complete(len);
    }
}
