//! Host loads, with costs from the scenario or defaults.

use haul_base::Span;
use haul_sim::host::Load;
use haul_sim::host::scheduler::{Nice, O1Config, SleepKind, TaskSpec};

use super::scenario::{LoadEntry, LoadKind, SleepName};
use super::text::Text;

/// Defaults for forwarding: core time per packet, packets per interrupt, packets per second.
const FORWARDED: (Span, u32, u64) = (Span::from_micros(1), 32, 100_000);
/// Default slowdown of receivers by a memory load, thousandths.
const SLOWDOWN: u32 = 1_200;

/// Returns the load of an entry. The error describes the problem.
pub(super) fn load_of(entry: &LoadEntry) -> Result<Load, String> {
    check_fields(entry)?;
    let processes = entry.processes.unwrap_or(1);
    Ok(match entry.kind {
        LoadKind::Computation => Load::Computation { processes, spec: task(entry)? },
        LoadKind::SystemCalls => system_calls(entry, processes)?,
        LoadKind::Memory => Load::Memory { processes, slowdown_permille: slowdown(entry)? },
        LoadKind::Forwarding => forwarding(entry, processes)?,
        LoadKind::Generator => generator(entry)?,
        LoadKind::Suspension => suspension(entry)?,
        LoadKind::Quota => return Err("simulated hosts have no control groups: use `suspension`".to_owned()),
    })
}

/// Rejects fields that do not apply to the kind of load.
fn check_fields(entry: &LoadEntry) -> Result<(), String> {
    let kind = entry.kind;
    let fields = [
        ("nice", entry.nice.is_some(), LoadKind::Computation),
        ("sleep_average", entry.sleep_average.is_some(), LoadKind::Computation),
        ("packets_per_second", entry.packets_per_second.is_some(), LoadKind::Forwarding),
        ("per_packet", entry.per_packet.is_some(), LoadKind::Forwarding),
        ("burst", entry.burst.is_some(), LoadKind::Forwarding),
        ("run", entry.run.is_some() && kind != LoadKind::Quota, LoadKind::SystemCalls),
        ("sleep", entry.sleep.is_some(), LoadKind::SystemCalls),
        ("wait", entry.wait.is_some(), LoadKind::SystemCalls),
        ("slowdown", entry.slowdown.is_some(), LoadKind::Memory),
        ("runs", entry.runs.is_some(), LoadKind::Generator),
        ("pauses", entry.pauses.is_some(), LoadKind::Generator),
        ("every", entry.every.is_some() && kind != LoadKind::Quota, LoadKind::Suspension),
        ("stop", entry.stop.is_some(), LoadKind::Suspension),
    ];
    match fields.into_iter().find(|(_, is_set, of)| *is_set && *of != kind) {
        Some((field, _, of)) => Err(format!("`{field}` is for loads of the kind `{}`", name(of))),
        None => Ok(()),
    }
}

const fn name(kind: LoadKind) -> &'static str {
    match kind {
        LoadKind::Computation => "computation",
        LoadKind::SystemCalls => "system_calls",
        LoadKind::Memory => "memory",
        LoadKind::Forwarding => "forwarding",
        LoadKind::Generator => "generator",
        LoadKind::Suspension => "suspension",
        LoadKind::Quota => "quota",
    }
}

fn task(entry: &LoadEntry) -> Result<TaskSpec, String> {
    let requested = entry.nice.unwrap_or_default();
    let nice = Nice::new(requested);
    if nice.get() != requested {
        return Err(format!("`nice` is between -20 and 19, not {requested}"));
    }
    let (sleep_average, most) = (entry.sleep_average.unwrap_or_default().0, O1Config::SLEEP_AVERAGE_LIMIT);
    if sleep_average > most {
        return Err(format!("`sleep_average` is at most {most}, not {sleep_average}"));
    }
    Ok(TaskSpec { nice, sleep_average })
}

fn system_calls(entry: &LoadEntry, processes: u32) -> Result<Load, String> {
    let usual = Load::system_calls(processes);
    let Load::SystemCalls { run, wait, sleep, .. } = usual else { return Ok(usual) };
    let run = entry.run.map_or(run, |run| run.0);
    let wait = entry.wait.map_or(wait, |wait| wait.0);
    if run == Span::ZERO || wait == Span::ZERO {
        return Err("`run` and `wait` of system_calls must be above zero".to_owned());
    }
    let sleep = entry.sleep.map_or(sleep, |sleep| match sleep {
        SleepName::Interruptible => SleepKind::Interruptible,
        SleepName::Uninterruptible => SleepKind::Uninterruptible,
    });
    Ok(Load::SystemCalls { processes, run, wait, sleep })
}

fn slowdown(entry: &LoadEntry) -> Result<u32, String> {
    match entry.slowdown {
        None => Ok(SLOWDOWN),
        Some(factor) if (1.0..=1_000.0).contains(&factor) => Ok((factor * 1_000.0).round() as u32),
        Some(_) => Err("`slowdown` is a factor between 1 and 1000".to_owned()),
    }
}

/// Each process forwards the same number of packets.
fn forwarding(entry: &LoadEntry, processes: u32) -> Result<Load, String> {
    let (per_packet, burst, rate) = FORWARDED;
    let per_packet = entry.per_packet.map_or(per_packet, |span| span.0);
    let burst = entry.burst.unwrap_or(burst);
    if per_packet == Span::ZERO || burst == 0 {
        return Err("`per_packet` and `burst` of forwarding must be above zero".to_owned());
    }
    let rate = entry.packets_per_second.unwrap_or(rate);
    let packets_per_second = rate.saturating_mul(u64::from(processes));
    Ok(Load::Forwarding { packets_per_second, per_packet, burst })
}

fn generator(entry: &LoadEntry) -> Result<Load, String> {
    let usual = Load::of_paper();
    let Load::Generator { most, run, pause, inherited } = usual else { return Ok(usual) };
    let bounds =
        |bounds: Option<[Text<Span>; 2]>, usual| bounds.map_or(usual, |[least, most]| (least.0, most.0));
    let (run, pause) = (bounds(entry.runs, run), bounds(entry.pauses, pause));
    if run.0 > run.1 || pause.0 > pause.1 || run.0 == Span::ZERO {
        return Err("`runs` and `pauses` are the shortest and the longest; runs are above zero".to_owned());
    }
    Ok(Load::Generator { most: entry.processes.unwrap_or(most), run, pause, inherited })
}

fn suspension(entry: &LoadEntry) -> Result<Load, String> {
    match (entry.every, entry.stop) {
        (Some(every), Some(stop)) if Span::ZERO < stop.0 && stop.0 < every.0 => {
            Ok(Load::Suspension { every: every.0, stop: stop.0 })
        }
        _ => Err("a suspension needs `every`, and a shorter `stop` above zero".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Load, String> {
        load_of(&toml::from_str(text).unwrap())
    }

    #[test]
    fn costs_come_from_the_scenario_or_the_model() {
        let micros = Span::from_micros;
        assert_eq!(
            read("kind = 'forwarding'\nper_packet = '3us'\nburst = 8"),
            Ok(Load::Forwarding { packets_per_second: 100_000, per_packet: micros(3), burst: 8 })
        );
        assert_eq!(
            read("kind = 'forwarding'\nprocesses = 2\npackets_per_second = 5000"),
            Ok(Load::Forwarding { packets_per_second: 10_000, per_packet: micros(1), burst: 32 })
        );
        assert_eq!(
            read("kind = 'system_calls'\nprocesses = 2\nrun = '500us'\nsleep = 'interruptible'"),
            Ok(Load::SystemCalls {
                processes: 2,
                run: micros(500),
                wait: micros(1_000),
                sleep: SleepKind::Interruptible
            })
        );
        assert_eq!(
            read("kind = 'memory'\nslowdown = 1.5"),
            Ok(Load::Memory { processes: 1, slowdown_permille: 1_500 })
        );
        let Ok(Load::Generator { most, run, pause, .. }) =
            read("kind = 'generator'\nprocesses = 3\nruns = ['1s', '2s']")
        else {
            panic!("no generator");
        };
        let seconds = Span::from_secs;
        assert_eq!((most, run, pause), (3, (seconds(1), seconds(2)), (Span::ZERO, seconds(20))));
    }

    #[test]
    fn fields_of_other_kinds_and_invalid_values_are_refused() {
        let message = read("kind = 'computation'\nslowdown = 2.0").unwrap_err();
        assert_eq!(message, "`slowdown` is for loads of the kind `memory`");
        let message = |text| read(text).unwrap_err();
        assert_eq!(message("kind = 'computation'\nnice = 20"), "`nice` is between -20 and 19, not 20");
        assert_eq!(message("kind = 'computation'\nnice = -21"), "`nice` is between -20 and 19, not -21");
        assert!(
            message("kind = 'computation'\nsleep_average = '1001ms'")
                .contains("at most 1.000 s, not 1.001 s")
        );
        assert!(message("kind = 'memory'\nnice = 5").contains("`computation`"));
        assert!(read("kind = 'memory'\nslowdown = 0.5").is_err());
        assert!(read("kind = 'forwarding'\nburst = 0").is_err());
        assert!(read("kind = 'system_calls'\nwait = '0s'").is_err());
        assert!(read("kind = 'generator'\nruns = ['3s', '2s']").is_err());
        assert!(read("kind = 'suspension'\nevery = '1s'").is_err());
        assert!(read("kind = 'suspension'\nevery = '1s'\nstop = '1s'").is_err());
    }
}
