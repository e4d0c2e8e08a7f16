//! Keys of one end of a protected UDP path, as the engine passes them in.

use crate::{Open, Seal};

/// Packet protection of a session: ciphers of both directions and the first unused packet number.
#[derive(Debug)]
pub struct Link {
    pub(crate) seal: Box<dyn Seal>,
    pub(crate) open: Box<dyn Open>,
    pub(crate) next_pn: u64,
}

impl Link {
    /// Creates a link whose next packet is numbered `next_pn`; set-up may have used lower numbers.
    pub fn new(seal: Box<dyn Seal>, open: Box<dyn Open>, next_pn: u64) -> Self {
        Self { seal, open, next_pn }
    }
}
