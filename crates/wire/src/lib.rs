//! Bytes to values and back: [`packet`], what UDP datagrams carry, [`control`], what the two sides tell each other over
//! the control channel, and [`url`], what a client is given. `docs/wire-format.md` describes the first two field by
//! field.
//!
//! Parsers take hostile bytes: they never panic, never read past the end, never reserve memory on the word of
//! a length field alone, and accept exactly one encoding of each value. [`check`] states these rules as
//! functions, which the fuzz targets and the tests drive.

pub mod check;
pub mod control;
pub mod packet;
pub mod secret;
pub mod stream_frame;
pub mod url;
