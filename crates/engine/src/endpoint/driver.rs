//! An endpoint's drivers: its own thread and, inline, at most one thread that waits on a connection.
//!
//! Both may read the socket. Each waits with its own epoll instance, and both instances have the socket with
//! `EPOLLEXCLUSIVE` (Linux 4.5, `epoll_ctl`): the kernel notifies the instances in the order in which they
//! were added, and stops at the first in which a thread waits. The inline driver's was added first, so a
//! packet wakes only the inline driver while it sleeps, and the endpoint's thread otherwise. Only the
//! endpoint's thread runs timers and waits until a full socket is writable.

use std::cell::Cell;
use std::io;
use std::mem::take;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{self, Context, Poll};
use std::time::{Duration, Instant};

use haul_base::{Span, Time};
use haul_stack::caught;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;

use super::event_loop::dispatch;
use super::shared::{Driver, SOCKET, SharedEndpoint, WAKER, system};
use super::timers::Timers;
use crate::socket_reader::ReceiveOutcome;
use crate::tls::{HandshakeError, Readiness};
use crate::wake::{ThreadWaker, lock, wait_ready};
use crate::{EngineError, WakerList};

/// Receive calls of the endpoint's thread before it runs timers.
const MAX_CALLS: usize = 4;
/// With a single connection and an inline driver, the endpoint's thread ignores the socket for this long
/// after each wait of the inline driver: a packet between two waits would otherwise wake both threads.
const INLINE_ONLY: Span = Span::from_millis(1);
/// Maximum number of timers run before receiving again.
const MAX_TIMERS_PER_TURN: usize = 256;

const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

const NO_EVENT: epoll::Event =
    epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(SOCKET) };

thread_local! {
    /// Whether this thread is driving an endpoint, in which case it must not wait for another driver.
    static IS_DRIVING: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is driving an endpoint.
pub(super) fn is_driver() -> bool {
    IS_DRIVING.get()
}

impl SharedEndpoint {
    fn timers(&self) -> &Timers {
        self.timers.as_ref().expect("the socket of an endpoint is shared")
    }

    /// Whether connections wait for a writable socket or tasks for a handshake: they must get their turn even
    /// if packets never stop arriving.
    fn has_pending_waits(&self) -> bool {
        self.timers().has_blocked() || !lock(&self.driver.handshakes).is_empty()
    }

    fn receive(&self, rounds: usize) -> Result<ReceiveOutcome, EngineError> {
        let mut reader = lock(&self.driver.reader);
        let before = IS_DRIVING.replace(true);
        let received = caught(|| {
            reader.receive(&self.socket, self.clock, rounds, |now, arrival, batch| {
                dispatch(self, now, arrival, batch);
            })
        });
        IS_DRIVING.set(before);
        received.unwrap_or_else(|message| {
            Err(EngineError::system_other("the endpoint's driver has panicked", message))
        })
    }
}

/// The endpoint's thread waits for the TCP connections of handshakes, and each task does its own work.
impl Readiness for SharedEndpoint {
    fn poll_ready(
        &self,
        tcp: &TcpStream,
        interest: PollFlags,
        deadline: Instant,
        context: &Context<'_>,
    ) -> Poll<Result<(), HandshakeError>> {
        if poll(&mut [PollFd::new(tcp, interest)], Some(&NO_TIME)).unwrap_or_default() > 0 {
            return Poll::Ready(Ok(()));
        }
        if deadline <= Instant::now() {
            return Poll::Ready(Err(HandshakeError::TimedOut));
        }
        let mut flags = epoll::EventFlags::ONESHOT;
        flags.set(epoll::EventFlags::IN, interest.contains(PollFlags::IN));
        flags.set(epoll::EventFlags::OUT, interest.contains(PollFlags::OUT));
        let (fd, background) = (tcp.as_raw_fd(), &self.driver.background);
        lock(&self.driver.handshakes).insert(fd, (deadline, context.waker().clone()));
        // Then the thread has woken the tasks already.
        if self.is_stopped() {
            return Poll::Ready(Err(HandshakeError::Closed));
        }
        // It is registered already if the task polls again.
        let _ = epoll::delete(background, tcp);
        epoll::add(background, tcp, epoll::EventData::new_u64(fd as u64), flags).map_err(io::Error::from)?;
        // Makes the thread recompute its earliest deadline.
        self.timers().waker.wake();
        Poll::Pending
    }

    fn deregister(&self, tcp: &TcpStream) {
        lock(&self.driver.handshakes).remove(&tcp.as_raw_fd());
        let _ = epoll::delete(&self.driver.background, tcp);
    }
}

/// Body of the endpoint's thread: runs until the endpoint is stopped or its socket fails.
pub(super) fn run(shared: &SharedEndpoint) {
    IS_DRIVING.set(true);
    let error = caught(|| serve(shared)).unwrap_or_else(|message| {
        Err(EngineError::system_other("the endpoint's thread has panicked", message))
    });
    shared.end_all(&error.err().unwrap_or(EngineError::Closed));
    let handshakes = take(&mut *lock(&shared.driver.handshakes));
    wake(handshakes.into_values());
}

fn serve(shared: &SharedEndpoint) -> Result<(), EngineError> {
    let (mut woken, mut waits, mut inline_only_until) = (Woken::default(), 0, Time::ZERO);
    while !shared.is_stopped() {
        let received = if woken.inline_only { ReceiveOutcome::Empty } else { shared.receive(MAX_CALLS)? };
        if woken.is_readable && received == ReceiveOutcome::Empty {
            shared.socket.drain_errors();
        }
        if woken.is_writable {
            let now = shared.clock.now();
            for identity in shared.timers().take_blocked() {
                shared.with_connection(identity, |connection| connection.on_writable(shared, now));
            }
        }
        let due = run_timers(shared);
        let (before, now) = (waits, shared.clock.now());
        waits = shared.counters.inline_waits.get();
        if waits != before && lock(&shared.table).count() == 1 {
            inline_only_until = now + INLINE_ONLY;
        }
        let is_busy = received == ReceiveOutcome::More || due;
        woken = if is_busy && !shared.has_pending_waits() {
            Woken::default()
        } else if is_busy {
            wait(shared, PollFlags::IN, Some(Span::ZERO))?
        } else if now < inline_only_until {
            wait(shared, PollFlags::empty(), Some(inline_only_until.since(now)))?
        } else {
            wait(shared, PollFlags::IN, None)?
        };
    }
    Ok(())
}

/// Why the endpoint's thread woke up.
#[derive(Clone, Copy, Debug, Default)]
struct Woken {
    /// Packets are left to the inline driver, which has not requested help.
    inline_only: bool,
    /// The socket has packets or an error.
    is_readable: bool,
    is_writable: bool,
}

/// Runs expired timers; returns whether there may be more.
fn run_timers(shared: &SharedEndpoint) -> bool {
    let now = shared.clock.now();
    for _ in 0..MAX_TIMERS_PER_TURN {
        let Some((at, identity)) = shared.timers().due(now) else { return false };
        let live = lock(&shared.table).live(identity);
        if let Some(connection) = live {
            connection.guarded(|connection| connection.on_timer(shared, now, at));
            shared.remove_if_over(&connection);
        }
    }
    true
}

/// Sleeps until the socket, a timer, a waker or a handshake is ready, at most for `max_wait`. Without
/// `packets`, leaves the packets to the inline driver.
fn wait(shared: &SharedEndpoint, packets: PollFlags, max_wait: Option<Span>) -> Result<Woken, EngineError> {
    let (timers, driver) = (shared.timers(), &shared.driver);
    let mut fds = [
        PollFd::from_borrowed_fd(timers.fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(timers.waker.fd(), PollFlags::IN),
        PollFd::new(&driver.background, packets),
        PollFd::new(&shared.socket, PollFlags::OUT),
    ];
    // Only while a batch waits: poll(2) reports errors of a socket even without requested events.
    let fds = if timers.has_blocked() { &mut fds[..] } else { &mut fds[..3] };
    let overdue = lock(&driver.handshakes).values().map(|(deadline, _)| *deadline).min();
    let remaining = overdue.map(|at| at.saturating_duration_since(Instant::now()));
    let max_wait = max_wait.map(Duration::from).into_iter().chain(remaining).min();
    wait_ready(fds, max_wait)?;
    let mut ready = [false; 4];
    ready.iter_mut().zip(fds).for_each(|(ready, fd)| *ready = !fd.revents().is_empty());
    let [is_expired, is_woken, is_readable, is_writable] = ready;
    if overdue.is_some() {
        wake_handshakes(driver);
    }
    if is_expired {
        timers.on_expired();
    }
    if is_woken {
        timers.waker.reset();
    }
    Ok(Woken { inline_only: packets.is_empty() && !is_woken, is_readable, is_writable })
}

/// Wakes the tasks whose handshakes are ready or overdue.
fn wake_handshakes(driver: &Driver) {
    let mut events = [NO_EVENT; 16];
    let ready = epoll::wait(&driver.background, &mut events, Some(&NO_TIME)).unwrap_or_default();
    let ready = &events[..ready];
    let now = Instant::now();
    // Copied: the structure is packed.
    let is_ready = |fd: RawFd| ready.iter().any(|event| { event.data }.u64() == fd as u64);
    let mut handshakes = lock(&driver.handshakes);
    let due: Vec<_> = handshakes.extract_if(|fd, (deadline, _)| *deadline <= now || is_ready(*fd)).collect();
    drop(handshakes);
    wake(due.into_iter().map(|(_, waiting)| waiting));
}

fn wake(waiting: impl Iterator<Item = (Instant, task::Waker)>) {
    let mut wakers = WakerList::default();
    wakers.append(waiting.map(|(_, waker)| waker));
    wakers.wake();
}

fn timespec(timeout: Option<Duration>) -> Option<Timespec> {
    timeout.and_then(|timeout| Timespec::try_from(timeout).ok())
}

/// A thread that waits on a connection and drives the endpoint, so that a packet wakes only one thread.
pub(super) struct InlineDriver<'s> {
    shared: &'s SharedEndpoint,
    thread: Arc<ThreadWaker>,
    received: ReceiveOutcome,
}

impl<'s> InlineDriver<'s> {
    /// Returns `None` if another thread drives inline already, or this one is driving.
    pub(super) fn start(shared: &'s SharedEndpoint, thread: &Arc<ThreadWaker>) -> Option<Self> {
        let driver = &shared.driver;
        if is_driver() || driver.inline_in_use.swap(true, Ordering::Acquire) {
            return None;
        }
        thread.wait_for(Some(driver.inline_waker.clone()));
        shared.counters.inline_waits.add_one();
        Some(Self { shared, thread: thread.clone(), received: ReceiveOutcome::Empty })
    }

    /// Waits for packets or a wake-up, at most until `until`, and dispatches the packets. Polls for
    /// `busy_poll` before sleeping. No connection lock may be held.
    pub(super) fn turn(&mut self, until: Option<Time>, busy_poll: Span) {
        match self.receive(until, busy_poll) {
            Ok(received) => self.received = received,
            Err(error) => self.shared.end_all(&error),
        }
    }

    fn receive(&self, until: Option<Time>, busy_poll: Span) -> Result<ReceiveOutcome, EngineError> {
        let receive = || self.shared.receive(1);
        if self.received == ReceiveOutcome::More {
            return receive();
        }
        if busy_poll > Span::ZERO {
            let end = self.shared.clock.now() + busy_poll;
            let end = until.map_or(end, |until| until.min(end));
            while self.shared.clock.now() < end {
                let received = receive()?;
                if received != ReceiveOutcome::Empty || self.thread.is_woken() {
                    return Ok(received);
                }
            }
        }
        self.sleep(until)?;
        receive()
    }

    fn sleep(&self, until: Option<Time>) -> Result<(), EngineError> {
        let driver = &self.shared.driver;
        // Kernels before 5.11 limit the timeout to 24 days.
        let timeout = until.map(|until| until.since(self.shared.clock.now()).min(Span::from_secs(3_600)));
        let timeout = timespec(timeout.map(Duration::from));
        let mut events = [NO_EVENT; 2];
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
                self.shared.socket.drain_errors();
            }
        }
        Ok(())
    }
}

impl Drop for InlineDriver<'_> {
    /// Remaining packets have woken only this thread, so it wakes the endpoint's.
    fn drop(&mut self) {
        self.thread.wait_for(None);
        self.shared.driver.inline_in_use.store(false, Ordering::Release);
        if self.received == ReceiveOutcome::More || std::thread::panicking() {
            self.shared.timers().waker.wake();
        }
    }
}
