//! Cost of clients that do not know the secret. A separate program: it counts the threads and sockets of the
//! whole process.

#[cfg(test)]
mod costs;
#[cfg(test)]
#[path = "../../examples/strangers/stranger.rs"]
mod stranger;
