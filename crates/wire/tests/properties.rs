//! Round trips of every format, and properties for arbitrary and truncated bytes.

mod common;

use common::{block, component, feedback_body, feedback_header, frames, message, rel_path, up_to};
use haul_wire::check;
use haul_wire::control::{ControlMessage, FrameDecoder, RelPath, encoded_len};
use haul_wire::packet::{
    CommonHeader, ConnectionId, ControlFrame, ControlFrameKind, DATA_BODY_LEN, DataBody, FEEDBACK_HEADER_LEN,
    FeedbackView, FeedbackWriter, INITIAL_HEADER_LEN, InitialHeader, MAX_OFFSET, MAX_PN, MAX_SEQ,
    PROBE_BODY_MIN, PacketKind, ProbeBody, SEGMENT_WORDS,
};
use proptest::collection::vec;
use proptest::prelude::*;

proptest! {
    #[test]
    fn arbitrary_bytes_violate_no_invariant(bytes in vec(any::<u8>(), 0..200)) {
        check::packet_headers(&bytes);
        check::data_body(&bytes);
        check::feedback(&bytes);
        check::probe_body(&bytes);
        check::connection_packets(&bytes);
        check::control_frames(&bytes);
        check::rel_path(&bytes);
    }

    #[test]
    fn headers_round_trip(kind in 1u8..=3, pn in up_to(MAX_PN), rest in vec(any::<u8>(), 0..20)) {
        let header = CommonHeader { kind: PacketKind::from_byte(kind).unwrap(), pn };
        let mut packet = vec![0; 7];
        packet.extend(rest);
        header.write(&mut packet);
        prop_assert_eq!(CommonHeader::parse(&packet), Ok(header));
        check::packet_headers(&packet);
    }

    #[test]
    fn connection_packets_round_trip(
        identity: u32,
        epoch: u64,
        salt in up_to(MAX_PN),
        number: u32,
        size in 36u16..1500,
        mac: [u8; 12],
        rest in vec(any::<u8>(), 0..20),
    ) {
        let connection = ConnectionId { identity, epoch, salt };
        let open = InitialHeader { id: connection, mac };
        let bytes = [&open.to_bytes()[..], &rest].concat();
        prop_assert_eq!(InitialHeader::parse(&bytes), Ok((open, &rest[..])));
        prop_assert!((0..INITIAL_HEADER_LEN).all(|len| InitialHeader::parse(&bytes[..len]).is_err()));
        let frame = ControlFrame { id: connection, kind: ControlFrameKind::Challenge, number, size, mac };
        let mut bytes = vec![0xff; size.into()];
        frame.write(&mut bytes);
        prop_assert_eq!(ControlFrame::parse(&bytes), Ok(frame));
        // A truncated frame is a different one, which its code does not authenticate.
        prop_assert!((0..36).all(|len| ControlFrame::parse(&bytes[..len]).is_err()));
        if let Ok(cut) = ControlFrame::parse(&bytes[..bytes.len() - 1]) {
            prop_assert_ne!(cut.authenticated(), frame.authenticated());
        }
    }

    #[test]
    fn data_round_trips(
        seq in up_to(MAX_SEQ),
        offset in up_to(MAX_OFFSET - 40),
        timestamp: u32,
        payload in vec(any::<u8>(), 1..40),
    ) {
        let body = DataBody { seq, offset, timestamp };
        let mut bytes = vec![0; DATA_BODY_LEN];
        body.write(&mut bytes);
        bytes.extend(&payload);
        prop_assert_eq!(DataBody::parse(PacketKind::Data, &bytes), Ok(body));
        prop_assert!(check::data_body(&bytes));
        for len in 0..DATA_BODY_LEN {
            prop_assert!(DataBody::parse(PacketKind::DataFin, &bytes[..len]).is_err());
        }
    }

    #[test]
    fn feedback_round_trips(header in feedback_header(), blocks in vec(block(), 0..6)) {
        let bytes = feedback_body(&header, &blocks);
        let view = FeedbackView::parse(&bytes).unwrap();
        prop_assert_eq!(view.header, header);
        prop_assert_eq!(view.blocks().count(), blocks.len());
        for (read, (segment, first_word, words)) in view.blocks().zip(&blocks) {
            prop_assert_eq!((read.segment, read.first_word, read.words), (*segment, *first_word, words.len()));
            for (i, (read, wrote)) in read.bitmap().zip(words).enumerate() {
                let used = if first_word + i + 1 == SEGMENT_WORDS { 0xffff } else { u64::MAX };
                prop_assert_eq!(read, wrote & used);
            }
        }
        prop_assert!(check::feedback(&bytes));
        for len in 0..FEEDBACK_HEADER_LEN {
            prop_assert!(FeedbackView::parse(&bytes[..len]).is_err());
        }
    }

    #[test]
    fn truncated_feedback_is_an_error_or_ends_between_blocks(blocks in vec(block(), 1..4), cut: prop::sample::Index) {
        let bytes = feedback_body(&<_>::default(), &blocks);
        let between: Vec<usize> =
            (0..=blocks.len()).map(|n| feedback_body(&<_>::default(), &blocks[..n]).len()).collect();
        let cut = cut.index(bytes.len());
        prop_assert_eq!(FeedbackView::parse(&bytes[..cut]).is_ok(), between.contains(&cut));
    }

    #[test]
    fn the_feedback_writer_respects_its_capacity(blocks in vec(block(), 0..6), room in FEEDBACK_HEADER_LEN..400) {
        let mut bytes = vec![0xee; 500];
        let mut writer = FeedbackWriter::new(&mut bytes[..room], &<_>::default()).unwrap();
        let mut accepted = 0;
        for (segment, first_word, words) in &blocks {
            let certain = writer.words_left() >= words.len();
            let pushed = writer.push(*segment, *first_word, words).is_ok();
            prop_assert!(pushed || !certain);
            accepted += usize::from(pushed);
        }
        let len = writer.finish();
        prop_assert!(len <= room);
        prop_assert!(bytes[len..].iter().all(|&b| b == 0xee));
        prop_assert_eq!(FeedbackView::parse(&bytes[..len]).unwrap().blocks().count(), accepted);
    }

    #[test]
    fn a_probe_round_trips(padding in 0usize..1500) {
        let mut body = vec![0xff; PROBE_BODY_MIN + padding];
        let probe = ProbeBody { size: (body.len() + 7 + 16) as u16 };
        probe.write(&mut body);
        prop_assert_eq!(ProbeBody::parse(&body), Ok(probe));
        prop_assert!(check::probe_body(&body));
    }

    #[test]
    fn messages_round_trip(message in message()) {
        let bytes = frames(std::slice::from_ref(&message));
        prop_assert_eq!(bytes.len(), 4 + encoded_len(&message));
        let mut decoder = FrameDecoder::new();
        decoder.feed(&bytes);
        prop_assert_eq!(decoder.next_message(), Ok(Some(message)));
        prop_assert_eq!(decoder.next_message(), Ok(None));
        prop_assert_eq!(decoder.buffered(), 0);
        prop_assert!(check::control_frames(&bytes));
    }

    #[test]
    fn messages_round_trip_in_pieces_of_any_size(
        messages in vec(message(), 0..5),
        sizes in vec(1usize..40, 1..20),
    ) {
        let bytes = frames(&messages);
        let mut decoder = FrameDecoder::new();
        let mut decoded = Vec::new();
        let mut rest = &bytes[..];
        for size in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, after) = rest.split_at((*size).min(rest.len()));
            decoder.feed(piece);
            while let Some(message) = decoder.next_message().unwrap() {
                decoded.push(message);
            }
            rest = after;
        }
        prop_assert_eq!(decoded, messages);
    }

    #[test]
    fn a_shortened_body_is_an_error(message in message(), cut: prop::sample::Index) {
        let body = &frames(&[message])[4..];
        let body = &body[..cut.index(body.len())];
        let mut decoder = FrameDecoder::new();
        decoder.feed(&(body.len() as u32).to_be_bytes());
        decoder.feed(body);
        prop_assert!(decoder.next_message().is_err());
    }

    #[test]
    fn a_truncated_frame_waits_for_the_rest(message in message(), cut: prop::sample::Index) {
        let frame = frames(std::slice::from_ref(&message));
        let cut = cut.index(frame.len());
        let mut decoder = FrameDecoder::new();
        decoder.feed(&frame[..cut]);
        prop_assert_eq!(decoder.next_message(), Ok(None));
        prop_assert_eq!(decoder.buffered(), cut);
        decoder.feed(&frame[cut..]);
        prop_assert_eq!(decoder.next_message(), Ok(Some(message)));
    }

    #[test]
    fn a_longer_body_is_an_error(message in message(), extra in vec(any::<u8>(), 1..5)) {
        let mut body = frames(&[message])[4..].to_vec();
        body.extend(extra);
        let mut decoder = FrameDecoder::new();
        decoder.feed(&(body.len() as u32).to_be_bytes());
        decoder.feed(&body);
        prop_assert!(decoder.next_message().is_err());
    }

    #[test]
    fn no_accepted_path_escapes(bytes in vec(prop_oneof![Just(b'/'), Just(b'.'), Just(b'a'), Just(0)], 0..12)) {
        let accepted = check::rel_path(&bytes);
        // Walk it like a file system: the depth must never decrease and never restart.
        let dots = bytes.split(|&b| b == b'/').any(|c| c == b"." || c == b"..");
        let gaps = bytes.split(|&b| b == b'/').any(<[u8]>::is_empty);
        prop_assert_eq!(accepted, !dots && !gaps && !bytes.contains(&0));
    }

    #[test]
    fn valid_paths_are_accepted_and_can_grow(path in rel_path(), name in component()) {
        prop_assert!(check::rel_path(path.as_bytes()));
        let longer = path.join(&name).unwrap();
        prop_assert_eq!(longer.file_name(), &name[..]);
        prop_assert_eq!(longer.parent(), Some(path));
        prop_assert_eq!(RelPath::new(longer.as_bytes()), Ok(longer));
    }

    #[test]
    fn deserialising_a_path_equals_constructing_one(bytes in vec(prop_oneof![Just(b'/'), Just(b'.'), any::<u8>()], 0..12)) {
        let encoded = postcard::to_allocvec(&bytes).unwrap();
        let decoded = postcard::from_bytes::<RelPath>(&encoded);
        prop_assert_eq!(decoded.ok(), RelPath::new(bytes).ok());
    }
}

#[test]
fn the_smallest_message_is_one_byte() {
    assert_eq!(encoded_len(&ControlMessage::Close), 1);
}
