//! The control channel of a session. Besides the mover's messages it carries quotas, each side's counters for
//! the other's report, and a receiving client's requests for another control law.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use haul_base::{Rate, Span};
use haul_engine::{Control, Counters, EngineError, Session, Transfer};
use haul_mover::ControlLink;
use haul_proto::config::RateControlConfig;
use haul_proto::{ChosenLaw, ControllerError, LawChange, Part, SenderStats};
use haul_wire::control::{ControlMessage, Counted, CountedSending, Fault, FaultCode, Host, Item};
use parking_lot::Mutex;

use crate::fault;
use crate::transfer::counters::{arrived_bytes, counted_sending};
use crate::transfer::{Context, Cpu};

/// Maximum number of remembered faults: more than a report names.
const MAX_FAULTS: usize = 10_000;

/// Minimum time between changes of the law, which bounds the work that a client can cause.
const MIN_LAW_INTERVAL: Duration = Duration::from_millis(5);

/// A session: its context, its control channel, the negotiated values, and the state of both sides.
pub(crate) struct Sides {
    pub(crate) context: Context,
    pub(crate) control: Control,
    pub(crate) cipher: String,
    pub(crate) controller: String,
    pub(crate) round_trip: Span,
    pub(crate) ceiling: Option<Rate>,
    /// `rate_control` of the negotiated recipe.
    pub(crate) agreed: Option<Part>,
    /// Name or address of the other machine; `None` if both sides are on this one.
    pub(crate) peer_name: Option<String>,
    /// Start of the connection.
    pub(crate) began: Instant,
    started: Instant,
    state: Mutex<LinkState>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct LinkState {
    transfer: Weak<Transfer>,
    theirs: Option<Counted>,
    /// Number of [`Counted`] received.
    reports: u64,
    /// The last quota, for a transfer that starts later.
    quota: Option<Rate>,
    /// Set if the client may change the law: at a server that sends.
    law: Option<RequestedLaw>,
    /// Hashes of faults that this side has sent: a receiver repeats why the sender could not read an entry.
    sent_faults: HashSet<u64>,
}

impl Sides {
    pub(crate) fn new(context: &Context, session: &Session, began: Instant, peer_name: String) -> Arc<Self> {
        Arc::new(Self {
            context: context.clone(),
            control: session.control().clone(),
            cipher: session.cipher().to_string(),
            controller: session.controller(),
            round_trip: session.round_trip(),
            ceiling: haul_engine::ceiling(session.recipe()),
            agreed: session.law(),
            peer_name: (context.cpu != Cpu::DataThread).then_some(peer_name),
            began,
            started: Instant::now(),
            state: Mutex::default(),
            hasher: RandomState::new(),
        })
    }

    /// Sets the transfer, with the quota and the law requested before.
    pub(crate) fn watch(&self, transfer: &Arc<Transfer>) {
        let mut state = self.state.lock();
        state.transfer = Arc::downgrade(transfer);
        if let Some(rate) = state.quota {
            transfer.set_quota(rate);
        }
        if let Some(law) = state.law.as_ref().and_then(RequestedLaw::initial_law) {
            transfer.switch_law(law);
        }
    }

    /// Lets the client change the `agreed` law, within `limits`.
    pub(crate) fn permit_law(&self, agreed: Part, limits: LawLimits) {
        self.state.lock().law = Some(RequestedLaw { requested: agreed, is_changed: false, limits });
    }

    /// Changes the law if the client may do that, otherwise gives the message back.
    fn change_law(&self, changes: Vec<(String, String)>) -> Result<Option<ControlMessage>, Fault> {
        let mut state = self.state.lock();
        let Some(law) = &mut state.law else { return Ok(Some(ControlMessage::LawChange(changes))) };
        let chosen = law.change(&changes).map_err(|error| {
            let message =
                format!("the peer violated the protocol: it requested an invalid control law: {error}");
            Fault::new(FaultCode::Internal, message, "use the same version of haul on both sides")
        })?;
        let transfer = state.transfer.upgrade();
        drop(state);
        tracing::debug!(?changes, ?chosen, "the client requested another control law");
        if let (Some(transfer), Some(law)) = (transfer, chosen) {
            transfer.switch_law(law);
        }
        Ok(None)
    }

    /// Handles the next message of a client that may change the law, while nothing else receives messages.
    pub(crate) fn take_law_requests(&self) -> Result<(), Fault> {
        if self.state.lock().law.is_some()
            // The caller checks whether the channel has failed.
            && let Ok(Some(message)) = self.control.try_recv(Duration::ZERO)
            && let Some(other) = self.take(message)?
        {
            tracing::debug!("unexpected {}", other.name());
        }
        Ok(())
    }

    /// Returns the object bytes that have arrived, as far as this side knows; 0 without a transfer.
    pub(crate) fn arrived_bytes(&self) -> u64 {
        let transfer = self.state.lock().transfer.upgrade();
        arrived_bytes(transfer.and_then(|transfer| transfer.counters()).as_ref())
    }

    /// Returns the counters of this side for the other one.
    pub(crate) fn ours(&self) -> Counted {
        let Some(transfer) = self.state.lock().transfer.upgrade() else { return Counted::default() };
        let sending = match transfer.counters() {
            Some(Counters::Sending(sending)) => {
                Some(self.counted_sending(&sending.stats, self.started.elapsed().into()))
            }
            _ => None,
        };
        Counted { cpu_us: self.context.cpu.used(transfer.cpu()).as_micros(), sending }
    }

    pub(crate) fn counted_sending(&self, stats: &SenderStats, moving: Span) -> CountedSending {
        counted_sending(stats, self.round_trip, self.ceiling, moving)
    }

    /// Handles a message about the data path; returns any other message. Fails if the client requests an
    /// invalid law.
    pub(crate) fn take(&self, message: ControlMessage) -> Result<Option<ControlMessage>, Fault> {
        match message {
            ControlMessage::LawChange(changes) => return self.change_law(changes),
            ControlMessage::Counted(theirs) => {
                let mut state = self.state.lock();
                state.theirs = Some(theirs);
                state.reports += 1;
            }
            ControlMessage::Quota { rate_bps } => {
                let rate = Rate::from_bps(rate_bps);
                let mut state = self.state.lock();
                state.quota = Some(rate);
                let transfer = state.transfer.upgrade();
                drop(state);
                transfer.inspect(|transfer| transfer.set_quota(rate));
            }
            other => return Ok(Some(other)),
        }
        Ok(None)
    }

    /// Converts an error of the session to a fault, with the machine if the peer has sent it.
    pub(crate) fn fault(&self, error: EngineError) -> Fault {
        let is_theirs = matches!(error, EngineError::Peer(_));
        let mut fault = fault::of(error);
        if is_theirs {
            self.place(&mut fault);
        }
        fault
    }

    /// Sets the machine of a fault that the peer has sent: this one if it repeats a fault of this side; none
    /// if this side may have sent more faults than it remembers.
    fn place(&self, fault: &mut Fault) {
        let Some(peer_name) = &self.peer_name else { return };
        let sent_faults = &self.state.lock().sent_faults;
        if sent_faults.contains(&self.hash(fault)) {
            fault.host = Some(Host::Here);
        } else if sent_faults.len() < MAX_FAULTS {
            fault.host = Some(Host::Named(peer_name.clone()));
        }
    }

    fn hash(&self, fault: &Fault) -> u64 {
        self.hasher.hash_one((fault.code, &fault.message, &fault.hint))
    }

    /// Returns how often the peer has reported its counters: at the end, and now and then while it makes progress.
    pub(crate) fn reports(&self) -> u64 {
        self.state.lock().reports
    }

    pub(crate) fn theirs(&self) -> Option<Counted> {
        self.state.lock().theirs.clone()
    }
}

impl ControlLink for Sides {
    fn send(&self, mut message: ControlMessage) -> Result<(), Fault> {
        if matches!(message, ControlMessage::Finish(_) | ControlMessage::Close) {
            self.control.send(ControlMessage::Counted(self.ours())).map_err(|error| self.fault(error))?;
        }
        for fault in message.faults() {
            let sent_faults = &mut self.state.lock().sent_faults;
            if sent_faults.len() < MAX_FAULTS {
                sent_faults.insert(self.hash(fault));
            }
        }
        self.control.send(message).map_err(|error| self.fault(error))
    }

    fn recv(&self, timeout: Duration) -> Result<Option<ControlMessage>, Fault> {
        let received = self.control.try_recv(timeout).map_err(|error| self.fault(error))?;
        let Some(mut message) = received else { return Ok(None) };
        message.faults().into_iter().for_each(|fault| self.place(fault));
        let is_law = matches!(message, ControlMessage::LawChange(_));
        let taken = self.take(message).inspect_err(|fault| self.control.abort(fault.clone()));
        if is_law {
            std::thread::sleep(MIN_LAW_INTERVAL);
        }
        taken
    }

    fn changed(&self, item: &Item) {
        self.context.on_item.as_ref().inspect(|callback| callback(item));
    }
}

/// Limits of a server's owner on the law that clients may request.
#[derive(Clone, Debug, Default)]
pub(crate) struct LawLimits {
    pub(crate) rate: Option<Rate>,
    pub(crate) controller: Option<&'static str>,
}

impl LawLimits {
    pub(crate) fn apply(&self, law: &mut RateControlConfig) {
        law.rate = self.rate.map_or(law.rate, |limit| law.rate.min(limit));
        if let Some(fixed) = self.controller {
            fixed.clone_into(&mut law.controller);
            law.switch.clear();
        }
    }
}

#[derive(Debug)]
struct RequestedLaw {
    /// Without the limits, as the client has it: both sides check changes against the same law.
    requested: Part,
    is_changed: bool,
    limits: LawLimits,
}

impl RequestedLaw {
    /// Returns the law from now on; `None` if there is none within the limits, so that the running one stays.
    /// Fails if the law is invalid, which the client should have noticed itself.
    fn change(&mut self, changes: &[(String, String)]) -> Result<Option<ChosenLaw>, ControllerError> {
        let change = LawChange::parse(&self.requested, changes)?;
        let chosen = ChosenLaw::change(&mut self.requested, &change)?;
        self.is_changed = true;
        Ok(self.limited(chosen))
    }

    /// Returns the law for the start of a transfer, if it was changed before.
    fn initial_law(&self) -> Option<ChosenLaw> {
        let chosen = self.is_changed.then(|| ChosenLaw::check(&self.requested).ok()).flatten();
        chosen.and_then(|chosen| self.limited(chosen))
    }

    fn limited(&self, chosen: ChosenLaw) -> Option<ChosenLaw> {
        let limited = chosen.within(&self.requested, |law| self.limits.apply(law));
        limited.inspect_err(|error| tracing::debug!(%error, "no law within the server's limits")).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::thread;

    use haul_base::Piece;
    use haul_engine::{ConnectOptions, EngineError, ListenOptions, Listener, Waker, connect};
    use haul_proto::{Available, LawNow, ObjectSink, ObjectSource};
    use haul_wire::control::{BenchLimit, Request};

    use super::*;
    use crate::args::TransferOptions;
    use crate::settings::{Preset, Settings};
    use crate::signals::Cancel;

    const SOON: Duration = Duration::from_secs(60);

    struct Endless;

    impl ObjectSource for Endless {
        fn available(&mut self) -> Available {
            Available { upto: 1 << 40, end: false }
        }

        fn read(&mut self, _: u64, into: &mut [u8]) {
            into.fill(0);
        }

        fn release(&mut self, _: u64) {}
    }

    impl ObjectSink for Endless {
        fn deliver(&mut self, _: &[u8], _: &[Piece]) {}

        fn limit(&mut self) -> u64 {
            u64::MAX
        }

        fn complete(&mut self, _: u64) {}
    }

    fn context() -> Context {
        let settings = Settings::build(&Preset::default_preset(), &[]).unwrap();
        Context::quiet(settings, TransferOptions::default(), Cancel::default())
    }

    /// A server that sends, and its client.
    struct Pair {
        sides: Arc<Sides>,
        server: Session,
        client: Session,
        /// The client's first challenge comes to its socket, which may be after both have their sessions.
        _listener: Listener,
    }

    impl Pair {
        fn new(limits: LawLimits) -> Self {
            let listener =
                Listener::bind(ListenOptions::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))).unwrap();
            let url = listener.url("127.0.0.1", b"");
            let mut settings = Settings::build(&Preset::default_preset(), &[]).unwrap();
            haulage::registry().set(&mut settings.recipe, "rate_control.rate", "1Mbit").unwrap();
            let settings = settings.to_wire(BenchLimit::Unlimited);
            let options = ConnectOptions::new(Request::BenchReceive, settings);
            let client = thread::spawn(move || connect(&url, options).unwrap());
            let server = listener.accept(SOON).unwrap().accept().unwrap();
            let sides = Sides::new(&context(), &server, Instant::now(), "client".to_owned());
            sides.permit_law(server.law().unwrap(), limits);
            Self { sides, server, client: client.join().unwrap(), _listener: listener }
        }

        fn ask(&self, changes: &[(&str, &str)]) {
            let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
            let message = ControlMessage::LawChange(changes.iter().map(owned).collect());
            self.client.control().send(message).unwrap();
        }

        fn send(&mut self) -> [Arc<Transfer>; 2] {
            let receiving = self.client.start_receiving(Box::new(Endless), Waker::new().unwrap()).unwrap();
            let sending = self.server.start_sending(Box::new(Endless), Waker::new().unwrap()).unwrap();
            [sending, receiving].map(Arc::new)
        }

        /// Takes in a request as a job of the mover does.
        fn handle_message(&self) -> Result<(), Fault> {
            let received = self.sides.recv(SOON)?;
            assert_eq!(received, None);
            Ok(())
        }

        /// Takes in requests as a bench does, until the transfer has this law.
        fn wait_for_law(&self, transfer: &Transfer, name: &'static str, ceiling_mbps: u64) {
            let begun = Instant::now();
            let expected = Some(LawNow { name, ceiling: Some(Rate::from_mbps(ceiling_mbps)) });
            loop {
                self.sides.take_law_requests().unwrap();
                let law = match transfer.counters() {
                    Some(Counters::Sending(sending)) => sending.stats.law,
                    _ => None,
                };
                if law == expected {
                    return;
                }
                assert!(begun.elapsed() < SOON, "{law:?}");
                thread::sleep(Duration::from_millis(10));
            }
        }
    }

    #[test]
    fn a_receiving_client_changes_the_law_of_the_server_within_its_limits() {
        let mut pair = Pair::new(LawLimits { rate: Some(Rate::from_mbps(5)), controller: None });
        // Before there is a transfer.
        pair.ask(&[("controller", "reno")]);
        pair.handle_message().unwrap();
        let [sending, _receiving] = pair.send();
        pair.sides.watch(&sending);
        pair.wait_for_law(&sending, "reno", 1);
        for (rate, in_force) in [("2Mbit", 2), ("unlimited", 5), ("7Mbit", 5), ("3Mbit", 3)] {
            pair.ask(&[("rate", rate)]);
            pair.wait_for_law(&sending, "reno", in_force);
        }
        pair.ask(&[("controller", "cubic"), ("scale", "0.5"), ("rate", "unlimited")]);
        pair.wait_for_law(&sending, "cubic", 5);
    }

    #[test]
    fn a_server_keeps_its_fixed_law_when_the_client_asks_for_another() {
        let fixed = LawLimits { rate: None, controller: Some("bbr") };
        let mut pair = Pair::new(fixed);
        let [sending, _receiving] = pair.send();
        pair.sides.watch(&sending);
        pair.ask(&[("controller", "cubic"), ("rate", "2Mbit")]);
        pair.wait_for_law(&sending, "bbr", 2);
        // One of cubic's parameters, which the client has now.
        pair.ask(&[("scale", "0.5"), ("rate", "3Mbit")]);
        pair.wait_for_law(&sending, "bbr", 3);
    }

    #[test]
    fn an_invalid_law_request_ends_the_session_with_a_fault() {
        for (name, value) in [("controller", "frobnicate"), ("rate", "0bit"), ("rule", "9")] {
            let pair = Pair::new(LawLimits::default());
            pair.ask(&[(name, value)]);
            let fault = pair.handle_message().unwrap_err();
            assert!(fault.message.contains("an invalid control law"), "{fault}");
            let received = pair.client.control().recv(Some(SOON)).unwrap_err();
            assert!(
                matches!(&received, EngineError::Peer(received) if received.message == fault.message),
                "{received}"
            );
        }
    }

    #[test]
    fn a_client_does_not_handle_a_law_change_from_its_server() {
        let pair = Pair::new(LawLimits::default());
        let client = Sides::new(&context(), &pair.client, Instant::now(), "server".to_owned());
        let message = ControlMessage::LawChange(vec![("rate".to_owned(), "9Mbit".to_owned())]);
        pair.server.control().send(message.clone()).unwrap();
        assert_eq!(client.recv(SOON).unwrap(), Some(message));
    }
}

#[cfg(test)]
mod law_tests {
    use super::*;

    #[test]
    fn a_law_fixed_by_the_owner_has_no_switch_rules() {
        let agreed = Part::from("rate_control");
        let rules = [("switch".to_owned(), "after 1s -> cubic".to_owned())];
        for (controller, kept) in [(Some("bbr"), ""), (None, "after 1s -> cubic")] {
            let limits = LawLimits { rate: None, controller };
            let mut requested = RequestedLaw { requested: agreed.clone(), is_changed: false, limits };
            let law = requested.change(&rules).unwrap().unwrap();
            assert_eq!(law.rules(), kept, "{controller:?}");
        }
    }
}
