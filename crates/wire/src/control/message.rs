use serde::{Deserialize, Serialize};

use super::files::{validate_fault, validate_text};
use super::selection::validate_rules;
use super::{
    Accept, Counted, Destination, DestinationAttributes, DestinationLineage, Entry, Extent, Fault,
    FileDigest, Filtered, Hello, InvalidEntry, Item, MAX_NOTES, More, Outcome, Proof, Removal, Request,
    RequestRun, Rule, Summary,
};

/// A message of the control channel. New messages are added at the end: the position is the encoding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlMessage {
    /// Client to server, first message: authentication and request.
    Hello(Hello),
    /// Server to client: accepts the session.
    Accept(Accept),
    /// Server to client: refuses the session; the server closes the channel.
    Refuse(Fault),
    /// Server to client: the first control frame of the UDP path was authenticated.
    UdpSeen {
        /// Size of that datagram in UDP payload bytes.
        size: u16,
    },
    /// Sender to receiver: the next entries of the set.
    Entries(Vec<Entry>),
    /// Sender to receiver: the set has no further entries.
    EntriesEnd {
        /// Number of entries.
        entries: u64,
        /// Sum of the lengths of the regular files' streams.
        bytes: u64,
    },
    /// Sender to receiver: digests of regular files, in any order.
    Digests(Vec<FileDigest>),
    /// Receiver to sender: entries whose outcome is final, in any order.
    Outcomes(Vec<Outcome>),
    /// Receiver to sender: all outcomes are final. The sender answers [`ControlMessage::Close`].
    Finish(Summary),
    /// Bench, sender to receiver: final length of the object.
    ObjectSent {
        /// Length of the object.
        bytes: u64,
    },
    /// Keep-alive request with any number.
    Ping(u64),
    /// Answer to a ping, with its number.
    Pong(u64),
    /// Graceful end; the channel closes.
    Close,
    /// Abnormal end; the channel closes.
    Abort(Fault),
    /// Both directions, before the last message ([`ControlMessage::Finish`], [`ControlMessage::ObjectSent`]
    /// or [`ControlMessage::Close`]), and once a minute while a side of a file job makes progress: counters.
    Counted(Counted),
    /// Receiver to sender, its first message: whether the destination may contain something already.
    Ready(Destination),
    /// Receiver to sender, unless the destination is fresh: what to send of the next entries, in order.
    EntryRequests(Vec<RequestRun>),
    /// Receiver to sender: further ranges to send, as the existing data is different.
    More(More),
    /// Receiver to sender, unless the destination is fresh: the last request.
    EntryRequestsEnd {
        /// Length of the object: the sum of all requested ranges.
        bytes: u64,
    },
    /// Sender to receiver: hashes of groups of files' streams.
    Proofs(Vec<Proof>),
    /// Receiver to sender: changes that are made to names, or would be.
    Items(Vec<Item>),
    /// Sender to receiver, before [`ControlMessage::EntriesEnd`]: which names the set covers completely.
    /// Without this message, none.
    Extent(Extent),
    /// Receiver to sender, before [`ControlMessage::Finish`]: result of deleting names that the set does not
    /// have.
    Removed(Removal),
    /// Receiver to sender, at any time: limits the rate of this one of several senders.
    Quota {
        /// Bits per second of UDP payload; `u64::MAX` for no limit.
        rate_bps: u64,
    },
    /// Sender to receiver, before [`ControlMessage::Extent`]: the rules by which names were excluded from the
    /// set; several messages are appended. The receiver does not delete names that the rules exclude.
    LeftOut(Vec<Rule>),
    /// Sender to receiver, before [`ControlMessage::Extent`]: names excluded from the set by other means than
    /// rules; several messages are appended.
    Filtered(Filtered),
    /// Receiver to sender, before [`ControlMessage::Ready`]: location of the destination.
    DestinationLineage(DestinationLineage),
    /// Sender to receiver, before the entries of the first source that stands for its contents: attributes of
    /// the destination itself.
    DestinationAttributes(DestinationAttributes),
    /// Both directions, while data is transferred: a message of the transport, at most [`MAX_TRANSPORT`]
    /// bytes, with a meaning defined by the recipe. Only if the recipe sends reports on the control channel.
    Transport(Vec<u8>),
    /// Receiver to sender, at any time, from a client to a server or, for byte streams, in both directions:
    /// parameters of the recipe's `rate_control` and their new values, at most [`MAX_LAW_CHANGES`] with
    /// [`MAX_LAW_CHANGE_BYTES`]. Limits set by the sender remain in force.
    LawChange(Vec<(String, String)>),
}

/// Maximum length of a transport message.
pub const MAX_TRANSPORT: usize = 1 << 16;
/// Maximum number of parameters in one [`ControlMessage::LawChange`].
pub const MAX_LAW_CHANGES: usize = 64;
/// Maximum length of their names and values together: enough for many rules of `switch`.
pub const MAX_LAW_CHANGE_BYTES: usize = 8 << 10;

fn validate_law_change(changes: &[(String, String)]) -> Result<(), InvalidEntry> {
    let bytes: usize = changes.iter().map(|(name, value)| name.len() + value.len()).sum();
    let is_bounded = changes.len() <= MAX_LAW_CHANGES && bytes <= MAX_LAW_CHANGE_BYTES;
    if is_bounded { Ok(()) } else { Err(InvalidEntry::LawChange) }
}

impl ControlMessage {
    /// Checks the ranges that the types do not enforce, as encoding and decoding do.
    ///
    /// # Errors
    /// The first limit that the message violates.
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
            Self::Removed(removal) => removal.fault.iter().try_for_each(validate_fault),
            Self::Finish(Summary { notes, .. }) if notes.first.len() > MAX_NOTES => Err(InvalidEntry::Notes),
            Self::Finish(Summary { notes, .. }) => {
                notes.first.iter().try_for_each(|note| validate_text(note.len()))
            }
            Self::LeftOut(rules) => Ok(validate_rules(rules)?),
            Self::DestinationLineage(lineage) => lineage.validate(),
            Self::DestinationAttributes(attributes) => attributes.validate(),
            Self::LawChange(changes) => validate_law_change(changes),
            _ => Ok(()),
        }
    }

    /// Returns the faults in the message.
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

    /// Returns the name of the message's kind, for logs and errors.
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
            Self::EntryRequests(_) => "wants",
            Self::More(_) => "more",
            Self::EntryRequestsEnd { .. } => "wants-end",
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
