//! Encoded bytes of every message, without the length field. They freeze the format: any change requires a
//! new protocol version.

use super::*;

fn settings() -> Settings {
    Settings { recipe: None, offload: true, socket_buffer: Some(300), bench_limit: BenchLimit::Micros(3) }
}

fn selection() -> Selection {
    let rule = |verdict, pattern: &[u8]| Rule { verdict, pattern: pattern.to_vec() };
    Selection {
        rules: vec![rule(Verdict::Include, b"*\xff"), rule(Verdict::Exclude, b"/")],
        paths: Some(vec![RelPath::new(*b"b/c").unwrap()]),
        ignore_files: IgnoreFiles::Obey,
        links: LinkChoice::Follow,
        file_systems: FileSystems::One,
        min_bytes: Some(1),
        max_bytes: Some(300),
        left_out: ExcludedNames::Sent,
    }
}

const SETTINGS: &[u8] = b"\x00\x01\x01\xac\x02\x02\x03";

fn fault() -> Fault {
    Fault {
        code: FaultCode::DiskFull,
        message: "full".into(),
        hint: "rm".into(),
        retryable: false,
        host: None,
    }
}

const FAULT: &[u8] = b"\x07\x04full\x02rm\x00";

fn joined(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

#[track_caller]
fn frozen(message: &ControlMessage, body: &[u8]) {
    let mut frame = Vec::new();
    encode_frame(message, &mut frame).unwrap();
    assert_eq!(frame[..4], (body.len() as u32).to_be_bytes());
    assert_eq!(frame[4..].escape_ascii().to_string(), body.escape_ascii().to_string());
    let mut decoder = FrameDecoder::new();
    decoder.feed(&frame);
    assert_eq!(decoder.next_message().as_ref(), Ok(&Some(message.clone())));
    assert_eq!(decoder.buffered(), 0);
}

#[test]
fn hello() {
    let with = |request| {
        ControlMessage::Hello(Hello {
            version: 2,
            proof: [0xaa; 32],
            ciphers: vec![Cipher::ChaCha20Poly1305, Cipher::Aes128Gcm],
            request,
            settings: settings(),
        })
    };
    let bytes = |request: &[u8]| joined(&[&[0, 2], &[0xaa; 32], &[2, 2, 0], request, SETTINGS]);
    frozen(
        &with(Request::Put {
            destination: b"up".to_vec(),
            layout: Layout::As,
            receive_policy: ReceivePolicy::default(),
        }),
        &bytes(b"\x00\x02up\x01\x00\x00\x00\x00\x00\x02\x00"),
    );
    let receive_policy = ReceivePolicy {
        equal: Equal::Contents,
        newer: Newer::Keep,
        extraneous: Extraneous::Delete,
        leftovers: Leftovers::Ignore,
        run: RunMode::ListChanges,
        durability: Durability::AtEnd,
        readback: Readback::FromDisk,
    };
    frozen(
        &with(Request::Put { destination: vec![], layout: Layout::Into, receive_policy }),
        &bytes(b"\x00\x00\x00\x01\x01\x01\x01\x01\x01\x01"),
    );
    let sources = vec![b"a".to_vec(), vec![]];
    let (growth, run, preserve) = (Growth::Refuse, RunMode::Move, Preserve::default());
    let all =
        Request::Get { sources: sources.clone(), selection: Selection::default(), growth, run, preserve };
    frozen(&with(all), &bytes(b"\x01\x02\x01a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"));
    let (growth, run, preserve) = (Growth::Accept, RunMode::ListChanges, Preserve::ALL);
    let some = Request::Get { sources, selection: selection(), growth, run, preserve };
    let chosen =
        b"\x01\x02\x01a\x00\x02\x00\x02*\xff\x01\x01/\x01\x01\x03b/c\x01\x01\x01\x01\x01\x01\xac\x02\x01\x01\x01\x00\x01\x01\x01";
    frozen(&with(some), &bytes(chosen));
    let growing = ReceivePolicy { leftovers: Leftovers::Extend, ..ReceivePolicy::default() };
    let receive_policy = ReceivePolicy { extraneous: Extraneous::DeleteAtMost(300), ..growing };
    frozen(
        &with(Request::Put { destination: vec![], layout: Layout::Into, receive_policy }),
        &bytes(b"\x00\x00\x00\x00\x00\x02\xac\x02\x02\x00\x02\x00"),
    );
    let receive_policy = ReceivePolicy { run: RunMode::Verbose, ..ReceivePolicy::default() };
    frozen(
        &with(Request::Put { destination: vec![], layout: Layout::Into, receive_policy }),
        &bytes(b"\x00\x00\x00\x00\x00\x00\x00\x02\x02\x00"),
    );
    let stream = Request::PutStream { destination: b"f".to_vec(), durability: Durability::Synced };
    frozen(&with(stream), &bytes(b"\x08\x01f\x02"));
    frozen(&with(Request::BenchSend), &bytes(&[2]));
    frozen(&with(Request::BenchReceive), &bytes(&[3]));
    frozen(&with(Request::Check), &bytes(&[4]));
    let versions = vec![("seal".to_owned(), 1), ("x".to_owned(), 300)];
    let connect = Request::Connect { recipe: "[x]".to_owned(), versions };
    frozen(&with(connect), &bytes(b"\x05\x03[x]\x02\x04seal\x01\x01x\xac\x02"));
    frozen(&with(Request::StreamSend), &bytes(&[6]));
    frozen(&with(Request::StreamReceive), &bytes(&[7]));
}

#[test]
fn accept() {
    let accept = Accept {
        session: 0x0102_0304,
        cipher: Cipher::Aes256Gcm,
        udp_port: 300,
        server: "s".into(),
        settings: settings(),
    };
    let head = [1, 0x84, 0x86, 0x88, 0x08, 1, 0xac, 0x02, 1, b's'];
    frozen(&ControlMessage::Accept(accept.clone()), &joined(&[&head, SETTINGS]));
    let offer = RecipeOffer { text: "[x]".into(), versions: vec![("seal".into(), 1), ("x".into(), 300)] };
    let settings = Settings { recipe: Some(offer), ..settings() };
    let bytes = b"\x01\x03[x]\x02\x04seal\x01\x01x\xac\x02\x01\x01\xac\x02\x02\x03";
    frozen(&ControlMessage::Accept(Accept { settings, ..accept }), &joined(&[&head, bytes]));
}

#[test]
fn refuse_and_abort() {
    frozen(&ControlMessage::Refuse(fault()), &joined(&[&[2], FAULT]));
    frozen(&ControlMessage::Abort(fault()), &joined(&[&[13], FAULT]));
    let sending = CountedSending {
        packets: 1,
        resent: 2,
        lost: 3,
        lost_by_host: 4,
        lost_by_congestion: 5,
        lost_by_random: 6,
        lost_by_outage: 7,
        min_rtt_us: 8,
        peak_delivery_bps: 9,
        limited_by: "path".into(),
        evidence: "e".into(),
    };
    let counted = |sending| ControlMessage::Counted(Counted { cpu_us: 300, sending });
    frozen(&counted(None), b"\x0e\xac\x02\x00");
    frozen(&counted(Some(sending)), b"\x0e\xac\x02\x01\x01\x02\x03\x04\x05\x06\x07\x08\x09\x04path\x01e");
}

#[test]
fn entries() {
    let entry = |path: &[u8], kind| Entry {
        path: RelPath::new(path).unwrap(),
        kind,
        mode: 0o644,
        mtime_secs: -1,
        mtime_nanos: 5,
        extras: None,
    };
    let message = ControlMessage::Entries(vec![
        entry(b"d/f", EntryKind::File { size: 128, holes: vec![] }),
        entry(b"h", EntryKind::File { size: 128, holes: vec![ByteRange { start: 1, len: 127 }] }),
        entry(b"d", EntryKind::Directory),
        entry(b"l", EntryKind::Symlink { target: b"..".to_vec() }),
        entry(b"x", EntryKind::Failed(fault())),
        entry(b"k", EntryKind::HardLink { entry: 128 }),
        Entry { extras: Some(Box::new(extras())), ..entry(b"e", EntryKind::Directory) },
    ]);
    let tail: &[u8] = b"\xa4\x03\x01\x05\x00";
    let body = joined(&[
        b"\x04\x07",
        b"\x03d/f\x00\x80\x01\x00",
        tail,
        b"\x01h\x00\x80\x01\x01\x01\x7f",
        tail,
        b"\x01d\x01",
        tail,
        b"\x01l\x02\x02..",
        tail,
        b"\x01x\x03",
        FAULT,
        tail,
        b"\x01k\x04\x80\x01",
        tail,
        b"\x01e\x01\xa4\x03\x01\x05\x01",
        b"\x01\x80\x01\x02\x01\x01u\x00\x01\x01\x06user.a\x01v\x01\x00\x03",
    ]);
    frozen(&message, &body);
}

fn extras() -> Extras {
    let owner = Owner { user: 128, group: 2, user_name: Some(b"u".to_vec()), group_name: None };
    let xattr = Xattr { name: b"user.a".to_vec(), value: b"v".to_vec() };
    Extras { owner: Some(owner), xattrs: Some(vec![xattr]), acls: Some(Vec::new()), left_out: 3 }
}

#[test]
fn digests_and_outcomes() {
    let digests = ControlMessage::Digests(vec![
        FileDigest { entry: 1, result: Ok([7; 32]) },
        FileDigest { entry: 2, result: Err(fault()) },
    ]);
    frozen(&digests, &joined(&[&[6, 2, 1, 0], &[7; 32], &[2, 1], FAULT]));
    let outcomes = ControlMessage::Outcomes(vec![
        Outcome { entry: 1, fault: None },
        Outcome { entry: 2, fault: Some(fault()) },
    ]);
    frozen(&outcomes, &joined(&[&[7, 2, 1, 0, 2, 1], FAULT]));
}

#[test]
fn messages_of_numbers() {
    frozen(&ControlMessage::UdpSeen { size: 1200 }, &[3, 0xb0, 0x09]);
    frozen(&ControlMessage::EntriesEnd { entries: 2, bytes: 128 }, &[5, 2, 0x80, 0x01]);
    let summary = Summary { entries: 3, failed: 1, bytes: 0, digest: [9; 32], notes: Notes::default() };
    frozen(&ControlMessage::Finish(summary), &joined(&[&[8, 3, 1, 0], &[9; 32], &[0, 0]]));
    frozen(&ControlMessage::ObjectSent { bytes: 1 }, &[9, 1]);
    frozen(&ControlMessage::Ping(0), &[10, 0]);
    frozen(&ControlMessage::Quota { rate_bps: 128 }, &[23, 0x80, 1]);
    frozen(&ControlMessage::Pong(u64::MAX), &joined(&[&[11], &[0xff; 9], &[1]]));
    frozen(&ControlMessage::Close, &[12]);
    frozen(&ControlMessage::Transport(vec![18, 0, 200]), &[28, 3, 18, 0, 200]);
    let rate = ("rate".to_owned(), "1Mbit".to_owned());
    frozen(&ControlMessage::LawChange(vec![rate]), b"\x1d\x01\x04rate\x051Mbit");
}

#[test]
fn wants_and_proofs() {
    let range = ByteRange { start: 128, len: 1 };
    frozen(&ControlMessage::Ready(Destination::Fresh), &[15, 0]);
    frozen(&ControlMessage::Ready(Destination::Occupied), &[15, 1]);
    let run = |count, request| RequestRun { count, request };
    let requests = vec![
        run(1, EntryRequest::All),
        run(1, EntryRequest::Nothing),
        run(128, EntryRequest::Kept),
        run(2, EntryRequest::Compare),
        run(1, EntryRequest::Ranges(vec![range])),
    ];
    frozen(
        &ControlMessage::EntryRequests(requests),
        b"\x10\x05\x01\x00\x01\x01\x80\x01\x02\x02\x03\x01\x04\x01\x80\x01\x01",
    );
    let more = More { entry: 3, ranges: vec![range] };
    frozen(&ControlMessage::More(more), b"\x11\x03\x01\x80\x01\x01");
    frozen(&ControlMessage::EntryRequestsEnd { bytes: 128 }, &[18, 0x80, 1]);
    let proof = Proof { entry: 1, first: 2, values: vec![[3; 32]] };
    frozen(&ControlMessage::Proofs(vec![proof]), &joined(&[&[19, 1, 1, 2, 1], &[3; 32]]));
}

#[test]
fn name_changes() {
    let actions = [
        (Action::Send { size: 128 }, &b"\x00\x80\x01"[..]),
        (Action::Replace { size: 1 }, b"\x01\x01"),
        (Action::Resume { have: 2, size: 128 }, b"\x02\x02\x80\x01"),
        (Action::Keep, b"\x03"),
        (Action::Link, b"\x04"),
        (Action::MakeDirectory, b"\x05"),
        (Action::Delete, b"\x06"),
        (Action::Adjust, b"\x07"),
    ];
    for (action, bytes) in actions {
        let item = Item { path: RelPath::new(b"a").unwrap(), action };
        frozen(&ControlMessage::Items(vec![item]), &joined(&[b"\x14\x01\x01a", bytes]));
    }
    for (number, extent) in [Extent::Part, Extent::Directories, Extent::Destination].into_iter().enumerate() {
        frozen(&ControlMessage::Extent(extent), &[21, number as u8]);
    }
    frozen(&ControlMessage::Removed(Removal { removed: 128, fault: None }), b"\x16\x80\x01\x00");
    let removal = Removal { removed: 0, fault: Some(fault()) };
    frozen(&ControlMessage::Removed(removal), &joined(&[b"\x16\x00\x01", FAULT]));
    let rule = |verdict, pattern: &[u8]| Rule { verdict, pattern: pattern.to_vec() };
    let rules = vec![rule(Verdict::Include, b"a/"), rule(Verdict::Exclude, b"*\xff")];
    frozen(&ControlMessage::LeftOut(rules), b"\x18\x02\x00\x02a/\x01\x02*\xff");
    let paths = [&b"a"[..], b"b/\xff"].map(|path| RelPath::new(path).unwrap()).to_vec();
    let filtered = Filtered { paths, ignore_files: IgnoreFiles::Obey };
    frozen(&ControlMessage::Filtered(filtered), b"\x19\x02\x01a\x03b/\xff\x01");
    frozen(&ControlMessage::Filtered(Filtered::default()), b"\x19\x00\x00");
    let name = Some(RelPath::new(b"n").unwrap());
    let lineage = DestinationLineage { directories: vec![[1; 16], [2; 16]], name, removes: true };
    let body = joined(&[&[26, 2], &[1; 16], &[2; 16], &[1, 1, b'n', 1]]);
    frozen(&ControlMessage::DestinationLineage(lineage), &body);
    let attributes = DestinationAttributes { mode: 0o700, mtime_secs: -1, mtime_nanos: 128, extras: None };
    frozen(&ControlMessage::DestinationAttributes(attributes), b"\x1b\xc0\x03\x01\x80\x01\x00");
}
