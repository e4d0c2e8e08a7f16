use haul_base::{HostSample, Span};

use super::field::{Reader, Writer, split};
use super::{LAST_WORD_BITS, MAX_SEQ, PacketError, SEGMENT_PACKETS, SEGMENT_WORDS};

/// Length of the fields that all feedback has; the host sample, if present, and the blocks follow.
pub const FEEDBACK_HEADER_LEN: usize = 82;
/// Length of a host sample.
pub const HOST_SAMPLE_LEN: usize = 26;
/// Length of a block before its words.
pub const BLOCK_HEADER_LEN: usize = 7;

const CONTROL_FRAME_LEN: usize = 8;

/// State of the data's receiver, as totals since the session began, so that a lost feedback packet costs
/// nothing. The first four fields are valid only if `packets` is not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct FeedbackHeader {
    /// Largest packet number that arrived.
    pub largest_pn: u64,
    /// Timestamp of the last data packet received: microseconds of the sender's clock, wrapped.
    pub echo_timestamp: u32,
    /// Time since it arrived in microseconds.
    pub echo_delay_us: u32,
    /// When the receiver's kernel received the last data packet: microseconds of the receiver's clock,
    /// wrapped.
    pub received_at: u32,
    /// Authentic data packets received, including duplicates; 48 bits.
    pub packets: u64,
    /// UDP payload bytes of those packets, including headers and duplicates, but not packets dropped for lack
    /// of memory: the sender measures the delivery rate with it.
    pub bytes: u64,
    /// Duplicate data packets received, wrapping.
    pub duplicates: u32,
    /// Packets marked "congestion experienced" (RFC 3168), wrapping.
    pub ecn_ce: u32,
    /// Socket buffers that the receiver's kernel dropped because the receive buffer was full, wrapping.
    pub socket_drops: u32,
    /// Datagrams that failed authentication or parsing, wrapping.
    pub rejected: u32,
    /// Size of the last PROBE received in UDP payload bytes; 0 before the first.
    pub last_probe: u16,
    /// Flow control: the sender may send bytes of the object below this offset.
    pub limit: u64,
    /// All packets with lower sequence numbers were received.
    pub complete_below: u64,
    /// Highest sequence number received plus 1; 0 before the first. At least `complete_below`.
    pub highest: u64,
    /// Time that the last data packet spent in the receiver's kernel in microseconds: it was read at
    /// `received_at` plus this.
    pub read_delay_us: u32,
    /// Buffers in which data packets were read, wrapping: `packets` divided by this is the mean GRO batch.
    pub buffers: u32,
    /// When the feedback was sent: microseconds of the receiver's clock, wrapped.
    pub sent_at: u32,
    /// Load of the receiving host, if sampled since the previous feedback.
    pub host: Option<HostSample>,
}

impl FeedbackHeader {
    fn read(fields: &[u8; FEEDBACK_HEADER_LEN]) -> Self {
        let mut fields = Reader(fields);
        Self {
            largest_pn: fields.u48(),
            echo_timestamp: fields.u32(),
            echo_delay_us: fields.u32(),
            received_at: fields.u32(),
            packets: fields.u48(),
            bytes: fields.u64(),
            duplicates: fields.u32(),
            ecn_ce: fields.u32(),
            socket_drops: fields.u32(),
            rejected: fields.u32(),
            last_probe: fields.u16(),
            limit: fields.u48(),
            complete_below: fields.u48(),
            highest: fields.u48(),
            read_delay_us: fields.u32(),
            buffers: fields.u32(),
            sent_at: fields.u32(),
            host: None,
        }
    }

    /// Returns the encoded length of the fields, including the host sample if present.
    pub const fn encoded_len(&self) -> usize {
        FEEDBACK_HEADER_LEN + if self.host.is_some() { HOST_SAMPLE_LEN } else { 0 }
    }

    /// Parses the fields of a plaintext body, without the blocks.
    ///
    /// # Errors
    /// [`PacketError::Truncated`]; [`PacketError::Sequence`] above the limit; [`PacketError::Contradiction`]
    /// if the fields are inconsistent.
    pub fn parse(body: &[u8]) -> Result<Self, PacketError> {
        Self::split(body).map(|(header, _)| header)
    }

    /// Parses the fields and returns what follows them.
    fn split(body: &[u8]) -> Result<(Self, &[u8]), PacketError> {
        let (fields, mut rest) = split::<FEEDBACK_HEADER_LEN>(body)?;
        let mut header = Self::read(fields);
        let [.., high, low] = *fields;
        let known = u16::from_be_bytes([high, low]);
        if known & HOST_PRESENT != 0 {
            let (sample, blocks) = split::<HOST_SAMPLE_LEN>(rest)?;
            let host = read_host(known, sample);
            // Unknown fields must be zero, so that a sample has exactly one encoding.
            let mut rewritten = [0; HOST_SAMPLE_LEN];
            if write_host(&host, &mut rewritten) != known || rewritten != *sample {
                return Err(PacketError::Contradiction);
            }
            header.host = Some(host);
            rest = blocks;
        } else if known != 0 {
            return Err(PacketError::Contradiction);
        }
        header.check()?;
        Ok((header, rest))
    }

    fn check(&self) -> Result<(), PacketError> {
        let header = self;
        if header.highest > MAX_SEQ + 1 {
            return Err(PacketError::Sequence(header.highest));
        }
        if header.complete_below > header.highest {
            return Err(PacketError::Contradiction);
        }
        Ok(())
    }

    /// Writes the fields to the start of `body`.
    ///
    /// # Panics
    /// If `body` is shorter than [`FeedbackHeader::encoded_len`].
    pub fn write(&self, body: &mut [u8]) {
        debug_assert!(self.complete_below <= self.highest && self.highest <= MAX_SEQ + 1);
        let (fields, rest) = body.split_at_mut(FEEDBACK_HEADER_LEN);
        let known = self.host.map_or(0, |host| write_host(&host, &mut rest[..HOST_SAMPLE_LEN]));
        Writer(fields)
            .u48(self.largest_pn)
            .u32(self.echo_timestamp)
            .u32(self.echo_delay_us)
            .u32(self.received_at)
            .u48(self.packets)
            .u64(self.bytes)
            .u32(self.duplicates)
            .u32(self.ecn_ce)
            .u32(self.socket_drops)
            .u32(self.rejected)
            .u16(self.last_probe)
            .u48(self.limit)
            .u48(self.complete_below)
            .u48(self.highest)
            .u32(self.read_delay_us)
            .u32(self.buffers)
            .u32(self.sent_at)
            .u16(known);
    }
}

/// Bit for the presence of a host sample; the bits above are for its known fields, in their order.
const HOST_PRESENT: u16 = 1;

fn read_host(known: u16, sample: &[u8; HOST_SAMPLE_LEN]) -> HostSample {
    let mut fields = Reader(sample);
    let mut bit = HOST_PRESENT;
    let mut is_known = || {
        bit <<= 1;
        known & bit != 0
    };
    let span = |micros: u32| Span::from_micros(u64::from(micros));
    HostSample {
        run_delay: Some(span(fields.u32())).filter(|_| is_known()),
        socket_fill: Some(fields.u16()).filter(|_| is_known()),
        involuntary_switches: Some(fields.u32()).filter(|_| is_known()),
        cpu_pressure: Some(fields.u16()).filter(|_| is_known()),
        steal: Some(span(fields.u32())).filter(|_| is_known()),
        sleep_average: Some(span(fields.u32())).filter(|_| is_known()),
        disk_pressure: Some(fields.u16()).filter(|_| is_known()),
        early_drops: Some(fields.u32()).filter(|_| is_known()),
    }
}

/// Writes a sample; returns the bits of its known fields.
fn write_host(host: &HostSample, into: &mut [u8]) -> u16 {
    // Spans above 71 minutes are clamped, not wrapped.
    let micros =
        |span: Option<Span>| u32::try_from(span.unwrap_or(Span::ZERO).as_micros()).unwrap_or(u32::MAX);
    Writer(into)
        .u32(micros(host.run_delay))
        .u16(host.socket_fill.unwrap_or(0))
        .u32(host.involuntary_switches.unwrap_or(0))
        .u16(host.cpu_pressure.unwrap_or(0))
        .u32(micros(host.steal))
        .u32(micros(host.sleep_average))
        .u16(host.disk_pressure.unwrap_or(0))
        .u32(host.early_drops.unwrap_or(0));
    let known = [
        true,
        host.run_delay.is_some(),
        host.socket_fill.is_some(),
        host.involuntary_switches.is_some(),
        host.cpu_pressure.is_some(),
        host.steal.is_some(),
        host.sleep_average.is_some(),
        host.disk_pressure.is_some(),
        host.early_drops.is_some(),
    ];
    known.iter().enumerate().fold(0, |bits, (i, &known)| bits | u16::from(known) << i)
}

/// How a block encodes which packets were received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Encoding {
    /// In its words: 1 for a received packet.
    Bits = 0,
    /// None of its packets were received.
    AllMissing = 1,
    /// All of its packets were received.
    AllReceived = 2,
}

impl Encoding {
    const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Bits,
            1 => Self::AllMissing,
            2 => Self::AllReceived,
            _ => return None,
        })
    }
}

/// Returns the used bits of word `word` of a segment's bitmap: all, or the low 16 of the last word.
const fn word_mask(word: usize) -> u64 {
    if word + 1 == SEGMENT_WORDS { (1 << LAST_WORD_BITS) - 1 } else { u64::MAX }
}

/// A range of one segment's bitmap. Bit `b` (of value `1 << b`) of word `w` is for sequence number
/// `segment * 10,000 + w * 64 + b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block<'a> {
    /// Number of the segment.
    pub segment: u32,
    /// First word of the segment's bitmap in the block.
    pub first_word: usize,
    /// Number of words, at least 1; `first_word + words` is at most [`SEGMENT_WORDS`].
    pub words: usize,
    /// Encoding of the block.
    pub encoding: Encoding,
    bits: &'a [[u8; CONTROL_FRAME_LEN]],
}

impl<'a> Block<'a> {
    /// Parses one block at the start of `bytes`; returns what follows it.
    fn split(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), PacketError> {
        let (fields, rest) = split::<BLOCK_HEADER_LEN>(bytes)?;
        let mut fields = Reader(fields);
        let segment = fields.u32();
        let first_word = usize::from(fields.u8());
        let words = usize::from(fields.u8());
        let encoding = Encoding::from_byte(fields.u8()).ok_or(PacketError::Block)?;
        if words == 0 || first_word + words > SEGMENT_WORDS {
            return Err(PacketError::Block);
        }
        let len = if encoding == Encoding::Bits { words * CONTROL_FRAME_LEN } else { 0 };
        let (bits, rest) =
            rest.split_at_checked(len).ok_or(PacketError::Truncated { len: rest.len(), needed: len })?;
        let block = Self { segment, first_word, words, encoding, bits: bits.as_chunks().0 };
        let last = words - 1;
        if encoding == Encoding::Bits && block.word(last) & !word_mask(first_word + last) != 0 {
            return Err(PacketError::Block);
        }
        Ok((block, rest))
    }

    /// Returns the `i`-th word of the block, for any encoding: 1 for a received packet. Unused bits are 0.
    ///
    /// # Panics
    /// If `i` is not below `words`.
    #[inline]
    pub fn word(&self, i: usize) -> u64 {
        assert!(i < self.words, "word {i} of a block of {}", self.words);
        match self.encoding {
            Encoding::Bits => u64::from_be_bytes(self.bits[i]),
            Encoding::AllMissing => 0,
            Encoding::AllReceived => word_mask(self.first_word + i),
        }
    }

    /// Iterates over the words of the block in order, as returned by [`Block::word`].
    pub fn bitmap(self) -> impl ExactSizeIterator<Item = u64> + use<'a> {
        (0..self.words).map(move |i| self.word(i))
    }

    /// Returns the sequence number of the first bit of the first word.
    pub fn first_seq(&self) -> u64 {
        u64::from(self.segment) * SEGMENT_PACKETS + self.first_word as u64 * 64
    }
}

/// A validated feedback body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedbackView<'a> {
    /// The fields before the blocks.
    pub header: FeedbackHeader,
    blocks: &'a [u8],
}

impl<'a> FeedbackView<'a> {
    /// Parses a plaintext body and validates every block, so that iteration cannot fail.
    ///
    /// # Errors
    /// As [`FeedbackHeader::parse`], and the error of the first invalid block.
    pub fn parse(body: &'a [u8]) -> Result<Self, PacketError> {
        let (header, blocks) = FeedbackHeader::split(body)?;
        let mut rest = blocks;
        while !rest.is_empty() {
            rest = Block::split(rest)?.1;
        }
        Ok(Self { header, blocks })
    }

    /// Iterates over the blocks in the order in which they were written. They may be in any order and
    /// overlap: a packet was received if any block says so.
    pub const fn blocks(&self) -> Blocks<'a> {
        Blocks { rest: self.blocks }
    }
}

/// The blocks of a [`FeedbackView`].
#[derive(Clone, Debug)]
pub struct Blocks<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Blocks<'a> {
    type Item = Block<'a>;

    fn next(&mut self) -> Option<Block<'a>> {
        // All blocks were validated, so an error only means the end.
        let (block, rest) = Block::split(self.rest).ok()?;
        self.rest = rest;
        Some(block)
    }
}

impl std::iter::FusedIterator for Blocks<'_> {}

/// The feedback packet is full; what was written before is still valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no room left in the feedback packet")]
pub struct BufferFull;

/// Writes a feedback body into the caller's buffer, up to its end.
#[derive(Debug)]
pub struct FeedbackWriter<'a> {
    body: &'a mut [u8],
    len: usize,
}

impl<'a> FeedbackWriter<'a> {
    /// Writes the fields.
    ///
    /// # Errors
    /// [`BufferFull`] if `body` is shorter than the fields.
    pub fn new(body: &'a mut [u8], header: &FeedbackHeader) -> Result<Self, BufferFull> {
        let len = header.encoded_len();
        if body.len() < len {
            return Err(BufferFull);
        }
        header.write(body);
        Ok(Self { body, len })
    }

    /// Appends a block for `bitmap`, the words of `segment` from `first_word` on, in the shortest encoding.
    /// Unused bits are ignored. Writes nothing if it does not fit.
    ///
    /// # Errors
    /// [`BufferFull`] if the block does not fit.
    ///
    /// # Panics
    /// If `bitmap` is empty or exceeds the segment.
    pub fn push(&mut self, segment: u32, first_word: usize, bitmap: &[u64]) -> Result<(), BufferFull> {
        let masked = || bitmap.iter().enumerate().map(|(i, &w)| (w, word_mask(first_word + i)));
        if masked().all(|(word, mask)| word & mask == 0) {
            self.push_missing(segment, first_word, bitmap.len())
        } else if masked().all(|(word, mask)| word & mask == mask) {
            self.push_received(segment, first_word, bitmap.len())
        } else {
            let mut bits = self.begin(segment, first_word, bitmap.len(), Encoding::Bits)?;
            masked().for_each(|(word, mask)| {
                bits.u64(word & mask);
            });
            Ok(())
        }
    }

    /// Appends a block for words of which no packet was received.
    ///
    /// # Errors
    /// [`BufferFull`] if the block does not fit.
    ///
    /// # Panics
    /// If `words` is 0 or exceeds the segment.
    pub fn push_missing(&mut self, segment: u32, first_word: usize, words: usize) -> Result<(), BufferFull> {
        self.begin(segment, first_word, words, Encoding::AllMissing).map(drop)
    }

    /// Appends a block for words of which all packets were received.
    ///
    /// # Errors
    /// [`BufferFull`] if the block does not fit.
    ///
    /// # Panics
    /// If `words` is 0 or exceeds the segment.
    pub fn push_received(&mut self, segment: u32, first_word: usize, words: usize) -> Result<(), BufferFull> {
        self.begin(segment, first_word, words, Encoding::AllReceived).map(drop)
    }

    /// Returns the number of words that still fit in a block of bits; 0 if no block fits.
    pub const fn words_left(&self) -> usize {
        let words = (self.body.len() - self.len).saturating_sub(BLOCK_HEADER_LEN) / CONTROL_FRAME_LEN;
        if words < SEGMENT_WORDS { words } else { SEGMENT_WORDS }
    }

    /// Ends the body and returns its length.
    pub const fn finish(self) -> usize {
        self.len
    }

    /// Writes a block's header and returns a writer for its words.
    fn begin(
        &mut self,
        segment: u32,
        first_word: usize,
        words: usize,
        encoding: Encoding,
    ) -> Result<Writer<'_>, BufferFull> {
        assert!(
            words > 0 && first_word + words <= SEGMENT_WORDS,
            "words {first_word} + {words} of a segment"
        );
        let bits = if encoding == Encoding::Bits { words * CONTROL_FRAME_LEN } else { 0 };
        let end = self.len + BLOCK_HEADER_LEN + bits;
        let place = self.body.get_mut(self.len..end).ok_or(BufferFull)?;
        self.len = end;
        let mut writer = Writer(place);
        writer.u32(segment).u8(first_word as u8).u8(words as u8).u8(encoding as u8);
        Ok(writer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body_with(block: &[u8]) -> Vec<u8> {
        let mut body = vec![0; FEEDBACK_HEADER_LEN];
        body.extend_from_slice(block);
        body
    }

    #[test]
    fn impossible_blocks_are_refused() {
        let refused: [(&str, &[u8]); 6] = [
            ("no words", &[0, 0, 0, 0, 0, 0, 2]),
            ("past the segment", &[0, 0, 0, 0, 1, 157, 2]),
            ("far past the segment", &[0, 0, 0, 0, 255, 255, 1]),
            ("unknown encoding", &[0, 0, 0, 0, 0, 1, 3]),
            ("a bit for packet 10,000 of the segment", &[0, 0, 0, 0, 156, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0]),
            ("half a header behind a block", &[0, 0, 0, 0, 0, 1, 2, 0, 0, 0]),
        ];
        for (why, block) in refused {
            assert!(FeedbackView::parse(&body_with(block)).is_err(), "{why}");
        }
        assert!(FeedbackView::parse(&body_with(&[0, 0, 0, 0, 0, 157, 2])).is_ok());
    }

    #[test]
    fn truncation_except_between_blocks_is_an_error() {
        let mut body = body_with(&[0, 0, 0, 1, 0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 2, 0, 1, 2]);
        let between = [FEEDBACK_HEADER_LEN, FEEDBACK_HEADER_LEN + 15, body.len()];
        while !body.is_empty() {
            assert_eq!(FeedbackView::parse(&body).is_ok(), between.contains(&body.len()), "{}", body.len());
            body.pop();
        }
    }

    #[test]
    fn contradicting_fields_are_refused() {
        let mut body = [0; FEEDBACK_HEADER_LEN];
        Writer(&mut body[56..]).u48(2).u48(1);
        assert_eq!(FeedbackView::parse(&body), Err(PacketError::Contradiction));
        Writer(&mut body[56..]).u48(2).u48(MAX_SEQ + 2);
        assert_eq!(FeedbackView::parse(&body), Err(PacketError::Sequence(MAX_SEQ + 2)));
    }

    #[test]
    fn a_host_sample_is_complete_and_omits_unknown_values() {
        let mut body = [0; FEEDBACK_HEADER_LEN + HOST_SAMPLE_LEN];
        body[FEEDBACK_HEADER_LEN - 1] = 0b101;
        body[FEEDBACK_HEADER_LEN + 5] = 9;
        let known = HostSample { socket_fill: Some(9), ..HostSample::default() };
        assert_eq!(FeedbackView::parse(&body).unwrap().header.host, Some(known));
        assert!(FeedbackView::parse(&body[..body.len() - 1]).is_err(), "cut");
        for known in
            [0b1, 0b1000_0001, 0b100, 0b1000_0100, 0b1_0000_0001, 0b10_0000_0101, 0b1000_0000_0000_0101]
        {
            Writer(&mut body[FEEDBACK_HEADER_LEN - 2..]).u16(known);
            assert!(FeedbackView::parse(&body).is_err(), "{known:b}");
        }
    }

    #[test]
    fn the_writer_refuses_blocks_that_do_not_fit_and_keeps_the_rest() {
        let mut room = [0; FEEDBACK_HEADER_LEN + BLOCK_HEADER_LEN * 2 + 8];
        assert!(
            FeedbackWriter::new(&mut room[..FEEDBACK_HEADER_LEN - 1], &FeedbackHeader::default()).is_err()
        );
        let mut writer = FeedbackWriter::new(&mut room, &FeedbackHeader::default()).unwrap();
        assert_eq!(writer.words_left(), 1);
        assert_eq!(writer.push(0, 0, &[1, 1]), Err(BufferFull));
        writer.push(0, 0, &[1]).unwrap();
        assert_eq!(writer.words_left(), 0);
        assert_eq!(writer.push(0, 1, &[1]), Err(BufferFull));
        writer.push(0, 1, &[u64::MAX]).unwrap();
        assert_eq!(writer.push_missing(0, 2, 1), Err(BufferFull));
        assert_eq!(writer.finish(), room.len());
        assert_eq!(FeedbackView::parse(&room).unwrap().blocks().count(), 2);
    }

    #[test]
    fn a_whole_segment_fits_a_common_datagram() {
        let mut room = [0; 1472 - 7 - 16];
        let mut writer = FeedbackWriter::new(&mut room, &FeedbackHeader::default()).unwrap();
        assert_eq!(writer.words_left(), SEGMENT_WORDS);
        writer.push(7, 0, &[0x5555_5555_5555_5555; SEGMENT_WORDS]).unwrap();
        let len = writer.finish();
        let view = FeedbackView::parse(&room[..len]).unwrap();
        let received: u32 = view.blocks().flat_map(Block::bitmap).map(u64::count_ones).sum();
        assert_eq!(received, 5000);
    }

    #[test]
    #[should_panic(expected = "of a segment")]
    fn a_block_past_the_segment_panics() {
        let mut room = [0; 200];
        let mut writer = FeedbackWriter::new(&mut room, &FeedbackHeader::default()).unwrap();
        let _ = writer.push_received(0, 157, 1);
    }
}
