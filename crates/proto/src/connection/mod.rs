//! What a connection has beside its stack: its keys, how it opens, keeps alive and closes, what its path carries, which
//! packets have come before, and the rules of its control channel.

mod control_channel;
mod lifecycle;
mod path_probe;
mod peer_address;
mod protection;
mod replay_window;
mod role;

pub use control_channel::{ControlChannel, MessageFor, Timing};
pub use lifecycle::{Due, Ending, Lifecycle, MOST_UNANSWERED};
pub use path_probe::{Challenge, Challenges, MIN_DATAGRAM, PathProbe, sizes_for};
pub use peer_address::{BARE, PeerAddress, canonical};
pub use protection::{
    ConnectionKeys, ENCRYPTED, FrameKeys, Keys, Opener, ResumptionSecret, Sealer, tag_len,
};
pub use replay_window::ReplayWindow;
pub use role::{Direction, Role};
