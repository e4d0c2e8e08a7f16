//! What a file set may take of this side's memory: names, links, holes, attributes, and what is said of them. The other side
//! decides how many there are, so what is held is counted, here, before it is taken in.
//!
//! Contents that wait to be written have a bound of their own ([`ReceiveOptions::memory`](crate::ReceiveOptions::memory)).

use haul_base::Bytes;
use haul_wire::control::{Fault, FaultCode, MAX_FRAME};

/// What a set may take if nobody says otherwise: that of about four million entries.
pub const SET_MEMORY: Bytes = Bytes(1 << 30);

/// Kept aside for messages while they are handled: one that is read, one that is decoded, and the answer to it.
const IN_PASSING: u64 = 3 * MAX_FRAME as u64;

/// Bytes that a hash table has for each place beside what it holds.
const MARK: u64 = 1;

/// Whether so much may be held in `budget`, of a set of so many entries, so that there is room for messages too.
pub(crate) fn must_hold(budget: Bytes, held: u64, entries: u32) -> Result<(), Fault> {
    if held + IN_PASSING.min(budget.0 / 4) <= budget.0 {
        return Ok(());
    }
    let message = format!(
        "the names, links, holes and attributes of the set take more than the {budget} of memory that it may have, with \
         {entries} entries so far"
    );
    let hint = "copy it in parts, or give `--set-memory SIZE` to both `haul cp` and `haul serve`";
    Err(Fault::new(FaultCode::SetTooLarge, message, hint))
}

/// What the places of a vector take.
pub(crate) fn of_vec<T>(vec: &Vec<T>) -> u64 {
    (vec.capacity() * size_of::<T>()) as u64
}

/// What a hash table takes that has room for so many: eight places for seven (`hashbrown`).
pub(crate) fn of_table<T>(capacity: usize) -> u64 {
    capacity as u64 * 8 / 7 * (size_of::<T>() as u64 + MARK)
}

/// What more a hash table takes when it gets `more`: one of twice the places beside the old one, if it has no room.
pub(crate) fn growth_of_table<T>(len: usize, capacity: usize, more: usize) -> u64 {
    let wanted = len + more;
    if wanted <= capacity { 0 } else { of_table::<T>((2 * capacity).max(2 * wanted)) }
}

/// What more a vector takes when it gets `more`, by [`make_room`].
pub(crate) fn growth_of_vec<T>(vec: &Vec<T>, more: usize) -> u64 {
    if vec.len() + more <= vec.capacity() { 0 } else { (step(vec.len(), more) * size_of::<T>()) as u64 }
}

/// Makes room for `more`, and an eighth: twice as much at a time would leave half of a large one empty.
pub(crate) fn make_room<T>(vec: &mut Vec<T>, more: usize) {
    if vec.len() + more > vec.capacity() {
        vec.reserve_exact(step(vec.len(), more));
    }
}

fn step(len: usize, more: usize) -> usize {
    more.max(len / 8).max(64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn above_the_budget_is_a_fault_that_says_what_to_do() {
        assert_eq!(must_hold(Bytes(1_000), 750, 3), Ok(()));
        let fault = must_hold(Bytes(1_000), 751, 3).unwrap_err();
        assert_eq!((fault.code, fault.code.exit_code(), fault.retryable), (FaultCode::SetTooLarge, 1, false));
        assert!(fault.hint.contains("--set-memory") && fault.message.contains("3 entries"), "{fault}");
    }

    #[test]
    fn of_a_large_budget_little_is_kept_aside() {
        assert_eq!(must_hold(SET_MEMORY, SET_MEMORY.0 - (3 << 20), 1), Ok(()));
        must_hold(SET_MEMORY, SET_MEMORY.0 - (3 << 20) + 1, 1).unwrap_err();
    }

    #[test]
    fn vectors_grow_by_no_more_than_was_said() {
        let mut vec = Vec::new();
        for number in 0..100_000u64 {
            let (before, said) = (of_vec(&vec), growth_of_vec(&vec, 1));
            make_room(&mut vec, 1);
            vec.push(number);
            assert!(of_vec(&vec) <= before + said);
        }
        assert!(of_vec(&vec) < 100_000 * 8 * 5 / 4);
    }
}
