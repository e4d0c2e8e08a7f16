//! Values shared by several micro-protocols of one stack. Each value has one writer.

use std::collections::VecDeque;

use haul_base::{HostSample, Rate, Span, Time};

use haul_diagnosis::Signature;
use haul_stack::Stack;

use crate::control::{Boundary, RateState};
use crate::diagnosis::{DiagnosedWindow, WindowFindings};

/// Data in flight. Written by `retransmit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWindow {
    /// UDP payload bytes sent, neither acknowledged nor declared lost.
    pub bytes: u64,
    /// Number of segments so far: the sequence number of the next new one.
    pub sent: u64,
    /// New segments that may be sent now, before older ones are acknowledged.
    pub room: u64,
    /// Whether any sent segment is not known to have arrived.
    pub outstanding: bool,
}

impl Default for SendWindow {
    fn default() -> Self {
        Self { bytes: 0, sent: 0, room: u64::MAX, outstanding: false }
    }
}

/// Report interval in force: the maximum time before the peer reports. Written by `bitmap_ack`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportDelay(pub Span);

/// The control law's requirements on the report interval. Written by `rate_control`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LawInterval {
    /// Interval that the law requires, if any; used by `bitmap_ack` with `when = "law"`.
    pub(crate) required: Option<Span>,
    /// Whether reports may be more than a round trip apart.
    pub(crate) may_be_rare: bool,
}

/// Number of the chunk of the object that is sent for the first time. Written by `object`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkNow(pub u64);

/// State of the rate controller; the rate is at most the one that the receiver assigns. Written by
/// `rate_control`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateNow(pub RateState);

impl Default for RateNow {
    fn default() -> Self {
        Self(RateState { phase: "start", rate: Rate::ZERO })
    }
}

/// The control law in force: that of the recipe, of one of its rules, or one chosen since. Written by
/// `rate_control`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LawNow {
    /// Name of the law in the registry.
    pub name: &'static str,
    /// Maximum rate.
    pub ceiling: Option<Rate>,
}

/// Measurements of the receiving host. Written by `rate_control`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerHost {
    /// Last reported load, as totals since the session started. `None` before the first report.
    pub sample: Option<HostSample>,
    /// Rate at which data packets arrived at its kernel, UDP payload, over about one round trip.
    pub arrival_rate: Option<Rate>,
    /// Rate at which the packets were read.
    pub drain_rate: Option<Rate>,
    /// How long the last packet waited to be read.
    pub read_delay: Option<Span>,
    /// Maximum time that a packet waited.
    pub longest_read_delay: Option<Span>,
    /// Time during which packets waited for [`PeerHost::LATE`] or longer.
    pub read_late: Span,
}

impl PeerHost {
    /// Wait after which a packet counts as read late. Our choice: schedulers give each of a few programs its
    /// turn sooner.
    pub const LATE: Span = Span::from_millis(10);

    /// Time for which packets waited for the receiving program, because it had no processor or was behind.
    pub fn waited(&self) -> Span {
        self.read_late.max(self.sample.and_then(|sample| sample.run_delay).unwrap_or(Span::ZERO))
    }
}

/// The newest diagnosed transmission windows that the driver has not yet taken. Recorded by `rate_control`
/// once the driver has requested one.
#[derive(Clone, Debug, Default)]
pub struct DiagnosedWindows {
    are_requested: bool,
    list: VecDeque<DiagnosedWindow>,
}

impl DiagnosedWindows {
    /// Maximum number of windows kept for the driver.
    const MAX_KEPT: usize = 8;

    pub(crate) fn push(&mut self, end: &Boundary, signature: &Signature, findings: WindowFindings) {
        let is_empty = signature.packets() == 0 && findings.counts.total() == 0;
        if !self.are_requested || is_empty {
            return;
        }
        if self.list.len() == Self::MAX_KEPT {
            self.list.pop_front();
        }
        let WindowFindings { sample, by_signature, counts, attributions } = findings;
        let (number, first_pn, signature) = (end.number, end.first_pn, signature.clone());
        let window =
            DiagnosedWindow { number, first_pn, signature, sample, by_signature, counts, attributions };
        self.list.push_back(window);
    }

    /// Whether windows are requested.
    pub(crate) fn are_requested(&self) -> bool {
        self.are_requested
    }

    /// Takes the oldest diagnosed window of a sender's stack. Windows are recorded from the first call on;
    /// the newest 8 are kept.
    pub fn take_from(stack: &mut Stack) -> Option<DiagnosedWindow> {
        let windows = stack.shared_mut::<Self>()?;
        windows.are_requested = true;
        windows.list.pop_front()
    }

    /// Takes all of them.
    pub fn all_of(stack: &mut Stack) -> Vec<DiagnosedWindow> {
        std::iter::from_fn(|| Self::take_from(stack)).collect()
    }
}

/// What the sender waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitingFor {
    /// The controller's rate.
    Pacer,
    /// The user's ceiling, which the controller has reached.
    Ceiling,
    /// The rate that the receiver assigns, which is less than the controller's.
    Quota,
    /// The controller's window: data in flight must be acknowledged first.
    Window,
    /// The receiver's flow control: its storage is slower.
    Receiver,
    /// The source: reading is slower.
    Source,
    /// The source, which is working: this processor is too slow. Counts as busy.
    Work,
    /// The pacer, which is too far behind to keep its rate: this processor is too slow. Counts as busy.
    Late,
    /// The last acknowledgements; everything is sent.
    Acknowledgement,
    /// Further requests of the receiver; everything requested so far is sent.
    Requests,
}

impl WaitingFor {
    /// Whether there is nothing to send for now: the source or the receiver is slower than the path.
    pub(crate) fn is_app_limited(self) -> bool {
        match self {
            Self::Receiver | Self::Source | Self::Work | Self::Requests => true,
            Self::Pacer | Self::Ceiling | Self::Quota | Self::Window | Self::Late | Self::Acknowledgement => {
                false
            }
        }
    }
}

/// Time spent waiting, by reason, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// For the controller's rate.
    pub pacer: Span,
    /// For the user's ceiling.
    pub ceiling: Span,
    /// For the rate that the receiver assigns.
    pub quota: Span,
    /// For the window.
    pub window: Span,
    /// For the receiver's storage.
    pub receiver: Span,
    /// For the source.
    pub source: Span,
    /// For the last acknowledgements.
    pub acknowledgement: Span,
    /// For further requests of the receiver.
    pub requests: Span,
    /// Not waiting: the sender itself was the limit, working or without a processor.
    pub busy: Span,
}

impl Waiting {
    /// Returns the increase since an earlier state.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            pacer: self.pacer.saturating_sub(before.pacer),
            ceiling: self.ceiling.saturating_sub(before.ceiling),
            quota: self.quota.saturating_sub(before.quota),
            window: self.window.saturating_sub(before.window),
            receiver: self.receiver.saturating_sub(before.receiver),
            source: self.source.saturating_sub(before.source),
            acknowledgement: self.acknowledgement.saturating_sub(before.acknowledgement),
            requests: self.requests.saturating_sub(before.requests),
            busy: self.busy.saturating_sub(before.busy),
        }
    }
}

/// Delay after which a sender must have been without a processor. Timers are less late, and the pacer makes
/// up for as much at once.
const PROMPT: Span = Span::from_millis(1);

/// Accounts for the time while a sender cannot send: the basis of "Limited by". Each period counts for the
/// reason in force at its start. Written by micro-protocols that stop or start sending.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    waiting: Waiting,
    reason: Option<WaitingFor>,
    since: Time,
    absence: Span,
}

impl Clock {
    /// Starts counting at `now`.
    pub fn start(&mut self, now: Time) {
        self.since = now;
    }

    /// Records that sending waits for `reason` from `now` on.
    pub fn wait(&mut self, now: Time, reason: WaitingFor) {
        self.switch_to(now, Some(reason));
    }

    /// Records that something was sent at `now`.
    pub fn busy(&mut self, now: Time) {
        self.switch_to(now, None);
    }

    /// Records that a sender waiting for its rate continues at `now`, whose packets the pacer had released at
    /// `released`.
    pub fn released(&mut self, now: Time, released: Time) {
        if matches!(self.reason, None | Some(WaitingFor::Late)) {
            self.note_absence(now, released);
        }
        if let Some(WaitingFor::Pacer | WaitingFor::Ceiling | WaitingFor::Quota) = self.reason {
            self.note_absence(now, released);
            self.on_late_event(now, released);
        }
    }

    /// Records that the sender reads at `now` what arrived at its host at `arrived`. A round trip after that
    /// nothing was in flight any more, and the path was idle.
    pub fn on_received(&mut self, now: Time, arrived: Time, round_trip: Span) {
        if self.reason == Some(WaitingFor::Window) {
            self.note_absence(now, arrived);
        }
        if let Some(WaitingFor::Window | WaitingFor::Receiver | WaitingFor::Acknowledgement) = self.reason {
            self.on_late_event(now, arrived + round_trip);
        }
    }

    /// Returns and resets the longest time for which the sender could have sent but had no processor.
    pub(crate) fn take_absence(&mut self) -> Span {
        std::mem::take(&mut self.absence)
    }

    fn note_absence(&mut self, now: Time, ready: Time) {
        self.absence = self.absence.max(now.since(self.since.max(ready)));
    }

    /// The awaited event happened at `ready`: since then the processor has been behind.
    fn on_late_event(&mut self, now: Time, ready: Time) {
        let prompt = self.since.max(ready) + PROMPT;
        if prompt < now {
            let reason = self.reason;
            self.switch_to(prompt, None);
            self.switch_to(now, reason);
        }
    }

    /// What sending waits for.
    pub fn reason(&self) -> Option<WaitingFor> {
        self.reason
    }

    /// Returns the times so far.
    pub fn waiting(&self) -> Waiting {
        self.waiting
    }

    fn switch_to(&mut self, now: Time, reason: Option<WaitingFor>) {
        let account = match self.reason {
            None | Some(WaitingFor::Work | WaitingFor::Late) => &mut self.waiting.busy,
            Some(WaitingFor::Pacer) => &mut self.waiting.pacer,
            Some(WaitingFor::Ceiling) => &mut self.waiting.ceiling,
            Some(WaitingFor::Quota) => &mut self.waiting.quota,
            Some(WaitingFor::Window) => &mut self.waiting.window,
            Some(WaitingFor::Receiver) => &mut self.waiting.receiver,
            Some(WaitingFor::Source) => &mut self.waiting.source,
            Some(WaitingFor::Acknowledgement) => &mut self.waiting.acknowledgement,
            Some(WaitingFor::Requests) => &mut self.waiting.requests,
        };
        *account = *account + now.since(self.since);
        self.since = now;
        self.reason = reason;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_interval_counts_for_its_initial_reason() {
        let at = |ms| Time::ZERO + Span::from_millis(ms);
        let mut clock = Clock::default();
        clock.start(at(0));
        clock.wait(at(1), WaitingFor::Pacer);
        clock.wait(at(4), WaitingFor::Source);
        clock.busy(at(9));
        clock.wait(at(11), WaitingFor::Work);
        clock.wait(at(18), WaitingFor::Window);
        let w = clock.waiting();
        assert_eq!(w.busy, Span::from_millis(10), "work of the source is the sender's own");
        assert_eq!(w.pacer, Span::from_millis(3));
        assert_eq!(w.source, Span::from_millis(5));
    }

    #[test]
    fn a_wait_ends_with_its_event_and_not_when_the_thread_runs() {
        let at = |ms| Time::ZERO + Span::from_millis(ms);
        let on_received = |clock: &mut Clock, now, at| {
            clock.on_received(now, at - Span::from_millis(5), Span::from_millis(5));
        };
        let times = |reason, ready: &dyn Fn(&mut Clock, Time, Time)| {
            let mut clock = Clock::default();
            clock.start(at(0));
            clock.wait(at(0), reason);
            ready(&mut clock, at(7), at(6));
            ready(&mut clock, at(50), at(9));
            clock.wait(at(60), WaitingFor::Source);
            let Waiting { pacer, window, source, busy, .. } = clock.waiting();
            (pacer + window + source, busy)
        };
        // Threads always wake a little late; the same wait may start again.
        let late = (Span::from_millis(20), Span::from_millis(40));
        assert_eq!(times(WaitingFor::Pacer, &Clock::released), late);
        assert_eq!(times(WaitingFor::Window, &on_received), late);
        // A packet that is not waited for is no release, and a pause of the pacer does not end a wait for
        // storage.
        let prompt = (Span::from_millis(60), Span::ZERO);
        assert_eq!(times(WaitingFor::Pacer, &on_received), prompt);
        assert_eq!(times(WaitingFor::Window, &Clock::released), prompt);
        assert_eq!(times(WaitingFor::Source, &Clock::released), prompt);
        assert_eq!(times(WaitingFor::Source, &on_received), prompt);
    }

    #[test]
    fn an_absence_is_the_delay_of_a_sender_that_could_send() {
        let at = |ms| Time::ZERO + Span::from_millis(ms);
        let after = |reason: Option<WaitingFor>, ready: &dyn Fn(&mut Clock)| {
            let mut clock = Clock::default();
            clock.busy(at(10));
            if let Some(reason) = reason {
                clock.wait(at(10), reason);
            }
            ready(&mut clock);
            (clock.take_absence(), clock.take_absence())
        };
        let times = |ms| (Span::from_millis(ms), Span::ZERO);
        // Released 15 ms after it sent, and sending again at 90 ms; also in the middle of its work.
        let released = |clock: &mut Clock| clock.released(at(90), at(25));
        assert_eq!(after(Some(WaitingFor::Pacer), &released), times(65));
        assert_eq!(after(None, &released), times(65));
        assert_eq!(after(None, &|clock| clock.released(at(90), at(3))), times(80), "not before it sent");
        // A report that arrived at 20 ms would have opened the window.
        let on_received = |clock: &mut Clock| clock.on_received(at(90), at(20), Span::from_millis(40));
        assert_eq!(after(Some(WaitingFor::Window), &on_received), times(70));
        // A sender without data is not late.
        assert_eq!(after(Some(WaitingFor::Source), &on_received), times(0));
        assert_eq!(after(Some(WaitingFor::Source), &released), times(0));
    }

    #[test]
    fn events_before_the_wait_are_not_counted_twice() {
        let at = |ms| Time::ZERO + Span::from_millis(ms);
        let mut clock = Clock::default();
        clock.start(at(0));
        clock.wait(at(30), WaitingFor::Window);
        clock.on_received(at(40), at(2), Span::ZERO);
        clock.on_received(at(40), at(35), Span::ZERO);
        clock.busy(at(50));
        let w = clock.waiting();
        assert_eq!((w.window, w.busy), (Span::from_millis(11), Span::from_millis(39)));
    }
}
