//! IP packets from a TUN device: single ones, and super-packets that have to be split.

mod builder;
mod checksum;
mod layout;
mod piece;
#[cfg(test)]
mod tests;
mod vnet;

pub(crate) use builder::SuperPacketBuilder;
pub(crate) use layout::Layout;
pub(crate) use piece::{complete, header_of};
pub(crate) use vnet::{VNET_LEN, Vnet};
