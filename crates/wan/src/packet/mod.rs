//! IP packets from a TUN device: single ones, and super-packets that have to be split.

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
