//! The two ends of an object: its source and its sink.

use haul_base::Piece;

/// How much of an object can be read now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Available {
    /// Bytes `[0, upto)` can be read. Never decreases.
    pub upto: u64,
    /// Whether `upto` is the length of the object.
    pub end: bool,
}

/// What a source with nothing to read waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceWait {
    /// Its storage, or whoever writes into the source.
    Storage,
    /// Local processing of the next bytes: the processor is too slow.
    Work,
    /// The receiver, which has not yet requested the next bytes.
    Receiver,
}

/// Source of the bytes of an object to send. Called on the data path: it must not block.
pub trait ObjectSource: Send {
    /// Returns how much can be read now.
    fn available(&mut self) -> Available;

    /// Fills `into` with the bytes from `offset`; the whole range is below [`Available::upto`]. A source that
    /// can no longer read its bytes fills with zeros and reports the failure by other means.
    fn read(&mut self, offset: u64, into: &mut [u8]);

    /// Whether to send bytes that do not fill a packet, because it is unknown when more will follow.
    fn is_urgent(&mut self) -> bool {
        false
    }

    /// Returns the reason why there is nothing to read.
    fn waits_for(&mut self) -> SourceWait {
        SourceWait::Storage
    }

    /// Releases the bytes below `offset`: they have been delivered and will not be read again.
    fn release(&mut self, offset: u64);
}

/// Destination of received pieces. Called on the data path: it must not block.
pub trait ObjectSink: Send {
    /// Accepts new pieces of the object, `data[piece.range]` at `piece.offset`. An honest sender's bytes
    /// arrive once each; a malicious one can give the same bytes two sequence numbers, so that they arrive
    /// twice and others are missing at the end.
    fn deliver(&mut self, data: &[u8], pieces: &[Piece]);

    /// Flow-control limit: number of bytes that the sink can accept, counted from the start of the object. An
    /// honest sender stays below this offset. Never decreases.
    fn limit(&mut self) -> u64;

    /// Whether bytes free buffer space in whatever order they arrive, so that no space is reserved for gaps
    /// (`object.gaps = "free"`).
    fn takes_any_order(&self) -> bool {
        false
    }

    /// Called once, when every byte of the object has been delivered; `len` is its length.
    fn complete(&mut self, len: u64);
}
