//! The papers' load generator (dickens-classifier): 0 to 7 CPU-bound processes for 1 to 7 s, then a pause of
//! 0 to 20 s, all uniformly distributed.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use haul_base::{Rng, Span};
use serde::Serialize;

use super::burn::Burners;
use haul_wan::Clock;

/// Maximum number of concurrent processes.
const MAX_PROCESSES: u64 = 7;
/// Minimum and maximum length of a busy period.
const BUSY: (Span, Span) = (Span::from_secs(1), Span::from_secs(7));
/// Maximum length of a pause.
const PAUSE: Span = Span::from_secs(20);

/// A busy period of the generator.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct LoadEvent {
    /// Start, in seconds since the path started.
    pub at: f64,
    /// Intended length, seconds.
    pub length: f64,
    /// Number of processes.
    pub processes: u32,
}

/// Random draws of the generator.
#[derive(Debug)]
struct Draws(Rng);

impl Draws {
    fn busy_period(&mut self) -> (u32, Span) {
        let processes = self.0.below(MAX_PROCESSES + 1) as u32;
        (processes, BUSY.0 + BUSY.1.saturating_sub(BUSY.0).mul_f64(self.0.next_f64()))
    }

    fn pause(&mut self) -> Span {
        PAUSE.mul_f64(self.0.next_f64())
    }
}

/// A running generator; ends when dropped.
#[derive(Debug)]
pub(crate) struct Generator {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    events: Arc<Mutex<Vec<LoadEvent>>>,
}

impl Generator {
    /// Starts a generator on `cpu`.
    ///
    /// # Errors
    /// If its thread cannot be created.
    pub(crate) fn start(seed: u64, cpu: usize, clock: Clock) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let events: Arc<Mutex<Vec<LoadEvent>>> = Arc::default();
        let log = Arc::clone(&events);
        let thread = std::thread::Builder::new().name("generator".to_owned()).spawn(move || {
            if let Err(error) = generate(Draws(Rng::from_seed(seed)), cpu, clock, &stopped, &log) {
                eprintln!("haul-lab: the load generator has failed: {error}");
            }
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread), events })
    }

    /// Returns the busy periods so far.
    pub(crate) fn events(&self) -> Vec<LoadEvent> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Generator {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn generate(
    mut draws: Draws,
    cpu: usize,
    clock: Clock,
    stopped: &Receiver<()>,
    log: &Mutex<Vec<LoadEvent>>,
) -> io::Result<()> {
    let goes_on = |time: Span| stopped.recv_timeout(Duration::from(time)) == Err(RecvTimeoutError::Timeout);
    loop {
        let (processes, length) = draws.busy_period();
        let at = clock.now().since(haul_base::Time::ZERO).as_secs_f64();
        let event = LoadEvent { at, length: length.as_secs_f64(), processes };
        log.lock().unwrap_or_else(PoisonError::into_inner).push(event);
        let burners = Burners::start(processes, cpu)?;
        if !goes_on(length) {
            return Ok(());
        }
        drop(burners);
        if !goes_on(draws.pause()) {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_periods_follow_the_paper_and_the_seed() {
        let draw = |seed| {
            let mut draws = Draws(Rng::from_seed(seed));
            (0..2_000).map(|_| (draws.busy_period(), draws.pause())).collect::<Vec<_>>()
        };
        let spells = draw(3);
        assert_eq!(spells, draw(3));
        assert!(
            spells
                .iter()
                .all(|((n, busy), pause)| *n <= 7 && *busy >= BUSY.0 && *busy <= BUSY.1 && *pause <= PAUSE)
        );
        assert!((0..=7).all(|n| spells.iter().any(|((processes, _), _)| *processes == n)));
        let mean = spells.iter().map(|((_, busy), _)| busy.as_secs_f64()).sum::<f64>() / 2_000.0;
        assert!((3.8..4.2).contains(&mean), "{mean}");
    }
}
