//! The progress of several transfers at the same time, in one line: their sums.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use haul_base::Span;

use super::{Progress, ProgressStyle, Snapshot, Stall};

/// Shows several transfers as one.
#[derive(Debug)]
pub struct Together(Arc<Mutex<Sums>>);

/// One of them.
#[derive(Debug, Clone)]
pub struct Part {
    sums: Arc<Mutex<Sums>>,
    at: usize,
}

#[derive(Debug)]
struct Sums {
    progress: Progress,
    parts: Vec<State>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// Nothing is known of it.
    Waiting,
    Running(Snapshot),
    /// It moves no more, whatever is missing.
    Over(Snapshot),
}

impl Together {
    /// Starts the clock for so many transfers.
    pub fn start(style: &ProgressStyle, parts: usize) -> Self {
        let sums = Sums { progress: Progress::start(style), parts: vec![State::Waiting; parts] };
        Self(Arc::new(Mutex::new(sums)))
    }

    /// The part of one of them, counted from 0.
    pub fn part(&self, at: usize) -> Part {
        Part { sums: Arc::clone(&self.0), at }
    }

    /// Removes the line.
    pub fn finish(&self) {
        lock(&self.0).progress.finish();
    }
}

impl Part {
    /// Takes where it stands; shows it if it is time to.
    pub(super) fn update(&self, snapshot: Snapshot) {
        let mut sums = lock(&self.sums);
        sums.parts[self.at] = State::Running(snapshot);
        let sum = sum(&sums.parts);
        sums.progress.update(&sum);
    }

    /// It has ended, well or not.
    pub fn end(&self) {
        let state = &mut lock(&self.sums).parts[self.at];
        *state = State::Over(match *state {
            State::Running(last) | State::Over(last) => last,
            State::Waiting => Snapshot::default(),
        });
    }

    /// Writes a line for people without disturbing the progress.
    pub fn say(&self, words: &str) {
        lock(&self.sums).progress.say(words);
    }
}

fn lock(sums: &Mutex<Sums>) -> MutexGuard<'_, Sums> {
    // Whole values are put in, so a panic elsewhere leaves nothing half done.
    sums.lock().unwrap_or_else(PoisonError::into_inner)
}

/// There is a total as soon as all that have not ended know theirs. The latest word of any counts as contact.
fn sum(parts: &[State]) -> Snapshot {
    let mut sum = Snapshot { total_bytes: Some(0), files: Some(0), ..Snapshot::default() };
    let mut silences: Vec<Span> = Vec::new();
    let mut stalls: Vec<Option<Stall>> = Vec::new();
    for part in parts {
        let (snapshot, total) = match *part {
            State::Waiting => (Snapshot::default(), None),
            State::Running(snapshot) => {
                silences.push(snapshot.silent_for);
                stalls.push(snapshot.stall);
                (snapshot, snapshot.total_bytes)
            }
            State::Over(snapshot) => (snapshot, Some(snapshot.bytes)),
        };
        sum.bytes += snapshot.bytes;
        sum.total_bytes = sum.total_bytes.zip(total).map(|(all, one)| all + one);
        sum.files = sum.files.map(|all| all + snapshot.files.unwrap_or_default());
    }
    sum.silent_for = silences.into_iter().min().unwrap_or(Span::ZERO);
    // What one still does is progress of all.
    let all_stall: Option<Vec<Stall>> = stalls.into_iter().collect();
    sum.stall = all_stall.and_then(|stalls| stalls.into_iter().min_by_key(|stall| stall.lasts));
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(bytes: u64, total: u64, silent_ms: u64) -> Snapshot {
        let silent_for = Span::from_millis(silent_ms);
        Snapshot { bytes, total_bytes: Some(total), files: Some(1), silent_for, stall: None }
    }

    #[test]
    fn there_is_a_total_when_all_know_theirs_or_have_ended() {
        let together = Together::start(&ProgressStyle::Hidden, 3);
        let now = || sum(&lock(&together.0).parts);
        together.part(0).update(at(10, 100, 7_000));
        together.part(1).update(at(20, 50, 3_000));
        assert_eq!(now(), Snapshot { total_bytes: None, files: Some(2), ..at(30, 0, 3_000) });
        together.part(2).end();
        assert_eq!(now(), Snapshot { files: Some(2), ..at(30, 150, 3_000) });
        // It has failed: what it has not sent is awaited no more.
        together.part(1).end();
        assert_eq!(now(), Snapshot { files: Some(2), ..at(30, 120, 7_000) });
        together.part(0).end();
        assert_eq!(now(), Snapshot { files: Some(2), ..at(30, 30, 0) });
    }
}
