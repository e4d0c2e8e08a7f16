//! Strategies for valid values, shared by the property tests and the smoke test.
#![expect(clippy::unwrap_used, reason = "test code")]

use haul_base::{HostSample, Span};
use haul_wire::control::{
    Accept, Action, BenchLimit, ByteRange, Cipher, ControlMessage, Destination, DestinationAttributes,
    DestinationLineage, Durability, Entry, EntryKind, EntryRequest, Equal, ExcludedNames, Extent, Extraneous,
    Extras, Fault, FaultCode, FileDigest, FileSystems, Filtered, Growth, Hello, IgnoreFiles, Item, Layout,
    Leftovers, LinkChoice, MAX_MODE, More, Newer, Notes, Outcome, Owner, Preserve, Proof, Readback,
    ReceivePolicy, RecipeOffer, RelPath, Removal, Request, RequestRun, Rule, RunMode, Selection, Settings,
    Summary, Verdict, Xattr, encode_frame,
};
use haul_wire::packet::{FeedbackHeader, FeedbackWriter, MAX_OFFSET, MAX_PN, MAX_SEQ, SEGMENT_WORDS};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

/// A number up to `max`; 0 and `max` are more likely than by chance.
pub(crate) fn up_to(max: u64) -> impl Strategy<Value = u64> {
    prop_oneof![1 => Just(0), 1 => Just(max), 2 => 0..=max.min(300), 4 => 0..=max]
}

fn text() -> impl Strategy<Value = String> {
    vec(any::<char>(), 0..12).prop_map(String::from_iter)
}

/// One component of a path.
pub(crate) fn component() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![4 => b'a'..=b'z', 1 => Just(b'.'), 1 => 1..=255u8]
        .prop_filter("no slash", |&b| b != b'/');
    vec(byte, 1..12).prop_filter("no dots", |c| c != b"." && c != b"..")
}

/// A valid path.
pub(crate) fn rel_path() -> impl Strategy<Value = RelPath> {
    vec(component(), 1..6).prop_map(|parts| RelPath::new(parts.join(&b'/')).unwrap())
}

fn fault() -> impl Strategy<Value = Fault> {
    (0..FaultCode::ALL.len(), text(), text(), any::<bool>()).prop_map(|(code, message, hint, retryable)| {
        Fault { code: FaultCode::ALL[code], message, hint, retryable, host: None }
    })
}

fn cipher() -> impl Strategy<Value = Cipher> {
    prop_oneof![
        Just(Cipher::Aes128Gcm),
        Just(Cipher::Aes256Gcm),
        Just(Cipher::ChaCha20Poly1305),
        Just(Cipher::None)
    ]
}

fn settings() -> impl Strategy<Value = Settings> {
    let limit = prop_oneof![
        Just(BenchLimit::Unlimited),
        any::<u64>().prop_map(BenchLimit::Bytes),
        any::<u64>().prop_map(BenchLimit::Micros)
    ];
    let offer = (text(), vec((text(), any::<u16>()), 0..3));
    let recipe = option::of(offer.prop_map(|(text, versions)| RecipeOffer { text, versions }));
    (recipe, any::<bool>(), option::of(any::<u64>()), limit).prop_map(
        |(recipe, offload, socket_buffer, bench_limit)| Settings {
            recipe,
            offload,
            socket_buffer,
            bench_limit,
        },
    )
}

fn receive_policy() -> impl Strategy<Value = ReceivePolicy> {
    any::<[bool; 7]>().prop_map(|[contents, keep, delete, ignore, list, late, disk]| ReceivePolicy {
        equal: if contents { Equal::Contents } else { Equal::Nothing },
        newer: if keep { Newer::Keep } else { Newer::Replace },
        extraneous: if delete { Extraneous::Delete } else { Extraneous::Keep },
        leftovers: if ignore { Leftovers::Ignore } else { Leftovers::Resume },
        run: if list { RunMode::ListChanges } else { RunMode::Verbose },
        durability: if late { Durability::AtEnd } else { Durability::Synced },
        readback: if disk { Readback::FromDisk } else { Readback::No },
    })
}

fn selection() -> impl Strategy<Value = Selection> {
    let verdict = prop_oneof![Just(Verdict::Include), Just(Verdict::Exclude)];
    let rule = (verdict, vec(1..=255u8, 1..12)).prop_map(|(verdict, pattern)| Rule { verdict, pattern });
    let choices = any::<(bool, bool, bool, bool)>();
    let sizes = (option::of(any::<u64>()), option::of(any::<u64>()));
    (vec(rule, 0..4), option::of(vec(rel_path(), 0..3)), choices, sizes).prop_map(
        |(rules, paths, (obey, follow, one, sent), (min_bytes, max_bytes))| Selection {
            rules,
            paths,
            ignore_files: if obey { IgnoreFiles::Obey } else { IgnoreFiles::Disregard },
            links: if follow { LinkChoice::Follow } else { LinkChoice::Keep },
            file_systems: if one { FileSystems::One } else { FileSystems::All },
            min_bytes,
            max_bytes,
            left_out: if sent { ExcludedNames::Sent } else { ExcludedNames::NotSent },
        },
    )
}

fn hello() -> impl Strategy<Value = Hello> {
    let bytes = || vec(any::<u8>(), 0..20);
    let layout = prop_oneof![Just(Layout::Into), Just(Layout::As)];
    let request = prop_oneof![
        (bytes(), layout, receive_policy()).prop_map(|(destination, layout, receive_policy)| {
            Request::Put { destination, layout, receive_policy }
        }),
        (vec(bytes(), 0..4), selection(), any::<bool>()).prop_map(|(sources, selection, growing)| {
            Request::Get {
                sources,
                selection,
                growth: if growing { Growth::Accept } else { Growth::Refuse },
                run: RunMode::Move,
                preserve: Preserve::ALL,
            }
        }),
        (bytes(), prop::sample::select(&[Durability::Cached, Durability::AtEnd, Durability::Synced][..]))
            .prop_map(|(destination, durability)| Request::PutStream { destination, durability }),
        Just(Request::BenchSend),
        Just(Request::BenchReceive),
        Just(Request::Check),
        ("[a-z\\[\\]\n=]{0,40}", vec(("[a-z_]{1,8}", any::<u16>()), 0..4))
            .prop_map(|(recipe, versions)| Request::Connect { recipe, versions }),
        Just(Request::StreamSend),
        Just(Request::StreamReceive),
    ];
    (any::<u16>(), any::<[u8; 32]>(), vec(cipher(), 0..5), request, settings()).prop_map(
        |(version, proof, ciphers, request, settings)| Hello { version, proof, ciphers, request, settings },
    )
}

fn accept() -> impl Strategy<Value = Accept> {
    (any::<u32>(), cipher(), any::<u16>(), text(), settings()).prop_map(
        |(session, cipher, udp_port, server, settings)| Accept {
            session,
            cipher,
            udp_port,
            server,
            settings,
        },
    )
}

fn ranges(limit: u64) -> impl Strategy<Value = Vec<ByteRange>> {
    let steps = vec((1..1000u64, 1..1000u64), 0..4);
    steps.prop_map(move |steps| {
        let mut end = 0;
        let mut all = Vec::new();
        for (gap, len) in steps {
            all.push(ByteRange { start: end + gap, len });
            end += gap + len;
        }
        all.retain(|s| s.end().is_some_and(|end| end <= limit));
        all
    })
}

fn file() -> impl Strategy<Value = EntryKind> {
    (up_to(MAX_OFFSET), ranges(10_000))
        .prop_map(|(size, holes)| EntryKind::File { size: size.max(10_000), holes })
}

fn request_run() -> impl Strategy<Value = RequestRun> {
    let request = prop_oneof![
        Just(EntryRequest::All),
        Just(EntryRequest::Nothing),
        Just(EntryRequest::Kept),
        Just(EntryRequest::Compare),
        ranges(u64::MAX).prop_map(EntryRequest::Ranges),
    ];
    (any::<u64>(), request).prop_map(|(count, request)| RequestRun { count, request })
}

fn proof() -> impl Strategy<Value = Proof> {
    (any::<(u64, u64)>(), vec(any::<[u8; 32]>(), 0..3)).prop_map(|((entry, first), values)| Proof {
        entry,
        first,
        values,
    })
}

fn entry() -> impl Strategy<Value = Entry> {
    let target = vec(1..=255u8, 1..20);
    let kind = prop_oneof![
        file(),
        Just(EntryKind::Directory),
        target.prop_map(|target| EntryKind::Symlink { target }),
        fault().prop_map(EntryKind::Failed),
        any::<u64>().prop_map(|entry| EntryKind::HardLink { entry }),
    ];
    let extras = option::of(extras().prop_map(Box::new));
    (rel_path(), kind, 0..=MAX_MODE, any::<i64>(), 0..1_000_000_000u32, extras).prop_map(
        |(path, kind, mode, mtime_secs, mtime_nanos, extras)| Entry {
            path,
            kind,
            mode,
            mtime_secs,
            mtime_nanos,
            extras,
        },
    )
}

fn extras() -> impl Strategy<Value = Extras> {
    let name = || option::of(vec(any::<u8>(), 1..5));
    let owner = (any::<u32>(), any::<u32>(), name(), name())
        .prop_map(|(user, group, user_name, group_name)| Owner { user, group, user_name, group_name });
    let xattr =
        (vec(1..=255u8, 1..9), vec(any::<u8>(), 0..9)).prop_map(|(name, value)| Xattr { name, value });
    let xattrs = option::of(vec(xattr, 0..3));
    (option::of(owner), xattrs.clone(), xattrs, any::<u32>())
        .prop_map(|(owner, xattrs, acls, left_out)| Extras { owner, xattrs, acls, left_out })
}

fn digest() -> impl Strategy<Value = FileDigest> {
    let result = prop_oneof![any::<[u8; 32]>().prop_map(Ok), fault().prop_map(Err)];
    (any::<u64>(), result).prop_map(|(entry, result)| FileDigest { entry, result })
}

fn outcome() -> impl Strategy<Value = Outcome> {
    (any::<u64>(), option::of(fault())).prop_map(|(entry, fault)| Outcome { entry, fault })
}

fn item() -> impl Strategy<Value = Item> {
    let action = prop_oneof![
        any::<u64>().prop_map(|size| Action::Send { size }),
        any::<u64>().prop_map(|size| Action::Replace { size }),
        any::<(u64, u64)>().prop_map(|(have, size)| Action::Resume { have, size }),
        Just(Action::Keep),
        Just(Action::Link),
        Just(Action::MakeDirectory),
        Just(Action::Delete),
        Just(Action::Adjust),
    ];
    (rel_path(), action).prop_map(|(path, action)| Item { path, action })
}

fn summary() -> impl Strategy<Value = Summary> {
    let notes = (any::<u64>(), vec(text(), 0..3)).prop_map(|(count, first)| Notes { count, first });
    (any::<u64>(), any::<u64>(), any::<u64>(), any::<[u8; 32]>(), notes)
        .prop_map(|(entries, failed, bytes, digest, notes)| Summary { entries, failed, bytes, digest, notes })
}

/// Any message that can be sent.
pub(crate) fn message() -> impl Strategy<Value = ControlMessage> {
    prop_oneof![
        hello().prop_map(ControlMessage::Hello),
        accept().prop_map(ControlMessage::Accept),
        fault().prop_map(ControlMessage::Refuse),
        any::<u16>().prop_map(|size| ControlMessage::UdpSeen { size }),
        vec(entry(), 0..4).prop_map(ControlMessage::Entries),
        any::<(u64, u64)>().prop_map(|(entries, bytes)| ControlMessage::EntriesEnd { entries, bytes }),
        vec(digest(), 0..4).prop_map(ControlMessage::Digests),
        vec(outcome(), 0..4).prop_map(ControlMessage::Outcomes),
        summary().prop_map(ControlMessage::Finish),
        any::<u64>().prop_map(|bytes| ControlMessage::ObjectSent { bytes }),
        any::<u64>().prop_map(|rate_bps| ControlMessage::Quota { rate_bps }),
        any::<u64>().prop_map(ControlMessage::Ping),
        any::<u64>().prop_map(ControlMessage::Pong),
        Just(ControlMessage::Close),
        fault().prop_map(ControlMessage::Abort),
        prop_oneof![Just(Destination::Fresh), Just(Destination::Occupied)].prop_map(ControlMessage::Ready),
        vec(request_run(), 0..4).prop_map(ControlMessage::EntryRequests),
        (any::<u64>(), ranges(u64::MAX))
            .prop_map(|(entry, ranges)| ControlMessage::More(More { entry, ranges })),
        any::<u64>().prop_map(|bytes| ControlMessage::EntryRequestsEnd { bytes }),
        vec(proof(), 0..3).prop_map(ControlMessage::Proofs),
        vec(item(), 0..4).prop_map(ControlMessage::Items),
        prop_oneof![Just(Extent::Part), Just(Extent::Directories), Just(Extent::Destination)]
            .prop_map(ControlMessage::Extent),
        selection().prop_map(|selection| ControlMessage::LeftOut(selection.rules)),
        (vec(rel_path(), 0..4), any::<bool>()).prop_map(|(paths, obey)| {
            let ignore_files = if obey { IgnoreFiles::Obey } else { IgnoreFiles::Disregard };
            ControlMessage::Filtered(Filtered { paths, ignore_files })
        }),
        (vec(any::<[u8; 16]>(), 0..4), option::of(rel_path()), any::<bool>()).prop_map(
            |(directories, name, removes)| {
                ControlMessage::DestinationLineage(DestinationLineage { directories, name, removes })
            }
        ),
        (0..=MAX_MODE, any::<i64>(), 0..1_000_000_000u32).prop_map(|(mode, mtime_secs, mtime_nanos)| {
            let extras = None;
            ControlMessage::DestinationAttributes(DestinationAttributes {
                mode,
                mtime_secs,
                mtime_nanos,
                extras,
            })
        }),
        vec(any::<u8>(), 0..100).prop_map(ControlMessage::Transport),
        vec((text(), text()), 0..4).prop_map(ControlMessage::LawChange),
        (any::<u64>(), option::of(fault()))
            .prop_map(|(removed, fault)| ControlMessage::Removed(Removal { removed, fault })),
    ]
}

/// The frames of a few messages.
pub(crate) fn frames(messages: &[ControlMessage]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for message in messages {
        encode_frame(message, &mut bytes).unwrap();
    }
    bytes
}

/// Consistent fields of feedback.
pub(crate) fn feedback_header() -> impl Strategy<Value = FeedbackHeader> {
    let places = up_to(MAX_SEQ + 1).prop_flat_map(|highest| (up_to(highest), Just(highest)));
    let times = any::<(u32, u32, u32)>();
    let counts = any::<(u64, u32, u32, u32, u32, u16)>();
    let reading = (any::<(u32, u32, u32)>(), option::of(host_sample()));
    (up_to(MAX_PN), times, up_to(MAX_PN), counts, up_to(MAX_OFFSET), places, reading).prop_map(
        |(largest_pn, times, packets, counts, limit, (complete_below, highest), (reading, host))| {
            FeedbackHeader {
                largest_pn,
                echo_timestamp: times.0,
                echo_delay_us: times.1,
                received_at: times.2,
                packets,
                bytes: counts.0,
                duplicates: counts.1,
                ecn_ce: counts.2,
                socket_drops: counts.3,
                rejected: counts.4,
                last_probe: counts.5,
                limit,
                complete_below,
                highest,
                read_delay_us: reading.0,
                buffers: reading.1,
                sent_at: reading.2,
                host,
            }
        },
    )
}

fn host_sample() -> impl Strategy<Value = HostSample> {
    let span = || option::of(any::<u32>().prop_map(|micros| Span::from_micros(u64::from(micros))));
    let share = || option::of(any::<u16>());
    (span(), share(), option::of(any::<u32>()), share(), share(), span(), span(), option::of(any::<u32>()))
        .prop_map(
            |(
                run_delay,
                socket_fill,
                involuntary_switches,
                cpu_pressure,
                disk_pressure,
                steal,
                sleep_average,
                early_drops,
            )| {
                HostSample {
                    run_delay,
                    socket_fill,
                    involuntary_switches,
                    cpu_pressure,
                    disk_pressure,
                    steal,
                    sleep_average,
                    early_drops,
                }
            },
        )
}

/// Segment, first word, and the words of one block, which do not exceed the segment.
pub(crate) type BlockValue = (u32, usize, Vec<u64>);

/// A block of feedback; bits past the end of the segment may be set.
pub(crate) fn block() -> impl Strategy<Value = BlockValue> {
    let word = prop_oneof![1 => Just(0), 1 => Just(u64::MAX), 2 => any::<u64>()];
    let words = prop_oneof![3 => vec(word, 1..6), 1 => vec(Just(u64::MAX), 1..SEGMENT_WORDS), 1 => vec(Just(0), 1..9)];
    words.prop_flat_map(|words| {
        let room = SEGMENT_WORDS - words.len();
        (any::<u32>(), prop_oneof![0..=room, Just(room)], Just(words))
    })
}

/// A feedback body with these blocks.
pub(crate) fn feedback_body(header: &FeedbackHeader, blocks: &[BlockValue]) -> Vec<u8> {
    let room: usize = blocks.iter().map(|(_, _, words)| 7 + 8 * words.len()).sum();
    let mut bytes = vec![0; header.encoded_len() + room];
    let mut writer = FeedbackWriter::new(&mut bytes, header).unwrap();
    for (segment, first, words) in blocks {
        writer.push(*segment, *first, words).unwrap();
    }
    let len = writer.finish();
    bytes.truncate(len);
    bytes
}
