//! Receiver of one object.

use std::fmt;

use haul_base::{Deadline, HostSample, Machine, Received, Span, Time, Transmit};
use haul_stack::{Ends, ObjectSink, ProtocolStats, Recipe, RecipeError, Setup, Stack, StackEvent};

use super::{build, failure, shipped};
use crate::link::Link;
use crate::micro::config::{BitmapAckConfig, LivenessConfig};
use crate::micro::events::HOST_SAMPLE;
use crate::micro::stats::{BitmapAckStats, ObjectStats};
use crate::mtu::BASE_DATAGRAM;

/// Settings of a receiver.
#[derive(Clone, Copy, Debug)]
pub struct ReceiverConfig {
    /// Longest time between two feedback packets while data arrives.
    pub feedback_interval: Span,
    /// Largest feedback datagram, UDP payload bytes.
    pub feedback_datagram: u16,
    /// Silence of the sender after which [`ReceiverEvent::Silent`] is emitted.
    pub silence: Span,
}

impl Default for ReceiverConfig {
    fn default() -> Self {
        Self {
            feedback_interval: Span::from_millis(2),
            feedback_datagram: BASE_DATAGRAM,
            silence: Span::from_secs(15),
        }
    }
}

/// Events of a receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReceiverEvent {
    /// All bytes have arrived; the object has this length.
    Complete(u64),
    /// No authentic packet has arrived from the sender for this time, the configured timeout.
    Silent(Span),
    /// A micro-protocol failed with this message; the transfer is over.
    Failed(String),
}

/// Counters of a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverStats {
    /// Authentic data packets received.
    pub packets: u64,
    /// UDP payload bytes of these packets.
    pub datagram_bytes: u64,
    /// Object bytes delivered.
    pub object_bytes: u64,
    /// Duplicate data packets.
    pub duplicates: u64,
    /// Packets that were not authentic or malformed.
    pub rejected: u64,
    /// Data packets marked "congestion experienced" (ECN CE).
    pub ecn_ce: u64,
    /// Socket buffers (one or more packets) dropped by this host's kernel, as last reported by the socket.
    pub socket_drops: u32,
    /// Feedback packets sent.
    pub feedback_sent: u64,
    /// Length of the object, once known.
    pub object_len: Option<u64>,
    /// Last load sample of this host; totals since the session began.
    pub host: Option<HostSample>,
}

impl ReceiverStats {
    /// Reads the counters of a stack that receives an object.
    pub fn of(stack: &Stack, host: Option<HostSample>) -> Self {
        let totals = stack.stats();
        let mut stats = Self {
            rejected: totals.unauthentic + totals.violations,
            socket_drops: stack.arrival().socket_drops,
            host,
            ..Self::default()
        };
        stack.statistics(|_, protocol| stats.take(protocol));
        stats
    }

    fn take(&mut self, protocol: &dyn ProtocolStats) {
        if let Some(reports) = protocol.of::<BitmapAckStats>() {
            (self.packets, self.datagram_bytes) = (reports.packets_received, reports.bytes_received);
            (self.duplicates, self.ecn_ce) = (reports.duplicates, reports.ecn_ce);
            self.feedback_sent = reports.reports_sent;
        }
        if let Some(object) = protocol.of::<ObjectStats>() {
            (self.object_bytes, self.object_len) = (object.bytes_delivered, object.length);
        }
    }
}

/// Receiver of one object: a stack of the recipe `bulk`, or another that carries objects.
pub struct Receiver {
    stack: Stack,
    complete: bool,
    host: Option<HostSample>,
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl Receiver {
    /// Creates a receiver that starts at `now`.
    ///
    /// # Panics
    /// If a setting is out of range.
    pub fn new(now: Time, config: ReceiverConfig, link: Link, sink: Box<dyn ObjectSink>) -> Self {
        Self::with_config(now, config, link, sink)
            .expect("the recipe `bulk` builds with settings within their bounds")
    }

    /// As [`Receiver::new`], for settings that come in part from outside.
    ///
    /// # Errors
    /// If a setting is out of range.
    pub fn with_config(
        now: Time,
        config: ReceiverConfig,
        link: Link,
        sink: Box<dyn ObjectSink>,
    ) -> Result<Self, RecipeError> {
        let mut recipe = shipped()?;
        recipe.change(|reports: &mut BitmapAckConfig| reports.interval = config.feedback_interval)?;
        recipe.change(|liveness: &mut LivenessConfig| liveness.silence = config.silence)?;
        Self::of_recipe(now, &recipe, config, link, sink)
    }

    /// Creates a receiver for another recipe and its parameters; of `config` only the datagram size is used.
    ///
    /// # Errors
    /// If the recipe does not build.
    pub fn of_recipe(
        now: Time,
        recipe: &Recipe,
        config: ReceiverConfig,
        link: Link,
        sink: Box<dyn ObjectSink>,
    ) -> Result<Self, RecipeError> {
        let mut setup = Setup::new(now);
        setup.initiator = false;
        setup.first_pn = link.next_pn;
        setup.keys = Some((link.seal, link.open));
        setup.datagram = config.feedback_datagram;
        setup.ends = Ends { object_sink: Some(sink), ..Ends::default() };
        Ok(Self { stack: build(recipe, setup)?, complete: false, host: None })
    }

    /// Returns the stack, to be run as any other.
    pub fn into_stack(self) -> Stack {
        self.stack
    }

    /// Returns the current counters.
    pub fn stats(&self) -> ReceiverStats {
        ReceiverStats::of(&self.stack, self.host)
    }

    /// Records this host's load, which the next report carries to the sender.
    pub fn on_host_sample(&mut self, now: Time, mut host: HostSample) {
        self.host = Some(host);
        self.stack.raise(now, HOST_SAMPLE, &mut host);
    }

    /// Whether [`ReceiverEvent::Complete`] was returned.
    pub fn is_complete(&self) -> bool {
        self.complete
    }
}

impl Machine for Receiver {
    type Event = ReceiverEvent;

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

    fn poll_event(&mut self) -> Option<ReceiverEvent> {
        loop {
            return Some(match self.stack.poll_event()? {
                StackEvent::Complete(len) => {
                    self.complete = true;
                    ReceiverEvent::Complete(len)
                }
                StackEvent::Silent(span) => ReceiverEvent::Silent(span),
                other => match failure(&other) {
                    Some(words) => ReceiverEvent::Failed(words),
                    None => continue,
                },
            });
        }
    }

    fn deadline(&self) -> Option<Deadline> {
        self.stack.deadline()
    }
}
