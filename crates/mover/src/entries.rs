//! Compact table of a set's entries: about 150 bytes per entry with names of 30 bytes, in a set of a million.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::iter::successors;
use std::sync::Arc;

use hashbrown::HashTable;
use haul_wire::control::{Entry, EntryKind, Fault, FaultCode};

use crate::budget::{make_room, slot_bytes, vec_bytes};
use crate::fault::{path_fault, show, violation};
use crate::storage::Mtime;
use crate::stream::Shape;

/// Maximum number of entries of a set. Bounds the memory that a peer can claim.
pub(crate) const MAX_ENTRIES: usize = 1 << 26;

/// Bytes that each entry needs later in other tables: the mapping to its file, and list items.
const COST_IN_OTHER_TABLES: u64 = 48;

/// Overhead in bytes of each directory path that the journal and other tables store in full.
const PATH: u64 = 96;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A regular file with its index among the regular files.
    File(u32),
    Directory,
    Symlink,
    /// The sender could not read the entry and sends no contents.
    Unread,
    /// Another name of the regular file with this entry index.
    HardLink(u32),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EntryState {
    Waiting,
    /// Its temporary file or its directory exists.
    Started,
    /// The entry is in place under its final name.
    Done,
    /// The entry was already in place, and no contents were sent.
    Kept,
    /// The entry failed and will not be installed.
    Failed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Attributes {
    pub(crate) mtime: Mtime,
    pub(crate) mode: u32,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    /// Size of the file, or length of the symbolic link's target.
    size: u64,
    attributes: Attributes,
    name_start: u64,
    name_len: u16,
    state: EntryState,
    kind: Kind,
    /// Index of the parent directory; `None` at the top. An entry that was refused has none and stores its
    /// full path as name.
    parent: Option<u32>,
}

impl Record {
    fn name_in<'n>(&self, names: &'n [u8]) -> &'n [u8] {
        let start = self.name_start as usize;
        &names[start..start + self.name_len as usize]
    }
}

/// All entries so far, in order, indexed by number and by name.
#[derive(Default)]
pub(crate) struct EntryTable {
    records: Vec<Record>,
    names: Vec<u8>,
    digests: Vec<[u8; 32]>,
    /// Shapes of the sparse files.
    shapes: HashMap<u32, Arc<Shape>>,
    by_name: HashTable<u32>,
    hasher: RandomState,
    pub(crate) bytes: u64,
    /// Path and index of the directory of the last entry: the next entry is usually in it too.
    last_directory: Option<(Vec<u8>, u32)>,
}

impl EntryTable {
    pub(crate) fn len(&self) -> u32 {
        self.records.len() as u32
    }

    /// Returns the bytes of memory that an entry uses here and will use in other tables.
    pub(crate) fn cost(&self, index: u32) -> u64 {
        let record = &self.records[index as usize];
        let names = usize::from(record.name_len) + self.target(index).len();
        let extra = match (record.kind, self.shapes.get(&index)) {
            (Kind::Directory, _) => self.path(index).len() as u64 + PATH,
            (_, Some(shape)) => slot_bytes::<(u32, Arc<Shape>)>() + shape.bytes(),
            (_, None) => 0,
        };
        vec_bytes(size_of::<Record>() + size_of::<[u8; 32]>() + names)
            + slot_bytes::<u32>()
            + COST_IN_OTHER_TABLES
            + extra
    }

    /// Appends an entry. `Ok(Some(fault))`: the entry is stored as failed, because the sender could not read
    /// it or because it contradicts earlier entries. Fails if the set exceeds a limit or breaks the protocol.
    pub(crate) fn push(&mut self, entry: &Entry) -> Result<Option<Fault>, Fault> {
        match self.find_parent(entry) {
            Ok(parent) => {
                let name = entry.path.file_name();
                let index = self.append(entry, parent, name)?;
                // A repeated directory resolves to its first entry.
                let first = self.find(parent, name);
                if first.is_none() {
                    self.insert_name(index);
                }
                if entry.kind == EntryKind::Directory {
                    self.last_directory = Some((entry.path.as_bytes().to_vec(), first.unwrap_or(index)));
                }
                Ok(None)
            }
            Err(fault) => self.push_failed(entry, fault).map(Some),
        }
    }

    /// Appends an entry as failed. Its contents may be sent all the same.
    pub(crate) fn push_failed(&mut self, entry: &Entry, fault: Fault) -> Result<Fault, Fault> {
        let index = self.append(entry, None, entry.path.as_bytes())?;
        self.set_state(index, EntryState::Failed);
        Ok(fault)
    }

    /// Returns the index of the entry's parent directory, or the fault that prevents installing the entry.
    pub(crate) fn find_parent(&mut self, entry: &Entry) -> Result<Option<u32>, Fault> {
        if let EntryKind::Failed(fault) = &entry.kind {
            return Err(fault.clone());
        }
        let path = entry.path.as_bytes();
        let directory = &path[..path.len().saturating_sub(entry.path.file_name().len() + 1)];
        let parent = self.directory(directory, path)?;
        let earlier = self.find(parent, entry.path.file_name()).map(|index| self.kind(index));
        let merges = earlier == Some(Kind::Directory) && entry.kind == EntryKind::Directory;
        if earlier.is_some() && !merges {
            let hint = "sources with the same name need different destinations";
            return Err(path_fault(FaultCode::Usage, path, "occurs twice in the file set", hint));
        }
        Ok(parent)
    }

    /// Returns the index of the directory `path`, the parent of the entry `below`.
    fn directory(&mut self, path: &[u8], below: &[u8]) -> Result<Option<u32>, Fault> {
        if path.is_empty() {
            return Ok(None);
        }
        if let Some((last, index)) = &self.last_directory
            && last == path
        {
            return Ok(Some(*index));
        }
        let mut at = None;
        for component in path.split(|&b| b == b'/') {
            let early = || violation(&format!("`{}` came before its directory", show(below)));
            let index = self.find(at, component).ok_or_else(early)?;
            self.must_be_directory(index, below)?;
            at = Some(index);
        }
        self.last_directory = at.map(|index| (path.to_vec(), index));
        Ok(at)
    }

    fn must_be_directory(&self, index: u32, below: &[u8]) -> Result<(), Fault> {
        let (code, what) = match self.records[index as usize].kind {
            Kind::Directory => return Ok(()),
            Kind::Symlink => (FaultCode::PathEscape, "symbolic link"),
            Kind::File(_) | Kind::Unread | Kind::HardLink(_) => (FaultCode::NotADirectory, "file"),
        };
        let what = format!("lies below a {what} of the same set");
        Err(path_fault(code, below, &what, "nothing is ever written through a received link or file"))
    }

    fn append(&mut self, entry: &Entry, parent: Option<u32>, name: &[u8]) -> Result<u32, Fault> {
        let index = self.records.len();
        let (Some(end), true) = (self.bytes.checked_add(entry.stream_bytes()), index < MAX_ENTRIES) else {
            return Err(violation("the set is larger than any set may be"));
        };
        let name_start = self.names.len() as u64;
        make_room(&mut self.names, name.len());
        self.names.extend_from_slice(name);
        let (kind, size) = match &entry.kind {
            EntryKind::File { size, holes } => {
                make_room(&mut self.digests, 1);
                self.digests.push([0; 32]);
                if !holes.is_empty() {
                    self.shapes.insert(index as u32, Arc::new(Shape::new(*size, holes)));
                }
                (Kind::File(self.digests.len() as u32 - 1), *size)
            }
            EntryKind::Directory => (Kind::Directory, 0),
            EntryKind::Symlink { target } => {
                make_room(&mut self.names, target.len());
                self.names.extend_from_slice(target);
                (Kind::Symlink, target.len() as u64)
            }
            EntryKind::Failed(_) => (Kind::Unread, 0),
            EntryKind::HardLink { entry } => (Kind::HardLink(self.file(*entry)?), 0),
        };
        let mtime = Mtime { secs: entry.mtime_secs, nanos: entry.mtime_nanos };
        let attributes = Attributes { mtime, mode: entry.mode };
        let (name_len, state) = (name.len() as u16, EntryState::Waiting);
        make_room(&mut self.records, 1);
        self.records.push(Record { size, attributes, name_start, name_len, state, kind, parent });
        self.bytes = end;
        Ok(index as u32)
    }

    /// Checks an entry number from the peer, which has to be that of a regular file.
    pub(crate) fn file(&self, entry: u64) -> Result<u32, Fault> {
        let index = u32::try_from(entry).ok().filter(|&e| e < self.len());
        let file = index.filter(|&e| matches!(self.kind(e), Kind::File(_)));
        file.ok_or_else(|| violation("a message for a file names an entry of another kind"))
    }

    fn insert_name(&mut self, index: u32) {
        let Self { by_name, records, names, hasher, .. } = self;
        let hash = |&index: &u32| {
            let record = &records[index as usize];
            hasher.hash_one((record.parent, record.name_in(names)))
        };
        by_name.insert_unique(hash(&index), index, hash);
    }

    /// Finds the entry with this name in a directory of the set, or at its top level.
    pub(crate) fn find(&self, parent: Option<u32>, name: &[u8]) -> Option<u32> {
        let is_entry = |&index: &u32| {
            let record = &self.records[index as usize];
            record.parent == parent && record.name_in(&self.names) == name
        };
        self.by_name.find(self.hasher.hash_one((parent, name)), is_entry).copied()
    }

    /// Whether no earlier entry has the same path: entries of a repeated directory have the first one as
    /// parent.
    pub(crate) fn is_first(&self, index: u32) -> bool {
        let record = &self.records[index as usize];
        self.find(record.parent, record.name_in(&self.names)) == Some(index)
    }

    pub(crate) fn path(&self, index: u32) -> Vec<u8> {
        let record = |index: u32| &self.records[index as usize];
        let chain = successors(Some(index), |&at| record(at).parent);
        let mut names: Vec<&[u8]> = chain.map(|at| record(at).name_in(&self.names)).collect();
        names.reverse();
        names.join(&b'/')
    }

    pub(crate) fn kind(&self, index: u32) -> Kind {
        self.records[index as usize].kind
    }

    pub(crate) fn select(&self, accepts: impl Fn(Kind, EntryState) -> bool) -> impl Iterator<Item = u32> {
        (0..self.len()).filter(move |&index| accepts(self.kind(index), self.state(index)))
    }

    pub(crate) fn state(&self, index: u32) -> EntryState {
        self.records[index as usize].state
    }

    pub(crate) fn set_state(&mut self, index: u32, state: EntryState) {
        self.records[index as usize].state = state;
    }

    pub(crate) fn parent_failed(&self, index: u32) -> bool {
        self.records[index as usize].parent.is_some_and(|parent| self.state(parent) == EntryState::Failed)
    }

    /// Returns the file's size in bytes, 0 for other kinds.
    pub(crate) fn size(&self, index: u32) -> u64 {
        let record = &self.records[index as usize];
        if matches!(record.kind, Kind::File(_)) { record.size } else { 0 }
    }

    pub(crate) fn shape(&self, index: u32) -> Arc<Shape> {
        let sparse = self.shapes.get(&index).cloned();
        sparse.unwrap_or_else(|| Arc::new(Shape::new(self.size(index), &[])))
    }

    /// Returns the length of the file's stream in bytes, 0 for other kinds.
    pub(crate) fn stream_len(&self, index: u32) -> u64 {
        self.shapes.get(&index).map_or_else(|| self.size(index), |shape| shape.len)
    }

    pub(crate) fn attributes(&self, index: u32) -> Attributes {
        self.records[index as usize].attributes
    }

    pub(crate) fn target(&self, index: u32) -> &[u8] {
        let record = &self.records[index as usize];
        let start = record.name_start as usize + record.name_len as usize;
        let len = if record.kind == Kind::Symlink { record.size as usize } else { 0 };
        &self.names[start..start + len]
    }

    pub(crate) fn digest(&self, index: u32) -> Option<&[u8; 32]> {
        match self.kind(index) {
            Kind::File(number) => Some(&self.digests[number as usize]),
            _ => None,
        }
    }

    pub(crate) fn set_digest(&mut self, index: u32, digest: [u8; 32]) {
        if let Kind::File(number) = self.kind(index) {
            self.digests[number as usize] = digest;
        }
    }
}

#[cfg(test)]
#[path = "entries_tests.rs"]
mod tests;
