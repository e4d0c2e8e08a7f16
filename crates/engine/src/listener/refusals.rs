//! Log of refused clients: one line for each that does not know the secret or whose URL has expired, at a
//! limited rate so that the log cannot fill the disk.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use haul_wire::control::{Fault, FaultCode};

use crate::wake::lock;

/// Lines per [`WINDOW`]: below 2 MB a day.
const MAX_LINES: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(super) struct RefusalLog(Mutex<LogWindow>);

#[derive(Default)]
struct LogWindow {
    ends: Option<Instant>,
    lines: u32,
    suppressed: u64,
}

impl RefusalLog {
    /// Logs a refused client. The log adds the time.
    pub(super) fn log(&self, peer: SocketAddr, fault: &Fault) {
        if !matches!(fault.code, FaultCode::NotAuthorised | FaultCode::Expired) {
            tracing::info!(%peer, reason = fault.message, "client refused");
            return;
        }
        self.log_suppressed();
        if lock(&self.0).permits(Instant::now()) {
            tracing::warn!(%peer, reason = fault.message, "client refused");
        }
    }

    /// Logs how many lines were suppressed, if the window is over. To be called after [`RefusalLog::due`].
    pub(super) fn log_suppressed(&self) {
        let suppressed = lock(&self.0).end(Instant::now());
        if suppressed > 0 {
            let seconds = WINDOW.as_secs();
            tracing::warn!(
                "refused clients not logged individually in the last {seconds} seconds: {suppressed}"
            );
        }
    }

    /// Time until [`RefusalLog::log_suppressed`] has something to log; `None` if nothing was suppressed.
    pub(super) fn due(&self) -> Option<Duration> {
        let window = lock(&self.0);
        let ends = window.ends.filter(|_| window.suppressed > 0)?;
        Some(ends.saturating_duration_since(Instant::now()))
    }
}

impl LogWindow {
    fn permits(&mut self, now: Instant) -> bool {
        self.ends.get_or_insert(now + WINDOW);
        if self.lines < MAX_LINES {
            self.lines += 1;
            return true;
        }
        self.suppressed += 1;
        false
    }

    /// Ends the window if it is over, and returns the number of lines suppressed in it.
    fn end(&mut self, now: Instant) -> u64 {
        if self.ends.is_none_or(|ends| now < ends) {
            return 0;
        }
        std::mem::take(self).suppressed
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use super::*;

    /// Returns what was logged.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_log_counts_suppressed_refusals() {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        let wrong_secret = Fault::new(FaultCode::NotAuthorised, "wrong secret", "");
        tracing::subscriber::with_default(subscriber, || {
            let refusals = RefusalLog::default();
            for port in 0..MAX_LINES as u16 + 5 {
                refusals.log(([192, 0, 2, 1], port).into(), &wrong_secret);
            }
            assert!(refusals.due().is_some());
            // The minute is over.
            lock(&refusals.0).ends = Some(Instant::now());
            refusals.log_suppressed();
            assert!(refusals.due().is_none());
            refusals.log_suppressed();
        });
        let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert_eq!(log.matches("wrong secret").count(), MAX_LINES as usize, "{log}");
        assert_eq!(
            log.matches("refused clients not logged individually in the last 60 seconds: 5").count(),
            1,
            "{log}"
        );
        assert_eq!(log.lines().count(), MAX_LINES as usize + 1, "{log}");
    }

    #[test]
    fn a_flood_is_counted_in_few_log_lines() {
        let (mut window, start) = (LogWindow::default(), Instant::now());
        let lines = (0..5_000).filter(|_| window.permits(start)).count();
        assert_eq!(lines, MAX_LINES as usize);
        assert_eq!(window.end(start + WINDOW / 2), 0, "not yet");
        assert_eq!(window.end(start + WINDOW), 5_000 - u64::from(MAX_LINES));
        assert_eq!(window.end(start + WINDOW), 0, "said once");
        assert!(window.permits(start + WINDOW));
    }
}
