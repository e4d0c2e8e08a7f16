//! Bytes to values and back. Two formats live here: [`packet`], what UDP datagrams carry, and [`control`],
//! what the two sides tell each other over the control channel. `docs/wire-format.md` describes both field
//! by field.
//!
//! Parsers take hostile bytes: they never panic, never read past the end, never reserve memory on the word of
//! a length field alone, and accept exactly one encoding of each value. [`check`] states these rules as
//! functions, which the fuzz targets and the tests drive.

pub mod check;
pub mod control;
pub mod packet;
pub mod secret;
pub mod stream_frame;
