//! Where a sender's time goes while it cannot send: the evidence behind "Limited by".

use haul_base::{Span, Time};

/// What the sender waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitingFor {
    /// The rate of the controller or the ceiling.
    Pacer,
    /// The window of the controller: what is in flight must arrive first.
    Window,
    /// The receiver's flow control: its storage is behind.
    Receiver,
    /// The source: reading is behind.
    Source,
    /// Everything is sent; the last acknowledgements are on their way.
    Acknowledgement,
}

/// Time spent waiting, by reason, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// For the rate.
    pub pacer: Span,
    /// For the window.
    pub window: Span,
    /// For the receiver's storage.
    pub receiver: Span,
    /// For the source.
    pub source: Span,
    /// For the last acknowledgements.
    pub acknowledgement: Span,
    /// Not waiting: time in which the sender itself was the limit.
    pub busy: Span,
}

/// Attributes each stretch of time to the reason that was in force at its start.
#[derive(Debug)]
pub(super) struct Clock {
    waiting: Waiting,
    reason: Option<WaitingFor>,
    since: Time,
}

impl Clock {
    pub(super) fn new(now: Time) -> Self {
        Self { waiting: Waiting::default(), reason: None, since: now }
    }

    pub(super) fn wait(&mut self, now: Time, reason: WaitingFor) {
        self.turn(now, Some(reason));
    }

    pub(super) fn busy(&mut self, now: Time) {
        self.turn(now, None);
    }

    pub(super) fn reason(&self) -> Option<WaitingFor> {
        self.reason
    }

    pub(super) fn waiting(&self) -> Waiting {
        self.waiting
    }

    fn turn(&mut self, now: Time, reason: Option<WaitingFor>) {
        let account = match self.reason {
            None => &mut self.waiting.busy,
            Some(WaitingFor::Pacer) => &mut self.waiting.pacer,
            Some(WaitingFor::Window) => &mut self.waiting.window,
            Some(WaitingFor::Receiver) => &mut self.waiting.receiver,
            Some(WaitingFor::Source) => &mut self.waiting.source,
            Some(WaitingFor::Acknowledgement) => &mut self.waiting.acknowledgement,
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
        let mut clock = Clock::new(at(0));
        clock.wait(at(1), WaitingFor::Pacer);
        clock.wait(at(4), WaitingFor::Source);
        clock.busy(at(9));
        clock.wait(at(11), WaitingFor::Window);
        let w = clock.waiting();
        assert_eq!(w.busy, Span::from_millis(3));
        assert_eq!(w.pacer, Span::from_millis(3));
        assert_eq!(w.source, Span::from_millis(5));
    }
}
