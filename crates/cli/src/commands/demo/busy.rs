//! `haul demo --busy-receiver`: shows the value of knowing why packets are lost. Sends memory twice, with a
//! law that acts on the verdict and with one that does not, to a process that has the socket buffer of an
//! untuned host and is suspended periodically, so that its kernel drops what arrives meanwhile.

use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use haul_base::{Bytes, Rate, Span};
use haul_engine::{HaulUrl, Listener, Role};
use haul_wire::control::Fault;
use haulage::config::RateControlConfig;
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

use super::path::{EmulatedPath, Namespaces, row, show_counts, start};
use crate::args::{BenchArgs, DemoArgs};
use crate::commands::bench;
use crate::output::{RunReport, json_value, out_url};
use crate::transfer::{Context, Cpu, Policy, answer, next_client};
use crate::{endpoint, fault};

/// Linux's default of `net.core.rmem_max`.
const UNTUNED_BUFFER: Bytes = Bytes(208 << 10);
/// Time that the receiver runs between two suspensions.
const RUN_TIME: Duration = Duration::from_millis(900);
const SUSPENSION_TIME: Duration = Duration::from_millis(100);
/// Default ceiling, as a share of the path's rate (1 if unlimited): a law that fills it would lose packets too.
const SHARE: f64 = 2.0 / 3.0;

/// Returns the report of the run that acts on the verdict; if it succeeded, with the report of the other run.
pub(super) fn busy(context: &Context, args: &DemoArgs, namespaces: &Namespaces) -> Result<RunReport, Fault> {
    let spec = &args.emulated;
    let path = start(context, spec, namespaces)?;
    let share = if context.named.iter().any(|name| name == "rate") { 1.0 } else { SHARE };
    let ceiling = context.settings.rate().unwrap_or_else(|| spec.path_rate.mul_f64(share));
    context.inform(format!(
        "Host:  the receiver is suspended for {} ms of each second, its socket buffer holds 208 KiB; at most {ceiling} are sent",
        SUSPENSION_TIME.as_millis()
    ));
    context.inform("Now with the verdict");
    let mut with_verdict = send(&context_with_law(context, ceiling, true)?, &path, args.time)?;
    if !with_verdict.is_ok() {
        return Ok(with_verdict);
    }
    context.inform("Now without");
    let path = EmulatedPath::start(spec, namespaces)?;
    let without_verdict = send(&context_with_law(context, ceiling, false)?, &path, args.time)?;
    context.inform("To the busy receiver:     goodput        share of the ceiling");
    for (label, report) in [("with the verdict", &with_verdict), ("without", &without_verdict)] {
        let lost = report.loss_summary().map_or_else(String::new, |lost| format!("  {lost}"));
        context.inform(row(label, report.goodput, ceiling, &lost));
    }
    with_verdict.error.clone_from(&without_verdict.error);
    with_verdict.compared = Some(("without_verdict", json_value(&without_verdict)));
    Ok(with_verdict)
}

/// Sends memory for `time` (default: that of `haul bench`) to a receiver that is suspended periodically.
fn send(context: &Context, path: &EmulatedPath, time: Option<Span>) -> Result<RunReport, Fault> {
    let report = path.at(Role::Server, || {
        // The kernel kills the receiver when the thread that started it ends.
        let (receiver, url) = Receiver::start(path.server_ip())?;
        path.at(Role::Client, || {
            let address = path.address_of((path.server_ip(), url.port).into())?;
            let url = HaulUrl { host: address.ip().to_string(), port: address.port(), ..url };
            let args = BenchArgs { url: Some(url.to_string().into()), time, ..BenchArgs::default() };
            receiver.suspended(|| bench::run(context, &args))
        })
    })?;
    show_counts(context, path)?;
    Ok(report)
}

struct Receiver(Child);

impl Drop for Receiver {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Receiver {
    fn start(ip: Ipv4Addr) -> Result<(Self, HaulUrl), Fault> {
        let failed = |error| fault::io("cannot start the receiver", &error);
        let mut command = Command::new("/proc/self/exe");
        command
            .args(["--quiet", "demo-receiver", &ip.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut receiver = Self(command.spawn().map_err(failed)?);
        let mut line = String::new();
        if let Some(output) = receiver.0.stdout.take() {
            BufReader::new(output).read_line(&mut line).map_err(failed)?;
        }
        Ok((receiver, endpoint::parse_url(line.trim())?))
    }

    /// Runs `work` while the process is suspended periodically.
    fn suspended<T>(&self, work: impl FnOnce() -> T) -> T {
        let process = Pid::from_child(&self.0);
        let (running, stop) = channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                while stop.recv_timeout(RUN_TIME) == Err(RecvTimeoutError::Timeout) {
                    // Until the child is waited for, no other process can have its ID.
                    let _ = kill_process(process, Signal::STOP);
                    thread::sleep(SUSPENSION_TIME);
                    let _ = kill_process(process, Signal::CONT);
                }
            });
            let result = work();
            drop(running);
            result
        })
    }
}

/// Returns `context` with an untuned host's buffer, and a law with this ceiling that `is_cause_aware` or not.
fn context_with_law(context: &Context, ceiling: Rate, is_cause_aware: bool) -> Result<Context, Fault> {
    let mut context = Context { cpu: Cpu::DataThread, ..context.clone() };
    let set_law = |law: &mut RateControlConfig| (law.rate, law.cause_aware) = (ceiling, is_cause_aware);
    context.settings.recipe.change(set_law).map_err(fault::of)?;
    context.settings.socket_buffer = UNTUNED_BUFFER;
    Ok(context)
}

/// Runs the hidden command: prints its URL and serves one client after the other until it is stopped.
pub(crate) fn receiver(context: &Context, ip: Ipv4Addr) -> Result<u8, Fault> {
    // A suspended process cannot notice by itself that its parent has ended.
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|e| fault::io("cannot request a signal at the parent's exit", &e.into()))?;
    let policy = Policy::for_local_copy(context);
    let listener = Listener::bind(policy.listen_options((ip, 0).into())).map_err(fault::of)?;
    out_url(&listener.url(&ip.to_string(), b""));
    while let Some(incoming) = next_client(&listener, || context.cancel.is_requested()) {
        answer(incoming, &policy, &policy.context);
    }
    Ok(0)
}
