//! The thread of one direction.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use haul_base::{Span, Time};
use haul_sim::{Path, SpecError, StageChange, StageRef};

use super::carrier::Carrier;
use super::drop_log::WayLog;
use super::snapshot::Snapshot;
use super::wait::{Alarm, Bell, Clock, be_punctual};
use crate::net::Tun;

/// Packets that are read before what is due is written.
const READS_PER_ROUND: usize = 64;
/// With more parcels than this in one round, the next round waits for [`PAUSE`], so that more packets share its
/// cost. Both together stay far below the promised 0.3 ms.
const BUSY_ROUND: usize = 3;
/// The same if the round before was less long ago.
const BUSY_GAP: Span = Span::from_micros(30);
/// How long a busy thread lets packets gather, at most: in a virtual machine a sleep and what it wakes take tens of
/// microseconds of processor time.
const PAUSE: Span = Span::from_micros(100);

/// What one direction is made of.
#[derive(Debug)]
pub(crate) struct LinkOptions {
    /// For messages and debuggers.
    pub name: String,
    /// Where packets come from.
    pub input: Arc<Tun>,
    /// Where they go.
    pub output: Arc<Tun>,
    /// What happens to them.
    pub path: Path,
    /// Time zero of the path.
    pub clock: Clock,
    /// Which bits of damaged packets are wrong.
    pub seed: u64,
    /// Bytes of a super-packet that travel as one.
    pub grain: u64,
    /// The processor to stay on.
    pub cpu: Option<usize>,
    /// Where the packets that die on the path are logged.
    pub drop_log: Option<WayLog>,
}

/// A running direction; ends when dropped.
#[derive(Debug)]
pub(crate) struct Link {
    requests: Sender<Request>,
    bell: Arc<Bell>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

#[derive(Debug)]
enum Request {
    Change(StageRef, StageChange, Sender<Result<(), SpecError>>),
    Grain(u64),
    Snapshot(Sender<Snapshot>),
    Stop,
}

impl Link {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system has no thread or event for it.
    pub(crate) fn start(options: LinkOptions) -> io::Result<Self> {
        let (requests, inbox) = channel();
        let bell = Arc::new(Bell::new()?);
        let mut carrier = Carrier::new(options.path, options.output, options.seed, options.grain);
        carrier.log_drops(options.drop_log);
        let worker = Worker {
            carrier,
            input: options.input,
            clock: options.clock,
            alarm: Alarm::new(options.clock),
            last_work: Time::ZERO,
            inbox,
            bell: Arc::clone(&bell),
        };
        let thread = std::thread::Builder::new().name(options.name).spawn(move || {
            be_punctual(options.cpu);
            worker.run()
        })?;
        Ok(Self { requests, bell, thread: Some(thread) })
    }

    fn ask(&self, request: Request) {
        // A thread that has ended answers nothing; whoever waits for an answer finds out.
        let _ = self.requests.send(request);
        self.bell.ring();
    }

    /// Changes a stage. `None` if the direction has failed.
    pub(crate) fn change(&self, which: StageRef, change: StageChange) -> Option<Result<(), SpecError>> {
        let (answer, answered) = channel();
        self.ask(Request::Change(which, change, answer));
        answered.recv().ok()
    }

    /// Changes how many bytes of a super-packet travel as one.
    pub(crate) fn set_grain(&self, bytes: u64) {
        self.ask(Request::Grain(bytes));
    }

    /// The truth so far. `None` if the direction has failed.
    pub(crate) fn snapshot(&self) -> Option<Snapshot> {
        let (answer, answered) = channel();
        self.ask(Request::Snapshot(answer));
        answered.recv().ok()
    }

    /// Why the thread has ended, if it has; told once.
    pub(crate) fn failure(&mut self) -> Option<io::Error> {
        let ended = self.thread.take_if(|thread| thread.is_finished())?;
        let why = ended.join().unwrap_or_else(|_| Err(io::Error::other("its thread has panicked")));
        Some(why.err().unwrap_or_else(|| io::Error::other("its thread has ended")))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.ask(Request::Stop);
        if let Some(thread) = self.thread.take() {
            // The owner did not ask for the result, and `drop` cannot return it.
            let _ = thread.join();
        }
    }
}

struct Worker {
    carrier: Carrier,
    input: Arc<Tun>,
    clock: Clock,
    alarm: Alarm,
    /// When something was last read or written.
    last_work: Time,
    inbox: Receiver<Request>,
    bell: Arc<Bell>,
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

    /// Offers what has arrived; returns how many reads that took. The first packet arrived when it ended the wait.
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
        let is_dense = work > BUSY_ROUND || (work > 0 && now.since(self.last_work) < BUSY_GAP);
        if work > 0 {
            self.last_work = now;
        }
        if is_dense {
            let until = now + PAUSE;
            return Ok(self.alarm.wait(Some(until), None, &self.bell)?);
        }
        Ok(self.alarm.wait(next, Some(&self.input), &self.bell)?)
    }

    /// Does what other threads ask for; false if that is to end.
    fn answer(&mut self) -> bool {
        while let Ok(request) = self.inbox.try_recv() {
            let now: Time = self.clock.now();
            // Whoever asked may have gone.
            match request {
                Request::Change(which, change, answer) => {
                    let _ = answer.send(self.carrier.change(now, &which, &change));
                }
                Request::Grain(bytes) => self.carrier.set_grain(bytes),
                Request::Snapshot(answer) => {
                    let _ = answer.send(self.carrier.snapshot(now));
                }
                Request::Stop => return false,
            }
        }
        true
    }
}
