//! The rules of what ssh says as a function, for the fuzz target and tests, as in `haul_wire::check`.

/// Checks the search for an announcement in what a login shell and `haul` behind it say: the same is found however the
/// bytes are cut, a flood is given up, and what is read keeps its bounds and is written back to the same. Of arbitrary bytes
/// the first is the length of the pieces. True if there was an announcement of this version.
///
/// # Panics
/// If a rule is broken.
pub fn announcement(bytes: &[u8]) -> bool {
    crate::ssh::check_announcement(bytes)
}
