//! IP packets as a TUN device gives them: single ones, and super-packets that still have to be cut.

mod checksum;
mod layout;
mod piece;
#[cfg(test)]
mod tests;
mod train;
mod vnet;

pub(crate) use layout::Layout;
pub(crate) use piece::{complete, header_of};
pub(crate) use train::Train;
pub(crate) use vnet::{VNET_LEN, Vnet};
