//! What other jobs have left of files that are complete now.

use std::os::fd::AsFd as _;

use crate::entries::{Kind, State};
use crate::journal::Leftovers;
use crate::receive::shared::Shared;

/// Removes it. When a killed copy is repeated at once, the receiver of the first one still runs, and leaves its journal
/// after the second one has looked for journals.
pub(crate) fn clear(shared: &Shared) {
    let Ok(mut leftovers) = Leftovers::adopt(shared.place.base().as_fd()) else { return };
    if !leftovers.is_empty() {
        for path in complete_files(shared) {
            while let Some(claim) = leftovers.take(&path) {
                leftovers.discard(claim.token);
            }
        }
        if let Some(name) = shared.place.rename() {
            leftovers.take_made(name);
        }
    }
    leftovers.finish();
}

/// Where they are, relative to the destination's directory.
fn complete_files(shared: &Shared) -> Vec<Vec<u8>> {
    let book = shared.book();
    let table = &book.table;
    let is_complete = |&entry: &u32| {
        matches!((table.kind(entry), table.state(entry)), (Kind::File(_), State::Done | State::Kept))
    };
    (0..table.len()).filter(is_complete).map(|entry| shared.place.local(&table.path(entry))).collect()
}
