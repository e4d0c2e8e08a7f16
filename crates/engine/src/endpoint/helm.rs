//! Who drives an endpoint, and when which flight has to be looked after.
//!
//! Whoever is at the helm receives packets, looks after flights and sleeps until there is something to do: the endpoint's
//! own thread or, as its *guest*, the only thread of the application that waits on one of the channels. A guest gets what it
//! waits for without a second thread that has to wake up first. It leaves the helm unmanned, for it will be back soon as a
//! rule; an alarm calls the endpoint's thread when something falls due before that, and after [`GRACE`].

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::mem::replace;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;

use haul_base::{Span, Time};
use rustix::event::{PollFd, PollFlags, poll};

use super::run::Runner;
use super::shared::lock;
use super::timer::Timer;
use crate::{Clock, EngineError, Waker};

/// The helm stays unmanned so long at most: packets that come meanwhile wait for so long, and so does an answer that was put off
/// until the application says something itself.
const GRACE: Span = Span::from_micros(200);
/// Or so long, if the alarm was set before the guest left: setting it keeps back whoever waits for the answer.
const LONGEST_GRACE: Span = Span::from_micros(600);
/// That alarm is set to so long after the guest is expected to leave, who may do so earlier.
const AHEAD: Span = Span::from_micros(400);
/// Waits in a row during which nobody else waited, before a guest takes the helm from the endpoint's thread again. Where
/// several threads take turns, handing it to and fro would cost more than it spares.
const QUIET_WAITS: u8 = 8;

/// Who is at the helm. Who is not asleep finds out by itself what has changed.
enum Watch {
    /// Somebody, and awake.
    Awake,
    /// The endpoint's thread, asleep until then: a guest may take what it drives with.
    Thread(Time, Box<Runner>),
    /// A guest, asleep until then.
    Guest(Time),
    /// Nobody; the endpoint's thread is called then.
    Unmanned(Time, Box<Runner>),
}

struct Desk {
    /// When which flight has to be looked after.
    heap: BinaryHeap<Reverse<(Time, u32)>>,
    watch: Watch,
    /// What the timer and the alarm were last set to.
    timer_at: Option<Time>,
    alarm_at: Option<Time>,
    /// Threads of the application that wait on a channel.
    blocked: u32,
    /// Waits that still have to pass until a guest may take the helm from the endpoint's thread.
    unquiet: u8,
}

/// The helm of an endpoint.
pub(super) struct Helm {
    clock: Clock,
    desk: Mutex<Desk>,
    /// Wakes who sleeps at the helm.
    timer: Timer,
    /// Calls the endpoint's thread to the unmanned helm.
    alarm: Timer,
    /// Wakes the endpoint's thread, wherever it sleeps.
    thread: Waker,
    /// Wakes the guest.
    guest: Waker,
}

/// Whose sleep it is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sleeper {
    Thread,
    Guest,
}

impl Helm {
    /// With somebody at it, who is awake.
    pub(super) fn new(clock: Clock) -> Result<Self, EngineError> {
        let desk = Desk {
            heap: BinaryHeap::new(),
            watch: Watch::Awake,
            timer_at: None,
            alarm_at: None,
            blocked: 0,
            unquiet: 0,
        };
        let (timer, alarm) = (Timer::new()?, Timer::new()?);
        let (thread, guest) = (Waker::new()?, Waker::new()?);
        Ok(Self { clock, desk: Mutex::new(desk), timer, alarm, thread, guest })
    }

    /// Has the flight looked after at `at`.
    pub(super) fn wake_at(&self, at: Time, identity: u32) {
        let mut desk = lock(&self.desk);
        desk.heap.push(Reverse((at, identity)));
        match &mut desk.watch {
            Watch::Thread(until, _) | Watch::Guest(until) if at < *until => {
                *until = at;
                self.set_timer(&mut desk, self.clock.now(), at);
            }
            Watch::Unmanned(until, _) if at < *until => {
                *until = at;
                self.set_alarm(&mut desk, self.clock.now(), at);
            }
            _ => {}
        }
    }

    /// Takes a wish to [`wake_at`](Self::wake_at) back, if it is the next one.
    pub(super) fn take_back(&self, at: Time, identity: u32) -> bool {
        let mut desk = lock(&self.desk);
        let is_next = desk.heap.peek() == Some(&Reverse((at, identity)));
        if is_next {
            desk.heap.pop();
        }
        is_next
    }

    /// The next flight that has to be looked after by `now`.
    pub(super) fn due(&self, now: Time) -> Option<(Time, u32)> {
        let mut desk = lock(&self.desk);
        desk.heap.peek().filter(|Reverse((at, _))| *at <= now)?;
        desk.heap.pop().map(|Reverse(due)| due)
    }

    /// A timer that is still to run out is not set to the same time again.
    fn set_timer(&self, desk: &mut Desk, now: Time, at: Time) {
        if desk.timer_at != Some(at) || at <= now {
            desk.timer_at = Some(at);
            self.timer.set(at.since(now));
        }
    }

    /// An alarm that comes earlier is good as well: the endpoint's thread sets it anew then.
    fn set_alarm(&self, desk: &mut Desk, now: Time, at: Time) {
        if !desk.alarm_at.is_some_and(|set| now < set && set <= at) {
            desk.alarm_at = Some(at);
            self.alarm.set(at.since(now));
        }
    }

    /// The endpoint's thread goes to sleep, until `longest` or the next flight's time. What it drives with can be taken from
    /// it.
    pub(super) fn thread_sleeps(&self, longest: Time, runner: Box<Runner>) {
        let mut desk = lock(&self.desk);
        let until = desk.next(longest);
        self.set_timer(&mut desk, self.clock.now(), until);
        desk.watch = Watch::Thread(until, runner);
    }

    /// The endpoint's thread has slept; `None` if the helm was taken from it.
    pub(super) fn thread_wakes(&self) -> Option<Box<Runner>> {
        let mut desk = lock(&self.desk);
        match replace(&mut desk.watch, Watch::Awake) {
            Watch::Thread(_, runner) => Some(runner),
            other => {
                desk.watch = other;
                None
            }
        }
    }

    /// The guest goes to sleep, until `longest` or the next flight's time. If it knows when it will leave, the alarm that is
    /// needed then is set now, when nobody waits for that.
    pub(super) fn guest_sleeps(&self, longest: Time, leaving: Option<Time>) {
        let mut desk = lock(&self.desk);
        let (now, until) = (self.clock.now(), desk.next(longest));
        match leaving.map(|leaving| leaving.max(now) + AHEAD) {
            Some(at) => self.set_alarm_anew(&mut desk, now, at),
            None if desk.alarm_at.take().is_some_and(|at| at > now) => self.alarm.stop(),
            None => {}
        }
        self.set_timer(&mut desk, now, until);
        desk.watch = Watch::Guest(until);
    }

    /// The guest does not sleep, and will leave any moment. The alarm that is needed then is set now, when nobody waits for that.
    pub(super) fn guest_looks(&self) {
        let mut desk = lock(&self.desk);
        let now = self.clock.now();
        if desk.alarm_at.is_none_or(|at| at < now + GRACE) {
            self.set_alarm_anew(&mut desk, now, now + AHEAD);
        }
    }

    fn set_alarm_anew(&self, desk: &mut Desk, now: Time, at: Time) {
        if desk.alarm_at != Some(at) {
            desk.alarm_at = Some(at);
            self.alarm.set(at.since(now));
        }
    }

    /// The guest has slept.
    pub(super) fn guest_wakes(&self) {
        lock(&self.desk).watch = Watch::Awake;
    }

    /// Waits for `data`, the timer, or somebody who wakes this sleeper; gives what `data` has to say.
    pub(super) fn sleep(&self, sleeper: Sleeper, data: BorrowedFd<'_>) -> Result<PollFlags, EngineError> {
        let waker = match sleeper {
            Sleeper::Thread => &self.thread,
            Sleeper::Guest => &self.guest,
        };
        // The timer is set anew before the next sleep, so that it need not be read.
        let [data, _, woken] = wait_for([data, self.timer.fd(), waker.fd()])?;
        if !woken.is_empty() {
            waker.reset();
        }
        Ok(data)
    }

    /// The endpoint's thread waits until it is called to the helm, once; `None` if it was woken for another reason.
    pub(super) fn stand_by(&self) -> Result<Option<Box<Runner>>, EngineError> {
        let called = self.answer_alarm();
        if called.is_some() {
            return Ok(called);
        }
        let [alarm, woken] = wait_for([self.alarm.fd(), self.thread.fd()])?;
        if !alarm.is_empty() {
            self.alarm.reset();
        }
        if !woken.is_empty() {
            self.thread.reset();
        }
        Ok(None)
    }

    /// Takes the unmanned helm if it is time.
    fn answer_alarm(&self) -> Option<Box<Runner>> {
        let mut desk = lock(&self.desk);
        let now = self.clock.now();
        match replace(&mut desk.watch, Watch::Awake) {
            Watch::Unmanned(until, runner) if until <= now => return Some(runner),
            other => desk.watch = other,
        }
        if let Watch::Unmanned(until, _) = desk.watch {
            self.set_alarm(&mut desk, now, until);
        }
        None
    }

    /// A thread of the application is going to wait.
    pub(super) fn enter(&self) {
        let mut desk = lock(&self.desk);
        desk.blocked += 1;
        desk.unquiet = if desk.blocked > 1 { QUIET_WAITS } else { desk.unquiet.saturating_sub(1) };
    }

    /// Whether a thread that has entered would get the helm from the endpoint's thread, were that asleep.
    pub(super) fn is_quiet(&self) -> bool {
        let desk = lock(&self.desk);
        desk.blocked == 1 && desk.unquiet == 0
    }

    /// A thread that has entered takes the helm, if it is the only one and there is nobody at it who is awake.
    pub(super) fn take(&self) -> Option<Box<Runner>> {
        let mut desk = lock(&self.desk);
        if desk.blocked > 1 {
            return None;
        }
        match replace(&mut desk.watch, Watch::Awake) {
            Watch::Unmanned(_, runner) => Some(runner),
            Watch::Thread(_, runner) if desk.unquiet == 0 => {
                drop(desk);
                // Packets are to wake one thread only.
                self.thread.wake();
                Some(runner)
            }
            other => {
                desk.watch = other;
                None
            }
        }
    }

    /// A thread that has entered waits no longer, and leaves the helm if it is at it. Others that wait have to be looked
    /// after at once.
    pub(super) fn leave(&self, runner: Option<Box<Runner>>) {
        let mut desk = lock(&self.desk);
        desk.blocked -= 1;
        if let Some(runner) = runner {
            let now = self.clock.now();
            let set = desk.alarm_at.filter(|&at| now < at && at <= now + LONGEST_GRACE);
            let until = if desk.blocked > 0 { now } else { desk.next(set.unwrap_or(now + GRACE)) };
            desk.watch = Watch::Unmanned(until, runner);
            self.set_alarm(&mut desk, now, until);
        }
    }

    /// Wakes the guest: what it waits for may have come about.
    pub(super) fn wake_guest(&self) {
        self.guest.wake();
    }

    /// Wakes whoever sleeps, to find out that the endpoint has stopped.
    pub(super) fn wake_all(&self) {
        self.thread.wake();
        self.guest.wake();
    }

    /// Nobody will drive any more.
    pub(super) fn retire(&self) {
        let watch = replace(&mut lock(&self.desk).watch, Watch::Awake);
        drop(watch);
    }
}

impl Desk {
    /// When the next flight has to be looked after, `longest` at most.
    fn next(&self, longest: Time) -> Time {
        self.heap.peek().map_or(longest, |Reverse((at, _))| (*at).min(longest))
    }
}

/// Waits until one of them has something to say, or a signal has come.
fn wait_for<const N: usize>(fds: [BorrowedFd<'_>; N]) -> Result<[PollFlags; N], EngineError> {
    let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    match poll(&mut fds, None) {
        Ok(_) => Ok(fds.map(|fd| fd.revents())),
        Err(rustix::io::Errno::INTR) => Ok([PollFlags::empty(); N]),
        Err(error) => Err(EngineError::system("cannot wait for the UDP socket", error)),
    }
}
