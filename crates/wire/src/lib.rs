//! Encoding and decoding: [`packet`], the contents of UDP datagrams, [`control`], the messages of the control
//! channel, and [`url`], the URLs given to clients. `docs/wire-format.md` describes the first two field by
//! field.
//!
//! Parsers accept untrusted bytes: they never panic, never read past the end, never allocate memory based on
//! a length field alone, and accept exactly one encoding of each value. [`check`] expresses these rules as
//! functions for the fuzz targets and the tests.

pub mod check;
pub mod control;
pub mod packet;
pub mod secret;
pub mod stream_frame;
pub mod url;
