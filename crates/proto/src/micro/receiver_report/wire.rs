//! The layout of a report: counters, then a bitmap of the newest packets.

use haul_base::Span;
use haul_stack::Kind;

use crate::micro::events::ReceiverCounters;

/// Packet kind of a report.
pub(super) const REPORT: Kind = Kind(19);
/// Maximum number of words of 64 packet numbers in a report.
pub(super) const MAX_WORDS: usize = 64;
/// Bytes before the words.
pub(super) const FIXED: usize = 64;

/// The fixed part of a report.
///
/// `largest u64 | packets u64 | bytes u64 | first word u64`, then eight u32:
/// `received at | echo delay, us | read delay, us | duplicates | ECN-CE | socket drops | buffers | 0`. Words
/// of 64 bits follow: packets `64 n` to `64 n + 63` each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Largest packet number that has arrived.
    pub(super) largest_pn: u64,
    /// UDP payload bytes of received data packets, whose number is [`ReceiverCounters::packets`].
    pub(super) bytes: u64,
    /// Number of the first word: it starts with packet 64 times this.
    pub(super) first_word: u64,
    /// When the receiver's kernel received the last packet, in wrapped microseconds of the receiver's clock.
    pub(super) received_at: u32,
    /// Time between the arrival of packet `largest_pn` in the kernel and the report.
    pub(super) echo_delay: Span,
    pub(super) counters: ReceiverCounters,
}

fn micros(span: Span) -> u32 {
    u32::try_from(span.as_micros()).unwrap_or(u32::MAX)
}

impl Head {
    /// Writes the fixed part into [`FIXED`] bytes.
    pub(super) fn write(&self, into: &mut [u8]) {
        let ReceiverCounters { packets, duplicates, ecn_ce, socket_drops, buffers, read_delay_us } =
            self.counters;
        let long = [self.largest_pn, packets, self.bytes, self.first_word];
        let short = [
            self.received_at,
            micros(self.echo_delay),
            read_delay_us,
            duplicates,
            ecn_ce,
            socket_drops,
            buffers,
            0,
        ];
        let (longs, shorts) = into.split_at_mut(long.len() * 8);
        longs
            .chunks_exact_mut(8)
            .zip(long)
            .for_each(|(bytes, value)| bytes.copy_from_slice(&value.to_be_bytes()));
        shorts
            .chunks_exact_mut(4)
            .zip(short)
            .for_each(|(bytes, value)| bytes.copy_from_slice(&value.to_be_bytes()));
    }

    /// Parses a report; `None` if it is malformed.
    pub(super) fn read(body: &[u8]) -> Option<(Self, ArrivedBits<'_>)> {
        let (fixed, words) = body.split_at_checked(FIXED)?;
        let long = |n: usize| u64::from_be_bytes(fixed[n * 8..][..8].try_into().expect("eight bytes"));
        let short = |n: usize| u32::from_be_bytes(fixed[32 + n * 4..][..4].try_into().expect("four bytes"));
        let head = Self {
            largest_pn: long(0),
            bytes: long(2),
            first_word: long(3),
            received_at: short(0),
            echo_delay: Span::from_micros(u64::from(short(1))),
            counters: ReceiverCounters {
                packets: long(1),
                duplicates: short(3),
                ecn_ce: short(4),
                socket_drops: short(5),
                buffers: short(6),
                read_delay_us: short(2),
            },
        };
        let count = words.len() / 8;
        let fits = words.len() % 8 == 0 && (1..=MAX_WORDS).contains(&count);
        let reaches =
            head.first_word.checked_add(count as u64 - u64::from(fits)) == Some(head.largest_pn / 64);
        (fits && reaches).then_some((head, ArrivedBits { first: head.first_word, bytes: words }))
    }
}

/// Bits of a report: the packets that have arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArrivedBits<'b> {
    first: u64,
    bytes: &'b [u8],
}

impl ArrivedBits<'_> {
    /// Whether the packet has arrived. Packets below the first word count as missing.
    pub(super) fn has(&self, pn: u64) -> bool {
        let at = (pn / 64).checked_sub(self.first).and_then(|word| usize::try_from(word).ok());
        let word = at.and_then(|word| self.bytes.chunks_exact(8).nth(word));
        word.is_some_and(|word| word[7 - (pn % 64 / 8) as usize] >> (pn % 8) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_round_trips_and_other_lengths_are_invalid() {
        let counters = ReceiverCounters {
            packets: 90,
            duplicates: 1,
            ecn_ce: 2,
            socket_drops: 3,
            buffers: 4,
            read_delay_us: 5,
        };
        let head = Head {
            largest_pn: 130,
            bytes: 90_000,
            first_word: 1,
            received_at: 7,
            echo_delay: Span::from_micros(8),
            counters,
        };
        let mut body = vec![0; FIXED];
        head.write(&mut body);
        for word in [1u64 << 63 | 1, 0b110] {
            body.extend(word.to_be_bytes());
        }
        let (read, words) = Head::read(&body).unwrap();
        assert_eq!(read, head);
        let arrived: Vec<u64> = (0..400).filter(|&pn| words.has(pn)).collect();
        assert_eq!(arrived, [64, 127, 129, 130]);
        for len in (0..body.len()).chain([body.len() + 1, body.len() + 8]) {
            let mut other = body.clone();
            other.resize(len, 0);
            assert!(Head::read(&other).is_none(), "{len}");
        }
    }
}
