//! Literal bytes of every kind of packet. They freeze the format: a change here is a new protocol version.

use haul_base::{HostSample, Span};

use super::*;

#[test]
fn common_header() {
    let bytes = [6, 0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc];
    let header = CommonHeader { kind: PacketKind::Probe, pn: 0x1234_5678_9abc };
    assert_eq!(CommonHeader::parse(&bytes), Ok(header));
    let mut out = [0; 7];
    header.write(&mut out);
    assert_eq!(out, bytes);
}

#[test]
fn kinds_are_numbered_from_1_to_7() {
    let kinds = [
        PacketKind::Data,
        PacketKind::DataFin,
        PacketKind::Feedback,
        PacketKind::Probe,
        PacketKind::DataPart,
    ];
    for (number, kind) in [1, 2, 3, 6, 7].into_iter().zip(kinds) {
        assert_eq!(PacketKind::from_byte(number), Some(kind));
        assert_eq!(kind as u8, number);
    }
    for number in [0, 4, 5].into_iter().chain(8..=255) {
        assert_eq!(PacketKind::from_byte(number), None);
        assert_eq!(CommonHeader::parse(&[number, 0, 0, 0, 0, 0, 0]), Err(PacketError::Kind(number)));
    }
}

#[test]
fn data_body() {
    let bytes = [
        0, 0, 0, 0x01, 0xe2, 0x40, // seq 123,456
        0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f, // offset
        0x01, 0x02, 0x03, 0x04, // timestamp
        b'h', b'i', // payload
    ];
    let body = DataBody { seq: 123_456, offset: 0x0a0b_0c0d_0e0f, timestamp: 0x0102_0304 };
    assert_eq!(DataBody::parse(PacketKind::Data, &bytes), Ok(body));
    let mut out = [0; 18];
    body.write(&mut out);
    out[DATA_BODY_LEN..].copy_from_slice(b"hi");
    assert_eq!(out, bytes);
}

#[test]
fn last_data_body_may_be_empty() {
    let bytes = [0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0x10, 0, 0xff, 0xff, 0xff, 0xff];
    let body = DataBody { seq: 9, offset: 4096, timestamp: u32::MAX };
    assert_eq!(DataBody::parse(PacketKind::DataFin, &bytes), Ok(body));
    assert_eq!(DataBody::parse(PacketKind::Data, &bytes), Err(PacketError::NoPayload));
}

const FEEDBACK: [u8; 82 + 26 + 23 + 7 + 7] = [
    0, 0, 0, 0, 0x01, 0x01, // largest_pn
    0, 0, 0, 0x02, // echo_timestamp
    0, 0, 0, 0x03, // echo_delay_us
    0, 0, 0, 0x04, // received_at
    0, 0, 0, 0, 0, 0x05, // packets
    0, 0, 0, 0, 0, 0, 0, 0x06, // bytes
    0, 0, 0, 0x07, // duplicates
    0, 0, 0, 0x08, // ecn_ce
    0, 0, 0, 0x09, // socket_drops
    0, 0, 0, 0x0a, // rejected
    0x23, 0x0c, // last_probe 8,972
    0, 0, 0, 0, 0, 0x0c, // limit
    0, 0, 0, 0, 0, 0x0d, // complete_below
    0, 0, 0, 0, 0x4e, 0x20, // highest 20,000
    0, 0, 0, 0x0e, // read_delay_us
    0, 0, 0, 0x0f, // buffers
    0, 0, 0, 0x17, // sent_at
    0x01, 0xef, // host: all but its cpu_pressure, bit 4
    0, 0, 0, 0x10, // run_delay
    0, 0x11, // socket_fill
    0, 0, 0, 0x12, // involuntary_switches
    0, 0, // cpu_pressure, not known
    0, 0, 0, 0x14, // steal
    0, 0, 0, 0x15, // sleep_average
    0, 0x16, // disk_pressure
    0, 0, 0, 0x18, // early_drops
    0, 0, 0, 1, 155, 2, 0, // segment 1, words 155 and 156, bits
    0x80, 0, 0, 0, 0, 0, 0, 0x01, // the first and the last of frame 155
    0, 0, 0, 0, 0, 0, 0x80, 0, // the last packet of the segment
    0, 0, 0, 0, 0, 157, 2, // segment 0, all of it received
    0xff, 0xff, 0xff, 0xff, 3, 1, 1, // segment 2^32 - 1, frame 3, nothing received
];

fn feedback_header() -> FeedbackHeader {
    FeedbackHeader {
        largest_pn: 0x101,
        echo_timestamp: 2,
        echo_delay_us: 3,
        received_at: 4,
        packets: 5,
        bytes: 6,
        duplicates: 7,
        ecn_ce: 8,
        socket_drops: 9,
        rejected: 10,
        last_probe: 8972,
        limit: 12,
        complete_below: 13,
        highest: 20_000,
        read_delay_us: 14,
        buffers: 15,
        sent_at: 23,
        host: Some(HostSample {
            run_delay: Some(Span::from_micros(16)),
            socket_fill: Some(17),
            involuntary_switches: Some(18),
            cpu_pressure: None,
            steal: Some(Span::from_micros(20)),
            sleep_average: Some(Span::from_micros(21)),
            disk_pressure: Some(22),
            early_drops: Some(24),
        }),
    }
}

#[test]
fn feedback_is_read() {
    let view = FeedbackView::parse(&FEEDBACK).unwrap();
    assert_eq!(view.header, feedback_header());
    let blocks: Vec<_> = view.blocks().collect();
    assert_eq!(blocks.len(), 3);
    assert_eq!((blocks[0].segment, blocks[0].first_word, blocks[0].words), (1, 155, 2));
    assert_eq!(blocks[0].first_seq(), 10_000 + 155 * 64);
    assert_eq!(blocks[0].bitmap().collect::<Vec<_>>(), [0x8000_0000_0000_0001, 0x8000]);
    assert_eq!(blocks[1].encoding, Encoding::AllReceived);
    assert_eq!((blocks[1].word(0), blocks[1].word(155), blocks[1].word(156)), (u64::MAX, u64::MAX, 0xffff));
    assert_eq!(blocks[2].first_seq(), u64::from(u32::MAX) * 10_000 + 192);
    assert_eq!(blocks[2].word(0), 0);
}

#[test]
fn feedback_is_written() {
    let mut out = [0xee; FEEDBACK.len()];
    let mut writer = FeedbackWriter::new(&mut out, &feedback_header()).unwrap();
    // Bits past the end of the segment are dropped.
    writer.push(1, 155, &[0x8000_0000_0000_0001, 0xabcd_0000_0000_8000]).unwrap();
    writer.push_received(0, 0, 157).unwrap();
    writer.push(u32::MAX, 3, &[0]).unwrap();
    assert_eq!(writer.finish(), FEEDBACK.len());
    assert_eq!(out, FEEDBACK);
}

#[test]
fn probe_body() {
    let bytes = [0x23, 0x0c, 0, 0];
    let body = ProbeBody { size: 8972 };
    assert_eq!(ProbeBody::parse(&bytes), Ok(body));
    let mut out = [0xff; 4];
    body.write(&mut out);
    assert_eq!(out, bytes);
}

#[test]
fn connections() {
    let id = ConnectionId { identity: 0xdead_beef, epoch: 0x0102_0304_0506_0708, salt: 0x1122_3344_5566 };
    let head = [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0xde, 0xad, 0xbe, 0xef, 1, 2, 3, 4, 5, 6, 7, 8];
    let open = InitialHeader { id, mac: [0xaa; 12] };
    let bytes = [&[14][..], &head, &[0xaa; 12], b"inner"].concat();
    assert_eq!(open.to_bytes(), bytes[..INITIAL_HEADER_LEN]);
    assert_eq!(InitialHeader::authenticated(&id), bytes[..19]);
    assert_eq!(InitialHeader::parse(&bytes), Ok((open, &b"inner"[..])));
    for (kind, byte, padding) in
        [(ControlFrameKind::Pong, 6, &[][..]), (ControlFrameKind::Response, 8, &[0; 5])]
    {
        let size = 36 + padding.len() as u16;
        let frame = ControlFrame { id, kind, number: 0x0a0b_0c0d, size, mac: [0xbb; 12] };
        let bytes = [&[15][..], &head, &[byte, 0x0a, 0x0b, 0x0c, 0x0d], &[0xbb; 12], padding].concat();
        let mut out = vec![0xff; size.into()];
        frame.write(&mut out);
        assert_eq!(out, bytes);
        assert_eq!(frame.authenticated()[..], [&bytes[..24], &size.to_be_bytes()].concat());
        assert_eq!(ControlFrame::parse(&bytes), Ok(frame));
    }
    // Only challenges and responses may be padded, and only with zeros.
    let pong = [&[15][..], &head, &[6, 0, 0, 0, 0], &[0; 12], &[0]].concat();
    let response = [&[15][..], &head, &[8, 0, 0, 0, 0], &[0; 12], &[1]].concat();
    for bytes in [pong, response] {
        assert_eq!(ControlFrame::parse(&bytes), Err(PacketError::Padding));
    }
}
