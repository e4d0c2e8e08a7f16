//! Streams into a file, and files into a stream.

use std::fs;
use std::io::{self, Cursor, Read, Write};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use haul_mover::{
    ControlLink as _, ReceiveJob, Root, SendJob, SendLimits, receive_stream, receive_to, send_files,
    send_stream,
};
use haul_wire::control::{ControlMessage, Fault, FaultCode, FileDigest, Selection};

use crate::harness::{Ends, Pump, assert_no_parts, bytes, link_pair, names_below, options};
use crate::trees::contents;

fn join(mut send: SendJob, mut receive: ReceiveJob, pump: &Pump<'_>) -> Ends {
    let over = || send.handle.is_finished() || receive.handle.is_finished();
    pump.run(&mut *send.source, &mut *receive.sink, &over);
    if pump.stop_after.is_some() {
        send.handle.abort(Fault::new(FaultCode::Interrupted, "stopped by hand", ""));
    }
    Ends { sent: send.handle.join(), received: receive.handle.join() }
}

#[test]
fn a_stream_that_was_not_announced_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (peer, link) = link_pair();
    let mut job = receive_stream(&bytes(&dir.path().join("f")), &Root::Anywhere, link, options()).unwrap();
    job.sink.complete(0);
    let digest = FileDigest { entry: 0, result: Ok(*blake3::hash(b"").as_bytes()) };
    peer.send(ControlMessage::Digests(vec![digest])).unwrap();
    peer.send(ControlMessage::EntriesEnd { entries: 1, bytes: 0 }).unwrap();
    let fault = job.handle.join().unwrap_err();
    assert!(!fault.message.contains("panic"), "{fault}");
    assert_eq!(names_below(dir.path()).len(), 0);
}

/// A pipe that provides a few bytes at a time.
struct Trickle(Cursor<Vec<u8>>, usize);

impl Read for Trickle {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = into.len().min(self.1);
        self.0.read(&mut into[..most])
    }
}

fn store(data: &[u8], step: usize, to: &Path, pump: &Pump<'_>) -> Ends {
    let (a, b) = link_pair();
    let receive = receive_stream(&bytes(to), &Root::Anywhere, b, options()).unwrap();
    // Little memory, so that it runs out.
    let limits = SendLimits { read_ahead: 1 << 20, keep: 1 << 20, ..SendLimits::default() };
    let input = Trickle(Cursor::new(data.to_vec()), step);
    join(send_stream(Box::new(input), a, limits).unwrap(), receive, pump)
}

#[test]
fn a_stream_becomes_a_file() {
    for (len, step) in [(0, 10), (1, 10), (5000, 7), (9_000_000, 65_536), (20_000_001, usize::MAX)] {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("file");
        let data = contents(len, 3);
        let ends = store(&data, step, &to, &Pump { window: 300_000, loss: 0.1, ..Pump::default() });
        let report = ends.clean();
        assert_eq!((report.entries, report.files, report.bytes), (1, 1, len as u64));
        assert!(fs::read(&to).unwrap() == data, "{len}");
        assert_eq!(names_below(dir.path()).len(), 1, "no journal and no temporary file");
    }
}

#[test]
fn a_stream_keeps_the_permissions_of_the_file_it_replaces() {
    let dir = tempfile::tempdir().unwrap();
    let [to, ordinary] = ["file", "ordinary"].map(|name| dir.path().join(name));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    fs::write(&ordinary, "").unwrap();
    let store = || store(b"data", 10, &to, &Pump::default());
    store().clean();
    assert_eq!(mode(&to), mode(&ordinary));
    for (old, new) in [(0o600, 0o600), (0o4711, 0o711)] {
        fs::set_permissions(&to, fs::Permissions::from_mode(old)).unwrap();
        store().clean();
        assert_eq!(mode(&to), new, "{old:o}");
    }
}

#[test]
fn a_stream_replaces_a_file_only_when_complete() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("file");
    fs::write(&to, "old").unwrap();
    let data = contents(6 << 20, 4);
    let stopped = store(&data, 65_536, &to, &Pump { stop_after: Some(3 << 20), ..Pump::default() });
    assert!(stopped.sent.is_err() && stopped.received.is_err());
    assert_eq!(fs::read(&to).unwrap(), b"old");
    assert_no_parts(dir.path());
    // A bit flipped in transit is detected.
    let flip = |offset: u64, bytes: &mut [u8]| {
        if (2_000_000..2_001_400).contains(&offset) {
            bytes[0] ^= 1;
        }
    };
    let ends = store(&data, 65_536, &to, &Pump { tamper: &flip, ..Pump::default() });
    assert_eq!(ends.received.unwrap_err().code, FaultCode::VerifyFailed);
    assert_eq!(ends.sent.unwrap_err().code, FaultCode::VerifyFailed);
    assert_eq!(fs::read(&to).unwrap(), b"old");
    assert_no_parts(dir.path());
    store(&data, 65_536, &to, &Pump::default()).clean();
    assert!(fs::read(&to).unwrap() == data);
}

#[test]
fn a_stream_requires_a_name() {
    let dir = tempfile::tempdir().unwrap();
    let (_, b) = link_pair();
    let refused = receive_stream(&bytes(dir.path()), &Root::Anywhere, b, options()).err().unwrap();
    assert_eq!(refused.code, FaultCode::IsADirectory);
}

struct Broken;

impl Read for Broken {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::Error::from_raw_os_error(5))
    }
}

#[test]
fn an_input_error_ends_the_job() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = link_pair();
    let receive = receive_stream(&bytes(&dir.path().join("f")), &Root::Anywhere, b, options()).unwrap();
    let send = send_stream(Box::new(Broken), a, SendLimits::default()).unwrap();
    let ends = join(send, receive, &Pump::default());
    assert_eq!(ends.sent.unwrap_err().code, FaultCode::Io);
    assert_eq!(ends.received.unwrap_err().code, FaultCode::Io);
    assert_eq!(names_below(dir.path()), Vec::<PathBuf>::new());
}

/// Collects the bytes written.
#[derive(Clone, Default)]
struct Shown(Arc<Mutex<Vec<u8>>>);

impl Write for Shown {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn show(sources: &[PathBuf], output: Box<dyn Write + Send>, pump: &Pump<'_>) -> Ends {
    let (a, b) = link_pair();
    let receive = receive_to(output, b, options()).unwrap();
    assert!(
        !haul_proto::ObjectSink::takes_any_order(&*receive.sink),
        "it would wait for data without buffer space"
    );
    let sources = sources.iter().map(|path| bytes(path)).collect();
    join(
        send_files(sources, Root::Anywhere, &Selection::default(), a, SendLimits::default()).unwrap(),
        receive,
        pump,
    )
}

#[test]
fn files_come_out_in_order_with_their_holes() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::write(path("z"), contents(3_000_000, 1)).unwrap();
    fs::write(path("empty"), "").unwrap();
    fs::write(path("small"), "small").unwrap();
    let sparse = fs::File::create(path("sparse")).unwrap();
    sparse.write_all_at(b"middle", 3 << 20).unwrap();
    sparse.set_len((5 << 20) + 3).unwrap();
    let hole = fs::File::create(path("hole")).unwrap();
    hole.set_len(70_000).unwrap();
    fs::write(path("last"), "").unwrap();
    let order = ["z", "empty", "sparse", "small", "hole", "last"].map(path);
    let expected: Vec<u8> = order.iter().flat_map(|path| fs::read(path).unwrap()).collect();
    for seed in 0..5 {
        let shown = Shown::default();
        let pump = Pump { loss: 0.2, window: 200_000, seed, ..Pump::default() };
        let ends = show(&order, Box::new(shown.clone()), &pump);
        assert_eq!(ends.clean().files, 6);
        assert!(*shown.0.lock().unwrap() == expected);
    }
}

#[test]
fn corrupted_data_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    fs::write(&one, contents(100_000, 1)).unwrap();
    fs::write(&two, contents(100_000, 2)).unwrap();
    let flip = |offset: u64, bytes: &mut [u8]| bytes[0] ^= u8::from(offset < 1000);
    let shown = Shown::default();
    let ends = show(&[one, two], Box::new(shown.clone()), &Pump { tamper: &flip, ..Pump::default() });
    let (path, fault) = ends.one_failure();
    assert_eq!((path, fault.code), (&b"one"[..], FaultCode::VerifyFailed));
    assert_eq!(ends.received.as_ref().unwrap().exit_code(), 4);
    assert_eq!(shown.0.lock().unwrap().len(), 200_000);
}

#[test]
fn directories_and_missing_sources_are_not_written_to_a_pipe() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one"), "1").unwrap();
    let ends = show(&[dir.path().to_path_buf()], Box::new(Shown::default()), &Pump::default());
    assert_eq!(ends.received.unwrap_err().code, FaultCode::Usage);
    // As a hard link to an earlier file, an entry has no contents.
    fs::hard_link(dir.path().join("one"), dir.path().join("other")).unwrap();
    let linked = ["one", "other"].map(|name| dir.path().join(name));
    let ends = show(&linked, Box::new(Shown::default()), &Pump::default());
    assert_eq!(ends.received.unwrap_err().code, FaultCode::Usage);
    let shown = Shown::default();
    let sources = [dir.path().join("none"), dir.path().join("one")];
    let ends = show(&sources, Box::new(shown.clone()), &Pump::default());
    assert_eq!(ends.one_failure().1.code, FaultCode::NoSuchPath);
    assert_eq!(*shown.0.lock().unwrap(), b"1");
}

/// Reads a little and closes the pipe.
struct Head(usize);

impl Write for Head {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0 == 0 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let taken = bytes.len().min(self.0);
        self.0 -= taken;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_closed_reader_ends_the_job() {
    let dir = tempfile::tempdir().unwrap();
    let big = dir.path().join("big");
    fs::write(&big, contents(20 << 20, 1)).unwrap();
    let ends = show(&[big], Box::new(Head(100_000)), &Pump::default());
    for end in [ends.sent, ends.received] {
        assert_eq!(end.unwrap_err().code, FaultCode::Interrupted);
    }
}
