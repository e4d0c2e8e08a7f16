//! The thread of one direction.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use haul_base::{Span, Time};
use haul_sim::{Path, SpecError, StageChange, StageRef};

use super::carrier::Carrier;
use super::drop_log::DirectionLog;
use super::snapshot::Snapshot;
use super::wait::{Clock, Sleeper, Waker, prioritise_thread};
use crate::net::Tun;

/// Maximum packets read before due ones are written.
const READS_PER_ROUND: usize = 64;
/// With more parcels than this in one round, the next round is delayed by up to [`PAUSE`], so that more
/// packets share its cost. Together they stay far below the documented 0.3 ms.
const BUSY_ROUND: usize = 3;
/// A round with any work is also busy if the last work was less than this ago.
const BUSY_GAP: Span = Span::from_micros(30);
/// Maximum time for which a busy thread lets packets accumulate: in a virtual machine, sleeping and waking up
/// take tens of microseconds of CPU time.
const PAUSE: Span = Span::from_micros(100);

/// Configuration of one direction.
#[derive(Debug)]
pub(crate) struct LinkOptions {
    /// Name for messages and debuggers.
    pub name: String,
    /// Device that packets are read from.
    pub input: Arc<Tun>,
    /// Device that packets are written to.
    pub output: Arc<Tun>,
    /// Stages that packets pass.
    pub path: Path,
    /// Clock that starts at the path's time zero.
    pub clock: Clock,
    /// Seed of the damage to packets.
    pub seed: u64,
    /// Maximum bytes of a super-packet that travel as one parcel.
    pub granularity: u64,
    /// Processor to which the thread is pinned.
    pub cpu: Option<usize>,
    /// Log of packets dropped on the path.
    pub drop_log: Option<DirectionLog>,
}

/// A running direction; ends when dropped.
#[derive(Debug)]
pub(crate) struct Link {
    requests: Sender<Request>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

#[derive(Debug)]
enum Request {
    Change(StageRef, StageChange, Sender<Result<(), SpecError>>),
    Granularity(u64),
    Snapshot(Sender<Snapshot>),
    Stop,
}

impl Link {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system cannot create a thread or eventfd.
    pub(crate) fn start(options: LinkOptions) -> io::Result<Self> {
        let (requests, inbox) = channel();
        let waker = Arc::new(Waker::new()?);
        let mut carrier = Carrier::new(options.path, options.output, options.seed, options.granularity);
        carrier.log_drops(options.drop_log);
        let worker = Worker {
            carrier,
            input: options.input,
            clock: options.clock,
            sleeper: Sleeper::new(options.clock),
            last_active: Time::ZERO,
            inbox,
            waker: Arc::clone(&waker),
        };
        let thread = std::thread::Builder::new().name(options.name).spawn(move || {
            prioritise_thread(options.cpu);
            worker.run()
        })?;
        Ok(Self { requests, waker, thread: Some(thread) })
    }

    fn send_request(&self, request: Request) {
        // A thread that has ended does not answer, which the waiting caller detects.
        let _ = self.requests.send(request);
        self.waker.wake();
    }

    /// Changes a stage. Returns `None` if the direction has failed.
    pub(crate) fn change(&self, which: StageRef, change: StageChange) -> Option<Result<(), SpecError>> {
        let (answer, answered) = channel();
        self.send_request(Request::Change(which, change, answer));
        answered.recv().ok()
    }

    /// Changes the maximum bytes of a super-packet that travel as one parcel.
    pub(crate) fn set_granularity(&self, bytes: u64) {
        self.send_request(Request::Granularity(bytes));
    }

    /// Returns the counters so far. `None` if the direction has failed.
    pub(crate) fn snapshot(&self) -> Option<Snapshot> {
        let (answer, answered) = channel();
        self.send_request(Request::Snapshot(answer));
        answered.recv().ok()
    }

    /// Returns the error that ended the thread, if it has ended. Reported once.
    pub(crate) fn failure(&mut self) -> Option<io::Error> {
        let ended = self.thread.take_if(|thread| thread.is_finished())?;
        let why = ended.join().unwrap_or_else(|_| Err(io::Error::other("its thread has panicked")));
        Some(why.err().unwrap_or_else(|| io::Error::other("its thread has ended")))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.send_request(Request::Stop);
        if let Some(thread) = self.thread.take() {
            // The owner did not request the result, and `drop` cannot return it.
            let _ = thread.join();
        }
    }
}

struct Worker {
    carrier: Carrier,
    input: Arc<Tun>,
    clock: Clock,
    sleeper: Sleeper,
    /// Time of the last read or write.
    last_active: Time,
    inbox: Receiver<Request>,
    waker: Arc<Waker>,
}

impl Worker {
    fn run(mut self) -> io::Result<()> {
        let mut woken = self.clock.now();
        loop {
            if !self.answer() {
                return Ok(());
            }
            let read = self.read(woken)?;
            let written = self.carrier.deliver(self.clock.now())?;
            woken = self.wait(read, written)?;
        }
    }

    /// Offers arrived packets and returns the number of reads. The first packet arrived at `woken`, when it
    /// ended the wait.
    fn read(&mut self, woken: Time) -> io::Result<usize> {
        let mut arrival = woken;
        for count in 0..READS_PER_ROUND {
            if !self.carrier.take(&self.input, arrival)? {
                return Ok(count);
            }
            arrival = self.clock.now();
        }
        Ok(READS_PER_ROUND)
    }

    fn wait(&mut self, read: usize, written: usize) -> io::Result<Time> {
        let next = self.carrier.next_event();
        let now = self.clock.now();
        if read == READS_PER_ROUND {
            return Ok(now);
        }
        let work = read.max(written);
        let is_dense = work > BUSY_ROUND || (work > 0 && now.since(self.last_active) < BUSY_GAP);
        if work > 0 {
            self.last_active = now;
        }
        if is_dense {
            let until = now + PAUSE;
            return Ok(self.sleeper.wait(Some(until), None, &self.waker)?);
        }
        Ok(self.sleeper.wait(next, Some(&self.input), &self.waker)?)
    }

    /// Handles requests of other threads. Returns false if the thread is to end.
    fn answer(&mut self) -> bool {
        while let Ok(request) = self.inbox.try_recv() {
            let now: Time = self.clock.now();
            // The requester may have gone.
            match request {
                Request::Change(which, change, answer) => {
                    let _ = answer.send(self.carrier.change(now, &which, &change));
                }
                Request::Granularity(bytes) => self.carrier.set_granularity(bytes),
                Request::Snapshot(answer) => {
                    let _ = answer.send(self.carrier.snapshot(now));
                }
                Request::Stop => return false,
            }
        }
        true
    }
}
