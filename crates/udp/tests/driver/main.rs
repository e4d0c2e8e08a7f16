//! The driver against the real kernel, on the loopback interface and without privilege.

mod common;
mod errors;
mod loopback;
