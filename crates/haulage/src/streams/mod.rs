//! Several byte streams on one connection, beside its messages. The recipe says that there are any (`streams`), and how
//! large they may become.

mod driver;
mod handles;

pub(crate) use driver::Streams;
pub(crate) use handles::both;
pub use handles::{RecvStream, SendStream};
