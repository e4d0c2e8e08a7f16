//! Tests of the loads on a core without a receiver.

use super::super::scheduler::{O1Config, SchedulerKind};
use super::*;

struct Bench {
    cpu: Cpu,
    loads: LoadSet,
}

impl Bench {
    fn new(seed: u64) -> Self {
        let cpu = Cpu::new(SchedulerKind::O1(O1Config::default()), Time::ZERO);
        Self { cpu, loads: LoadSet::new(seed) }
    }

    fn run(&mut self, until: Time, mut look: impl FnMut(Time, usize)) {
        loop {
            let finished = self.cpu.finished().map(|_| self.cpu.now());
            let next = [finished, self.cpu.next_event(), self.loads.next_event()].into_iter().flatten().min();
            let Some(at) = next.filter(|&at| at <= until) else { break };
            self.cpu.advance(at);
            if self.loads.next_event().is_some_and(|alarm| alarm <= at) {
                self.loads.fire(&mut self.cpu);
                look(at, self.loads.processes());
            } else if let Some(task) = self.cpu.finished() {
                self.loads.step(&mut self.cpu, task);
            }
        }
        self.cpu.advance(until);
    }
}

#[test]
fn the_papers_generator_respects_its_bounds() {
    let mut bench = Bench::new(11);
    bench.loads.start(&mut bench.cpu, Load::of_paper());
    let mut changes: Vec<(f64, usize)> = Vec::new();
    bench.run(Time::ZERO + Span::from_secs(20_000), |at, n| {
        changes.push((at.since(Time::ZERO).as_secs_f64(), n));
    });
    // Phases alternate: running with n processes, pausing with none.
    let mut counts = [0u32; 8];
    let (mut runs, mut pauses) = (Vec::new(), Vec::new());
    for (index, pair) in changes.windows(2).enumerate() {
        let length = pair[1].0 - pair[0].0;
        if index % 2 == 0 {
            counts[pair[0].1] += 1;
            assert!((1.0..=7.0).contains(&length), "{length} s");
            runs.push(length);
        } else {
            assert_eq!(pair[0].1, 0);
            assert!((0.0..=20.0).contains(&length), "{length} s");
            pauses.push(length);
        }
    }
    let mean = |lengths: &[f64]| lengths.iter().sum::<f64>() / lengths.len() as f64;
    // Means of 4 and 10 s within four standard errors at 1,400 phases.
    assert!((mean(&runs) - 4.0).abs() < 0.2 && (mean(&pauses) - 10.0).abs() < 0.65, "{:?}", mean(&pauses));
    let expected = runs.len() as u32 / 8;
    assert!(counts.iter().all(|&count| count.abs_diff(expected) < expected / 3), "{counts:?}");
}

#[test]
fn forwarding_takes_its_exact_share() {
    let mut bench = Bench::new(1);
    let load = Load::Forwarding { packets_per_second: 300_000, per_packet: Span::from_micros(1), burst: 64 };
    bench.loads.start(&mut bench.cpu, load);
    bench.loads.start(&mut bench.cpu, Load::Computation { processes: 1, spec: TaskSpec::default() });
    let end = Time::ZERO + Span::from_secs(1);
    bench.run(end, |_, _| {});
    // 4,687 full bursts per second.
    assert_eq!(bench.cpu.softirq_time(), Span::from_micros(4_687 * 64));
    let stolen = bench.cpu.stolen_time();
    assert!(stolen <= bench.cpu.softirq_time() && stolen >= Span::from_micros(4_686 * 64));
}

#[test]
fn system_calls_alternate_between_running_and_waiting() {
    let mut bench = Bench::new(5);
    bench.loads.start(&mut bench.cpu, Load::system_calls(1));
    let end = Time::ZERO + Span::from_secs(30);
    bench.run(end, |_, _| {});
    // 2 ms of work and 1 ms of waiting, alone on the core.
    let share = bench.cpu.scheduler().ledger().run_time(TaskId(0), end).as_secs_f64() / 30.0;
    assert!((share - 2.0 / 3.0).abs() < 0.01, "{share}");
}

#[test]
fn a_stopped_load_has_no_effect() {
    let mut bench = Bench::new(5);
    let ids =
        [Load::system_calls(3), Load::of_paper(), Load::Memory { processes: 2, slowdown_permille: 1_400 }]
            .map(|load| bench.loads.start(&mut bench.cpu, load));
    assert_eq!(bench.loads.slowdown_permille(), 1_400);
    bench.run(Time::ZERO + Span::from_secs(3), |_, _| {});
    for id in ids {
        bench.loads.stop(&mut bench.cpu, id);
    }
    assert_eq!((bench.loads.processes(), bench.loads.slowdown_permille()), (0, 1_000));
    let before = bench.cpu.scheduler().ledger().idle_time(bench.cpu.now());
    let end = Time::ZERO + Span::from_secs(33);
    bench.run(end, |_, n| assert_eq!(n, 0));
    assert_eq!(bench.cpu.scheduler().ledger().idle_time(end), before + Span::from_secs(30));
}
