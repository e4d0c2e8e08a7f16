//! The two ends of an object: where its bytes come from and where they go.

use haul_base::Piece;

/// How much of an object can be read now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Available {
    /// Bytes `[0, upto)` can be read. Never decreases.
    pub upto: u64,
    /// Whether `upto` is the length of the object.
    pub end: bool,
}

/// What a source waits for that has nothing to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceWait {
    /// Its storage, or whoever writes into it.
    Storage,
    /// Nothing: what comes next is being worked on here, and the processor is too slow.
    Work,
    /// The receiver, who has not said yet what it wants next.
    Receiver,
}

/// Where the sender machine reads the object. Called on the data path: it must not block.
pub trait ObjectSource: Send {
    /// How much can be read now.
    fn available(&mut self) -> Available;

    /// Fills `into` from `offset`; the whole range lies below [`Available::upto`]. A source that can no
    /// longer read its bytes fills with zeros and reports the failure on its own way.
    fn read(&mut self, offset: u64, into: &mut [u8]);

    /// Whether bytes are to leave although they do not fill a packet: nobody knows when more will come.
    fn is_urgent(&mut self) -> bool {
        false
    }

    /// Why there is nothing to read, while that is so.
    fn waits_for(&mut self) -> SourceWait {
        SourceWait::Storage
    }

    /// Everything below `offset` has been delivered and will not be read again.
    fn release(&mut self, offset: u64);
}

/// Where received pieces go. Called on the data path: it must not block.
pub trait ObjectSink: Send {
    /// New pieces of the object, `data[piece.range]` at `piece.offset`. An honest sender's bytes come once each;
    /// another one can give the same bytes two sequence numbers, so that they come twice and others are missing at the
    /// end.
    fn deliver(&mut self, data: &[u8], pieces: &[Piece]);

    /// Flow control: how many bytes it can take in all, from the start on; what an honest sender may send lies below
    /// this offset. Never decreases.
    fn limit(&mut self) -> u64;

    /// Whether bytes make room again in whatever order they came: what is missing then needs no room kept for it
    /// (`object.gaps = "free"`).
    fn takes_any_order(&self) -> bool {
        false
    }

    /// Every byte of the object has been delivered; its length is `len`. Called once.
    fn complete(&mut self, len: u64);
}
