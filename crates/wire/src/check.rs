//! The rules of the formats as functions, for fuzz targets and tests. Each takes arbitrary bytes, panics if a
//! rule is violated, and returns whether the bytes were accepted.
//!
//! The rules: a parser never panics; accepted input is written back to the same bytes (feedback, where a
//! block has several encodings, to the same meaning); and accepted values are within their documented ranges.

use crate::control::{self, ControlMessage, FrameDecoder, FrameError, RelPath};
use crate::packet::{
    Block, COMMON_HEADER_LEN, CommonHeader, ControlFrame, DATA_BODY_LEN, DataBody, FeedbackView,
    FeedbackWriter, InitialHeader, MAX_OFFSET, MAX_PN, MAX_SEQ, PART_BODY_LEN, PacketKind, PairHeader,
    PartBody, ProbeBody, SEGMENT_WORDS,
};
use crate::url::HaulUrl;

/// A sequence of inputs for a machine, read from arbitrary bytes. Each step is `what (1) | length (2,
/// big-endian) | body`; a truncated body ends with the bytes, so that any bytes are valid steps.
#[derive(Clone, Debug)]
pub struct Steps<'a>(&'a [u8]);

impl<'a> Steps<'a> {
    /// Reads the steps in `bytes`.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Appends a step. A body is truncated to 65,535 bytes.
    pub fn write(what: u8, body: &[u8], out: &mut Vec<u8>) {
        let len = u16::try_from(body.len()).unwrap_or(u16::MAX);
        out.push(what);
        out.extend(len.to_be_bytes());
        out.extend(&body[..len.into()]);
    }
}

impl<'a> Iterator for Steps<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (&what, rest) = self.0.split_first()?;
        let (len, rest) = rest.split_at(rest.len().min(2));
        let len = len.iter().fold(0, |len, &byte| len << 8 | usize::from(byte));
        let (body, rest) = rest.split_at(rest.len().min(len));
        self.0 = rest;
        Some((what, body))
    }
}

/// Decodes the message whose frame has this body; `None` if it is invalid.
pub fn message(body: &[u8]) -> Option<ControlMessage> {
    let mut decoder = FrameDecoder::new();
    decoder.feed(&u32::try_from(body.len()).ok()?.to_be_bytes());
    decoder.feed(body);
    decoder.next_message().ok().flatten()
}

/// Returns the body of a message's frame, for [`message`]; `None` if it does not fit a frame.
pub fn message_body(message: &ControlMessage) -> Option<Vec<u8>> {
    let mut frame = Vec::new();
    control::encode_frame(message, &mut frame).ok()?;
    Some(frame.split_off(size_of::<u32>()))
}

/// Checks [`CommonHeader`].
///
/// # Panics
/// If a rule is violated.
pub fn packet_headers(bytes: &[u8]) -> bool {
    let common = CommonHeader::parse(bytes);
    if let Ok(header) = common {
        assert!(header.pn <= MAX_PN);
        let mut rewritten = [0; COMMON_HEADER_LEN];
        header.write(&mut rewritten);
        assert!(bytes.starts_with(&rewritten), "the common header changed");
    }
    common.is_ok()
}

/// Checks [`InitialHeader`], [`ControlFrame`] and [`PairHeader`].
///
/// # Panics
/// If a rule is violated.
pub fn connection_packets(bytes: &[u8]) -> bool {
    if let Ok((open, rest)) = InitialHeader::parse(bytes) {
        assert_eq!([&open.to_bytes()[..], rest].concat(), bytes, "the initial header changed");
        assert!(ControlFrame::parse(bytes).is_err());
        return true;
    }
    let is_frame = ControlFrame::parse(bytes).is_ok_and(|frame| {
        // Filled with ones to reveal padding that is not written.
        let mut rewritten = vec![0xff; frame.size.into()];
        frame.write(&mut rewritten);
        assert_eq!(rewritten, bytes, "the control frame changed");
        true
    });
    is_frame || pair(bytes)
}

fn pair(bytes: &[u8]) -> bool {
    PairHeader::split(&mut bytes.to_vec()).is_ok_and(|(first, second)| {
        let header = PairHeader { first: first.len() as u16 };
        assert_eq!([&header.to_bytes()[..], first, second].concat(), bytes, "the pair changed");
        true
    })
}

/// Checks [`DataBody`], as either kind of data packet.
///
/// # Panics
/// If a rule is violated.
pub fn data_body(bytes: &[u8]) -> bool {
    let last = DataBody::parse(PacketKind::DataFin, bytes);
    let data = DataBody::parse(PacketKind::Data, bytes);
    if let Ok(body) = last {
        let mut rewritten = [0; DATA_BODY_LEN];
        body.write(&mut rewritten);
        assert_eq!(rewritten, bytes[..DATA_BODY_LEN]);
        assert!(body.seq <= MAX_SEQ);
        assert!(body.offset + (bytes.len() - DATA_BODY_LEN) as u64 <= MAX_OFFSET);
        // The two kinds differ only in whether an empty payload is valid.
        assert_eq!(data.is_ok(), bytes.len() > DATA_BODY_LEN);
    } else {
        assert!(data.is_err());
    }
    last.is_ok()
}

/// Checks [`FeedbackView`], its blocks, and [`FeedbackWriter`].
///
/// # Panics
/// If a rule is violated.
pub fn feedback(bytes: &[u8]) -> bool {
    let Ok(view) = FeedbackView::parse(bytes) else {
        return false;
    };
    assert!(view.header.complete_below <= view.header.highest && view.header.highest <= MAX_SEQ + 1);
    let mut room = vec![0; bytes.len()];
    let rewritten = rewrite(&view, &mut room);
    let reparsed_view = FeedbackView::parse(rewritten).expect("what the writer writes parses");
    assert_eq!(view.header, reparsed_view.header);
    assert!(view.blocks().map(meaning).eq(reparsed_view.blocks().map(meaning)), "the blocks changed");
    if rewritten.len() == bytes.len() {
        assert_eq!(rewritten, bytes, "equally long, yet different");
    }
    true
}

/// Writes the feedback again, in at most as many bytes.
fn rewrite<'a>(view: &FeedbackView<'_>, room: &'a mut [u8]) -> &'a [u8] {
    let mut writer = FeedbackWriter::new(room, &view.header).expect("the fields fit, they did before");
    for block in view.blocks() {
        let mut words = [0; SEGMENT_WORDS];
        let words = &mut words[..block.words];
        words.iter_mut().zip(block.bitmap()).for_each(|(to, from)| *to = from);
        writer.push(block.segment, block.first_word, words).expect("the writer picks the shortest encoding");
    }
    let len = writer.finish();
    &room[..len]
}

/// Returns the meaning of a block, independent of its encoding.
fn meaning(block: Block<'_>) -> (u64, usize, [u64; SEGMENT_WORDS]) {
    let mut words = [0; SEGMENT_WORDS];
    words.iter_mut().zip(block.bitmap()).for_each(|(to, from)| *to = from);
    (block.first_seq(), block.words, words)
}

/// Checks [`PartBody`].
///
/// # Panics
/// If a rule is violated.
pub fn part_body(bytes: &[u8]) -> bool {
    let part = PartBody::parse(bytes);
    if let Ok(body) = part {
        let mut rewritten = [0; PART_BODY_LEN];
        body.write(&mut rewritten);
        assert_eq!(rewritten, bytes[..PART_BODY_LEN]);
        let payload = bytes.len() - PART_BODY_LEN;
        assert!(payload > 0 && usize::from(body.skip) + payload <= usize::from(body.total_len));
        assert!(body.seq <= MAX_SEQ && body.offset + u64::from(body.total_len) <= MAX_OFFSET);
    }
    part.is_ok()
}

/// Checks [`ProbeBody`].
///
/// # Panics
/// If a rule is violated.
pub fn probe_body(bytes: &[u8]) -> bool {
    let probe = ProbeBody::parse(bytes);
    if let Ok(body) = probe {
        // Filled with ones to reveal padding that is not written.
        let mut rewritten = vec![0xff; bytes.len()];
        body.write(&mut rewritten);
        assert_eq!(rewritten, bytes);
        assert!(usize::from(body.size) >= COMMON_HEADER_LEN + bytes.len());
    }
    probe.is_ok()
}

/// Checks [`FrameDecoder`] and [`control::encode_frame`]: accepted frames are written back to the same bytes,
/// and the sizes of the pieces in which they arrive do not matter. Accepted means that at least one message
/// was decoded.
///
/// # Panics
/// If a rule is violated.
pub fn control_frames(bytes: &[u8]) -> bool {
    let (messages, end) = decode_in_pieces(bytes, bytes.len().max(1));
    let mut rewritten = Vec::new();
    for message in &messages {
        control::encode_frame(message, &mut rewritten).expect("what was decoded can be encoded");
    }
    assert!(bytes.starts_with(&rewritten), "an accepted frame changed");
    for size in [1, 3, 64] {
        assert_eq!(decode_in_pieces(bytes, size), (messages.clone(), end.clone()), "in pieces of {size}");
    }
    !messages.is_empty()
}

/// Decodes all messages up to the end of the bytes or the first error.
fn decode_in_pieces(bytes: &[u8], size: usize) -> (Vec<ControlMessage>, Option<FrameError>) {
    let mut decoder = FrameDecoder::new();
    let mut messages = Vec::new();
    for piece in bytes.chunks(size) {
        decoder.feed(piece);
        loop {
            match decoder.next_message() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => return (messages, Some(error)),
            }
        }
    }
    (messages, None)
}

/// Checks [`RelPath`]: an accepted path stays below the directory where it starts.
///
/// # Panics
/// If a rule is violated.
pub fn rel_path(bytes: &[u8]) -> bool {
    let Ok(path) = RelPath::new(bytes) else {
        return false;
    };
    assert_eq!(path.as_bytes(), bytes);
    assert!(bytes.len() <= control::MAX_PATH && !bytes.contains(&0) && !bytes.starts_with(b"/"));
    assert!(path.components().all(|c| (1..=control::MAX_COMPONENT).contains(&c.len())));
    assert!(path.components().all(|c| c != b"." && c != b".."));
    #[cfg(unix)]
    {
        // The standard library must also see only normal components.
        use std::path::Component;
        let mut count = 0;
        assert!(
            path.as_path().components().inspect(|_| count += 1).all(|c| matches!(c, Component::Normal(_)))
        );
        assert_eq!(count, path.components().count());
    }
    if let Some(parent) = path.parent() {
        assert_eq!(parent.join(path.file_name()).as_ref(), Ok(&path));
    }
    true
}

/// Checks [`HaulUrl`]: an accepted URL is written back to an equal one in a unique form, and its forms
/// without key do not contain the key. Returns whether the bytes are a URL.
///
/// # Panics
/// If a rule is violated.
pub fn url(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(url) = text.parse::<HaulUrl>() else { return false };
    let written = url.to_string();
    let reparsed: HaulUrl = written.parse().expect("what was written can be read");
    assert!(reparsed == url, "the URL changed: {text:?}, {written:?}");
    assert_eq!(reparsed.to_string(), written, "the URL has two forms");
    assert!(url.port != 0 && !url.host.is_empty());
    assert!(written.bytes().all(|byte| byte.is_ascii_graphic()), "{written:?}");
    let (shown, _) = written.split_once("?k=").expect("it has a key");
    assert_eq!(url.without_key(), shown);
    // The path may contain the key's text, and paths are shown.
    assert_eq!(format!("{url:?}"), format!("{shown}?k=(secret)"));
    true
}
