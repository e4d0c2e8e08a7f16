//! Memory size of decoded messages: a list may take 24 times as much as on the wire.

use std::mem::size_of;

use super::{
    Accept, ControlMessage, Counted, DestinationAttributes, DestinationLineage, DirectoryId, Entry,
    EntryKind, Extras, Fault, FileDigest, Filtered, Hello, Item, More, Notes, Outcome, Owner, Proof,
    RecipeOffer, RelPath, Removal, Request, Rule, Selection, Settings, Stretch, Summary, Want, WantRun,
    Xattr,
};

/// Memory that a value owns outside of itself.
trait Held {
    /// Returns the size in bytes, without unused capacity of vectors.
    fn held(&self) -> usize;
}

impl ControlMessage {
    /// Returns the memory size of the message in bytes, including what it points to.
    pub fn memory(&self) -> usize {
        size_of::<Self>() + self.held()
    }
}

impl Held for ControlMessage {
    fn held(&self) -> usize {
        match self {
            Self::Hello(hello) => hello.held(),
            Self::Accept(accept) => accept.held(),
            Self::Refuse(fault) | Self::Abort(fault) => fault.held(),
            Self::Entries(list) => list.held(),
            Self::Digests(list) => list.held(),
            Self::Outcomes(list) => list.held(),
            Self::Finish(summary) => summary.held(),
            Self::Counted(counted) => counted.held(),
            Self::Wants(list) => list.held(),
            Self::More(more) => more.held(),
            Self::Proofs(list) => list.held(),
            Self::Items(list) => list.held(),
            Self::Removed(removal) => removal.held(),
            Self::LeftOut(list) => list.held(),
            Self::Filtered(filtered) => filtered.held(),
            Self::DestinationLineage(lineage) => lineage.held(),
            Self::DestinationAttributes(attributes) => attributes.held(),
            Self::Transport(bytes) => bytes.held(),
            Self::LawChange(changes) => changes.held(),
            Self::UdpSeen { .. }
            | Self::EntriesEnd { .. }
            | Self::ObjectSent { .. }
            | Self::Ping(_)
            | Self::Pong(_)
            | Self::Close
            | Self::Ready(_)
            | Self::WantsEnd { .. }
            | Self::Extent(_)
            | Self::Quota { .. } => 0,
        }
    }
}

impl<T: Held> Held for Vec<T> {
    fn held(&self) -> usize {
        self.iter().map(|item| size_of::<T>() + item.held()).sum()
    }
}

impl<T: Held> Held for Option<T> {
    fn held(&self) -> usize {
        self.as_ref().map_or(0, Held::held)
    }
}

impl<T: Held> Held for Box<T> {
    fn held(&self) -> usize {
        size_of::<T>() + T::held(self)
    }
}

impl Held for String {
    fn held(&self) -> usize {
        self.len()
    }
}

macro_rules! nothing_held {
    ($($kind:ty),*) => {
        $(impl Held for $kind {
            fn held(&self) -> usize {
                0
            }
        })*
    };
}

nothing_held!(u8, [u8; 32], DirectoryId, Stretch, super::Cipher);

macro_rules! held {
    ($($kind:ty: $($field:ident)*;)*) => {
        $(impl Held for $kind {
            fn held(&self) -> usize {
                0 $(+ self.$field.held())*
            }
        })*
    };
}

held! {
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
    WantRun: want;
    More: stretches;
    Proof: values;
    Item: path;
    Removal: fault;
    Filtered: paths;
    DestinationLineage: directories name;
    DestinationAttributes: extras;
}

impl Held for RelPath {
    fn held(&self) -> usize {
        self.as_bytes().len()
    }
}

impl<T> Held for (String, T)
where
    T: Held,
{
    fn held(&self) -> usize {
        self.0.held() + self.1.held()
    }
}

impl Held for u16 {
    fn held(&self) -> usize {
        0
    }
}

impl Held for FileDigest {
    fn held(&self) -> usize {
        self.result.as_ref().map_or_else(Held::held, |_| 0)
    }
}

impl Held for Counted {
    fn held(&self) -> usize {
        self.sending.as_ref().map_or(0, |sending| sending.limited_by.held() + sending.evidence.held())
    }
}

impl Held for Want {
    fn held(&self) -> usize {
        match self {
            Self::Rest(stretches) => stretches.held(),
            Self::Whole | Self::Nothing | Self::Kept | Self::Compare => 0,
        }
    }
}

impl Held for EntryKind {
    fn held(&self) -> usize {
        match self {
            Self::File { holes, .. } => holes.held(),
            Self::Symlink { target } => target.held(),
            Self::Failed(fault) => fault.held(),
            Self::Directory | Self::HardLink { .. } => 0,
        }
    }
}

impl Held for Request {
    fn held(&self) -> usize {
        match self {
            Self::Put { destination, .. } | Self::PutStream { destination, .. } => destination.held(),
            Self::Get { sources, selection, .. } => sources.held() + selection.held(),
            Self::Connect { recipe, versions } => recipe.held() + versions.held(),
            Self::BenchSend | Self::BenchReceive | Self::Check | Self::StreamSend | Self::StreamReceive => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn lists_of_small_things_count_what_they_take() {
        let rule = Rule { verdict: Verdict::Exclude, pattern: b"a".to_vec() };
        let message = ControlMessage::LeftOut(vec![rule; 1000]);
        assert_eq!(message.memory(), size_of::<ControlMessage>() + 1000 * (size_of::<Rule>() + 1));
        assert_eq!(ControlMessage::Ping(7).memory(), size_of::<ControlMessage>());
    }

    #[test]
    fn what_lies_behind_a_pointer_counts_at_every_depth() {
        let xattr = Xattr { name: vec![b'n'; 10], value: vec![0; 100] };
        let extras = Extras { xattrs: Some(vec![xattr; 3]), ..Extras::default() };
        let holes = vec![Stretch { start: 0, len: 1 }; 5];
        let entry = Entry {
            path: RelPath::new(*b"path").unwrap(),
            kind: EntryKind::File { size: 100, holes },
            mode: 0,
            mtime_secs: 0,
            mtime_nanos: 0,
            extras: Some(Box::new(extras)),
        };
        let inside = 4 + 5 * size_of::<Stretch>() + size_of::<Extras>() + 3 * (size_of::<Xattr>() + 110);
        let expected = size_of::<ControlMessage>() + 2 * (size_of::<Entry>() + inside);
        assert_eq!(ControlMessage::Entries(vec![entry.clone(), entry]).memory(), expected);
    }
}
