//! Decides what may be sent now, or what sending waits for.

use haul_base::{Span, Time};
use haul_stack::{Context, SendPermit};

use super::RateControl;
use crate::control::{ControllerError, Limits, MAX_PAUSE, MIN_WINDOW_DATAGRAMS, Permit};
use crate::micro::shared::WaitingFor;

/// UDP payload bytes that IPv4 over Ethernet carries. Larger datagrams mean another kind of path.
const TYPICAL_DATAGRAM: u64 = 1_472;
/// Duration of the rate that may be sent back to back in large datagrams.
const LARGE_BURST: Span = Span::from_millis(5);
/// Maximum number of them: the initial window of RFC 9002, section 7.2, without its bound for datagrams above
/// 1,472 bytes.
const LARGE_BURST_DATAGRAMS: u64 = 10;
/// Fraction of the ceiling from which on the ceiling limits the law: it measures a little less of a path than
/// it sends.
const REACHED_SHARE: f64 = 0.9;

impl RateControl {
    pub(super) fn on_permit(&mut self, permit: &mut SendPermit, context: &mut Context<'_>) {
        if permit.packets == 0 {
            return;
        }
        match self.permitted_datagrams(permit.datagram as u64, context) {
            Ok(packets) => {
                permit.burst =
                    permit.burst.min(self.limits.burst.max(self.more_at_once(permit.datagram as u64)));
                permit.at_most(packets.min(self.max_batch));
            }
            Err(reason) => {
                permit.at_most(0);
                self.wait(reason, context);
            }
        }
    }

    /// Returns the bytes of large datagrams of `size` that may be sent back to back, and be in flight beyond
    /// the law's window: at a low rate, a wake-up for each is most of the work. 0 for usual datagrams.
    fn more_at_once(&self, size: u64) -> u64 {
        let large = self.limits.rate.bytes_in(LARGE_BURST).min(LARGE_BURST_DATAGRAMS * size);
        if size > TYPICAL_DATAGRAM { large } else { 0 }
    }

    /// Returns how many datagrams of `size` may be sent now, or what sending waits for.
    fn permitted_datagrams(&mut self, size: u64, context: &mut Context<'_>) -> Result<usize, WaitingFor> {
        let limits = self.law_limits(context)?;
        self.limits = self.quota.bound(limits);
        if self.probe_credit > 0 {
            return Ok(self.probe_credit as usize);
        }
        let (now, released, bindings) = (context.now(), self.pacer.release_at(), self.bindings());
        if released > now {
            context.resume_at(released);
            return Err(self.paced_by(now));
        }
        context.shared(bindings.clock).released(now, released);
        let in_flight = context.shared(bindings.send_window).bytes;
        // A new law may assume smaller datagrams than those in use.
        let least = |window: u64| window.max(MIN_WINDOW_DATAGRAMS * size);
        let extra = limits.unreported.saturating_add(self.more_at_once(size));
        let allowed = limits.window.map_or(u64::MAX, |window| least(window).saturating_add(extra));
        let room = allowed.saturating_sub(in_flight);
        match room / size {
            0 => Err(WaitingFor::Window),
            packets => Ok(usize::try_from(packets).unwrap_or(usize::MAX)),
        }
    }

    /// Returns the law's limits now; or it holds, and sending resumes at the time it returns.
    fn law_limits(&mut self, context: &mut Context<'_>) -> Result<Limits, WaitingFor> {
        let now = context.now();
        if let Permit::Pause(until) = self.controller.permit()
            && until <= now
        {
            self.controller.on_deadline(now);
            self.schedule(context);
        }
        match self.controller.permit() {
            Permit::Go(limits) => {
                if std::mem::take(&mut self.is_held) {
                    // What could not be sent meanwhile is not lateness to make up for.
                    self.pacer.on_idle(now);
                }
                Ok(limits.within(self.controller.ceiling()))
            }
            Permit::Pause(until) if until > now && until <= now + MAX_PAUSE => {
                self.is_held = true;
                context.resume_at(until);
                Err(WaitingFor::Pacer)
            }
            Permit::Pause(_) => {
                context.fail(ControllerError::PermanentPause(self.law.name.clone()).to_string());
                Err(WaitingFor::Pacer)
            }
        }
    }

    /// Returns whose rate the pacer keeps.
    fn paced_by(&self, now: Time) -> WaitingFor {
        if self.pacer.is_behind(now) {
            WaitingFor::Late
        } else if self.quota.binds {
            WaitingFor::Quota
        } else if self
            .controller
            .ceiling()
            .is_some_and(|ceiling| self.limits.rate >= ceiling.mul_f64(REACHED_SHARE))
        {
            WaitingFor::Ceiling
        } else {
            WaitingFor::Pacer
        }
    }

    fn wait(&mut self, reason: WaitingFor, context: &mut Context<'_>) {
        let now = context.now();
        if !matches!(reason, WaitingFor::Pacer | WaitingFor::Ceiling | WaitingFor::Quota | WaitingFor::Late) {
            self.pacer.on_idle(now);
        }
        context.shared(self.bindings().clock).wait(now, reason);
    }

    /// Records that there was nothing to send, for the reason in the clock.
    pub(super) fn on_nothing_to_send(&mut self, context: &mut Context<'_>) {
        self.pacer.on_idle(context.now());
        let reason = context.shared(self.bindings().clock).reason();
        if reason.is_some_and(WaitingFor::is_app_limited) {
            self.app_limited_below = context.next_pn();
        }
    }
}
