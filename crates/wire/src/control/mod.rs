//! Messages of the control channel and their framing.
//!
//! A frame is `length u32 big-endian | body`; the body is one [`ControlMessage`] in
//! [postcard](https://postcard.jamesmunns.com/wire-format) encoding. The channel is an ordered, authenticated
//! byte stream (TLS 1.3 over TCP).

mod codec;
mod counted;
mod durability;
mod entry_requests;
mod extras;
mod fault;
mod files;
mod hello_head;
mod items;
mod lineage;
mod memory;
mod message;
mod path;
mod selection;
mod setup;

pub use codec::{FrameDecoder, FrameError, MAX_FRAME, body_len, encode_frame, encoded_len};
pub use counted::{Counted, CountedSending};
pub use durability::{Durability, Readback};
pub use entry_requests::{ByteRange, Destination, EntryRequest, More, Proof, RequestRun};
pub use extras::{
    Extras, HardLinks, Keep, MAX_ACCOUNT_NAME, MAX_EXTRAS, MAX_NOTES, MAX_XATTR_NAME, MAX_XATTR_VALUE, Notes,
    Owner, Ownership, Preserve, Xattr,
};
pub use fault::{Fault, FaultCode, Host};
pub use files::{
    Entry, EntryKind, FileDigest, InvalidEntry, MAX_HOLES, MAX_MODE, MAX_SYMLINK_TARGET, Outcome, Summary,
};
pub use hello_head::{HelloHead, MAX_HELLO_BODY};
pub use items::{Action, Extent, Item, Removal};
pub use lineage::{DestinationAttributes, DestinationLineage, DirectoryId, MAX_LINEAGE};
pub use message::{ControlMessage, MAX_LAW_CHANGE_BYTES, MAX_LAW_CHANGES, MAX_TRANSPORT};
pub use path::{MAX_COMPONENT, MAX_PATH, PathError, RelPath};
pub use selection::{
    ExcludedNames, FileSystems, Filtered, IgnoreFiles, InvalidSelection, LinkChoice, MAX_PATTERN, MAX_RULES,
    MAX_SELECTION_BYTES, Rule, Selection, Verdict,
};
pub use setup::{
    Accept, BenchLimit, Cipher, Equal, Extraneous, Growth, Hello, Layout, Leftovers, Newer, PROTOCOL_VERSION,
    ReceivePolicy, RecipeOffer, Request, RunMode, Settings,
};

#[cfg(test)]
mod vectors;
