//! A shorter file at the destination becomes the beginning of the one that comes.

use crate::journal::FileIdentity;
use crate::receive::place::Place;
use crate::storage;
use crate::stream::Shape;

impl Place {
    /// Makes the temporary file of an entry from the first `have` bytes of what is there under its name. False: it
    /// comes whole.
    pub(crate) fn begin_with(&self, entry: u32, path: &[u8], have: u64, identity: &FileIdentity) -> bool {
        let Some(there) = self.open_final(path) else { return false };
        let Ok(part) = self.create(entry, path, &Shape::new(identity.size, &[]), identity) else {
            return false;
        };
        if storage::copy(&there, &part, have).is_ok_and(|copied| copied == have) {
            self.note_written(entry, 0..have);
            return true;
        }
        self.discard(entry, path);
        false
    }
}
