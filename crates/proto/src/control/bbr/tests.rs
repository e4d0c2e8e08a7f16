//! The law over paths in virtual time.
