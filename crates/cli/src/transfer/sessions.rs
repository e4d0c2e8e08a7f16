//! Limits of sessions: their number, their time without progress, and the rates of a receiver's senders.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use haul_base::{Rate, Span};
use haul_engine::Control;
use haul_mover::Stage;
use haul_proto::group::{Group, Member, SenderId};
use haul_wire::control::{ControlMessage, Fault, FaultCode};
use parking_lot::Mutex;

use crate::output::{Stall, clock, count};

/// Progress of a session, shared by clones.
#[derive(Clone, Debug, Default)]
pub(crate) struct SessionProgress {
    state: Arc<Mutex<ChangeTimer>>,
    is_evicted: Arc<AtomicBool>,
}

impl SessionProgress {
    /// To be called often with a number that changes with progress.
    pub(crate) fn record(&self, done: u64) {
        self.state.lock().age(done, Instant::now());
    }

    /// Returns why the session has to end, if another one got its place.
    pub(crate) fn eviction(&self) -> Option<Fault> {
        self.is_evicted.load(Ordering::Relaxed).then(|| {
            let message =
                "the server had too many sessions, and this one had made no progress for a long time";
            Fault::new(FaultCode::Busy, message, "run the same command again to resume")
        })
    }
}

#[derive(Debug)]
pub(crate) struct Sessions {
    total: usize,
    per_address: usize,
    /// Time without progress after which a session is ended if another one needs its place.
    idle: Duration,
    running: Mutex<Vec<(IpAddr, SessionProgress)>>,
}

/// A session's place, which is free again when this is dropped.
pub(crate) struct SessionPermit<'a> {
    sessions: &'a Sessions,
    pub(crate) session_progress: SessionProgress,
}

impl Sessions {
    pub(crate) fn new(total: usize, per_address: usize, idle: Span) -> Self {
        Self { total, per_address, idle: idle.into(), running: Mutex::default() }
    }

    /// Returns a place for a client of this address, or a fault if there is none.
    pub(crate) fn enter(&self, ip: IpAddr) -> Result<SessionPermit<'_>, Fault> {
        let ip = ip.to_canonical();
        let mut running = self.running.lock();
        if running.iter().filter(|(address, _)| *address == ip).count() >= self.per_address {
            let busy = || busy(&format!("{} of {ip}", count(self.per_address as u64, "session")));
            self.make_room(&mut running, |address| address == ip).ok_or_else(busy)?;
        }
        if running.len() >= self.total {
            let busy = || busy(&count(self.total as u64, "session"));
            self.make_room(&mut running, |_| true).ok_or_else(busy)?;
        }
        let session_progress = SessionProgress::default();
        running.push((ip, session_progress.clone()));
        Ok(SessionPermit { sessions: self, session_progress })
    }

    /// Ends the session without progress for longest among the candidates, if that exceeds the idle time.
    fn make_room(
        &self,
        running: &mut Vec<(IpAddr, SessionProgress)>,
        is_candidate: impl Fn(IpAddr) -> bool,
    ) -> Option<()> {
        let since = |at: &usize| running[*at].1.state.lock().since;
        let longest = (0..running.len()).filter(|&at| is_candidate(running[at].0)).min_by_key(since)?;
        if since(&longest).elapsed() < self.idle {
            return None;
        }
        running.remove(longest).1.is_evicted.store(true, Ordering::Relaxed);
        Some(())
    }
}

fn busy(what: &str) -> Fault {
    Fault::new(FaultCode::Busy, format!("this server already has {what}"), "try again later")
}

impl Drop for SessionPermit<'_> {
    fn drop(&mut self) {
        self.sessions.running.lock().retain(|(_, session_progress)| {
            !Arc::ptr_eq(&session_progress.state, &self.session_progress.state)
        });
    }
}

/// Time without progress after which a job ends. Syncing a machine's memory to a slow disk takes minutes.
pub(crate) const LIMIT: Duration = Duration::from_secs(30 * 60);
/// Timeout for a job's threads to end after this side stops it.
pub(crate) const END_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct ChangeTimer {
    value: u64,
    pub(crate) since: Instant,
}

impl Default for ChangeTimer {
    fn default() -> Self {
        Self { value: 0, since: Instant::now() }
    }
}

impl ChangeTimer {
    /// Updates the number; returns for how long it has been unchanged.
    pub(crate) fn age(&mut self, value: u64, now: Instant) -> Span {
        if value != self.value {
            (self.value, self.since) = (value, now);
        }
        now.saturating_duration_since(self.since).into()
    }
}

/// Returns why a job without progress ends, after the time `limit`.
pub(crate) fn stall_fault(stall: Stall, limit: Duration) -> Option<Fault> {
    let is_over = Duration::from(stall.duration) >= limit && stall.stage.is_limited();
    is_over.then(|| {
        Fault::new(
            FaultCode::PeerSilent,
            format!("no progress for {}: waited for {}", clock(stall.duration), stall.stage),
            "check that the disks and the other machine respond, then run the same command again to resume",
        )
    })
}

/// Returns the fault of a stopped job whose threads do not end in time.
pub(crate) fn not_ended_in_time(fault: Fault, stage: Stage) -> Fault {
    let message =
        format!("{}; after {} s it was still waiting for {stage}", fault.message, END_TIMEOUT.as_secs());
    Fault { message, ..fault }
}

/// Duration of a round: several round trips, so that most of the received data was sent at the new rate.
const ROUND: Duration = Duration::from_millis(500);

#[derive(derive_more::Debug)]
struct Sender {
    control: Control,
    /// Returns the object bytes that have arrived.
    #[debug(skip)]
    received: Box<dyn Fn() -> u64 + Send>,
}

impl Member for Sender {
    fn received(&self) -> u64 {
        (self.received)()
    }

    /// Never blocks: the other senders wait for the table.
    fn set_rate(&mut self, rate: Rate) -> bool {
        // An ended session needs no rate.
        self.control.send_if_room(&ControlMessage::Quota { rate_bps: rate.as_bps() }).unwrap_or(true)
    }
}

#[derive(Debug)]
struct QuotaTable {
    group: Group<Sender>,
    since: Instant,
}

/// Quotas of all senders; `None` without a capacity.
#[derive(Clone, Debug, Default)]
pub(crate) struct Quotas(Option<Arc<Mutex<QuotaTable>>>);

/// A sender's place in the table. Dropping it leaves its quota to the others.
#[derive(Debug)]
pub(crate) struct QuotaGuard {
    table: Arc<Mutex<QuotaTable>>,
    id: SenderId,
}

impl Quotas {
    /// `capacity` is the UDP payload that can be received from all senders.
    pub(crate) fn new(capacity: Option<Rate>) -> Self {
        Self(capacity.map(|capacity| {
            Arc::new(Mutex::new(QuotaTable { group: Group::new(capacity), since: Instant::now() }))
        }))
    }

    /// Adds a sender, which reduces the others' quotas. `received` returns its object bytes that have arrived.
    pub(crate) fn join(
        &self,
        control: Control,
        received: impl Fn() -> u64 + Send + 'static,
    ) -> Option<QuotaGuard> {
        let table = self.0.clone()?;
        let mut open = table.lock();
        let id = open.group.add(Sender { control, received: Box::new(received) }, NonZeroU32::MIN);
        open.since = Instant::now();
        drop(open);
        Some(QuotaGuard { table, id })
    }
}

impl QuotaGuard {
    /// Starts a new round, as the sender can only now use its quota.
    pub(crate) fn restart(&self) {
        let mut table = self.table.lock();
        table.group.restart();
        table.since = Instant::now();
    }

    /// Ends a round that is over. To be called many times a second.
    pub(crate) fn update(&self) {
        let mut table = self.table.lock();
        let time = table.since.elapsed();
        if time >= ROUND {
            table.group.round(time.into());
            table.since = Instant::now();
        }
    }
}

impl Drop for QuotaGuard {
    fn drop(&mut self) {
        let mut table = self.table.lock();
        table.group.retain(|id, _| id != self.id);
        table.since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: [u8; 4] = [192, 0, 2, 1];
    const THERE: [u8; 4] = [192, 0, 2, 2];

    fn sessions(idle: Span) -> Sessions {
        Sessions::new(3, 2, idle)
    }

    fn refusal(sessions: &Sessions, ip: [u8; 4]) -> String {
        let refused = sessions.enter(ip.into()).err().unwrap();
        assert_eq!(refused.code, FaultCode::Busy);
        refused.message
    }

    #[test]
    fn running_sessions_are_limited_per_address_and_in_total() {
        let sessions = sessions(Span::from_secs(1_000));
        let here = [sessions.enter(HERE.into()).unwrap(), sessions.enter(HERE.into()).unwrap()];
        assert!(refusal(&sessions, HERE).contains("2 sessions of 192.0.2.1"));
        let there = sessions.enter(THERE.into()).unwrap();
        assert!(refusal(&sessions, THERE).contains("already has 3 sessions"));
        drop(here);
        assert!(sessions.enter(THERE.into()).is_ok() && there.session_progress.eviction().is_none());
    }

    #[test]
    fn the_session_idle_for_longest_is_evicted() {
        let sessions = sessions(Span::ZERO);
        let first = sessions.enter(HERE.into()).unwrap();
        let second = sessions.enter(HERE.into()).unwrap();
        let _third = sessions.enter(THERE.into()).unwrap();
        std::thread::sleep(Duration::from_millis(2));
        first.session_progress.record(1);
        let _fourth = sessions.enter(THERE.into()).unwrap();
        assert!(second.session_progress.eviction().is_some() && first.session_progress.eviction().is_none());
        // Its end frees nobody else's place.
        drop(second);
        assert_eq!(sessions.running.lock().len(), 3);
    }
}

#[cfg(test)]
mod stall_tests {
    use super::*;

    #[test]
    fn any_progress_restarts_the_clock() {
        let mut clock = ChangeTimer::default();
        let at = |seconds| clock_start() + Duration::from_secs(seconds);
        assert_eq!(clock.age(1, at(10)), Span::ZERO);
        assert_eq!(clock.age(1, at(17)), Span::from_secs(7));
        assert_eq!(clock.age(2, at(18)), Span::ZERO);
        assert_eq!(clock.age(2, at(19)), Span::from_secs(1));
    }

    fn clock_start() -> Instant {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        *START.get_or_init(Instant::now)
    }

    #[test]
    fn every_stage_but_a_pipe_has_a_limit_and_the_fault_names_it() {
        let stall =
            |duration: Duration, stage| stall_fault(Stall { duration: duration.into(), stage }, LIMIT);
        for stage in [Stage::Requests, Stage::Reading, Stage::Delivery, Stage::Completion] {
            assert_eq!(stall(LIMIT / 2, stage), None);
            let fault = stall(LIMIT, stage).unwrap();
            assert!(fault.message.contains(&stage.to_string()), "{}", fault.message);
            assert_eq!(fault.code, FaultCode::PeerSilent);
        }
        assert_eq!(stall(10 * LIMIT, Stage::Pipe), None);
        let fault = Fault::new(FaultCode::Interrupted, "interrupted", "");
        assert_eq!(
            not_ended_in_time(fault, Stage::Reading).message,
            "interrupted; after 60 s it was still waiting for the sources to be read"
        );
    }
}

#[cfg(test)]
mod quota_tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::mpsc::channel;
    use std::thread;

    use haul_engine::{ConnectOptions, ListenOptions, Listener, Session, connect};
    use haul_wire::control::{BenchLimit, FileDigest, Request};

    use super::*;
    use crate::settings::{Preset, Settings};

    const SOON: Duration = Duration::from_secs(60);

    /// The two ends of a session, the server's first.
    fn session(listener: &Listener) -> [Session; 2] {
        let url = listener.url("127.0.0.1", b"");
        let settings = Settings::build(&Preset::default_preset(), &[]).unwrap();
        let options = ConnectOptions::new(Request::Check, settings.to_wire(BenchLimit::Unlimited));
        let client = thread::spawn(move || connect(&url, options).unwrap());
        let server = listener.accept(SOON).unwrap().accept().unwrap();
        [server, client.join().unwrap()]
    }

    /// Sends until there has been no room for a while. How often it was sent.
    fn fill(control: &Control, message: &ControlMessage) -> usize {
        let (mut sent, mut full) = (0, 0);
        while full < 20 {
            if control.send_if_room(message).unwrap() {
                (sent, full) = (sent + 1, 0);
                assert!(sent < 500, "no end of room");
            } else {
                full += 1;
                thread::sleep(Duration::from_millis(50));
            }
        }
        sent
    }

    #[test]
    fn a_sender_that_reads_nothing_does_not_block_others() {
        let listener =
            Listener::bind(ListenOptions::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))).unwrap();
        let ([deaf, deaf_client], [other, other_client]) = (session(&listener), session(&listener));
        let much = ControlMessage::Digests(vec![FileDigest { entry: 0, result: Ok([7; 32]) }; 25_000]);
        let unread = fill(deaf.control(), &much);
        let table = Quotas::new(Some(Rate::from_mbps(100)));
        let (done, is_done) = channel();
        let controls = [&deaf, &other].map(|session| session.control().clone());
        let all = table.clone();
        thread::spawn(move || {
            let parts = controls.map(|control| all.join(control, || 0).unwrap());
            done.send(parts).unwrap();
        });
        let parts = is_done.recv_timeout(SOON).expect("nobody waits for the one that reads nothing");
        let half = ControlMessage::Quota { rate_bps: 50_000_000 };
        assert_eq!(other_client.control().recv(Some(SOON)).unwrap(), half);
        // When it reads again, the next round tells it.
        (0..unread).for_each(|_| assert_eq!(deaf_client.control().recv(Some(SOON)).unwrap(), much));
        parts[0].table.lock().since -= ROUND;
        parts[0].update();
        let received = deaf_client.control().recv(Some(SOON)).unwrap();
        assert!(matches!(received, ControlMessage::Quota { .. }), "{received:?}");
    }
}
