//! Memory size of decoded messages: a list may take 24 times as much as on the wire.

use std::mem::size_of;

use super::{
    Accept, ByteRange, ControlMessage, Counted, DestinationAttributes, DestinationLineage, DirectoryId,
    Entry, EntryKind, EntryRequest, Extras, Fault, FileDigest, Filtered, Hello, Item, More, Notes, Outcome,
    Owner, Proof, RecipeOffer, RelPath, Removal, Request, RequestRun, Rule, Selection, Settings, Summary,
    Xattr,
};

/// Memory that a value owns outside of itself.
trait HeapSize {
    /// Returns the size in bytes, without unused capacity of vectors.
    fn heap_size(&self) -> usize;
}

impl ControlMessage {
    /// Returns the memory size of the message in bytes, including what it points to.
    pub fn memory(&self) -> usize {
        size_of::<Self>() + self.heap_size()
    }
}

impl HeapSize for ControlMessage {
    fn heap_size(&self) -> usize {
        match self {
            Self::Hello(hello) => hello.heap_size(),
            Self::Accept(accept) => accept.heap_size(),
            Self::Refuse(fault) | Self::Abort(fault) => fault.heap_size(),
            Self::Entries(list) => list.heap_size(),
            Self::Digests(list) => list.heap_size(),
            Self::Outcomes(list) => list.heap_size(),
            Self::Finish(summary) => summary.heap_size(),
            Self::Counted(counted) => counted.heap_size(),
            Self::EntryRequests(list) => list.heap_size(),
            Self::More(more) => more.heap_size(),
            Self::Proofs(list) => list.heap_size(),
            Self::Items(list) => list.heap_size(),
            Self::Removed(removal) => removal.heap_size(),
            Self::LeftOut(list) => list.heap_size(),
            Self::Filtered(filtered) => filtered.heap_size(),
            Self::DestinationLineage(lineage) => lineage.heap_size(),
            Self::DestinationAttributes(attributes) => attributes.heap_size(),
            Self::Transport(bytes) => bytes.heap_size(),
            Self::LawChange(changes) => changes.heap_size(),
            Self::UdpSeen { .. }
            | Self::EntriesEnd { .. }
            | Self::ObjectSent { .. }
            | Self::Ping(_)
            | Self::Pong(_)
            | Self::Close
            | Self::Ready(_)
            | Self::EntryRequestsEnd { .. }
            | Self::Extent(_)
            | Self::Quota { .. } => 0,
        }
    }
}

impl<T: HeapSize> HeapSize for Vec<T> {
    fn heap_size(&self) -> usize {
        self.iter().map(|item| size_of::<T>() + item.heap_size()).sum()
    }
}

impl<T: HeapSize> HeapSize for Option<T> {
    fn heap_size(&self) -> usize {
        self.as_ref().map_or(0, HeapSize::heap_size)
    }
}

impl<T: HeapSize> HeapSize for Box<T> {
    fn heap_size(&self) -> usize {
        size_of::<T>() + T::heap_size(self)
    }
}

impl HeapSize for String {
    fn heap_size(&self) -> usize {
        self.len()
    }
}

macro_rules! no_heap {
    ($($kind:ty),*) => {
        $(impl HeapSize for $kind {
            fn heap_size(&self) -> usize {
                0
            }
        })*
    };
}

no_heap!(u8, [u8; 32], DirectoryId, ByteRange, super::Cipher);

macro_rules! heap_size {
    ($($kind:ty: $($field:ident)*;)*) => {
        $(impl HeapSize for $kind {
            fn heap_size(&self) -> usize {
                0 $(+ self.$field.heap_size())*
            }
        })*
    };
}

heap_size! {
    Hello: ciphers request settings;
    Accept: server settings;
    Settings: recipe;
    RecipeOffer: text versions;
    Selection: rules paths;
    Rule: pattern;
    Fault: message hint;
    Entry: path kind extras;
    Extras: owner xattrs acls;
    Owner: user_name group_name;
    Xattr: name value;
    Notes: first;
    Summary: notes;
    Outcome: fault;
    RequestRun: request;
    More: ranges;
    Proof: values;
    Item: path;
    Removal: fault;
    Filtered: paths;
    DestinationLineage: directories name;
    DestinationAttributes: extras;
}

impl HeapSize for RelPath {
    fn heap_size(&self) -> usize {
        self.as_bytes().len()
    }
}

impl<T> HeapSize for (String, T)
where
    T: HeapSize,
{
    fn heap_size(&self) -> usize {
        self.0.heap_size() + self.1.heap_size()
    }
}

impl HeapSize for u16 {
    fn heap_size(&self) -> usize {
        0
    }
}

impl HeapSize for FileDigest {
    fn heap_size(&self) -> usize {
        self.result.as_ref().map_or_else(HeapSize::heap_size, |_| 0)
    }
}

impl HeapSize for Counted {
    fn heap_size(&self) -> usize {
        self.sending
            .as_ref()
            .map_or(0, |sending| sending.limited_by.heap_size() + sending.evidence.heap_size())
    }
}

impl HeapSize for EntryRequest {
    fn heap_size(&self) -> usize {
        match self {
            Self::Ranges(ranges) => ranges.heap_size(),
            Self::All | Self::Nothing | Self::Kept | Self::Compare => 0,
        }
    }
}

impl HeapSize for EntryKind {
    fn heap_size(&self) -> usize {
        match self {
            Self::File { holes, .. } => holes.heap_size(),
            Self::Symlink { target } => target.heap_size(),
            Self::Failed(fault) => fault.heap_size(),
            Self::Directory | Self::HardLink { .. } => 0,
        }
    }
}

impl HeapSize for Request {
    fn heap_size(&self) -> usize {
        match self {
            Self::Put { destination, .. } | Self::PutStream { destination, .. } => destination.heap_size(),
            Self::Get { sources, selection, .. } => sources.heap_size() + selection.heap_size(),
            Self::Connect { recipe, versions } => recipe.heap_size() + versions.heap_size(),
            Self::BenchSend | Self::BenchReceive | Self::Check | Self::StreamSend | Self::StreamReceive => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn lists_of_small_items_count_their_memory() {
        let rule = Rule { verdict: Verdict::Exclude, pattern: b"a".to_vec() };
        let message = ControlMessage::LeftOut(vec![rule; 1000]);
        assert_eq!(message.memory(), size_of::<ControlMessage>() + 1000 * (size_of::<Rule>() + 1));
        assert_eq!(ControlMessage::Ping(7).memory(), size_of::<ControlMessage>());
    }

    #[test]
    fn heap_memory_counts_at_every_depth() {
        let xattr = Xattr { name: vec![b'n'; 10], value: vec![0; 100] };
        let extras = Extras { xattrs: Some(vec![xattr; 3]), ..Extras::default() };
        let holes = vec![ByteRange { start: 0, len: 1 }; 5];
        let entry = Entry {
            path: RelPath::new(*b"path").unwrap(),
            kind: EntryKind::File { size: 100, holes },
            mode: 0,
            mtime_secs: 0,
            mtime_nanos: 0,
            extras: Some(Box::new(extras)),
        };
        let inside = 4 + 5 * size_of::<ByteRange>() + size_of::<Extras>() + 3 * (size_of::<Xattr>() + 110);
        let expected = size_of::<ControlMessage>() + 2 * (size_of::<Entry>() + inside);
        assert_eq!(ControlMessage::Entries(vec![entry.clone(), entry]).memory(), expected);
    }
}
