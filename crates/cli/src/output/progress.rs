//! Progress on stderr: a line that is rewritten on a terminal, a plain line every few seconds elsewhere.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_base::{Bytes, CauseCounts, Rate, Span};
use haul_mover::Stage;
use indicatif::{ProgressBar, ProgressDrawTarget};
use parking_lot::Mutex;

use super::lines::BAR;
use super::report::lost_by;
use super::{clock, count, eprint_lines, percent};
use crate::args::Global;

const PLAIN_INTERVAL: Duration = Duration::from_secs(3);
const DRAW_INTERVAL: Duration = Duration::from_millis(200);
/// Silence of the peer after which the line reports it.
const SILENCE_SHOWN: Duration = Duration::from_secs(2);
/// Time without progress after which the line shows what is waited for.
const STALL_SHOWN: Duration = Duration::from_secs(5);
/// Averaging window of the rate "now".
const WINDOW: Span = Span::from_millis(1_500);
/// Minimum time between two samples.
const SAMPLE: Span = Span::from_millis(50);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Bytes at the receiver.
    pub bytes: u64,
    /// Bytes to transfer, of the sources listed so far if files; `None` if unknown.
    pub total_bytes: Option<u64>,
    /// Finished files; `None` if the transfer has no files.
    pub files: Option<u64>,
    /// Time since the peer was last heard from.
    pub silent_for: Span,
    pub stall: Option<Stall>,
    pub lost: CauseCounts,
}

/// What a transfer waits for, and the time without progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stall {
    pub duration: Span,
    pub stage: Stage,
}

#[derive(Debug, Clone)]
pub(crate) enum ProgressStyle {
    Hidden,
    Plain,
    Terminal,
    /// Shown together with other transfers.
    Part(Progress),
}

impl ProgressStyle {
    pub(crate) fn choose(global: &Global) -> Self {
        if global.quiet || global.json {
            Self::Hidden
        } else if is_rich_terminal() {
            Self::Terminal
        } else {
            Self::Plain
        }
    }
}

/// Whether stderr is a terminal with cursor movement and colours.
pub(crate) fn is_rich_terminal() -> bool {
    std::io::stderr().is_terminal() && is_rich(std::env::var_os("TERM").as_deref())
}

fn is_rich(term: Option<&OsStr>) -> bool {
    term.is_some_and(|term| !term.is_empty() && term != "dumb")
}

#[derive(Debug, Clone)]
pub(crate) struct Progress {
    shown: Arc<Mutex<Shown>>,
    /// Index of this transfer in `parts`.
    index: usize,
}

#[derive(Debug)]
struct Shown {
    /// `None` shows nothing.
    interval: Option<Duration>,
    bar: Option<ProgressBar>,
    started: Instant,
    drawn: Instant,
    meter: Meter,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Part {
    last: Option<Snapshot>,
    is_over: bool,
}

impl Progress {
    pub(crate) fn start(style: &ProgressStyle) -> Self {
        match style {
            ProgressStyle::Part(part) => part.clone(),
            _ => Self::several(style, 1).remove(0),
        }
    }

    /// Starts the clock for `count` transfers shown as one.
    pub(crate) fn several(style: &ProgressStyle, count: usize) -> Vec<Self> {
        let (interval, bar) = match style {
            ProgressStyle::Hidden | ProgressStyle::Part(_) => (None, None),
            ProgressStyle::Plain => (Some(PLAIN_INTERVAL), None),
            ProgressStyle::Terminal => (Some(DRAW_INTERVAL), Some(bar(ProgressDrawTarget::stderr()))),
        };
        if bar.is_some() {
            BAR.lock().clone_from(&bar);
        }
        let started = Instant::now();
        let shown = Arc::new(Mutex::new(Shown {
            interval,
            bar,
            started,
            drawn: started,
            meter: Meter::default(),
            parts: vec![Part::default(); count],
        }));
        (0..count).map(|index| Self { shown: Arc::clone(&shown), index }).collect()
    }

    /// To be called several times a second.
    pub(crate) fn update(&self, snapshot: Snapshot) {
        let mut shown = self.shown.lock();
        shown.parts[self.index].last = Some(snapshot);
        let (elapsed, snapshot) = (shown.started.elapsed().into(), sum(&shown.parts));
        shown.meter.add_sample(elapsed, snapshot.bytes);
        if shown.interval.is_some_and(|interval| shown.drawn.elapsed() >= interval) {
            shown.drawn = Instant::now();
            let line = line(&snapshot, &shown.meter, elapsed);
            match &shown.bar {
                Some(bar) => bar.set_message(line),
                None => eprint_lines(line),
            }
        }
    }

    /// Ends the transfer, successful or not. The line disappears with the last one.
    pub(crate) fn finish(&self) {
        let mut shown = self.shown.lock();
        shown.parts[self.index].is_over = true;
        let is_over = shown.parts.iter().all(|part| part.is_over);
        if let Some(bar) = shown.bar.as_ref().filter(|_| is_over) {
            bar.finish_and_clear();
            *BAR.lock() = None;
        }
    }
}

/// Creates a line that is truncated at the terminal's width.
fn bar(target: ProgressDrawTarget) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, target);
    bar.set_style(indicatif::ProgressStyle::with_template("{wide_msg}").expect("the template is valid"));
    bar
}

#[derive(Debug, Clone, Default)]
struct Meter {
    /// Times and byte counts; the first is the newest outside the window.
    samples: VecDeque<(Span, u64)>,
}

impl Meter {
    fn add_sample(&mut self, at: Span, bytes: u64) {
        let newest = self.samples.back().map(|&(at, _)| at);
        if newest.is_some_and(|newest| at.saturating_sub(newest) < SAMPLE) {
            return;
        }
        self.samples.push_back((at, bytes));
        while self.samples.get(1).is_some_and(|&(second, _)| at.saturating_sub(second) >= WINDOW) {
            self.samples.pop_front();
        }
    }

    fn now(&self) -> Rate {
        match (self.samples.front(), self.samples.back()) {
            (Some(&(from, before)), Some(&(to, after))) => {
                Rate::from_transfer(after.saturating_sub(before), to.saturating_sub(from))
            }
            _ => Rate::ZERO,
        }
    }
}

/// Formats percentage, bytes, current and mean rate, time left, files, and losses with their main cause.
fn line(snapshot: &Snapshot, meter: &Meter, elapsed: Span) -> String {
    let mean = Rate::from_transfer(snapshot.bytes, elapsed);
    let mut parts = Vec::new();
    match snapshot.total_bytes {
        Some(total) if total > 0 => {
            parts.push(percent_done(snapshot.bytes, total));
            parts.push(format!("{} of {}", Bytes(snapshot.bytes), Bytes(total)));
        }
        _ => parts.push(Bytes(snapshot.bytes).to_string()),
    }
    // Before the rates, so that a narrow terminal does not truncate it.
    if Duration::from(snapshot.silent_for) >= SILENCE_SHOWN {
        parts.push(format!("last contact {} ago", clock(snapshot.silent_for)));
    }
    if let Some(Stall { duration, stage }) =
        snapshot.stall.filter(|stall| Duration::from(stall.duration) >= STALL_SHOWN)
    {
        parts.push(format!("waiting for {stage} for {}", clock(duration)));
    }
    parts.push(format!("{} now, {} mean", meter.now(), mean));
    if let Some(total) = snapshot.total_bytes.filter(|_| mean > Rate::ZERO) {
        let remaining = mean.time_for(total.saturating_sub(snapshot.bytes));
        parts.push(format!("{} left", clock(remaining)));
    }
    if let Some(files) = snapshot.files {
        parts.push(format!("{} done", count(files, "file")));
    }
    if let Some((_, words)) = lost_by(&snapshot.lost).into_iter().max_by_key(|(packets, _)| *packets) {
        parts.push(format!("{} lost, {words}", count(snapshot.lost.total(), "packet")));
    }
    parts.join(" | ")
}

/// Formats less than 100 % until the last byte has arrived.
fn percent_done(bytes: u64, total: u64) -> String {
    let share = bytes as f64 / total as f64;
    if bytes < total && share > 0.99 {
        format!("{:.1} %", (share * 1000.0).floor() / 10.0)
    } else {
        percent(share)
    }
}

/// Sums several transfers. The total is known once all running ones know theirs; contact and progress of any
/// are those of all.
fn sum(parts: &[Part]) -> Snapshot {
    let mut sum = Snapshot { total_bytes: Some(0), ..Snapshot::default() };
    for Part { last, is_over } in parts {
        let snapshot = last.unwrap_or_default();
        let total = if *is_over { Some(snapshot.bytes) } else { snapshot.total_bytes };
        sum.bytes += snapshot.bytes;
        sum.total_bytes = sum.total_bytes.zip(total).map(|(all, one)| all + one);
        sum.files = sum.files.into_iter().chain(snapshot.files).reduce(|all, one| all + one);
        sum.lost.merge(&snapshot.lost);
    }
    let running = || parts.iter().filter(|part| !part.is_over).filter_map(|part| part.last);
    sum.silent_for = running().map(|snapshot| snapshot.silent_for).min().unwrap_or(Span::ZERO);
    let all_stall: Option<Vec<Stall>> = running().map(|snapshot| snapshot.stall).collect();
    sum.stall = all_stall.and_then(|stalls| stalls.into_iter().min_by_key(|stall| stall.duration));
    sum
}

#[cfg(test)]
mod tests {
    use std::io;

    use haul_base::Cause;
    use indicatif::TermLike;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_progress_line_shows_every_known_value() {
        let mut meter = Meter::default();
        for (second, bytes) in [(0, 0), (1, 100_000_000), (2, 220_000_000)] {
            meter.add_sample(Span::from_secs(second), bytes);
        }
        let snapshot = Snapshot {
            bytes: 220_000_000,
            total_bytes: Some(1_000_000_000),
            files: Some(1_200),
            silent_for: Span::from_secs(5),
            stall: None,
            lost: [(Cause::ReceiverHost, 1_180), (Cause::Congestion, 24)].into_iter().collect(),
        };
        assert_eq!(
            line(&snapshot, &meter, Span::from_secs(2)),
            "22 % | 220.0 MB of 1.00 GB | last contact 5.0 s ago | 880.0 Mbit/s now, 880.0 Mbit/s mean | 7.1 s left | \
             1,200 files done | 1,204 packets lost, 98 % by the receiving host"
        );
    }

    #[test]
    fn the_current_rate_ignores_old_samples() {
        let mut meter = Meter::default();
        for tenth in 0..100 {
            let bytes = if tenth < 50 { tenth * 10 } else { 500 + (tenth - 50) * 1_000 };
            meter.add_sample(Span::from_millis(tenth * 100), bytes);
        }
        assert_eq!(meter.now(), Rate::from_bps(80_000));
        assert!(meter.samples.len() < 20);
    }

    #[test]
    fn without_a_total_no_percentage_or_time_left_is_shown() {
        let snapshot = Snapshot { bytes: MIB, ..Snapshot::default() };
        let text = line(&snapshot, &Meter::default(), Span::ZERO);
        assert_eq!(text, "1.0 MB | 0 bit/s now, 0 bit/s mean");
    }

    #[test]
    fn a_long_stall_names_what_it_is_waiting_for() {
        let after = |seconds| {
            let stall = Stall { duration: Span::from_secs(seconds), stage: Stage::Writing };
            let snapshot = Snapshot { bytes: MIB, stall: Some(stall), ..Snapshot::default() };
            line(&snapshot, &Meter::default(), Span::ZERO)
        };
        assert!(!after(4).contains("waiting"));
        let begin = "1.0 MB | waiting for the receiver's disk to write received data for 5.0 s | ";
        assert!(after(5).starts_with(begin));
    }

    #[test]
    fn unknown_and_dumb_terminals_are_not_rich() {
        for (term, rich) in [(None, false), (Some(""), false), (Some("dumb"), false), (Some("xterm"), true)] {
            assert_eq!(is_rich(term.map(OsStr::new)), rich, "{term:?}");
        }
    }

    /// A terminal with so many columns, that counts what it is told.
    #[derive(Debug)]
    struct Narrow(u16, Arc<Mutex<usize>>);

    impl TermLike for Narrow {
        fn width(&self) -> u16 {
            self.0
        }

        fn move_cursor_up(&self, lines: usize) -> io::Result<()> {
            assert_eq!(lines, 0, "a second line");
            Ok(())
        }

        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }

        fn write_str(&self, text: &str) -> io::Result<()> {
            assert!(text.chars().count() <= usize::from(self.0), "{text}");
            *self.1.lock() += text.len();
            Ok(())
        }

        fn clear_line(&self) -> io::Result<()> {
            Ok(())
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_progress_fits_one_line_of_a_terminal_of_any_width() {
        let text =
            "5.0 % | 1.5 MB of 30.0 MB | 56.5 Mbit/s now, 59.5 Mbit/s mean | 3.8 s left | 0 files done";
        for columns in [80, 20, 3] {
            let written = Arc::<Mutex<usize>>::default();
            let bar = bar(ProgressDrawTarget::term_like(Box::new(Narrow(columns, written.clone()))));
            for _ in 0..3 {
                bar.set_message(text);
                bar.force_draw();
            }
            assert!(*written.lock() >= 3 * usize::from(columns), "{columns}");
        }
    }

    #[test]
    fn the_percentage_reaches_100_only_at_the_end() {
        assert_eq!(percent_done(999_999, 1_000_000), "99.9 %");
        assert_eq!(percent_done(1_000_000, 1_000_000), "100 %");
        assert_eq!(percent_done(0, 10), "0 %");
    }

    #[test]
    fn a_hidden_progress_accepts_updates() {
        let progress = Progress::start(&ProgressStyle::Hidden);
        progress.update(Snapshot::default());
        progress.finish();
    }

    /// A copy within one machine has a server in the same process.
    #[test]
    fn a_hidden_progress_does_not_touch_the_line_of_another() {
        *BAR.lock() = Some(ProgressBar::hidden());
        Progress::start(&ProgressStyle::Hidden).finish();
        assert!(BAR.lock().is_some());
        *BAR.lock() = None;
    }

    fn at(bytes: u64, total: u64, silent_ms: u64) -> Snapshot {
        let silent_for = Span::from_millis(silent_ms);
        Snapshot { bytes, total_bytes: Some(total), files: Some(1), silent_for, ..Snapshot::default() }
    }

    #[test]
    fn the_sum_has_a_total_once_all_parts_know_theirs_or_have_ended() {
        let parts = Progress::several(&ProgressStyle::Hidden, 3);
        let now = || sum(&parts[0].shown.lock().parts);
        parts[0].update(at(10, 100, 7_000));
        parts[1].update(at(20, 50, 3_000));
        assert_eq!(now(), Snapshot { total_bytes: None, files: Some(2), ..at(30, 0, 3_000) });
        parts[2].finish();
        assert_eq!(now(), Snapshot { files: Some(2), ..at(30, 150, 3_000) });
        // It has failed: what it has not sent is awaited no more.
        parts[1].finish();
        assert_eq!(now(), Snapshot { files: Some(2), ..at(30, 120, 7_000) });
        parts[0].finish();
        assert_eq!(now(), Snapshot { files: Some(2), ..at(30, 30, 0) });
    }
}
