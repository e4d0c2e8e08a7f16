//! Two jobs connected by channels and by a transport that reorders, loses and repeats data.

use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use haul_base::{Piece, Rng};
use haul_mover::{
    ControlLink, JobHandle, MoveReport, ReceiveJob, ReceiveOptions, Root, SendJob, SendLimits, receive_files,
    send_files,
};
use haul_proto::{ObjectSink, ObjectSource};
use haul_wire::control::{
    ControlMessage, Destination, Durability, Entry, Fault, Layout, ReceivePolicy, Selection,
};

use crate::check::link::links;

pub(crate) use crate::check::link::Link;

/// Payload of a packet in bytes.
const PACKET: usize = 1400;

/// Creates the two ends of a control channel.
pub(crate) fn link_pair() -> (Arc<Link>, Arc<Link>) {
    let (a, b) = links();
    (Arc::new(a), Arc::new(b))
}

/// A control channel that drops all digests, so that no file can be completed.
pub(crate) struct Undigested(pub(crate) Arc<Link>);

impl ControlLink for Undigested {
    fn send(&self, message: ControlMessage) -> Result<(), Fault> {
        if matches!(message, ControlMessage::Digests(_)) { Ok(()) } else { self.0.send(message) }
    }

    fn recv(&self, timeout: Duration) -> Result<Option<ControlMessage>, Fault> {
        self.0.recv(timeout)
    }
}

/// A transport: delivers pieces of a window in random order, and loses some the first time.
pub(crate) struct Pump<'a> {
    pub(crate) seed: u64,
    /// Maximum number of bytes in flight.
    pub(crate) window: u64,
    /// Share of pieces that are lost the first time.
    pub(crate) loss: f64,
    /// Corrupts bytes in transit.
    pub(crate) tamper: &'a dyn Fn(u64, &mut [u8]),
    /// Stops after this many delivered bytes.
    pub(crate) stop_after: Option<u64>,
}

impl Default for Pump<'_> {
    fn default() -> Self {
        Self { seed: 1, window: 1 << 20, loss: 0.02, tamper: &|_, _| {}, stop_after: None }
    }
}

impl Pump<'_> {
    /// Transfers the object; stops early when `over` returns true. Returns the bytes delivered.
    pub(crate) fn run(
        &self,
        source: &mut dyn ObjectSource,
        sink: &mut dyn ObjectSink,
        over: &dyn Fn() -> bool,
    ) -> u64 {
        let mut rng = Rng::from_seed(self.seed);
        let mut open: Vec<(u64, usize)> = Vec::new();
        let (mut next, mut delivered) = (0, 0);
        loop {
            let available = source.available();
            let low = open.iter().map(|p| p.0).min().unwrap_or(next);
            source.release(low);
            let end = available.upto.min(sink.limit()).min(low + self.window);
            while next < end {
                let len = (end - next).min(PACKET as u64);
                open.push((next, len as usize));
                next += len;
            }
            if open.is_empty() {
                if available.end && next == available.upto {
                    sink.complete(next);
                    return delivered;
                }
                std::thread::sleep(Duration::from_micros(200));
            }
            if over() || self.stop_after.is_some_and(|most| delivered >= most) {
                return delivered;
            }
            delivered += self.batch(&mut rng, &mut open, source, sink);
        }
    }

    fn batch(
        &self,
        rng: &mut Rng,
        open: &mut Vec<(u64, usize)>,
        source: &mut dyn ObjectSource,
        sink: &mut dyn ObjectSink,
    ) -> u64 {
        let (mut data, mut pieces) = (Vec::new(), Vec::new());
        for _ in 0..64.min(open.len()) {
            let index = rng.below(open.len() as u64) as usize;
            let (offset, len) = open[index];
            let at = data.len();
            data.resize(at + len, 0);
            source.read(offset, &mut data[at..]);
            if rng.chance(self.loss) {
                data.truncate(at);
                continue;
            }
            open.swap_remove(index);
            (self.tamper)(offset, &mut data[at..]);
            pieces.push(Piece { offset, range: at..at + len });
        }
        sink.deliver(&data, &pieces);
        data.len() as u64
    }
}

/// Results of both sides.
#[derive(Debug)]
pub(crate) struct Ends {
    pub(crate) sent: Result<MoveReport, Fault>,
    pub(crate) received: Result<MoveReport, Fault>,
}

impl Ends {
    /// Asserts that both succeeded without a failed entry, and agree.
    pub(crate) fn clean(&self) -> &MoveReport {
        let (sent, received) = (self.sent.as_ref().unwrap(), self.received.as_ref().unwrap());
        assert_eq!(sent.failures.named(), &[]);
        assert_eq!(sent, received);
        sent
    }

    /// Asserts that both succeeded and agree, and that one entry failed.
    pub(crate) fn one_failure(&self) -> (&[u8], &Fault) {
        let (sent, received) = (self.sent.as_ref().unwrap(), self.received.as_ref().unwrap());
        assert_eq!(sent, received);
        assert_eq!(sent.failures.count(), 1, "{:?}", sent.failures);
        let (path, fault) = &sent.failures.named()[0];
        (path, fault)
    }
}

pub(crate) fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

/// Returns the options of tests, without syncing.
pub(crate) fn options() -> ReceiveOptions {
    ReceiveOptions {
        durability: Durability::Cached,
        ..ReceiveOptions::with_policy(0xabcd, ReceivePolicy::default())
    }
}

/// Returns a selection of everything.
pub(crate) fn all() -> Selection {
    Selection::default()
}

/// A connected pair of a sending and a receiving job.
pub(crate) struct Pair {
    pub(crate) send: SendJob,
    pub(crate) receive: ReceiveJob,
}

pub(crate) fn start(
    sources: Vec<Vec<u8>>,
    destination: &Path,
    layout: Layout,
    limits: SendLimits,
    options: ReceiveOptions,
) -> Result<Pair, Fault> {
    let (a, b) = link_pair();
    let receive = receive_files(&bytes(destination), &Root::Anywhere, layout, b, options)?;
    let send = send_files(sources, Root::Anywhere, &all(), a, limits)?;
    Ok(Pair { send, receive })
}

impl Pair {
    pub(crate) fn run(self, pump: &Pump<'_>) -> Ends {
        let Self { mut send, mut receive } = self;
        let over = || send.handle.is_finished() || receive.handle.is_finished();
        pump.run(&mut *send.source, &mut *receive.sink, &over);
        Ends { sent: send.handle.join(), received: receive.handle.join() }
    }
}

/// Copies with default options.
pub(crate) fn copy(sources: &[&Path], destination: &Path, layout: Layout) -> Ends {
    let sources = sources.iter().map(|path| bytes(path)).collect();
    start(sources, destination, layout, SendLimits::default(), options()).unwrap().run(&Pump::default())
}

/// Returns the entries that a job announces, in order. `seen` is called with those of each message before the
/// walk continues.
pub(crate) fn announced(
    sources: Vec<Vec<u8>>,
    root: &Root,
    selection: &Selection,
    seen: impl Fn(&[Entry]) + Send + Sync + 'static,
) -> Result<Vec<Entry>, Fault> {
    let (link, peer) = link_pair();
    let link = Arc::new(Watched { link, seen });
    let job = send_files(sources, root.clone(), selection, link, SendLimits::default())?;
    peer.send(ControlMessage::Ready(Destination::Occupied)).unwrap();
    let mut found = Vec::new();
    loop {
        match peer.recv(Duration::from_secs(60)).unwrap().expect("the walk ends") {
            ControlMessage::Entries(entries) => found.extend(entries),
            ControlMessage::EntriesEnd { .. } => break,
            _ => {}
        }
    }
    drop(job);
    Ok(found)
}

/// A control channel whose user sees entries before they are sent.
struct Watched<F> {
    link: Arc<Link>,
    seen: F,
}

impl<F: Fn(&[Entry]) + Send + Sync> ControlLink for Watched<F> {
    fn send(&self, message: ControlMessage) -> Result<(), Fault> {
        if let ControlMessage::Entries(entries) = &message {
            (self.seen)(entries);
        }
        self.link.send(message)
    }

    fn recv(&self, timeout: Duration) -> Result<Option<ControlMessage>, Fault> {
        self.link.recv(timeout)
    }
}

/// Joins a receiver that should fail, and returns its fault.
pub(crate) fn fault_of(handle: JobHandle) -> Fault {
    handle.join().unwrap_err()
}

/// Returns every name below a directory.
pub(crate) fn names_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_path_buf()];
    while let Some(at) = open.pop() {
        for item in fs::read_dir(&at).unwrap() {
            let path = item.unwrap().path();
            // A directory removed or renamed in the meantime is skipped.
            if path.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
                open.push(path.clone());
            }
            found.push(path);
        }
    }
    found
}

/// Asserts that no temporary file is left.
pub(crate) fn assert_no_parts(directory: &Path) {
    let parts: Vec<_> =
        names_below(directory).into_iter().filter(|p| p.as_os_str().as_bytes().ends_with(b".part")).collect();
    assert!(parts.is_empty(), "{parts:?}");
}

/// Asserts that every temporary file left belongs to a journal left in `base`.
pub(crate) fn assert_resumable(base: &Path) {
    let names: Vec<_> =
        names_below(base).iter().map(|p| p.file_name().unwrap().as_bytes().to_vec()).collect();
    let journals: Vec<_> =
        names.iter().filter_map(|n| n.strip_suffix(b".journal")).map(<[u8]>::to_vec).collect();
    assert!(!journals.is_empty(), "{names:?}");
    for part in names.iter().filter(|n| n.ends_with(b".part")) {
        assert!(journals.iter().any(|journal| part.starts_with(journal)), "{names:?}");
    }
}

/// Generates a name of arbitrary bytes.
pub(crate) fn name(bytes: &[u8]) -> PathBuf {
    PathBuf::from(std::ffi::OsString::from_vec(bytes.to_vec()))
}

/// Waits until the receiver has created a temporary file.
pub(crate) fn await_part(directory: &Path) {
    let is_part = |path: &PathBuf| path.as_os_str().as_bytes().ends_with(b".part");
    while !(directory.exists() && names_below(directory).iter().any(is_part)) {
        std::thread::sleep(Duration::from_millis(1));
    }
}
