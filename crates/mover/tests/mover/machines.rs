//! Both jobs over the bulk transport and a simulated lossy path, in virtual time: whatever an earlier attempt
//! has left of a file, the next one completes in bounded time.

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use haul_base::{
    Bytes, Ecn, Machine, PathId, Piece, Probability, RangeSet, Rate, Received, Span, Time, Transmit,
};
use haul_mover::{
    ControlLink, JobHandle, Root, SendLimits, receive_files, receive_stream, send_files, send_stream,
};
use haul_proto::{
    ControllerConfig, Link as PacketLink, Open, Receiver, ReceiverConfig, Seal, Sender, SenderConfig,
    Unauthentic, build_controller,
};
use haul_sim::{
    BottleneckSpec, Exit, FlowId, Limit, PacketInfo, Path as SimulatedPath, PathSpec, QueueSpec, StageSpec,
};
use haul_wire::control::{ControlMessage, Fault, FaultCode, Layout};

use crate::harness::{
    Ends, Link, Pair, Undigested, all, assert_no_parts, bytes, link_pair, names_below, options, start,
};
use crate::trees::{assert_same, contents, set_mtime};

/// Size of a hash group in bytes.
const GROUP: u64 = 1 << 20;
/// Size of a read block in bytes.
const BLOCK: u64 = 256 << 10;
/// Approximate payload of a packet in bytes.
const PACKET: u64 = 1_430;
/// The path: 3 MB take about 0.25 s.
const RATE: Rate = Rate::from_mbps(100);
const DELAY: Span = Span::from_millis(5);
const LOSS: f64 = 0.02;
/// Maximum virtual time of a copy.
const BOUND: Span = Span::from_secs(30);
/// Virtual time after which the threads of the jobs get more real time: they may wait for the disk.
const USUAL: Span = Span::from_secs(5);
/// Virtual time that passes while the threads of the jobs get [`REAL_STEP`].
const STEP: Span = Span::from_millis(1);
const REAL_STEP: Duration = Duration::from_micros(100);

/// Packets without encryption.
#[derive(Debug)]
struct Plain;

impl Seal for Plain {
    fn tag_len(&self) -> usize {
        0
    }

    fn seal_batch(&mut self, _: &mut [u8], _: usize, _: usize, _: u64) {}
}

impl Open for Plain {
    fn open(&mut self, packet: &mut [u8], header_len: usize, _: u64) -> Result<usize, Unauthentic> {
        packet.len().checked_sub(header_len).ok_or(Unauthentic)
    }
}

/// One direction of the path, with the bytes in flight.
struct Direction {
    path: SimulatedPath,
    packets: HashMap<u64, Vec<u8>>,
    sent: u64,
}

impl Direction {
    fn new(seed: u64) -> Self {
        let queue = QueueSpec::TailDrop(Limit::Bytes(Bytes(1 << 20)));
        let stages = vec![
            StageSpec::Bottleneck(BottleneckSpec { rate: RATE, queue }),
            StageSpec::Loss(Probability::new(LOSS).unwrap()),
            StageSpec::Delay(DELAY),
        ];
        Self {
            path: SimulatedPath::new(&PathSpec { stages }, seed).unwrap(),
            packets: HashMap::new(),
            sent: 0,
        }
    }

    fn offer(&mut self, now: Time, batch: &[u8], segment: usize) {
        for packet in batch.chunks(segment) {
            self.sent += 1;
            let info =
                PacketInfo { id: self.sent, flow: FlowId(0), bytes: packet.len() as u32, ecn: Ecn::NotEct };
            self.packets.insert(self.sent, packet.to_vec());
            self.path.offer(now, info);
        }
    }

    fn arrived(&mut self, now: Time) -> Vec<(Time, Vec<u8>)> {
        let (mut out, packets) = (Vec::new(), &mut self.packets);
        self.path.advance(now, &mut |at, parcel, exit| {
            // Offered one by one.
            let data = packets.remove(&parcel.id()).expect("each packet leaves once");
            if exit == Exit::Delivered {
                out.push((at, data));
            }
        });
        out
    }
}

fn deliver(machine: &mut impl Machine, now: Time, arrived: Vec<(Time, Vec<u8>)>) {
    for (at, mut data) in arrived {
        let stride = data.len();
        machine.on_receive(
            now,
            &mut Received {
                data: &mut data,
                stride,
                arrival: Some(at),
                path: PathId::default(),
                ecn: Ecn::NotEct,
                socket_drops: None,
            },
        );
    }
}

/// Sender, receiver and the path between them.
struct World {
    now: Time,
    sender: Sender,
    receiver: Receiver,
    forth: Direction,
    back: Direction,
}

impl World {
    fn new(seed: u64, pair: Pair) -> (Self, JobHandle, JobHandle) {
        let Pair { send, receive } = pair;
        let (now, rtt, interval) = (Time::ZERO, DELAY + DELAY, Span::from_millis(2));
        let law = ControllerConfig { ceiling: Some(RATE), initial_rtt: rtt, feedback_interval: interval };
        let controller = build_controller("delivery", &law).unwrap();
        let sending =
            SenderConfig { initial_rtt: rtt, feedback_interval: interval, ..SenderConfig::default() };
        let receiving =
            ReceiverConfig { feedback_interval: interval, feedback_datagram: 1_200, silence: BOUND };
        let link = || PacketLink::new(Box::new(Plain), Box::new(Plain), 0);
        let first_limit = options().memory;
        let world = Self {
            now,
            sender: Sender::new(now, &sending, link(), send.source, controller, first_limit),
            receiver: Receiver::new(now, receiving, link(), receive.sink),
            forth: Direction::new(2 * seed),
            back: Direction::new(2 * seed + 1),
        };
        (world, send.handle, receive.handle)
    }

    /// Lets both sides send; returns whether anything was sent.
    fn transmit(&mut self) -> bool {
        let mut slot = vec![0; 65_536];
        let mut any = false;
        while let Some(Transmit { len, segment_size, .. }) = self.sender.poll_transmit(self.now, &mut slot) {
            self.forth.offer(self.now, &slot[..len], segment_size);
            any = true;
        }
        while let Some(Transmit { len, segment_size, .. }) = self.receiver.poll_transmit(self.now, &mut slot)
        {
            self.back.offer(self.now, &slot[..len], segment_size);
            any = true;
        }
        while self.sender.poll_event().is_some() || self.receiver.poll_event().is_some() {}
        any
    }

    /// Advances time to the next event, or a little if the threads of the jobs have work.
    fn advance(&mut self, sent: bool) {
        let deadlines = [self.sender.deadline(), self.receiver.deadline()];
        let events = [self.forth.path.next_event(), self.back.path.next_event()];
        let next = deadlines.into_iter().flatten().map(|d| d.at).chain(events.into_iter().flatten()).min();
        let later = self.now + STEP;
        if !sent && next.is_none_or(|next| next >= later) {
            std::thread::sleep(REAL_STEP);
        }
        self.now = next.unwrap_or(later).min(later).max(self.now + Span::from_nanos(100));
        self.sender.on_deadline(self.now);
        self.receiver.on_deadline(self.now);
        let (to_receiver, to_sender) = (self.forth.arrived(self.now), self.back.arrived(self.now));
        deliver(&mut self.receiver, self.now, to_receiver);
        deliver(&mut self.sender, self.now, to_sender);
    }
}

/// Runs both jobs until `is_reached`.
fn run_until(world: &mut World, jobs: (&JobHandle, &JobHandle), is_reached: &dyn Fn() -> bool, what: &str) {
    let (send, receive) = jobs;
    while !is_reached() {
        let sent = world.transmit();
        world.advance(sent);
        if world.now.since(Time::ZERO) > USUAL {
            std::thread::sleep(40 * REAL_STEP);
        }
        if world.now.since(Time::ZERO) > BOUND {
            let (sending, receiving) = (send.progress(), receive.progress());
            let state =
                format!("{} bytes known, {} written", sending.bytes_known.get(), receiving.bytes_done.get());
            send.abort(Fault::new(FaultCode::Interrupted, "stalled", ""));
            panic!("{what}: no progress: {state}; {:?}", world.sender);
        }
    }
}

/// Runs both jobs to their ends.
fn run(seed: u64, pair: Pair, what: &str) -> Ends {
    let (mut world, send, receive) = World::new(seed, pair);
    let is_over = || send.is_finished() || receive.is_finished();
    run_until(&mut world, (&send, &receive), &is_over, what);
    Ends { sent: send.join(), received: receive.join() }
}

/// Simulates an attempt that has written these bytes of the object.
fn begin(src: &Path, dst: &Path, written: &RangeSet) -> (JobHandle, JobHandle) {
    let (a, b) = link_pair();
    let mut receive = receive_files(&bytes(dst), &Root::Anywhere, Layout::Into, b, options()).unwrap();
    let a = Arc::new(Undigested(a));
    let mut send =
        send_files(vec![contents_of(src)], Root::Anywhere, &all(), a, SendLimits::default()).unwrap();
    let mut at = 0;
    loop {
        let available = send.source.available();
        let mut data = vec![0; (available.upto - at) as usize];
        send.source.read(at, &mut data);
        for range in written.iter() {
            let here = range.start.max(at)..range.end.min(available.upto);
            if here.start < here.end {
                let piece =
                    Piece { offset: here.start, range: (here.start - at) as usize..(here.end - at) as usize };
                receive.sink.deliver(&data, &[piece]);
            }
        }
        at = available.upto;
        if available.end && at == send.source.available().upto {
            break;
        }
        std::thread::sleep(REAL_STEP);
    }
    while receive.handle.progress().bytes_done.get() < written.total() {
        std::thread::sleep(REAL_STEP);
    }
    (send.handle, receive.handle)
}

fn stop((send, receive): (JobHandle, JobHandle)) {
    send.abort(Fault::new(FaultCode::Interrupted, "stopped by the test", ""));
    send.join().unwrap_err();
    receive.join().unwrap_err();
}

fn contents_of(directory: &Path) -> Vec<u8> {
    [&bytes(directory)[..], b"/."].concat()
}

/// Position of the file in its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    Single,
    Last,
    Middle,
}

impl Position {
    /// Returns the other files: names sorted before and after `file`, with their sizes.
    fn others(self) -> &'static [(&'static str, u64)] {
        match self {
            Self::Single => &[],
            Self::Last => &[("a", 70_001)],
            Self::Middle => &[("a", 70_001), ("z", 3)],
        }
    }

    /// Returns the offset of the file in the object.
    fn start(self) -> u64 {
        match self {
            Self::Single => 0,
            Self::Last | Self::Middle => 70_001,
        }
    }
}

/// Sizes around every boundary of packets, blocks and groups.
fn sizes() -> Vec<u64> {
    let around = |at: u64| [at - 1, at, at + 1];
    let boundaries = [PACKET, 64 << 10, BLOCK, GROUP, GROUP + BLOCK, 2 * GROUP];
    let mut sizes = vec![0, 1, 1_500_000];
    sizes.extend(boundaries.into_iter().flat_map(around));
    sizes
}

/// Returns possible partial states of a file of `size` bytes: prefixes ending near every boundary, and holes
/// around them.
fn cuts(size: u64) -> Vec<RangeSet> {
    let mut ends = vec![1, size / 2, size.saturating_sub(PACKET), size.saturating_sub(1), size];
    for at in [BLOCK, GROUP - BLOCK, GROUP, GROUP + BLOCK, 2 * GROUP] {
        ends.extend([at - 1, at, at + 1]);
    }
    ends.retain(|&end| 0 < end && end <= size);
    ends.sort_unstable();
    ends.dedup();
    let range = |range: std::ops::Range<u64>| {
        let mut set = RangeSet::new();
        set.insert(range);
        set
    };
    if size < GROUP {
        // No journal is kept for so small a file.
        ends = vec![size / 2];
    }
    let mut cuts: Vec<_> = ends.iter().map(|&end| range(0..end)).collect();
    // One byte is missing: the first, one in the middle, one at a boundary.
    for missing in [0, size / 2, GROUP - 1, GROUP].into_iter().filter(|&at| size >= GROUP && at + 1 < size) {
        let mut all = range(0..size);
        all.remove(missing..missing + 1);
        cuts.push(all);
    }
    cuts
}

/// One file, its existing data, and its position in the set.
fn resume(seed: u64, position: Position, size: u64, have: &RangeSet) {
    let what = format!("seed {seed}: {position:?}, {size} bytes, of which {have:?} are there");
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    fs::create_dir(&src).unwrap();
    fs::create_dir(&dst).unwrap();
    for (salt, &(name, len)) in position.others().iter().chain(&[("file", size)]).enumerate() {
        fs::write(src.join(name), contents(len as usize, salt as u64)).unwrap();
        set_mtime(&src.join(name), 1_000_000_000, 123_456_789);
    }
    let mut written = RangeSet::new();
    have.iter().for_each(|range| {
        written.insert(range.start + position.start()..range.end + position.start());
    });
    stop(begin(&src, &dst, &written));
    let pair = start(vec![contents_of(&src)], &dst, Layout::Into, SendLimits::default(), options()).unwrap();
    let ends = run(seed, pair, &what);
    let report = ends.clean();
    for &(name, _) in position.others().iter().chain(&[("file", 0)]) {
        assert_same(&src.join(name), &dst.join(name));
    }
    assert_no_parts(&dst);
    assert_eq!(names_below(&dst).len(), position.others().len() + 1, "{what}: a journal is left");
    if size >= GROUP {
        assert_eq!(report.resumed_bytes, have.total(), "{what}");
    }
}

fn resume_everything(position: Position) {
    let mut seed = 0;
    for size in sizes() {
        for have in cuts(size) {
            seed += 1;
            resume(seed, position, size, &have);
        }
    }
    assert!(seed > 100, "{seed} cases");
}

#[test]
fn a_single_file_is_resumed_from_every_cut() {
    resume_everything(Position::Single);
}

#[test]
fn the_last_file_of_a_set_is_resumed_from_every_cut() {
    resume_everything(Position::Last);
}

#[test]
fn a_file_amid_a_set_is_resumed_from_every_cut() {
    resume_everything(Position::Middle);
}

#[test]
fn complete_files_get_their_names_during_a_large_transfer() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    fs::create_dir(&src).unwrap();
    fs::create_dir(&dst).unwrap();
    let (few, len, large) = (8, 300_000, 8 << 20);
    for salt in 0..few {
        fs::write(src.join(format!("a{salt}")), contents(len, salt)).unwrap();
    }
    fs::write(src.join("z"), contents(large, few)).unwrap();
    let pair = start(vec![contents_of(&src)], &dst, Layout::Into, SendLimits::default(), options()).unwrap();
    let (mut world, send, receive) = World::new(1, pair);
    let progress = receive.progress();
    // A packet of the small files may have been lost: then more of the large one must arrive first.
    let mut amid = few * len as u64 + (1 << 20);
    while progress.files_done.get() < few {
        let is_amid = || progress.bytes_done.get() >= amid;
        run_until(&mut world, (&send, &receive), &is_amid, "a large file among small ones");
        let is_missing = |_: &u32| progress.files_done.get() < few;
        (0..100).take_while(is_missing).for_each(|_| std::thread::sleep(Duration::from_millis(10)));
        amid += 128 << 10;
    }
    assert!(!dst.join("z").exists());
    let is_over = || send.is_finished() || receive.is_finished();
    run_until(&mut world, (&send, &receive), &is_over, "a large file among small ones");
    Ends { sent: send.join(), received: receive.join() }.clean();
}

/// A pipe to which data is written now and then.
struct Trickle(crossbeam_channel::Receiver<Vec<u8>>);

impl Read for Trickle {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let Ok(bytes) = self.0.recv() else { return Ok(0) };
        into[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }
}

#[test]
fn pipe_data_arrives_before_the_pipe_has_more() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("file");
    let (write, read) = crossbeam_channel::unbounded();
    let (a, b) = link_pair();
    let receive = receive_stream(&bytes(&to), &Root::Anywhere, b, options()).unwrap();
    let send = send_stream(Box::new(Trickle(read)), a, SendLimits::default()).unwrap();
    let (mut world, send, receive) = World::new(1, Pair { send, receive });
    let progress = receive.progress();
    for line in 1..=3 {
        write.send(b"a line\n".to_vec()).unwrap();
        let is_there = || progress.bytes_done.get() == 7 * line;
        run_until(&mut world, (&send, &receive), &is_there, "a line of a pipe");
    }
    drop(write);
    let is_over = || send.is_finished() || receive.is_finished();
    run_until(&mut world, (&send, &receive), &is_over, "the end of a pipe");
    Ends { sent: send.join(), received: receive.join() }.clean();
    assert_eq!(fs::read(to).unwrap(), b"a line\na line\na line\n");
}

/// A control channel that checks the destination when the sender is told that the job succeeded.
struct AtFinish {
    link: Arc<Link>,
    destination: PathBuf,
    names: Mutex<Option<Vec<PathBuf>>>,
}

impl ControlLink for AtFinish {
    fn send(&self, message: ControlMessage) -> Result<(), Fault> {
        self.link.send(message)
    }

    fn recv(&self, timeout: Duration) -> Result<Option<ControlMessage>, Fault> {
        let received = self.link.recv(timeout)?;
        if let Some(ControlMessage::Finish(_)) = received {
            *self.names.lock().unwrap() = Some(names_below(&self.destination));
        }
        Ok(received)
    }
}

/// The sender may end at this point, and with it the process of the receiver.
#[test]
fn no_journal_remains_when_success_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    fs::create_dir(&src).unwrap();
    fs::create_dir(&dst).unwrap();
    fs::write(src.join("file"), contents(3 << 20, 1)).unwrap();
    let (a, b) = link_pair();
    let a = Arc::new(AtFinish { link: a, destination: dst.clone(), names: Mutex::default() });
    let receive = receive_files(&bytes(&dst), &Root::Anywhere, Layout::Into, b, options()).unwrap();
    let send = send_files(vec![contents_of(&src)], Root::Anywhere, &all(), a.clone(), SendLimits::default())
        .unwrap();
    run(1, Pair { send, receive }, "a file").clean();
    assert_eq!(*a.names.lock().unwrap(), Some(vec![dst.join("file")]));
}

#[test]
fn an_attempt_still_ending_when_the_next_starts_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    fs::create_dir(&src).unwrap();
    fs::create_dir(&dst).unwrap();
    fs::write(src.join("file"), contents(3 << 20, 1)).unwrap();
    let mut written = RangeSet::new();
    written.insert(0..2 * GROUP);
    let first = begin(&src, &dst, &written);
    let (a, b) = link_pair();
    let receive = receive_files(&bytes(&dst), &Root::Anywhere, Layout::Into, b, options()).unwrap();
    stop(first);
    assert_eq!(names_below(&dst).len(), 2, "a journal and a temporary file");
    let send = send_files(vec![contents_of(&src)], Root::Anywhere, &all(), a, SendLimits::default()).unwrap();
    run(1, Pair { send, receive }, "the second attempt").clean();
    assert_eq!(names_below(&dst), [dst.join("file")]);
}
