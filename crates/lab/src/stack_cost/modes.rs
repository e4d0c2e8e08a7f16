//! Names of the measurable modes.

use std::str::FromStr;

/// Code under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    HandWritten,
    Stack(Extra),
}

/// Additions to the base stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extra {
    pub(super) raises: usize,
    pub(super) attributes: usize,
    pub(super) copies: usize,
    pub(super) messages: Messages,
}

/// How messages enter the stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Messages {
    /// Written directly into the packet.
    #[default]
    Pulled,
    /// Queued in buffers from the pool.
    Pushed,
    /// Queued in newly allocated buffers.
    PushedUnpooled,
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, number) = text.split_once('=').unwrap_or((text, "0"));
        let number = number.parse().map_err(|_| format!("`{number}` is no number"))?;
        let extra = match name {
            "hand" => return Ok(Self::HandWritten),
            "base" => Extra::default(),
            "raises" => Extra { raises: number, ..Extra::default() },
            "attributes" => Extra { attributes: number, ..Extra::default() },
            "copies" => Extra { copies: number, ..Extra::default() },
            "push" => Extra { messages: Messages::Pushed, ..Extra::default() },
            "push-no-pool" => Extra { messages: Messages::PushedUnpooled, ..Extra::default() },
            _ => {
                return Err(
                    "the modes are hand, base, raises=N, attributes=N, copies=N, push and push-no-pool"
                        .to_owned(),
                );
            }
        };
        Ok(Self::Stack(extra))
    }
}

/// A mode and its message size: `base` or `base@8192`.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) name: String,
    pub(super) mode: Mode,
    /// Message size in bytes.
    pub(super) size: usize,
}

/// Default message size in bytes.
pub(super) const SIZE: usize = 1_400;

impl FromStr for Item {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mode, size) = text.split_once('@').map_or((text, Ok(SIZE)), |(mode, size)| (mode, size.parse()));
        let size = size.map_err(|error| format!("bytes of a message: {error}"))?;
        Ok(Self { name: text.to_owned(), mode: mode.parse()?, size })
    }
}
