//! The stack: a running recipe, one end of a session.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use haul_base::{Deadline, DeadlineReason, Ecn, Machine, PathId, Rate, Received, Span, Time, Transmit};

use crate::batch::{Batch, GENERATION_BIT, Kind, MAX_BATCH, Start};
use crate::compiled_stack::CompiledStack;
use crate::context::{Arrival, Context, Core, PathState, StackStats};
use crate::event::{ArgumentEvent, BatchEvent, Event, SEND_PERMIT, SendPermit, StackEvent};
use crate::lazy_deque::LazyDeque;
use crate::message::{Buffer, Inbox, Outgoing, Pool, SendOptions, SendQueue, Submission, Verdict};
use crate::name::Name;
use crate::protocol::MicroProtocol;
use crate::recipe::{Recipe, RecipeError};
use crate::reconfigure::Changes;
use crate::registry::Setup;

/// Packets that violate the recipe before the session ends. A few may be accidental.
const MAX_VIOLATIONS: u64 = 64;
/// Maximum number of queued messages, however short they are.
const MAX_QUEUED: usize = 16_384;
/// Buffers that a stack keeps for reuse.
const POOLED_BUFFERS: usize = 64;

/// Why a message was rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The message is longer than the recipe allows.
    #[error("the message has {len} bytes, but this recipe carries at most {max} (fixed_size.max_message)")]
    TooLarge {
        /// Length of the message, in bytes.
        len: usize,
        /// Maximum length of the recipe, in bytes.
        max: usize,
    },
    /// The send queue is full; it holds this many bytes.
    #[error("{0} bytes are already queued; try again when some have been sent")]
    Full(usize),
    /// The recipe carries no messages.
    #[error("this recipe carries an object, not messages")]
    NoMessages,
    /// The stack has failed.
    #[error("the session has ended")]
    Ended,
}

/// One end of a session, composed from micro-protocols.
pub struct Stack {
    pub(crate) compiled: Arc<CompiledStack>,
    pub(crate) slots: Vec<Option<Box<dyn MicroProtocol>>>,
    pub(crate) core: Core,
    pub(crate) generation: u8,
    pub(crate) changes: Changes,
    /// Also set by `&self` methods such as `statistics`.
    pub(crate) failed: Cell<bool>,
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Stack");
        out.field("recipe", &self.compiled.recipe.name).field("stats", &self.core.stats);
        out.finish_non_exhaustive()
    }
}

impl Stack {
    /// Creates a stack that starts at `setup.now`.
    ///
    /// # Errors
    /// If a micro-protocol cannot be built from this set-up.
    pub fn new(compiled: Arc<CompiledStack>, mut setup: Setup) -> Result<Self, RecipeError> {
        let (slots, shared) = compiled.instantiate(&mut setup)?;
        let core = Core {
            next_pn: setup.first_pn,
            timers: Vec::new(),
            delayed: LazyDeque::default(),
            shared,
            queue: SendQueue::default(),
            pool: Pool::new(POOLED_BUFFERS),
            ends: Some(Box::new(setup.ends)).filter(|ends| !ends.are_none()),
            inbox: Inbox::default(),
            events: LazyDeque::default(),
            path: PathState {
                datagram: setup.datagram,
                rtt: setup.initial_rtt,
                rtt_variation: setup.initial_rtt / 2,
                min_rtt: setup.initial_rtt,
            },
            control_wanted: 0,
            channel_wanted: 0,
            resume_at: None,
            max_message: 0,
            next_message: 0,
            draining: false,
            initiator: setup.initiator,
            running: 0,
            stats: StackStats::default(),
            queue_limit: setup.queue_bytes,
            recovered: LazyDeque::default(),
            arrival: Arrival::default(),
            ecn: (Ecn::NotEct, 0),
            provided: setup.provided,
            failure: Cell::new(None),
        };
        let changes = Changes::default();
        let failed = Cell::new(false);
        let mut stack = Self { compiled, slots, core, generation: 0, changes, failed };
        stack.guarded(setup.now, |stack, now| stack.start(now, |_| true));
        Ok(stack)
    }

    /// The recipe in force.
    pub fn recipe(&self) -> &Recipe {
        self.compiled.recipe()
    }

    /// The compiled recipe, shared by all stacks of this recipe.
    pub fn compiled(&self) -> &Arc<CompiledStack> {
        &self.compiled
    }

    /// Counters of the stack itself; micro-protocols have their own.
    pub fn stats(&self) -> StackStats {
        self.core.stats
    }

    /// What the socket reports about the packets received last.
    pub fn arrival(&self) -> Arrival {
        self.core.arrival
    }

    /// State of the path.
    pub fn path(&self) -> PathState {
        self.core.path
    }

    /// Maximum length of a message that this end may send now, in bytes.
    pub fn longest_message(&self) -> usize {
        self.core.max_message
    }

    /// Bytes of queued messages.
    pub fn queued_bytes(&self) -> usize {
        self.core.queue.bytes()
    }

    /// Number of unfinished items: queued messages and packets not confirmed to have arrived.
    pub fn unfinished(&self) -> usize {
        self.held() + self.core.queue.len()
    }

    /// As [`Stack::unfinished`], only what this end sends.
    pub fn outstanding(&self) -> usize {
        self.unfinished().saturating_sub(self.held_incoming())
    }

    /// Queues a message and returns its ID.
    ///
    /// # Errors
    /// If the message cannot be sent, or not now.
    pub fn send(&mut self, now: Time, data: &[u8], options: SendOptions) -> Result<u64, SendError> {
        self.check_message(data.len())?;
        let id = self.core.next_message;
        self.core.next_message += 1;
        self.core.stats.messages_submitted += 1;
        let deadline = options.lifetime.map(|lifetime| now + lifetime);
        let mut submission =
            Submission { id, data, priority: options.priority, deadline, verdict: Verdict::Pass };
        self.guarded(now, |stack, now| stack.submit(now, &mut submission));
        if submission.verdict == Verdict::Pass {
            let data = self.core.pool.copy(data);
            let (priority, deadline) = (submission.priority, submission.deadline);
            self.core.queue.push(Outgoing { id, priority, deadline, data, sent: 0 });
        } else {
            self.core.stats.messages_suppressed += 1;
        }
        if self.has_failed() { Err(SendError::Ended) } else { Ok(id) }
    }

    fn check_message(&self, len: usize) -> Result<(), SendError> {
        let (max, queued) = (self.core.max_message, self.core.queue.bytes());
        match () {
            () if self.has_failed() => Err(SendError::Ended),
            () if max == 0 => Err(SendError::NoMessages),
            () if len > max => Err(SendError::TooLarge { len, max }),
            () if queued > 0 && queued + len > self.core.queue_limit => Err(SendError::Full(queued)),
            // Short messages cost more than their bytes.
            () if self.core.queue.len() >= MAX_QUEUED => Err(SendError::Full(queued)),
            () => Ok(()),
        }
    }

    /// Returns the next received message with its ID; for stacks without a message sink.
    pub fn recv(&mut self) -> Option<(u64, Buffer)> {
        self.core.inbox.pop()
    }

    /// Number of received messages that wait for [`Stack::recv`].
    pub fn waiting_messages(&self) -> usize {
        self.core.inbox.len()
    }

    /// Bytes of received messages that wait for [`Stack::recv`].
    pub fn waiting_bytes(&self) -> usize {
        self.core.inbox.bytes()
    }

    /// Returns a buffer of [`Stack::recv`] for reuse.
    pub fn recycle(&mut self, buffer: Buffer) {
        self.core.pool.put(buffer);
    }

    /// Frees memory kept for reuse; for stacks that will be idle for a while.
    pub fn release_idle(&mut self, now: Time) {
        self.guarded(now, |stack, now| {
            for owner in 0..stack.slots.len() as u8 {
                stack.context(now).run(owner, |protocol, context| protocol.release_idle(context));
            }
        });
        let core = &mut self.core;
        core.pool.clear();
        core.queue.release_idle();
        core.ends.take_if(|ends| ends.are_none());
        core.inbox.release_idle();
        core.delayed.release_idle();
        core.events.release_idle();
        core.timers.shrink_to_fit();
    }

    /// Sets the maximum packet size, in UDP payload bytes; for drivers whose own headers vary.
    pub fn set_datagram(&mut self, bytes: u16) {
        self.core.path.datagram = bytes;
    }

    /// Sets the number of pooled buffers. With 0 every buffer is newly allocated, to measure what the pool
    /// saves.
    pub fn set_pooled_buffers(&mut self, keep: usize) {
        self.core.pool = Pool::new(keep);
    }

    /// Raises the event that another rate is requested from the peer (with `rate_feedback` in the recipe).
    pub fn request_rate(&mut self, now: Time, mut rate: Rate) {
        let wanted = crate::event::RATE_REQUESTED;
        self.guarded(now, |stack, now| stack.context(now).raise(wanted, &mut rate));
    }

    /// Reports that the peer answered the driver itself after `rtt`, before any packet of the stack. Replaces
    /// the initial estimate of the round-trip time.
    pub fn path_answered(&mut self, now: Time, mut rtt: Span) {
        let path = &mut self.core.path;
        (path.rtt, path.rtt_variation, path.min_rtt) = (rtt, rtt / 2, rtt);
        let answered = crate::event::PATH_ANSWERED;
        self.guarded(now, |stack, now| stack.context(now).raise(answered, &mut rtt));
    }

    /// Raises the event of this name, as given to [`Declaration::event`](crate::Declaration::event), for what
    /// only the driver can know. Does nothing if no micro-protocol of the stack has declared the event.
    pub fn raise<T: Any>(&mut self, now: Time, name: Name<Event<T>>, argument: &mut T) {
        if let Some(event) = self.compiled.tables.find_event(&ArgumentEvent::new(name)) {
            self.guarded(now, |stack, now| stack.context(now).dispatch(event, argument));
        }
    }

    /// Returns the micro-protocols' shared value of this type, if there is one.
    pub fn shared<T: Any>(&self) -> Option<&T> {
        self.core.shared.values.iter().find_map(|value| value.downcast_ref())
    }

    /// As [`Stack::shared`], mutable, for example to take something out of the value.
    pub fn shared_mut<T: Any>(&mut self) -> Option<&mut T> {
        self.core.shared.values.iter_mut().find_map(|value| value.downcast_mut())
    }

    pub(crate) fn context(&mut self, now: Time) -> Context<'_> {
        Context { now, core: &mut self.core, slots: &mut self.slots, tables: &self.compiled.tables }
    }

    /// Calls `on_start` of the micro-protocols that are `new`.
    pub(crate) fn start(&mut self, now: Time, new: impl Fn(u8) -> bool) {
        for owner in (0..self.slots.len() as u8).filter(|&owner| new(owner)) {
            self.context(now).run(owner, |protocol, context| protocol.on_start(context));
        }
    }

    fn submit(&mut self, now: Time, submission: &mut Submission<'_>) {
        let compiled = self.compiled.clone();
        for &(_, owner) in &compiled.tables.submit {
            self.context(now).run(owner, |protocol, context| protocol.on_submit(submission, context));
            if submission.verdict != Verdict::Pass {
                return;
            }
        }
    }

    pub(crate) fn run_delayed(&mut self, now: Time) {
        while let Some((event, mut argument)) = self.core.take_delayed(now) {
            self.context(now).dispatch(event, &mut *argument);
        }
    }

    /// Lets `work` write packets into `slot`, then seals and counts them.
    pub(crate) fn write(
        &mut self,
        now: Time,
        slot: &mut [u8],
        limit: usize,
        datagram: usize,
        work: impl FnOnce(&mut Context<'_>, &mut Batch<'_>),
    ) -> Option<Transmit> {
        let compiled = self.compiled.clone();
        let start = Start { datagram, limit, next_pn: self.core.next_pn, generation: self.generation };
        let mut batch = Batch::outgoing(slot, &compiled.tables.layout, &start);
        let mut context =
            Context { now, core: &mut self.core, slots: &mut self.slots, tables: &compiled.tables };
        work(&mut context, &mut batch);
        (!batch.is_empty()).then(|| {
            context.core.next_pn = batch.next_pn();
            let carries_data = batch.is_data();
            if carries_data {
                context.raise_batch(BatchEvent::SEGMENT_FROM_USER, &mut batch);
            }
            context.raise_batch(BatchEvent::SEGMENT_TO_NET, &mut batch);
            count_sent(&mut context.core.stats, &batch);
            let (len, segment_size) = (batch.bytes(), batch.stride());
            let ecn = if carries_data { context.core.ecn.0 } else { Ecn::NotEct };
            Transmit { len, segment_size, ecn, path: PathId::default(), release: now }
        })
    }

    pub(crate) fn write_control(&mut self, now: Time, slot: &mut [u8]) -> Option<Transmit> {
        let datagram = usize::from(self.core.path.datagram);
        while self.core.control_wanted != 0 {
            let owner = self.core.control_wanted.trailing_zeros() as u8;
            self.core.control_wanted &= self.core.control_wanted - 1;
            let written = self.write(now, slot, 1, datagram, |context, batch| {
                context.run(owner, |protocol, context| protocol.write_control(batch, context));
            });
            if written.is_some() {
                return written;
            }
        }
        None
    }

    pub(crate) fn write_data(&mut self, now: Time, slot: &mut [u8], most: usize) -> Option<Transmit> {
        self.core.resume_at = None;
        let datagram = usize::from(self.core.path.datagram);
        let mut permit = SendPermit { packets: most, datagram, burst: u64::MAX, late: Span::ZERO };
        self.context(now).raise(SEND_PERMIT, &mut permit);
        let by_burst = usize::try_from(permit.burst).unwrap_or(usize::MAX) / permit.datagram.max(1);
        let packets = if permit.packets == 0 { 0 } else { permit.packets.min(by_burst.max(1)).min(most) };
        if packets == 0 {
            return None;
        }
        self.write(now, slot, packets, permit.datagram, |context, batch| {
            context.raise_batch(BatchEvent::FILL, batch);
        })
    }

    fn receive(&mut self, now: Time, buffer: &mut [u8], stride: usize) {
        let compiled = self.compiled.clone();
        let mut batch = Batch::incoming(buffer, stride, &compiled.tables.layout, self.generation);
        self.context(now).raise_batch(BatchEvent::RAW_FROM_NET, &mut batch);
        self.changes.leave_out_old(&mut batch);
        self.take_opened(now, &mut batch);
        if self.changes.is_committing() {
            self.open_previous_generation(now, buffer, stride);
        }
    }

    /// Passes opened packets to the micro-protocols, and counts them.
    pub(crate) fn take_opened(&mut self, now: Time, batch: &mut Batch<'_>) {
        let first = self.changes.first();
        let mut context = self.context(now);
        let mut proposals = Vec::new();
        sort_out(&mut context, batch, &mut proposals);
        if batch.has_live() {
            context.raise_batch(BatchEvent::SEGMENT_FROM_NET, batch);
        }
        let stats = &mut context.core.stats;
        stats.violations += u64::from(batch.violations);
        stats.unauthentic += u64::from(batch.unauthentic);
        take_recovered(&mut context, first);
        if context.core.inbox.len() > 0 && !context.core.events.contains(&StackEvent::Message) {
            context.core.events.push_back(StackEvent::Message);
        }
        let generation = self.generation;
        for (pn, body) in proposals {
            // After a switch, the other packets of this batch belong to the previous generation.
            if self.generation == generation && !self.has_failed() {
                self.on_reconfigure(now, pn, &body);
            }
        }
        self.check_violations(batch.violated);
    }

    /// Ends the session if the peer has sent too many invalid packets. `last` is the kind of the last one.
    pub(crate) fn check_violations(&self, last: Option<Kind>) {
        if self.core.stats.violations > MAX_VIOLATIONS {
            let tables = &self.compiled.tables;
            let owner = last.and_then(|last| tables.kinds.iter().find(|(kind, _)| *kind == last));
            let words =
                owner.map(|&(_, owner)| format!(", the last for `{}`", tables.names[usize::from(owner)]));
            let message = format!(
                "the peer sent {MAX_VIOLATIONS} packets that the recipe does not allow{}",
                words.unwrap_or_default()
            );
            self.fail("recipe".to_owned(), message);
        }
    }

    /// If this end waits for the next generation and the first packet belongs to it: processes that packet,
    /// and returns its length.
    fn follow_generation(&mut self, now: Time, data: &mut [u8], stride: usize) -> usize {
        let other = data.first().is_some_and(|kind| kind & GENERATION_BIT != self.generation);
        if !other || !self.changes.awaits(data) {
            return 0;
        }
        let first = data.len().min(stride);
        self.guarded(now, |stack, now| stack.on_other_generation(now, &mut data[..first]));
        first
    }
}

/// Processes recovered packets like received ones, except those with numbers before `first`.
fn take_recovered(context: &mut Context<'_>, first: u64) {
    let layout = &context.tables.layout;
    while let Some(mut packet) = context.core.recovered.pop_front() {
        let len = packet.len();
        let mut batch = Batch::incoming(&mut packet, len, layout, 0);
        if batch.has_live() && batch.pn(0) < first {
            // It belongs to an earlier recipe: it was recovered from packets of that one.
            batch.take(0);
        } else if len < layout.data_overhead() || !batch.is_data() {
            batch.reject(0);
        } else {
            context.raise_batch(BatchEvent::SEGMENT_FROM_NET, &mut batch);
        }
        context.core.stats.violations += u64::from(batch.violations);
        context.core.pool.put(packet);
    }
}

/// Checks lengths, and passes control packets to their owners.
fn sort_out(context: &mut Context<'_>, batch: &mut Batch<'_>, proposals: &mut Vec<(u64, Vec<u8>)>) {
    batch.reject_short();
    context.core.stats.bytes_received += batch.live_bytes() as u64;
    context.core.stats.data_received += batch.live_data() as u64;
    for i in batch.live_control() {
        let kind = batch.kind(i);
        context.core.stats.control_received += 1;
        if kind == Kind::RECONFIGURE {
            proposals.push((batch.pn(i), batch.payload(i).to_vec()));
            batch.take(i);
            continue;
        }
        let owner = context.tables.kinds.iter().find(|known| known.0 == kind);
        match owner {
            None => batch.reject(i),
            Some(&(_, owner)) => {
                context.run(owner, |protocol, context| protocol.on_control(kind, batch, i, context));
                if batch.is_live(i) {
                    batch.take(i);
                }
            }
        }
    }
}

fn count_sent(stats: &mut StackStats, batch: &Batch<'_>) {
    let packets = batch.len() as u64;
    stats.bytes_sent += batch.bytes() as u64;
    if batch.is_data() {
        stats.data_sent += packets;
        stats.data_resent += batch.count_resent() as u64;
    } else {
        stats.control_sent += packets;
    }
}

impl Machine for Stack {
    type Event = StackEvent;

    fn on_receive(&mut self, now: Time, received: &mut Received<'_>) {
        let at = received.arrival.unwrap_or(now).min(now);
        self.core.arrival.at = self.core.arrival.at.max(at);
        self.core.arrival.ecn = received.ecn;
        if let Some(drops) = received.socket_drops {
            self.core.arrival.socket_drops = drops;
        }
        let stride = received.stride.max(1);
        let done = self.follow_generation(now, received.data, stride);
        for buffer in received.data[done..].chunks_mut(stride * MAX_BATCH) {
            self.guarded(now, |stack, now| stack.receive(now, buffer, stride));
        }
    }

    fn on_deadline(&mut self, now: Time) {
        self.guarded(now, |stack, now| {
            while let Some((owner, timer)) = stack.core.take_timer(now) {
                stack.context(now).run(owner, |protocol, context| protocol.on_timer(timer, context));
            }
        });
    }

    fn poll_transmit(&mut self, now: Time, slot: &mut [u8]) -> Option<Transmit> {
        self.guarded(now, |stack, now| {
            stack.advance_change(now);
            let change = stack.write_change(now, slot);
            change
                .or_else(|| stack.write_control(now, slot))
                .or_else(|| stack.write_data(now, slot, MAX_BATCH))
        })?
    }

    fn poll_channel(&mut self, now: Time, out: &mut Vec<u8>) -> bool {
        // Called often, and mostly with nothing to write.
        if self.core.channel_wanted == 0 {
            return false;
        }
        self.guarded(now, |stack, now| stack.write_channel(now, out)).unwrap_or(false)
    }

    fn on_channel(&mut self, now: Time, message: &[u8]) {
        self.core.arrival.at = self.core.arrival.at.max(now);
        self.guarded(now, |stack, now| stack.take_channel(now, message));
    }

    fn poll_event(&mut self) -> Option<StackEvent> {
        self.core.events.pop_front().or_else(|| self.core.failure.take().map(|event| *event))
    }

    fn deadline(&self) -> Option<Deadline> {
        if self.has_failed() {
            return None;
        }
        let pacing = self.core.resume_at.map(|at| Deadline { at, reason: DeadlineReason::Pacing });
        let change = self.changes.deadline().map(|at| Deadline { at, reason: DeadlineReason::Timer });
        [pacing, self.core.next_timer(), change].into_iter().fold(None, Deadline::earlier)
    }
}
