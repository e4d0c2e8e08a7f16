//! The mover as a whole, between real directories, over channels in memory.

#[cfg(test)]
#[cfg(feature = "faults")]
mod calls;
#[cfg(test)]
mod check;
#[cfg(test)]
#[cfg(feature = "faults")]
mod chunks;
#[cfg(test)]
mod delete_exclude;
#[cfg(test)]
#[cfg(feature = "faults")]
mod early;
#[cfg(test)]
mod escapes;
#[cfg(test)]
mod faults;
#[cfg(test)]
#[cfg(feature = "faults")]
mod folding;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod kinds;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod machines;
#[cfg(test)]
mod pipes;
#[cfg(test)]
mod random;
#[cfg(test)]
mod receive_policy;
#[cfg(test)]
mod replace;
#[cfg(test)]
mod resume;
#[cfg(test)]
mod round_trip;
#[cfg(test)]
mod rounds;
#[cfg(test)]
mod selection;
#[cfg(test)]
mod space;
#[cfg(test)]
#[cfg(feature = "faults")]
mod storage;
#[cfg(test)]
#[cfg(feature = "faults")]
mod sweep;
#[cfg(test)]
mod trees;
#[cfg(test)]
mod verbose;
