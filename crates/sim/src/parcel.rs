//! Packets in transit, single or as batches of adjacent packets that share one event.

use haul_base::{Cause, Ecn};
use serde::{Deserialize, Serialize};

/// Maximum packets per parcel: what every kernel with GSO accepts (`UDP_MAX_SEGMENTS`, Linux 4.18).
pub const MAX_PARCEL: usize = 64;

/// Identifies a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FlowId(pub u32);

/// Packet as a path sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketInfo {
    /// Identifier chosen by the caller to find the packet's bytes.
    pub id: u64,
    /// Flow of the packet.
    pub flow: FlowId,
    /// Bytes on the wire: the whole IP packet.
    pub bytes: u32,
    /// ECN codepoint.
    pub ecn: Ecn,
}

/// Reason for dropping a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropReason {
    /// The bottleneck's queue was full.
    QueueFull,
    /// Dropped by random early detection.
    Red,
    /// Dropped by `CoDel`.
    Codel,
    /// Exceeded a policer's rate.
    Policed,
    /// Random loss.
    Random,
    /// Lost by the Gilbert-Elliott channel, in either state.
    GilbertElliott,
    /// The link was down.
    Outage,
    /// Longer than the path's MTU.
    TooLarge,
    /// Damaged, and detected by a checksum of the link.
    Corrupted,
    /// The receiving host's NIC had no free descriptor.
    NicRing,
    /// The receiving socket's buffer was full.
    SocketBuffer,
    /// No receiver exists at the destination.
    NoReceiver,
    /// The emulator had no buffer for the packet or was too late: never a property of the path.
    Carrier,
}

impl DropReason {
    /// All reasons, in the order of reports.
    pub const ALL: [Self; 13] = [
        Self::QueueFull,
        Self::Red,
        Self::Codel,
        Self::Policed,
        Self::Random,
        Self::GilbertElliott,
        Self::Outage,
        Self::TooLarge,
        Self::Corrupted,
        Self::NicRing,
        Self::SocketBuffer,
        Self::NoReceiver,
        Self::Carrier,
    ];

    /// Returns what a perfect diagnosis would report. `None` for packets that were too large: most of
    /// them are path MTU probes, which no control law counts as lost.
    pub const fn cause(self) -> Option<Cause> {
        Some(match self {
            Self::QueueFull | Self::Red | Self::Codel | Self::Policed => Cause::Congestion,
            Self::Random | Self::GilbertElliott | Self::Corrupted => Cause::Random,
            Self::Outage => Cause::Outage,
            Self::NicRing | Self::SocketBuffer => Cause::ReceiverHost,
            Self::NoReceiver | Self::Carrier => Cause::Inconclusive,
            Self::TooLarge => return None,
        })
    }

    /// Returns the name used in reports and scenario files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::Red => "red",
            Self::Codel => "codel",
            Self::Policed => "policed",
            Self::Random => "random",
            Self::GilbertElliott => "gilbert_elliott",
            Self::Outage => "outage",
            Self::TooLarge => "too_large",
            Self::Corrupted => "corrupted",
            Self::NicRing => "nic_ring",
            Self::SocketBuffer => "socket_buffer",
            Self::NoReceiver => "no_receiver",
            Self::Carrier => "carrier",
        }
    }
}

/// Damage that the path does to a delivered packet's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Damage {
    /// No damage.
    #[default]
    None,
    /// One bit is flipped.
    Flip,
    /// The packet is truncated.
    Truncate,
}

impl Damage {
    /// Damages `packet` and returns its new length, at least one byte. The flipped bit or the remaining
    /// length depends on `salt` alone.
    pub fn apply(self, packet: &mut [u8], salt: u64) -> usize {
        let len = packet.len();
        if len == 0 || self == Self::None {
            return len;
        }
        let mut rng = haul_base::Rng::from_seed(salt);
        let at = rng.below(len as u64) as usize;
        if self == Self::Truncate {
            return at.max(1);
        }
        packet[at] ^= 1 << rng.below(8);
        len
    }
}

/// One packet, or up to [`MAX_PARCEL`] packets of one flow that travel together. All have the same size
/// but the last, which may be shorter. Packets that were lost or took another way leave holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parcel {
    id: u64,
    /// Bit `i` is set while packet `i` is in this parcel.
    present: u64,
    bytes: u32,
    last_bytes: u32,
    flow: FlowId,
    count: u8,
    ecn: Ecn,
    damage: Damage,
    origin: Origin,
}

/// Whether the packets of a parcel were sent or made by the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Offered to the path.
    Sent,
    /// Copies made by a duplicating stage.
    Copy,
}

impl From<PacketInfo> for Parcel {
    fn from(packet: PacketInfo) -> Self {
        let PacketInfo { id, flow, bytes, ecn } = packet;
        Self {
            id,
            present: 1,
            bytes,
            last_bytes: bytes,
            flow,
            count: 1,
            ecn,
            damage: Damage::None,
            origin: Origin::Sent,
        }
    }
}

impl Parcel {
    /// Creates a parcel of `count` packets like `first`, the last with `last_bytes` on the wire. Returns
    /// `None` if `count` is 0 or above [`MAX_PARCEL`].
    pub fn batch(first: PacketInfo, count: usize, last_bytes: u32) -> Option<Self> {
        let present = match count {
            1..MAX_PARCEL => (1 << count) - 1,
            MAX_PARCEL => u64::MAX,
            _ => return None,
        };
        Some(Self { present, last_bytes, count: count as u8, ..Self::from(first) })
    }

    /// Returns the caller's identifier of the whole batch.
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Returns the flow of the packets.
    pub const fn flow(&self) -> FlowId {
        self.flow
    }

    /// Returns the ECN codepoint that all packets share.
    pub const fn ecn(&self) -> Ecn {
        self.ecn
    }

    /// Returns the damage done to every packet.
    pub const fn damage(&self) -> Damage {
        self.damage
    }

    /// Returns whether the packets were sent or are copies.
    pub const fn origin(&self) -> Origin {
        self.origin
    }

    /// Returns the number of packets in the parcel.
    pub const fn packets(&self) -> u32 {
        self.present.count_ones()
    }

    /// Returns the number of packets when the parcel was offered.
    pub const fn offered_packets(&self) -> usize {
        self.count as usize
    }

    /// Whether all packets of the batch are still present.
    pub const fn is_complete(&self) -> bool {
        self.packets() == self.count as u32
    }

    /// Returns the presence bitmap: bit `i` stands for packet `i` of the batch.
    pub const fn present(&self) -> u64 {
        self.present
    }

    /// Returns the bytes on the wire of packet `index`.
    pub const fn bytes_of(&self, index: usize) -> u32 {
        if index + 1 == self.count as usize { self.last_bytes } else { self.bytes }
    }

    /// Returns the bytes on the wire of all packets present.
    pub const fn bytes(&self) -> u64 {
        let last = 1 << (self.count - 1);
        let full = (self.present & !last).count_ones() as u64 * self.bytes as u64;
        if self.present & last == 0 { full } else { full + self.last_bytes as u64 }
    }

    /// Returns the indices of the packets present, ascending.
    pub fn indices(&self) -> impl Iterator<Item = usize> + use<> {
        let mut remaining = self.present;
        std::iter::from_fn(move || {
            let index = (remaining != 0).then(|| remaining.trailing_zeros() as usize)?;
            remaining &= remaining - 1;
            Some(index)
        })
    }

    /// Returns the runs of consecutive packets present: index of the first and length.
    pub fn runs(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let mut remaining = self.present;
        std::iter::from_fn(move || {
            let first = (remaining != 0).then(|| remaining.trailing_zeros())?;
            let len = (remaining >> first).trailing_ones();
            remaining = if first + len >= 64 { 0 } else { remaining & (u64::MAX << (first + len)) };
            Some((first as usize, len as usize))
        })
    }

    /// Keeps only the packets whose bits are set in `which`.
    #[must_use]
    pub const fn only(self, which: u64) -> Self {
        Self { present: self.present & which, ..self }
    }

    /// Removes the packets whose bits are set in `which`.
    #[must_use]
    pub const fn without(self, which: u64) -> Self {
        Self { present: self.present & !which, ..self }
    }

    /// Keeps only the first `count` packets.
    #[must_use]
    pub fn first(self, count: u32) -> Self {
        // Each step clears the lowest set bit.
        let rest = (0..count).fold(self.present, |remaining, _| remaining & remaining.wrapping_sub(1));
        self.without(rest)
    }

    /// Merges two parts of the same batch, if they differ in nothing but their packets.
    pub fn joined(self, other: Self) -> Option<Self> {
        let alike = other.only(self.present) == self.only(other.present);
        let disjoint = self.present & other.present == 0;
        (alike && disjoint).then_some(Self { present: self.present | other.present, ..self })
    }

    /// Assigns the packets to `flow`.
    #[must_use]
    pub const fn of_flow(self, flow: FlowId) -> Self {
        Self { flow, ..self }
    }

    /// Whether no packet is present.
    pub const fn is_empty(&self) -> bool {
        self.present == 0
    }

    /// Marks each packet "congestion experienced".
    #[must_use]
    pub const fn marked(self) -> Self {
        Self { ecn: Ecn::Ce, ..self }
    }

    /// Whether the packets may be marked instead of dropped (RFC 3168).
    pub const fn is_ecn_capable(&self) -> bool {
        !matches!(self.ecn, Ecn::NotEct)
    }

    /// Marks each packet as damaged.
    #[must_use]
    pub const fn damaged(self, damage: Damage) -> Self {
        Self { damage, ..self }
    }

    /// Turns the packets into copies.
    #[must_use]
    pub const fn copied(self) -> Self {
        Self { origin: Origin::Copy, ..self }
    }

    /// Splits the parcel, in order, into runs entirely inside (`true`) or outside (`false`) `which`.
    pub fn cut(self, which: u64) -> impl Iterator<Item = (Self, bool)> {
        let mut rest = self;
        std::iter::from_fn(move || {
            let first = rest.indices().next()?;
            let is_chosen = which >> first & 1 == 1;
            let others = rest.present & if is_chosen { !which } else { which };
            let run = if others == 0 { rest } else { rest.only((others & others.wrapping_neg()) - 1) };
            rest = rest.without(run.present);
            Some((run, is_chosen))
        })
    }
}

/// How packets left a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// They were delivered at the far end.
    Delivered,
    /// They were dropped.
    Dropped(DropReason),
    /// Not an exit: the path made copies of these packets, which leave separately.
    Copied,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn batch(count: usize) -> Parcel {
        let first = PacketInfo { id: 1, flow: FlowId(0), bytes: 1_500, ecn: Ecn::NotEct };
        Parcel::batch(first, count, 700).unwrap()
    }

    #[test]
    fn bytes_follow_the_remaining_packets() {
        assert_eq!(batch(3).bytes(), 3_700);
        assert_eq!(batch(3).without(0b100).bytes(), 3_000);
        assert_eq!(batch(3).only(0b100).bytes(), 700);
        assert_eq!(batch(64).bytes(), 63 * 1_500 + 700);
        assert!(
            Parcel::batch(PacketInfo { id: 0, flow: FlowId(0), bytes: 1, ecn: Ecn::NotEct }, 65, 1).is_none()
        );
    }

    #[test]
    fn parts_of_one_batch_are_rejoined() {
        let full_batch = batch(8);
        let (front, back) = (full_batch.first(3), full_batch.without(full_batch.first(3).present()));
        assert_eq!((front.present(), front.packets(), back.packets()), (0b111, 3, 5));
        assert_eq!(front.joined(back), Some(full_batch));
        assert_eq!(front.joined(front), None, "the same packets twice");
        assert_eq!(front.joined(back.marked()), None);
        assert_eq!(front.joined(back.damaged(Damage::Flip)), None);
        assert_eq!(full_batch.without(0b10).first(2).present(), 0b101, "holes do not count");
        assert_eq!(full_batch.first(64), full_batch);
    }

    proptest! {
        #[test]
        fn splitting_keeps_every_packet_and_the_order(count in 1usize..=64, lost in any::<u64>(), which in any::<u64>()) {
            let parcel = batch(count).without(lost);
            let parts: Vec<_> = parcel.cut(which).collect();
            let together = parts.iter().fold(0, |all, (part, _)| all | part.present());
            prop_assert_eq!(together, parcel.present());
            let order: Vec<usize> = parts.iter().flat_map(|(part, _)| part.indices()).collect();
            prop_assert_eq!(order, parcel.indices().collect::<Vec<_>>());
            for (part, is_chosen) in &parts {
                prop_assert_eq!(part.present() & which, if *is_chosen { part.present() } else { 0 });
            }
            prop_assert!(parts.windows(2).all(|w| w[0].1 != w[1].1));
        }

        #[test]
        fn runs_are_ranges_of_set_bits(count in 1usize..=64, lost in any::<u64>()) {
            let parcel = batch(count).without(lost);
            let flat: Vec<usize> = parcel.runs().flat_map(|(first, len)| first..first + len).collect();
            prop_assert_eq!(flat, parcel.indices().collect::<Vec<_>>());
        }
    }
}
