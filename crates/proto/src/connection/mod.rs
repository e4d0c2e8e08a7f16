//! Connection state beside the stack: keys, lifecycle, path probing and address validation, replay
//! protection, negotiation, resumption, and the control channel protocol.

mod control_channel;
#[cfg(test)]
mod counted_time;
mod handshake_limiter;
mod lifecycle;
mod negotiation;
mod path_probe;
mod peer_address;
mod peer_table;
mod pending_session;
mod protection;
mod replay_window;
mod resumption;
mod role;
mod state;
mod terms;
mod timer_queue;

pub use control_channel::{ControlChannel, MessageFor, Timing};
pub use handshake_limiter::{HandshakeLimiter, HandshakeLimits};
pub use lifecycle::{Due, Ending, Lifecycle, MAX_UNANSWERED};
pub use negotiation::{
    CHOSEN_BY_SERVER, ENCRYPTION_REQUIRED, NotOffered, agreed_recipe, ceiling, check_accept, choose_cipher,
    offer, refusal, server_recipe, session_recipe, set_parameter, settings_for, take_parameters,
};
pub use path_probe::{Challenge, Challenges, MIN_DATAGRAM, PathProbe, sizes_for};
pub use peer_address::{BARE_FRAME_LEN, PeerAddress, canonical};
pub use peer_table::{AddError, Peer, PeerTable};
pub use pending_session::{EarlyFrames, PendingSession, Verdict};
pub use protection::{ConnectionKeys, ENCRYPTED, FrameKeys, Keys, Opener, ResumptionSecret, Sealer, tag_len};
pub use replay_window::ReplayWindow;
pub use resumption::{ResumptionError, ResumptionState, SavedResumption};
pub use role::{Direction, Role};
pub use state::{
    Application, COALESCING_DELAY, ConnectionOptions, ConnectionState, Failure, Header, Outgoing,
    PacketVerdict, Unsent,
};
pub use terms::{Terms, compile};
pub use timer_queue::TimerQueue;
