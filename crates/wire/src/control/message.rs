use serde::{Deserialize, Serialize};

use super::files::validate_fault;
use super::selection::validate_rules;
use super::{
    Accept, Counted, Destination, DestinationAttributes, DestinationLineage, Entry, Extent, Fault,
    FileDigest, Filtered, Hello, InvalidEntry, Item, More, Outcome, Proof, Removal, Request, Rule, Summary,
    WantRun,
};

/// Everything that the control channel carries. New messages are added at the end: the position is what
/// travels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlMessage {
    /// Client to server, first: who it is and what it wants.
    Hello(Hello),
    /// Server to client: the session begins.
    Accept(Accept),
    /// Server to client: it does not; the server closes.
    Refuse(Fault),
    /// Server to client: the first control frame of the UDP path has authenticated.
    UdpSeen {
        /// Size of that datagram: UDP payload bytes.
        size: u16,
    },
    /// Sender to receiver: the next entries of the set.
    Entries(Vec<Entry>),
    /// Sender to receiver: there are no more.
    EntriesEnd {
        /// How many entries there were.
        entries: u64,
        /// The sum of the lengths of the regular files' streams.
        bytes: u64,
    },
    /// Sender to receiver: digests of regular files, in any order.
    Digests(Vec<FileDigest>),
    /// Receiver to sender: entries whose fate is final, in any order.
    Outcomes(Vec<Outcome>),
    /// Receiver to sender: everything is final. The sender answers [`ControlMessage::Close`].
    Finish(Summary),
    /// Bench, sender to receiver: how long the object turned out to be.
    ObjectSent {
        /// Length of the object.
        bytes: u64,
    },
    /// Are you there? Any number.
    Ping(u64),
    /// Yes. The number of the ping.
    Pong(u64),
    /// Regular end; the channel closes.
    Close,
    /// Irregular end; the channel closes.
    Abort(Fault),
    /// Either side, before its last message ([`ControlMessage::Finish`], [`ControlMessage::ObjectSent`] or
    /// [`ControlMessage::Close`]): what it has counted.
    Counted(Counted),
    /// Receiver to sender, its first message: whether something may be there already.
    Ready(Destination),
    /// Receiver to sender, unless the destination is fresh: what is wanted of the next entries, in order.
    Wants(Vec<WantRun>),
    /// Receiver to sender: what else is wanted, because what was there is different.
    More(More),
    /// Receiver to sender, unless the destination is fresh: nothing more will be wanted.
    WantsEnd {
        /// Length of the object: the sum of all that was wanted.
        bytes: u64,
    },
    /// Sender to receiver: what groups of files hash to.
    Proofs(Vec<Proof>),
    /// Receiver to sender: what is done to names, or would be.
    Items(Vec<Item>),
    /// Sender to receiver, before [`ControlMessage::EntriesEnd`]: how much the set says about names that it
    /// does not have. Without this message it says nothing.
    Extent(Extent),
    /// Receiver to sender, before [`ControlMessage::Finish`]: what became of names that the set does not have.
    Removed(Removal),
    /// Receiver to sender, at any time: several send to it, and this one is to send no faster.
    Quota {
        /// Bits per second of UDP payload; the largest number: no bound.
        rate_bps: u64,
    },
    /// Sender to receiver, before [`ControlMessage::Extent`]: the rules by which names were left out of the set;
    /// several messages are appended. The receiver does not delete what the rules leave out.
    LeftOut(Vec<Rule>),
    /// Sender to receiver, before [`ControlMessage::Extent`]: names that were left out of the set by other means than
    /// rules; several messages add up.
    Filtered(Filtered),
    /// Receiver to sender, before [`ControlMessage::Ready`]: where the set goes.
    DestinationLineage(DestinationLineage),
    /// Sender to receiver, before the entries of a source that stands for what is in it, of the first one only: what
    /// the destination itself gets.
    DestinationAttributes(DestinationAttributes),
    /// Either side, while data moves: a message of the transport, at most [`MAX_TRANSPORT`] bytes; what it means is the
    /// recipe's affair. Only where the recipe has reports on the control channel.
    Transport(Vec<u8>),
    /// Receiver to sender, at any time, of a client to a server or, where a stream is carried, of either to the other:
    /// parameters of the recipe's `rate_control` and their new values, at most [`MAX_LAW_CHANGES`] with
    /// [`MAX_LAW_CHANGE_BYTES`]. What the sender limits stays within its limits.
    LawChange(Vec<(String, String)>),
}

/// Longest message of the transport.
pub const MAX_TRANSPORT: usize = 1 << 16;
/// Most parameters in one [`ControlMessage::LawChange`].
pub const MAX_LAW_CHANGES: usize = 64;
/// Bytes of their names and values together: there is room for many rules of `switch`.
pub const MAX_LAW_CHANGE_BYTES: usize = 8 << 10;

fn validate_law_change(changes: &[(String, String)]) -> Result<(), InvalidEntry> {
    let bytes: usize = changes.iter().map(|(name, value)| name.len() + value.len()).sum();
    let is_bounded = changes.len() <= MAX_LAW_CHANGES && bytes <= MAX_LAW_CHANGE_BYTES;
    if is_bounded { Ok(()) } else { Err(InvalidEntry::LawChange) }
}

impl ControlMessage {
    /// Checks the ranges that the types do not hold. Encoding and decoding check this too.
    ///
    /// # Errors
    /// The first bound that the message breaks.
    pub fn validate(&self) -> Result<(), InvalidEntry> {
        match self {
            Self::Entries(entries) => entries.iter().try_for_each(Entry::validate),
            Self::Hello(Hello { request: Request::Get { selection, .. }, .. }) => Ok(selection.validate()?),
            Self::Refuse(fault) | Self::Abort(fault) => validate_fault(fault),
            Self::Digests(digests) => {
                digests.iter().filter_map(|digest| digest.result.as_ref().err()).try_for_each(validate_fault)
            }
            Self::Outcomes(outcomes) => {
                outcomes.iter().filter_map(|outcome| outcome.fault.as_ref()).try_for_each(validate_fault)
            }
            Self::LeftOut(rules) => Ok(validate_rules(rules)?),
            Self::DestinationLineage(lineage) => lineage.validate(),
            Self::DestinationAttributes(attributes) => attributes.validate(),
            Self::LawChange(changes) => validate_law_change(changes),
            _ => Ok(()),
        }
    }

    /// The faults in it.
    pub fn faults(&mut self) -> Vec<&mut Fault> {
        match self {
            Self::Refuse(fault) | Self::Abort(fault) => vec![fault],
            Self::Entries(entries) => entries.iter_mut().filter_map(|entry| entry.kind.fault()).collect(),
            Self::Digests(digests) => digests.iter_mut().filter_map(|of| of.result.as_mut().err()).collect(),
            Self::Outcomes(outcomes) => outcomes.iter_mut().filter_map(|of| of.fault.as_mut()).collect(),
            Self::Removed(removal) => removal.fault.iter_mut().collect(),
            _ => Vec::new(),
        }
    }

    /// The name of the message's kind, for logs and errors.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Hello(_) => "hello",
            Self::Accept(_) => "accept",
            Self::Refuse(_) => "refuse",
            Self::UdpSeen { .. } => "udp-seen",
            Self::Entries(_) => "entries",
            Self::EntriesEnd { .. } => "entries-end",
            Self::Digests(_) => "digests",
            Self::Outcomes(_) => "outcomes",
            Self::Finish(_) => "finish",
            Self::ObjectSent { .. } => "object-sent",
            Self::Ping(_) => "ping",
            Self::Pong(_) => "pong",
            Self::Close => "close",
            Self::Abort(_) => "abort",
            Self::Counted(_) => "counted",
            Self::Quota { .. } => "quota",
            Self::Ready(_) => "ready",
            Self::Wants(_) => "wants",
            Self::More(_) => "more",
            Self::WantsEnd { .. } => "wants-end",
            Self::Proofs(_) => "proofs",
            Self::Items(_) => "items",
            Self::Extent(_) => "extent",
            Self::Removed(_) => "removed",
            Self::LeftOut(_) => "left-out",
            Self::Filtered(_) => "filtered",
            Self::DestinationLineage(_) => "destination-lineage",
            Self::DestinationAttributes(_) => "destination-attributes",
            Self::Transport(_) => "transport",
            Self::LawChange(_) => "law-change",
        }
    }
}
