//! What a connection has beside its stack: how it opens, keeps alive and closes, what its path carries, which packets
//! have come before, and the rules of its control channel. The driver authenticates control frames, and packets before
//! their numbers count.

mod control_channel;
mod lifecycle;
mod path_probe;
mod replay_window;

pub use control_channel::{ControlChannel, MessageFor, Timing};
pub use lifecycle::{Due, Ending, Lifecycle, MOST_UNANSWERED};
pub use path_probe::{Challenge, Challenges, MIN_DATAGRAM, PathProbe, sizes_for};
pub use replay_window::ReplayWindow;
