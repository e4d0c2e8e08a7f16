//! A shorter file at the destination becomes the beginning of the one that comes.

use std::io::Read as _;

use crate::journal::FileIdentity;
use crate::receive::place::Place;
use crate::stream::Shape;

impl Place {
    /// Makes the temporary file of an entry from the first `have` bytes of what is there under its name. False: it
    /// comes whole.
    pub(crate) fn begin_with(&self, entry: u32, path: &[u8], have: u64, identity: &FileIdentity) -> bool {
        let Some(there) = self.open_final(path) else { return false };
        let Ok(part) = self.create(entry, path, &Shape::new(identity.size, &[]), identity) else {
            return false;
        };
        // The kernel copies, and shares the blocks where the file system can (copy_file_range(2)).
        let copied = std::io::copy(&mut (&there).take(have), &mut &*part);
        if copied.is_ok_and(|copied| copied == have) {
            self.note_written(entry, 0..have);
            return true;
        }
        self.discard(entry, path);
        false
    }
}
