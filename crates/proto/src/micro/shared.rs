//! Values that several micro-protocols of one stack use. Each has one that writes it.

use std::collections::VecDeque;

use haul_base::{HostSample, Rate, Span, Time};

use haul_diagnosis::Signature;
use haul_stack::Stack;

use crate::control::{Boundary, RateState};
use crate::diagnosis::{DiagnosedWindow, Told};

/// What is on its way. Written by `retransmit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWindow {
    /// UDP payload bytes sent and neither acknowledged nor taken for lost.
    pub bytes: u64,
    /// Segments numbered so far: the next new one gets this number.
    pub sent: u64,
    /// New segments that may be sent now before older ones are acknowledged.
    pub room: u64,
    /// Whether something that was sent is not known to have arrived.
    pub outstanding: bool,
}

impl Default for SendWindow {
    fn default() -> Self {
        Self { bytes: 0, sent: 0, room: u64::MAX, outstanding: false }
    }
}

/// The report interval in force: how long the other side may wait before it reports. Written by `bitmap_ack`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportDelay(pub Span);

/// What the control law says of the report interval. Written by `rate_control`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LawInterval {
    /// The one that it wants, if it wants one: asked for by `bitmap_ack` with `when = "law"`.
    pub(crate) wanted: Option<Span>,
    /// Whether reports may be further apart than a round trip.
    pub(crate) may_be_rare: bool,
}

/// Number of the chunk of the object that is being sent for the first time. Written by `object`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkNow(pub u64);

/// What the rate controller is doing; the rate is no higher than the receiver assigns. Written by `rate_control`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateNow(pub RateState);

impl Default for RateNow {
    fn default() -> Self {
        Self(RateState { phase: "start", rate: Rate::ZERO })
    }
}

/// The control law in force: that of the recipe, of one of its rules, or the one that was chosen since. Written by
/// `rate_control`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LawNow {
    /// Name of the law in the registry.
    pub name: &'static str,
    /// The rate that it may not exceed.
    pub ceiling: Option<Rate>,
}

/// What the receiving host is known to do. Written by `rate_control`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerHost {
    /// Its load as it was told last, totals since the session began. `None` if it never was.
    pub sample: Option<HostSample>,
    /// The rate at which data packets came to its kernel, UDP payload, over about one round trip.
    pub arrival_rate: Option<Rate>,
    /// The rate at which they were read.
    pub drain_rate: Option<Rate>,
    /// How long the packet that came last waited to be read.
    pub read_delay: Option<Span>,
    /// How long a packet waited at the longest.
    pub longest_read_delay: Option<Span>,
    /// Time in which packets waited for [`PeerHost::LATE`] or longer to be read.
    pub read_late: Span,
}

impl PeerHost {
    /// A packet is read late after this time. Our choice: schedulers give each of a few programs its turn sooner.
    pub const LATE: Span = Span::from_millis(10);

    /// Time for which packets waited for the program that reads them: it had no processor, or was behind.
    pub fn waited(&self) -> Span {
        self.read_late.max(self.sample.and_then(|sample| sample.run_delay).unwrap_or(Span::ZERO))
    }
}

/// The newest diagnosed transmission windows that the stack's runner has not taken yet. `rate_control` records them
/// once the runner has asked for one.
#[derive(Clone, Debug, Default)]
pub struct DiagnosedWindows {
    are_wanted: bool,
    list: VecDeque<DiagnosedWindow>,
}

impl DiagnosedWindows {
    /// Windows kept if the runner does not take them.
    const MOST: usize = 8;

    pub(crate) fn push(&mut self, end: &Boundary, signature: &Signature, told: Told) {
        let is_empty = signature.packets() == 0 && told.counts.whole() == 0;
        if !self.are_wanted || is_empty {
            return;
        }
        if self.list.len() == Self::MOST {
            self.list.pop_front();
        }
        let Told { sample, by_signature, counts, attributions } = told;
        let (number, first_pn, signature) = (end.number, end.first_pn, signature.clone());
        let window =
            DiagnosedWindow { number, first_pn, signature, sample, by_signature, counts, attributions };
        self.list.push_back(window);
    }

    /// Whether somebody takes them.
    pub(crate) fn are_wanted(&self) -> bool {
        self.are_wanted
    }

    /// The oldest window that the stack of a sender has diagnosed and nobody has taken, from when this is first asked:
    /// the newest 8 are kept.
    pub fn take_of(stack: &mut Stack) -> Option<DiagnosedWindow> {
        let windows = stack.shared_mut::<Self>()?;
        windows.are_wanted = true;
        windows.list.pop_front()
    }

    /// All of these.
    pub fn all_of(stack: &mut Stack) -> Vec<DiagnosedWindow> {
        std::iter::from_fn(|| Self::take_of(stack)).collect()
    }
}

/// What the sender waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitingFor {
    /// The rate of the controller.
    Pacer,
    /// The ceiling that was asked for, which the controller has reached.
    Ceiling,
    /// The rate that the receiver assigns, which is less than the controller's.
    Quota,
    /// The window of the controller: what is in flight must arrive first.
    Window,
    /// The receiver's flow control: its storage is behind.
    Receiver,
    /// The source: reading is behind.
    Source,
    /// The source, which is at work: this processor is behind. Counts as busy.
    Work,
    /// The pacer, which is so far behind that its rate is lost: this processor is behind. Counts as busy.
    Late,
    /// Everything is sent; the last acknowledgements are on their way.
    Acknowledgement,
    /// All that the receiver wants so far is sent; what else it wants, it has not said yet.
    Wants,
}

/// Time spent waiting, by reason, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// For the rate of the controller.
    pub pacer: Span,
    /// For the ceiling that was asked for.
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
    /// For what else the receiver wants.
    pub wants: Span,
    /// Not waiting: time in which the sender itself was the limit, at work or without a processor.
    pub busy: Span,
}

impl Waiting {
    /// What has been added to an earlier state of this one.
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
            wants: self.wants.saturating_sub(before.wants),
            busy: self.busy.saturating_sub(before.busy),
        }
    }
}

/// A sender that goes on so late has had no processor; timers are less late, and the pacer makes up for as much at
/// once.
const PROMPT: Span = Span::from_millis(1);

/// Where a sender's time goes while it cannot send: the evidence behind "Limited by". Attributes each stretch of time
/// to the reason that was in force at its start; written by micro-protocols that stop or start sending.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    waiting: Waiting,
    reason: Option<WaitingFor>,
    since: Time,
    absence: Span,
}

impl Clock {
    /// Counts from `now` on.
    pub fn start(&mut self, now: Time) {
        self.since = now;
    }

    /// From `now` on, sending waits for this.
    pub fn wait(&mut self, now: Time, reason: WaitingFor) {
        self.turn(now, Some(reason));
    }

    /// At `now`, something was sent.
    pub fn busy(&mut self, now: Time) {
        self.turn(now, None);
    }

    /// At `now`, the sender goes on that waited for its rate; the pacer had released its packets at `released`.
    pub fn released(&mut self, now: Time, released: Time) {
        if matches!(self.reason, None | Some(WaitingFor::Late)) {
            self.note_absence(now, released);
        }
        if let Some(WaitingFor::Pacer | WaitingFor::Ceiling | WaitingFor::Quota) = self.reason {
            self.note_absence(now, released);
            self.late(now, released);
        }
    }

    /// At `now`, the sender reads what had come to its host at `arrived`. A round trip later nothing was under way any
    /// more, and the path had nothing to do.
    pub fn heard(&mut self, now: Time, arrived: Time, round_trip: Span) {
        if self.reason == Some(WaitingFor::Window) {
            self.note_absence(now, arrived);
        }
        if let Some(WaitingFor::Window | WaitingFor::Receiver | WaitingFor::Acknowledgement) = self.reason {
            self.late(now, arrived + round_trip);
        }
    }

    /// The longest time since the last call for which the sender could have sent but had no processor.
    pub(crate) fn take_absence(&mut self) -> Span {
        std::mem::take(&mut self.absence)
    }

    fn note_absence(&mut self, now: Time, ready: Time) {
        self.absence = self.absence.max(now.since(self.since.max(ready)));
    }

    /// What was waited for was there at `ready`: since then the processor has been behind.
    fn late(&mut self, now: Time, ready: Time) {
        let prompt = self.since.max(ready) + PROMPT;
        if prompt < now {
            let reason = self.reason;
            self.turn(prompt, None);
            self.turn(now, reason);
        }
    }

    /// What sending waits for.
    pub fn reason(&self) -> Option<WaitingFor> {
        self.reason
    }

    /// The account so far.
    pub fn waiting(&self) -> Waiting {
        self.waiting
    }

    fn turn(&mut self, now: Time, reason: Option<WaitingFor>) {
        let account = match self.reason {
            None | Some(WaitingFor::Work | WaitingFor::Late) => &mut self.waiting.busy,
            Some(WaitingFor::Pacer) => &mut self.waiting.pacer,
            Some(WaitingFor::Ceiling) => &mut self.waiting.ceiling,
            Some(WaitingFor::Quota) => &mut self.waiting.quota,
            Some(WaitingFor::Window) => &mut self.waiting.window,
            Some(WaitingFor::Receiver) => &mut self.waiting.receiver,
            Some(WaitingFor::Source) => &mut self.waiting.source,
            Some(WaitingFor::Acknowledgement) => &mut self.waiting.acknowledgement,
            Some(WaitingFor::Wants) => &mut self.waiting.wants,
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
    fn every_stretch_goes_to_the_reason_at_its_start() {
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
    fn a_wait_ends_when_what_it_was_for_is_there_and_not_when_the_thread_gets_its_processor() {
        let at = |ms| Time::ZERO + Span::from_millis(ms);
        let heard =
            |clock: &mut Clock, now, at| clock.heard(now, at - Span::from_millis(5), Span::from_millis(5));
        let told = |reason, ready: &dyn Fn(&mut Clock, Time, Time)| {
            let mut clock = Clock::default();
            clock.start(at(0));
            clock.wait(at(0), reason);
            ready(&mut clock, at(7), at(6));
            ready(&mut clock, at(50), at(9));
            clock.wait(at(60), WaitingFor::Source);
            let Waiting { pacer, window, source, busy, .. } = clock.waiting();
            (pacer + window + source, busy)
        };
        // A thread is a little late anyhow; it may wait for the same again.
        let late = (Span::from_millis(20), Span::from_millis(40));
        assert_eq!(told(WaitingFor::Pacer, &Clock::released), late);
        assert_eq!(told(WaitingFor::Window, &heard), late);
        // A packet that nobody waits for is no release, and no pause of the pacer ends a wait for the disk.
        let prompt = (Span::from_millis(60), Span::ZERO);
        assert_eq!(told(WaitingFor::Pacer, &heard), prompt);
        assert_eq!(told(WaitingFor::Window, &Clock::released), prompt);
        assert_eq!(told(WaitingFor::Source, &Clock::released), prompt);
        assert_eq!(told(WaitingFor::Source, &heard), prompt);
    }

    #[test]
    fn an_absence_is_how_late_it_went_on_though_it_could_send() {
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
        let told = |ms| (Span::from_millis(ms), Span::ZERO);
        // Released 15 ms after it sent, and on its way again at 90 ms; in the middle of its work too.
        let released = |clock: &mut Clock| clock.released(at(90), at(25));
        assert_eq!(after(Some(WaitingFor::Pacer), &released), told(65));
        assert_eq!(after(None, &released), told(65));
        assert_eq!(after(None, &|clock| clock.released(at(90), at(3))), told(80), "not before it sent");
        // A report that came at 20 ms would have made room in the window.
        let heard = |clock: &mut Clock| clock.heard(at(90), at(20), Span::from_millis(40));
        assert_eq!(after(Some(WaitingFor::Window), &heard), told(70));
        // A sender without data is not late.
        assert_eq!(after(Some(WaitingFor::Source), &heard), told(0));
        assert_eq!(after(Some(WaitingFor::Source), &released), told(0));
    }

    #[test]
    fn what_was_there_before_the_wait_began_makes_no_time_twice() {
        let at = |ms| Time::ZERO + Span::from_millis(ms);
        let mut clock = Clock::default();
        clock.start(at(0));
        clock.wait(at(30), WaitingFor::Window);
        clock.heard(at(40), at(2), Span::ZERO);
        clock.heard(at(40), at(35), Span::ZERO);
        clock.busy(at(50));
        let w = clock.waiting();
        assert_eq!((w.window, w.busy), (Span::from_millis(11), Span::from_millis(39)));
    }
}
