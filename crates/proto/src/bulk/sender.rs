//! Sender of one object.

use std::fmt;
use std::sync::Arc;

use haul_base::{Bytes, CauseCounts, Deadline, Machine, Rate, Received, Span, Time, Transmit, Verdict};
use haul_stack::{Ends, ObjectSource, ProtocolStats, Recipe, RecipeError, Setup, Stack, StackEvent};

use super::{build, failure, shipped};
use crate::LossModel;
use crate::control::{RateController, RateState};
use crate::diagnosis::{DiagnosedWindow, WindowCounts};
use crate::link::Link;
use crate::micro::config::{
    BitmapAckConfig, LivenessConfig, ObjectConfig, RateControlConfig, RetransmitConfig,
};
use crate::micro::events::{QUOTA, Quota, SIZE_REFUSED, VERDICT};
use crate::micro::rate_control::{ChosenLaw, LAW_CHOSEN};
use crate::micro::shared::{Clock, DiagnosedWindows, LawNow, PeerHost, RateNow, SendWindow, Waiting};
use crate::micro::stats::{BitmapAckStats, KeepObjectStats, LivenessStats, ObjectStats, RateControlStats};
use crate::mtu::BASE_DATAGRAM;

/// Settings of a sender.
#[derive(Clone, Debug)]
pub struct SenderConfig {
    /// The object is cut at multiples of this size; no packet crosses a cut (FOBS: 100 MB).
    pub chunk: Bytes,
    /// Datagram size known to pass, UDP payload bytes.
    pub datagram: u16,
    /// Datagram size to probe first, because it passed in the other direction.
    pub likely_datagram: u16,
    /// Largest datagram size to try.
    pub max_datagram: u16,
    /// Most datagrams in one batch, 1 to 64.
    pub max_batch: usize,
    /// Initial guess of the round-trip time.
    pub initial_rtt: Span,
    /// Longest interval between the receiver's reports.
    pub feedback_interval: Span,
    /// Lateness that the pacer compensates.
    pub pacing_debt: Span,
    /// Most packets from the oldest unacknowledged one to the newest, 64 to 10 million.
    pub max_outstanding: u64,
    /// Time without evidence of arriving packets after which [`SenderEvent::Silent`] is emitted.
    pub silence: Span,
    /// Model by which loss signatures are classified, from [`LossModel::read`]; `None`: the built-in model.
    /// Local to this end: recipes, which both ends share, do not contain it.
    pub model: Option<Arc<LossModel>>,
}

impl Default for SenderConfig {
    fn default() -> Self {
        Self {
            chunk: Bytes(100_000_000),
            datagram: BASE_DATAGRAM,
            likely_datagram: BASE_DATAGRAM,
            max_datagram: 8_972,
            max_batch: 64,
            initial_rtt: Span::from_millis(100),
            feedback_interval: Span::from_millis(2),
            pacing_debt: Span::from_millis(100),
            max_outstanding: 400_000,
            silence: Span::from_secs(15),
            model: None,
        }
    }
}

impl SenderConfig {
    fn recipe(&self) -> Result<Recipe, RecipeError> {
        let mut recipe = shipped()?;
        recipe.change(|object: &mut ObjectConfig| object.chunk = self.chunk)?;
        recipe.change(|reports: &mut BitmapAckConfig| reports.interval = self.feedback_interval)?;
        recipe.change(|repeats: &mut RetransmitConfig| repeats.window = self.max_outstanding)?;
        recipe.change(|rate: &mut RateControlConfig| {
            (rate.debt, rate.max_batch) = (self.pacing_debt, self.max_batch);
        })?;
        recipe.change(|liveness: &mut LivenessConfig| liveness.silence = self.silence)?;
        Ok(recipe)
    }
}

/// Events of a sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SenderEvent {
    /// All bytes have arrived at the receiver.
    Delivered,
    /// The datagram size changed to this.
    PathMtu(u16),
    /// For this time, the configured timeout, no authentic packet came from the receiver, or only reports
    /// that nothing arrives.
    Silent(Span),
    /// A micro-protocol failed with this message; the transfer is over.
    Failed(String),
}

/// Counters of a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderStats {
    /// Data packets sent, retransmissions included.
    pub packets: u64,
    /// Retransmissions among these.
    pub resent: u64,
    /// UDP payload bytes of data packets.
    pub datagram_bytes: u64,
    /// Packets declared lost.
    pub lost: u64,
    /// Object bytes sent at least once.
    pub object_sent: u64,
    /// Object bytes acknowledged.
    pub object_acked: u64,
    /// Packets acknowledged.
    pub acked: u64,
    /// Feedback packets processed.
    pub feedback: u64,
    /// Packets that were not authentic or malformed.
    pub rejected: u64,
    /// Socket buffers dropped at the receiver, as last reported.
    pub receiver_drops: u32,
    /// Duplicates at the receiver, as last reported.
    pub receiver_duplicates: u32,
    /// Packets marked "congestion experienced" (ECN CE), as last reported by the receiver.
    pub ecn_ce: u32,
    /// Probe timeouts.
    pub probe_timeouts: u32,
    /// Current datagram size, UDP payload bytes.
    pub datagram: u16,
    /// Smoothed round-trip time.
    pub rtt: Span,
    /// Smallest round-trip time.
    pub min_rtt: Span,
    /// Highest delivery rate measured over about a round trip, bit/s of UDP payload.
    pub peak_delivery_bps: u64,
    /// Current control law; `None` if the recipe has no `rate_control`.
    pub law: Option<LawNow>,
    /// How often a rule of the recipe replaced the control law.
    pub law_switches: u64,
    /// How often the control law's ceiling changed.
    pub ceiling_changes: u64,
    /// Time during which nothing could be sent, by reason.
    pub waiting: Waiting,
    /// Total of the periods of two seconds or more without an acknowledgement.
    pub silent: Span,
    /// State of the receiving host, as last reported.
    pub receiver_host: PeerHost,
    /// Packets declared lost, by diagnosed cause.
    pub lost_by_cause: CauseCounts,
    /// Transmission windows with losses, by the diagnosis of their signatures.
    pub windows: WindowCounts,
}

impl SenderStats {
    /// Reads the counters of a stack that sends an object.
    pub fn of(stack: &Stack) -> Self {
        let (totals, path) = (stack.stats(), stack.path());
        let mut stats = Self {
            rejected: totals.unauthentic + totals.violations,
            datagram: path.datagram,
            rtt: path.rtt,
            min_rtt: path.min_rtt,
            waiting: stack.shared::<Clock>().map(Clock::waiting).unwrap_or_default(),
            receiver_host: stack.shared::<PeerHost>().copied().unwrap_or_default(),
            law: stack.shared::<LawNow>().copied(),
            ..Self::default()
        };
        stack.statistics(|_, protocol| stats.take(protocol));
        stats
    }

    fn take(&mut self, protocol: &dyn ProtocolStats) {
        if let Some(control) = protocol.of::<RateControlStats>() {
            (self.packets, self.datagram_bytes) = (control.sent.packets, control.sent.bytes);
            (self.law_switches, self.ceiling_changes) = (control.switches, control.ceiling_changes);
            self.peak_delivery_bps = control.peak_delivery.as_bps();
            (self.lost_by_cause, self.windows) = (control.lost_by_cause, control.windows);
        }
        if let Some(&KeepObjectStats { resent, lost, acked, acked_bytes, probe_timeouts }) = protocol.of() {
            (self.resent, self.lost, self.acked) = (resent, lost, acked);
            (self.object_acked, self.probe_timeouts) = (acked_bytes, probe_timeouts);
        }
        if let Some(reports) = protocol.of::<BitmapAckStats>() {
            self.feedback = reports.reports_received;
            self.receiver_drops = reports.peer_drops;
            self.receiver_duplicates = reports.peer_duplicates;
            self.ecn_ce = reports.peer_ecn_ce;
        }
        if let Some(object) = protocol.of::<ObjectStats>() {
            self.object_sent = object.bytes_sent;
        }
        if let Some(liveness) = protocol.of::<LivenessStats>() {
            self.silent = liveness.silent;
        }
    }
}

/// Adds a value for `rate_control` to a set-up, if there is one.
fn provide<T: Send + 'static>(setup: Setup, value: Option<T>) -> Setup {
    match value {
        Some(value) => setup.provide(value),
        None => setup,
    }
}

/// Sender of one object: a stack of the recipe `bulk`, or another that carries objects.
pub struct Sender {
    stack: Stack,
    delivered: bool,
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("stats", &self.stats())
            .field("rate", &self.rate_state())
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

impl Sender {
    /// Creates a sender that starts at `now`.
    ///
    /// # Panics
    /// If a setting is out of range.
    pub fn new(
        now: Time,
        config: &SenderConfig,
        link: Link,
        source: Box<dyn ObjectSource>,
        controller: Box<dyn RateController>,
        first_limit: u64,
    ) -> Self {
        Self::with_config(now, config, link, source, controller, first_limit)
            .expect("the recipe `bulk` builds with settings within their bounds")
    }

    /// As [`Sender::new`], for settings that come in part from outside.
    ///
    /// # Errors
    /// If a setting is out of range.
    pub fn with_config(
        now: Time,
        config: &SenderConfig,
        link: Link,
        source: Box<dyn ObjectSource>,
        controller: Box<dyn RateController>,
        first_limit: u64,
    ) -> Result<Self, RecipeError> {
        let mut recipe = config.recipe()?;
        recipe.change(|object: &mut ObjectConfig| object.first_limit = Bytes(first_limit))?;
        Self::build(now, &recipe, config, link, source, Some(controller))
    }

    /// Creates a sender for another recipe, with the recipe's parameters and control law; of `config` only
    /// the model and the path's properties are used.
    ///
    /// # Errors
    /// If the recipe does not build.
    pub fn of_recipe(
        now: Time,
        mut recipe: Recipe,
        config: &SenderConfig,
        link: Link,
        source: Box<dyn ObjectSource>,
        first_limit: u64,
    ) -> Result<Self, RecipeError> {
        recipe.change(|object: &mut ObjectConfig| object.first_limit = Bytes(first_limit))?;
        Self::build(now, &recipe, config, link, source, None)
    }

    fn build(
        now: Time,
        recipe: &Recipe,
        config: &SenderConfig,
        link: Link,
        source: Box<dyn ObjectSource>,
        controller: Option<Box<dyn RateController>>,
    ) -> Result<Self, RecipeError> {
        let setup = provide(Setup::new(now), controller);
        let mut setup = provide(setup, config.model.clone());
        setup.first_pn = link.next_pn;
        setup.keys = Some((link.seal, link.open));
        setup.datagram = config.datagram.clamp(BASE_DATAGRAM, config.max_datagram.max(BASE_DATAGRAM));
        setup.likely_datagram = config.likely_datagram;
        setup.max_datagram = config.max_datagram;
        setup.initial_rtt = config.initial_rtt;
        setup.ends = Ends { object_source: Some(source), ..Ends::default() };
        Ok(Self { stack: build(recipe, setup)?, delivered: false })
    }

    /// Returns the stack, to be run as any other.
    pub fn into_stack(self) -> Stack {
        self.stack
    }

    /// Returns the current counters.
    pub fn stats(&self) -> SenderStats {
        SenderStats::of(&self.stack)
    }

    /// Returns the controller's state, for progress and traces.
    pub fn rate_state(&self) -> RateState {
        self.stack.shared::<RateNow>().copied().unwrap_or_default().0
    }

    /// Returns the UDP payload bytes in flight.
    pub fn in_flight(&self) -> u64 {
        self.stack.shared::<SendWindow>().map_or(0, |send_window| send_window.bytes)
    }

    /// Applies a quota assigned by the receiver, which has other senders: the rate stays below it, whatever
    /// the controller permits.
    pub fn set_quota(&mut self, now: Time, rate: Rate) {
        self.stack.raise(now, QUOTA, &mut Quota(rate));
    }

    /// Sets the diagnosis of losses detected from now on; `None`: no diagnosis.
    pub fn on_verdict(&mut self, now: Time, mut verdict: Option<Verdict>) {
        self.stack.raise(now, VERDICT, &mut verdict);
    }

    /// Switches to another control law, or to other parameters of the current one. Packets in flight and
    /// pending data are not affected, and the new law continues from the current rate as far as it can.
    pub fn switch_law(&mut self, now: Time, mut law: ChosenLaw) {
        self.stack.raise(now, LAW_CHOSEN, &mut law);
    }

    /// As [`DiagnosedWindows::take_from`].
    pub fn take_window(&mut self) -> Option<DiagnosedWindow> {
        DiagnosedWindows::take_from(&mut self.stack)
    }

    /// Whether [`SenderEvent::Delivered`] was returned.
    pub fn is_delivered(&self) -> bool {
        self.delivered
    }

    /// Handles `EMSGSIZE` from the socket for a datagram of this size.
    pub fn on_too_large(&mut self, now: Time, size: usize) {
        self.stack.raise(now, SIZE_REFUSED, &mut (size as u16));
    }
}

impl Machine for Sender {
    type Event = SenderEvent;

    fn on_receive(&mut self, now: Time, batch: &mut Received<'_>) {
        self.stack.on_receive(now, batch);
    }

    fn on_deadline(&mut self, now: Time) {
        self.stack.on_deadline(now);
    }

    fn poll_transmit(&mut self, now: Time, slot: &mut [u8]) -> Option<Transmit> {
        self.stack.poll_transmit(now, slot)
    }

    fn poll_channel(&mut self, now: Time, out: &mut Vec<u8>) -> bool {
        self.stack.poll_channel(now, out)
    }

    fn on_channel(&mut self, now: Time, message: &[u8]) {
        self.stack.on_channel(now, message);
    }

    fn poll_event(&mut self) -> Option<SenderEvent> {
        loop {
            return Some(match self.stack.poll_event()? {
                StackEvent::Delivered => {
                    self.delivered = true;
                    SenderEvent::Delivered
                }
                StackEvent::PathMtu(size) => SenderEvent::PathMtu(size),
                StackEvent::Silent(span) => SenderEvent::Silent(span),
                other => match failure(&other) {
                    Some(words) => SenderEvent::Failed(words),
                    None => continue,
                },
            });
        }
    }

    fn deadline(&self) -> Option<Deadline> {
        self.stack.deadline()
    }
}
