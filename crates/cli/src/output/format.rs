//! Numbers and times as people read them.

use haul_base::Span;
use indicatif::HumanCount;

/// A time for people: `27 ms`, `1.8 s`, `42 s`, `3:07`, `2:03:04`.
pub(crate) fn clock(span: Span) -> String {
    let seconds = span.as_secs_f64();
    let whole = seconds.round() as u64;
    match whole {
        _ if seconds < 0.9995 => format!("{:.0} ms", seconds * 1e3),
        0..10 => format!("{seconds:.1} s"),
        10..60 => format!("{whole} s"),
        60..3600 => format!("{}:{:02}", whole / 60, whole % 60),
        _ => format!("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60),
    }
}

/// `1 file`, `2 files`.
pub(crate) fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{} {noun}s", grouped(number)) }
}

/// `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    HumanCount(number).to_string()
}

/// A share in per cent, with as many digits as it takes to see that it is not zero.
pub(crate) fn percent(share: f64) -> String {
    match share * 100.0 {
        0.0 => "0 %".to_owned(),
        p if p >= 10.0 => format!("{p:.0} %"),
        p if p >= 0.1 => format!("{p:.1} %"),
        p if p >= 0.01 => format!("{p:.2} %"),
        _ => "<0.01 %".to_owned(),
    }
}
