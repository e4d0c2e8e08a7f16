//! What clients that do not know the secret cost. A program of its own: the threads and sockets of the whole process
//! are counted.

#[cfg(test)]
mod costs;
#[cfg(test)]
#[path = "../../examples/strangers/stranger.rs"]
mod stranger;
