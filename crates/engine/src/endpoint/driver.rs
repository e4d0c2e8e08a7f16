//! What drives an endpoint: its own thread and, as an inline driver, at most one thread that waits on a connection.
//!
//! Both may read the socket. Each waits for it with an epoll instance of its own, and both instances have the socket
//! with `EPOLLEXCLUSIVE` (Linux 4.5, `epoll_ctl`): the kernel offers a packet to the instances in the order in which
//! they were added and stops at the first in which a thread waits. The inline driver's was added first, so a packet
//! wakes the inline driver alone while that sleeps, and the endpoint's thread at any other time. Only the endpoint's
//! thread runs timers and waits for room in a full socket.

use std::cell::Cell;
use std::mem::take;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{self, Context, Poll};
use std::time::{Duration, Instant};

use haul_base::{Span, Time};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;

use super::event_loop::dispatch;
use super::shared::Shared;
use super::timers::Timers;
use crate::guard::{caught, lock};
use crate::socket_reader::{Received, SocketReader};
use crate::tls::{HandshakeError, Readiness};
use crate::wake::ThreadWaker;
use crate::{EngineError, Waker};

/// Receive calls of the endpoint's thread before it runs timers.
const ROUNDS: usize = 4;
/// Where there is one connection and a thread drives inline, the endpoint's thread leaves the socket alone for so long
/// after each wait of that thread: between two of its waits, packets would wake both.
const LEFT_TO_INLINE: Span = Span::from_millis(1);
/// Timers that the endpoint's thread runs before it receives again.
const MOST_DUE: usize = 256;

const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Which descriptor of an epoll instance is ready.
const SOCKET: u64 = 0;
const WAKER: u64 = 1;

thread_local! {
    /// Whether this thread drives an endpoint: it must not wait for another driver.
    static DRIVES: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread runs the code of an endpoint's driver.
pub(super) fn is_driver() -> bool {
    DRIVES.get()
}

fn system(error: Errno) -> EngineError {
    EngineError::system("cannot wait for the UDP socket", error)
}

/// The parts of an endpoint that its drivers share.
pub(super) struct Driver {
    pub(super) shared: Arc<Shared>,
    reader: Mutex<SocketReader>,
    /// Where the inline driver waits for the socket.
    inline: OwnedFd,
    inline_waker: Waker,
    is_inline_taken: AtomicBool,
    /// Where the endpoint's thread waits for it.
    background: OwnedFd,
    handshakes: Mutex<Handshakes>,
}

/// TCP connections of handshakes that wait.
#[derive(Default)]
struct Handshakes {
    waiting: Vec<WaitingHandshake>,
    /// While the endpoint's thread has the list: tasks that have stopped waiting, or wait anew.
    gone: Option<Vec<RawFd>>,
}

impl Handshakes {
    /// A task waits anew or not any more: its latest waker counts, and nothing else keeps its connection open.
    fn forget(&mut self, of: RawFd) {
        self.waiting.retain(|known| known.of != of);
        self.gone.iter_mut().for_each(|gone| gone.push(of));
    }

    fn take(&mut self) -> Vec<WaitingHandshake> {
        self.gone = Some(Vec::new());
        take(&mut self.waiting)
    }

    /// Puts back those that were taken and wait still.
    fn put_back(&mut self, mut taken: Vec<WaitingHandshake>) {
        let gone = self.gone.take().unwrap_or_default();
        taken.retain(|known| !gone.contains(&known.of));
        self.waiting.append(&mut taken);
    }
}

/// A TCP connection for which a task waits, until it is woken.
struct WaitingHandshake {
    /// The task's descriptor, of which `tcp` is a copy.
    of: RawFd,
    tcp: TcpStream,
    interest: PollFlags,
    deadline: Instant,
    waker: task::Waker,
}

impl Driver {
    pub(super) fn new(shared: Arc<Shared>) -> Result<Self, EngineError> {
        let socket = &shared.socket;
        let inline_waker = Waker::new()?;
        let inline = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?;
        let background = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?;
        let exclusive = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
        // The order of these two decides who is woken first.
        epoll::add(&inline, socket, epoll::EventData::new_u64(SOCKET), exclusive).map_err(system)?;
        epoll::add(&background, socket, epoll::EventData::new_u64(SOCKET), exclusive).map_err(system)?;
        epoll::add(&inline, inline_waker.fd(), epoll::EventData::new_u64(WAKER), epoll::EventFlags::IN)
            .map_err(system)?;
        Ok(Self {
            reader: Mutex::new(SocketReader::new(socket)),
            inline,
            inline_waker,
            is_inline_taken: AtomicBool::new(false),
            background,
            handshakes: Mutex::default(),
            shared,
        })
    }

    fn timers(&self) -> &Timers {
        self.shared.timers.as_ref().expect("the socket of an endpoint is shared")
    }

    /// Whether somebody waits for anything else than packets and timers: they have their turn also where packets never
    /// end.
    fn has_others_waiting(&self) -> bool {
        self.timers().has_blocked() || !lock(&self.handshakes).waiting.is_empty()
    }

    fn receive(&self, rounds: usize) -> Result<Received, EngineError> {
        let shared = &self.shared;
        let mut reader = lock(&self.reader);
        let before = DRIVES.replace(true);
        let received = caught(|| {
            reader.receive(&shared.socket, shared.clock, rounds, |now, arrival, batch| {
                dispatch(shared, now, arrival, batch);
            })
        });
        DRIVES.set(before);
        received.unwrap_or_else(|message| {
            Err(EngineError::System { what: "the endpoint's driver has panicked", reason: message })
        })
    }
}

/// The endpoint's thread waits for the TCP connections of handshakes, and each task does its own work.
impl Readiness for Driver {
    fn poll_ready(
        &self,
        tcp: &TcpStream,
        interest: PollFlags,
        deadline: Instant,
        context: &Context<'_>,
    ) -> Poll<Result<(), HandshakeError>> {
        let ready = poll(&mut [PollFd::new(tcp, interest)], Some(&NO_TIME)).unwrap_or_default() > 0;
        if ready || self.shared.is_stopped() {
            return Poll::Ready(if ready { Ok(()) } else { Err(HandshakeError::Closed) });
        }
        if deadline <= Instant::now() {
            return Poll::Ready(Err(HandshakeError::TimedOut));
        }
        let (of, tcp, waker) = (tcp.as_raw_fd(), tcp.try_clone()?, context.waker().clone());
        let mut handshakes = lock(&self.handshakes);
        handshakes.forget(of);
        handshakes.waiting.push(WaitingHandshake { of, tcp, interest, deadline, waker });
        drop(handshakes);
        self.timers().waker.wake();
        Poll::Pending
    }

    fn forget(&self, tcp: &TcpStream) {
        lock(&self.handshakes).forget(tcp.as_raw_fd());
        self.timers().waker.wake();
    }
}

/// The endpoint's own thread: runs until the endpoint is stopped or its socket fails.
pub(super) fn run(driver: &Driver) {
    DRIVES.set(true);
    let error = caught(|| serve(&driver.shared, driver)).unwrap_or_else(|message| {
        Err(EngineError::System { what: "the endpoint's thread has panicked", reason: message })
    });
    driver.shared.end_all(&error.err().unwrap_or(EngineError::Closed));
    let handshakes = lock(&driver.handshakes).take();
    for waiting in handshakes {
        waiting.waker.wake();
    }
}

fn serve(shared: &Arc<Shared>, driver: &Driver) -> Result<(), EngineError> {
    let (mut woken, mut waits, mut left_until) = (Woken::default(), 0, Time::ZERO);
    while !shared.is_stopped() {
        let received = if woken.is_left { Received::Nothing } else { driver.receive(ROUNDS)? };
        if woken.by_socket && received == Received::Nothing {
            shared.socket.drain_errors();
        }
        if woken.by_room {
            for identity in driver.timers().take_blocked() {
                flush(shared, identity);
            }
        }
        let due = run_timers(shared, driver);
        let (before, now) = (waits, shared.clock.now());
        waits = shared.counters.inline_waits.get();
        if waits != before && lock(&shared.table).len() == 1 {
            left_until = now + LEFT_TO_INLINE;
        }
        let is_busy = received == Received::Some || due;
        woken = if is_busy && !driver.has_others_waiting() {
            Woken::default()
        } else if is_busy {
            wait(driver, PollFlags::IN, Some(Span::ZERO))?
        } else if now < left_until {
            wait(driver, PollFlags::empty(), Some(left_until.since(now)))?
        } else {
            wait(driver, PollFlags::IN, None)?
        };
    }
    Ok(())
}

/// Why the endpoint's thread is awake.
#[derive(Clone, Copy, Debug, Default)]
struct Woken {
    /// The packets are left to the thread that drives inline, which has not asked for help.
    is_left: bool,
    /// Packets or an error have come.
    by_socket: bool,
    by_room: bool,
}

fn flush(shared: &Shared, identity: u32) {
    let connection = lock(&shared.table).live(identity);
    if let Some(connection) = connection {
        let now = shared.clock.now();
        connection.guarded(|connection| connection.on_room(shared, now));
    }
}

/// Runs expired timers; returns whether there may be more.
fn run_timers(shared: &Shared, driver: &Driver) -> bool {
    let now = shared.clock.now();
    for _ in 0..MOST_DUE {
        let Some((at, identity)) = driver.timers().due(now) else { return false };
        let connection = lock(&shared.table).live(identity);
        if let Some(connection) = connection {
            connection.guarded(|connection| connection.on_timer(shared, now, at));
        }
    }
    true
}

/// The descriptors of the endpoint itself, and whether each is ready: the timer, the waker, packets, and room
/// in the socket.
type Ready = [bool; 4];

/// Sleeps until the socket, a timer, a waker or a handshake is ready, `longest` at most. Without `packets`, a thread
/// that drives inline takes the packets.
fn wait(driver: &Driver, packets: PollFlags, longest: Option<Span>) -> Result<Woken, EngineError> {
    let (timers, socket) = (driver.timers(), &driver.shared.socket);
    let mut own = [
        PollFd::from_borrowed_fd(timers.fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(timers.waker.fd(), PollFlags::IN),
        PollFd::new(&driver.background, packets),
        PollFd::new(socket, PollFlags::OUT),
    ];
    // Only while a batch waits for room: poll(2) also returns for errors of a socket that is polled.
    let own = if timers.has_blocked() { &mut own[..] } else { &mut own[..3] };
    let longest = longest.map(Duration::from);
    let polled = if lock(&driver.handshakes).waiting.is_empty() {
        poll(own, timespec(longest).as_ref()).map(|_| ready(own))
    } else {
        poll_with_handshakes(driver, own, longest)
    };
    let [is_expired, is_woken, by_socket, by_room] = match polled {
        Ok(ready) => ready,
        Err(Errno::INTR) => return Ok(Woken::default()),
        Err(error) => return Err(system(error)),
    };
    if is_expired {
        timers.on_expired();
    }
    if is_woken {
        timers.waker.reset();
    }
    Ok(Woken { is_left: packets.is_empty() && !is_woken, by_socket, by_room })
}

/// As poll(2) for the endpoint's `own` descriptors; also wakes the tasks whose handshakes can go on or are overdue.
fn poll_with_handshakes(
    driver: &Driver,
    own: &[PollFd<'_>],
    longest: Option<Duration>,
) -> Result<Ready, Errno> {
    // Taken: tasks may add others meanwhile.
    let mut handshakes = lock(&driver.handshakes).take();
    let overdue = handshakes.iter().map(|waiting| waiting.deadline).min();
    let overdue = overdue.map(|at| at.saturating_duration_since(Instant::now()));
    let timeout = timespec(longest.into_iter().chain(overdue).min());
    let tcp = handshakes.iter().map(|waiting| PollFd::new(&waiting.tcp, waiting.interest));
    let mut fds: Vec<_> = own.iter().cloned().chain(tcp).collect();
    let polled = poll(&mut fds, timeout.as_ref()).map(|_| ready(&fds[..own.len()]));
    let can_go_on: Vec<_> = fds[own.len()..].iter().map(|fd| !fd.revents().is_empty()).collect();
    drop(fds);
    let (now, mut can_go_on) = (Instant::now(), can_go_on.into_iter());
    let done = handshakes.extract_if(.., |it| can_go_on.next() == Some(true) || it.deadline <= now);
    done.for_each(|waiting| drop(caught(|| waiting.waker.wake())));
    lock(&driver.handshakes).put_back(handshakes);
    polled
}

fn timespec(timeout: Option<Duration>) -> Option<Timespec> {
    timeout.and_then(|timeout| Timespec::try_from(timeout).ok())
}

fn ready(own: &[PollFd<'_>]) -> Ready {
    let mut ready = Ready::default();
    ready.iter_mut().zip(own).for_each(|(ready, fd)| *ready = !fd.revents().is_empty());
    ready
}

/// A thread that waits on a connection and drives the endpoint meanwhile, so that a packet wakes one thread and not
/// two.
pub(super) struct InlineDriver<'s> {
    driver: &'s Driver,
    thread: Arc<ThreadWaker>,
    received: Received,
}

impl<'s> InlineDriver<'s> {
    /// `None` if another thread drives inline already, or this one is a driver itself.
    pub(super) fn start(driver: &'s Driver, thread: &Arc<ThreadWaker>) -> Option<Self> {
        if is_driver() || driver.is_inline_taken.swap(true, Ordering::Acquire) {
            return None;
        }
        thread.wait_for(Some(driver.inline_waker.clone()));
        driver.shared.counters.inline_waits.add_one();
        Some(Self { driver, thread: thread.clone(), received: Received::Nothing })
    }

    /// Waits for packets or a wake-up, until `until` at most, and hands out the packets. Polls for `busy_poll` before
    /// it sleeps. No lock of a connection may be held.
    pub(super) fn turn(&mut self, until: Option<Time>, busy_poll: Span) {
        match self.receive(until, busy_poll) {
            Ok(received) => self.received = received,
            Err(error) => self.driver.shared.end_all(&error),
        }
    }

    fn receive(&self, until: Option<Time>, busy_poll: Span) -> Result<Received, EngineError> {
        let receive = || self.driver.receive(1);
        if self.received == Received::Some {
            return receive();
        }
        if busy_poll > Span::ZERO {
            let end = self.driver.shared.clock.now() + busy_poll;
            let end = until.map_or(end, |until| until.min(end));
            while self.driver.shared.clock.now() < end {
                let received = receive()?;
                if received != Received::Nothing || self.thread.is_woken() {
                    return Ok(received);
                }
            }
        }
        self.sleep(until)?;
        receive()
    }

    fn sleep(&self, until: Option<Time>) -> Result<(), EngineError> {
        let driver = self.driver;
        // Kernels before 5.11 take no longer than 24 days.
        let timeout =
            until.map(|until| until.since(self.driver.shared.clock.now()).min(Span::from_secs(3_600)));
        let timeout = timespec(timeout.map(Duration::from));
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(SOCKET) }; 2];
        let ready = match epoll::wait(&driver.inline, &mut events, timeout.as_ref()) {
            Ok(ready) => ready,
            Err(Errno::INTR) => 0,
            Err(error) => return Err(system(error)),
        };
        for event in &events[..ready] {
            // Copied: the structure is packed.
            let (data, flags) = (event.data, event.flags);
            if data.u64() == WAKER {
                driver.inline_waker.reset();
            } else if flags.contains(epoll::EventFlags::ERR) {
                self.driver.shared.socket.drain_errors();
            }
        }
        Ok(())
    }
}

impl Drop for InlineDriver<'_> {
    /// Packets that still wait have woken only this thread: wakes the endpoint's.
    fn drop(&mut self) {
        self.thread.wait_for(None);
        self.driver.is_inline_taken.store(false, Ordering::Release);
        if self.received == Received::Some || std::thread::panicking() {
            self.driver.timers().waker.wake();
        }
    }
}
