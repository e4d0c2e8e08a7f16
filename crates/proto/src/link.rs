//! One side's end of a protected UDP path, as the engine hands it over.

use crate::{Open, Seal};

/// What a session needs to protect its packets: ciphers of both directions, and the first free packet number.
#[derive(Debug)]
pub struct Link {
    pub(crate) seal: Box<dyn Seal>,
    pub(crate) open: Box<dyn Open>,
    pub(crate) next_pn: u64,
}

impl Link {
    /// A link whose next packet gets the number `next_pn`; lower ones may have been used during set-up.
    pub fn new(seal: Box<dyn Seal>, open: Box<dyn Open>, next_pn: u64) -> Self {
        Self { seal, open, next_pn }
    }
}
