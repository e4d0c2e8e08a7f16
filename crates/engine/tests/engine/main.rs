//! Whole sessions over loopback, successful and failing.

#[cfg(test)]
mod addresses;
#[cfg(test)]
mod connections;
#[cfg(test)]
mod endings;
#[cfg(test)]
mod failures;
#[cfg(test)]
mod host;
#[cfg(test)]
mod interleavings;
#[cfg(test)]
mod keep_alives;
#[cfg(test)]
mod pairs;
#[cfg(test)]
mod recipes;
#[cfg(test)]
mod session_endings;
#[cfg(test)]
mod sessions;
#[cfg(test)]
mod support;
#[cfg(test)]
mod waiting;
