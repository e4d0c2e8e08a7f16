//! What travels: packets, alone or as a batch of neighbours that share one event.

use haul_base::{Cause, Ecn};
use serde::{Deserialize, Serialize};

/// The most packets of one parcel; as many as every kernel with GSO takes (`UDP_MAX_SEGMENTS` of Linux 4.18).
pub const MAX_PARCEL: usize = 64;

/// Which flow a packet belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FlowId(pub u32);

/// One packet as a path sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketInfo {
    /// Chosen by the caller, who finds the bytes by it.
    pub id: u64,
    /// Whose it is.
    pub flow: FlowId,
    /// Bytes on the wire: the whole IP packet.
    pub bytes: u32,
    /// Its ECN bits.
    pub ecn: Ecn,
}

/// Why a packet died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropReason {
    /// The bottleneck's queue was full.
    QueueFull,
    /// Random early detection.
    Red,
    /// `CoDel`.
    Codel,
    /// More than a policer lets pass.
    Policed,
    /// Random loss.
    Random,
    /// The Gilbert-Elliott channel, in either state.
    GilbertElliott,
    /// The link was down.
    Outage,
    /// Longer than the path's MTU.
    TooLarge,
    /// Damaged, and found out by a checksum of the link.
    Corrupted,
    /// The receiving host's NIC had no free descriptor.
    NicRing,
    /// The receiving socket's buffer was full.
    SocketBuffer,
    /// Nobody listens there.
    NoReceiver,
    /// What carries the path had no room or came too late: of an emulator, never of the path.
    Carrier,
}

impl DropReason {
    /// Every reason, in the order of reports.
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

    /// What a perfect diagnosis would say. `None` for packets that were too large: most are probes of the path MTU,
    /// which no rate law counts as lost.
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

    /// The name in reports and scenario files.
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

/// What the path did to the bytes of a packet that it delivers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Damage {
    /// Nothing.
    #[default]
    None,
    /// One bit is flipped.
    Flip,
    /// The end is missing.
    Truncate,
}

impl Damage {
    /// Damages `packet`; which bit, or how much is left (at least one byte), follows from `salt` alone. Returns
    /// the new length.
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

/// One packet, or up to [`MAX_PARCEL`] packets of one flow that travel together: all of the same size but the
/// last, which may be shorter. Packets that were lost or went another way leave holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parcel {
    id: u64,
    /// Bit `i` is set if packet `i` is (still) in this parcel.
    present: u64,
    bytes: u32,
    last_bytes: u32,
    flow: FlowId,
    count: u8,
    ecn: Ecn,
    damage: Damage,
    origin: Origin,
}

/// Whether somebody sent the packets of a parcel or the path made them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// They were offered to the path.
    Sent,
    /// They are copies that a duplicating stage made.
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
    /// `count` packets like `first`, of which the last has `last_bytes` on the wire; `None` if there are none, or
    /// more than [`MAX_PARCEL`].
    pub fn batch(first: PacketInfo, count: usize, last_bytes: u32) -> Option<Self> {
        let present = match count {
            1..MAX_PARCEL => (1 << count) - 1,
            MAX_PARCEL => u64::MAX,
            _ => return None,
        };
        Some(Self { present, last_bytes, count: count as u8, ..Self::from(first) })
    }

    /// The caller's id of the whole batch.
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Whose packets these are.
    pub const fn flow(&self) -> FlowId {
        self.flow
    }

    /// The ECN bits of every packet in it.
    pub const fn ecn(&self) -> Ecn {
        self.ecn
    }

    /// What was done to the bytes of every packet in it.
    pub const fn damage(&self) -> Damage {
        self.damage
    }

    /// Whether these are copies.
    pub const fn origin(&self) -> Origin {
        self.origin
    }

    /// How many packets are in it.
    pub const fn packets(&self) -> u32 {
        self.present.count_ones()
    }

    /// How many packets it had when it was offered.
    pub const fn offered_packets(&self) -> usize {
        self.count as usize
    }

    /// Whether no packet is missing.
    pub const fn is_whole(&self) -> bool {
        self.packets() == self.count as u32
    }

    /// Bit `i` says whether packet `i` of the batch is in it.
    pub const fn present(&self) -> u64 {
        self.present
    }

    /// Bytes on the wire of packet `index`.
    pub const fn bytes_of(&self, index: usize) -> u32 {
        if index + 1 == self.count as usize { self.last_bytes } else { self.bytes }
    }

    /// Bytes on the wire of all packets in it.
    pub const fn bytes(&self) -> u64 {
        let last = 1 << (self.count - 1);
        let full = (self.present & !last).count_ones() as u64 * self.bytes as u64;
        if self.present & last == 0 { full } else { full + self.last_bytes as u64 }
    }

    /// The places of its packets in the batch, ascending.
    pub fn indices(&self) -> impl Iterator<Item = usize> + use<> {
        let mut left = self.present;
        std::iter::from_fn(move || {
            let index = (left != 0).then(|| left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(index)
        })
    }

    /// Runs of consecutive packets that are in it: place of the first, and how many.
    pub fn runs(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let mut left = self.present;
        std::iter::from_fn(move || {
            let first = (left != 0).then(|| left.trailing_zeros())?;
            let len = (left >> first).trailing_ones();
            left = if first + len >= 64 { 0 } else { left & (u64::MAX << (first + len)) };
            Some((first as usize, len as usize))
        })
    }

    /// The parcel with only those packets whose bits are set in `which`.
    #[must_use]
    pub const fn only(self, which: u64) -> Self {
        Self { present: self.present & which, ..self }
    }

    /// The parcel without those packets.
    #[must_use]
    pub const fn without(self, which: u64) -> Self {
        Self { present: self.present & !which, ..self }
    }

    /// The parcel with its first `count` packets only.
    #[must_use]
    pub fn first(self, count: u32) -> Self {
        // Each step takes the lowest bit away.
        let rest = (0..count).fold(self.present, |left, _| left & left.wrapping_sub(1));
        self.without(rest)
    }

    /// This parcel and another part of the same batch as one, if nothing tells them apart.
    pub fn joined(self, other: Self) -> Option<Self> {
        let alike = other.only(self.present) == self.only(other.present);
        let disjoint = self.present & other.present == 0;
        (alike && disjoint).then_some(Self { present: self.present | other.present, ..self })
    }

    /// The parcel as packets of `flow`.
    #[must_use]
    pub const fn of_flow(self, flow: FlowId) -> Self {
        Self { flow, ..self }
    }

    /// Whether no packet is left.
    pub const fn is_empty(&self) -> bool {
        self.present == 0
    }

    /// The parcel, each packet of it marked "congestion experienced".
    #[must_use]
    pub const fn marked(self) -> Self {
        Self { ecn: Ecn::Ce, ..self }
    }

    /// Whether a mark may stand for a drop (RFC 3168).
    pub const fn is_ecn_capable(&self) -> bool {
        !matches!(self.ecn, Ecn::NotEct)
    }

    /// The parcel, each packet of it damaged.
    #[must_use]
    pub const fn damaged(self, damage: Damage) -> Self {
        Self { damage, ..self }
    }

    /// The parcel as copies.
    #[must_use]
    pub const fn copied(self) -> Self {
        Self { origin: Origin::Copy, ..self }
    }

    /// Cuts the parcel, in order, into runs whose packets are all in `which` or all outside, and says which.
    pub fn cut(self, which: u64) -> impl Iterator<Item = (Self, bool)> {
        let mut rest = self;
        std::iter::from_fn(move || {
            let first = rest.indices().next()?;
            let inside = which >> first & 1 == 1;
            let others = rest.present & if inside { !which } else { which };
            let run = if others == 0 { rest } else { rest.only((others & others.wrapping_neg()) - 1) };
            rest = rest.without(run.present);
            Some((run, inside))
        })
    }
}

/// How a parcel, or what is left of it, left a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It came out at the far end.
    Delivered,
    /// It died.
    Dropped(DropReason),
    /// Not an exit but a birth: the path made copies of these packets, which leave later by themselves.
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
    fn bytes_follow_the_packets_that_are_left() {
        assert_eq!(batch(3).bytes(), 3_700);
        assert_eq!(batch(3).without(0b100).bytes(), 3_000);
        assert_eq!(batch(3).only(0b100).bytes(), 700);
        assert_eq!(batch(64).bytes(), 63 * 1_500 + 700);
        assert!(
            Parcel::batch(PacketInfo { id: 0, flow: FlowId(0), bytes: 1, ecn: Ecn::NotEct }, 65, 1).is_none()
        );
    }

    #[test]
    fn parts_of_one_batch_become_one_again() {
        let whole = batch(8);
        let (front, back) = (whole.first(3), whole.without(whole.first(3).present()));
        assert_eq!((front.present(), front.packets(), back.packets()), (0b111, 3, 5));
        assert_eq!(front.joined(back), Some(whole));
        assert_eq!(front.joined(front), None, "the same packets twice");
        assert_eq!(front.joined(back.marked()), None);
        assert_eq!(front.joined(back.damaged(Damage::Flip)), None);
        assert_eq!(whole.without(0b10).first(2).present(), 0b101, "holes do not count");
        assert_eq!(whole.first(64), whole);
    }

    proptest! {
        #[test]
        fn cutting_keeps_every_packet_and_the_order(count in 1usize..=64, lost in any::<u64>(), which in any::<u64>()) {
            let parcel = batch(count).without(lost);
            let parts: Vec<_> = parcel.cut(which).collect();
            let together = parts.iter().fold(0, |all, (part, _)| all | part.present());
            prop_assert_eq!(together, parcel.present());
            let order: Vec<usize> = parts.iter().flat_map(|(part, _)| part.indices()).collect();
            prop_assert_eq!(order, parcel.indices().collect::<Vec<_>>());
            for (part, inside) in &parts {
                prop_assert_eq!(part.present() & which, if *inside { part.present() } else { 0 });
            }
            prop_assert!(parts.windows(2).all(|w| w[0].1 != w[1].1));
        }

        #[test]
        fn runs_are_the_stretches_of_set_bits(count in 1usize..=64, lost in any::<u64>()) {
            let parcel = batch(count).without(lost);
            let flat: Vec<usize> = parcel.runs().flat_map(|(first, len)| first..first + len).collect();
            prop_assert_eq!(flat, parcel.indices().collect::<Vec<_>>());
        }
    }
}
