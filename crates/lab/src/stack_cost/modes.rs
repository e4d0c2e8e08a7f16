//! What can be measured, by name.

use std::str::FromStr;

/// What runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Hand,
    Stack(Extra),
}

/// What a stack has besides its base.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extra {
    pub(super) raises: usize,
    pub(super) attributes: usize,
    pub(super) copies: usize,
    pub(super) messages: Messages,
}

/// Where messages come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Messages {
    /// Written into the packet when it is made.
    #[default]
    Pulled,
    /// Queued, in buffers of the pool.
    Pushed,
    /// Queued, in buffers that are allocated and freed.
    PushedWithoutPool,
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, number) = text.split_once('=').unwrap_or((text, "0"));
        let number = number.parse().map_err(|_| format!("`{number}` is no number"))?;
        let extra = match name {
            "hand" => return Ok(Self::Hand),
            "base" => Extra::default(),
            "raises" => Extra { raises: number, ..Extra::default() },
            "attributes" => Extra { attributes: number, ..Extra::default() },
            "copies" => Extra { copies: number, ..Extra::default() },
            "push" => Extra { messages: Messages::Pushed, ..Extra::default() },
            "push-no-pool" => Extra { messages: Messages::PushedWithoutPool, ..Extra::default() },
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

/// A mode with the size of its messages: `base` or `base@8192`.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) name: String,
    pub(super) mode: Mode,
    /// Bytes.
    pub(super) size: usize,
}

/// Bytes of a message where nothing else is said.
pub(super) const SIZE: usize = 1_400;

impl FromStr for Item {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mode, size) = text.split_once('@').map_or((text, Ok(SIZE)), |(mode, size)| (mode, size.parse()));
        let size = size.map_err(|error| format!("bytes of a message: {error}"))?;
        Ok(Self { name: text.to_owned(), mode: mode.parse()?, size })
    }
}
