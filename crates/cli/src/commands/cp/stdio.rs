//! `haul cp - URL` and `haul cp URL... -`: copies stdin to a file, or files to stdout.

use std::ffi::OsString;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use haul_engine::HaulUrl;
use haul_mover::{SendLimits, copies_content, receive_to, send_stream};
use haul_wire::control::{
    BenchLimit, Fault, FaultCode, HardLinks, Preserve, ReceivePolicy, Request, Selection,
};
use serde_json::json;

use crate::args::{CpArgs, SshArgs};
use crate::config::heading_in_cp;
use crate::fault::{if_lost, usage};
use crate::output::{RunReport, without_keys, write_stdout};
use crate::ssh::Permit;
use crate::standard_streams::{check_stdin, check_stdout};
use crate::transfer::{Context, CopyPlan, at_server, by_ssh, drive, selection, with_session};

const STDIO: &str = "-";
const RESTART_HINT: &str = "start the whole pipe again: a stream cannot be resumed";

/// Copies from stdin or to stdout; `None` if no path is `-`. A file named `-` is written `./-`.
pub(crate) fn run(context: &Context, args: &CpArgs) -> Option<RunReport> {
    let (sources, out) = split(&args.paths)?;
    Some(context.traced(json!({ "actions": actions(&args.paths) }), || {
        if args.ssh.detach {
            return Err(by_ssh::not_detached());
        }
        let (report, storage) = if out {
            (to_stdout(context, sources, args), "receiver_storage")
        } else {
            (from_stdin(context, &args.paths, &args.ssh), "sender_storage")
        };
        let mut report = report.unwrap_or_else(|fault| context.failed(fault));
        if let Some(fault) = report.error.as_mut().filter(|fault| fault.code == FaultCode::Interrupted) {
            RESTART_HINT.clone_into(&mut fault.hint);
        }
        report.error = report.error.map(|fault| if_lost(fault, RESTART_HINT));
        Ok(report.of_application(&[storage]))
    }))
}

fn actions(words: &[OsString]) -> Vec<String> {
    let Some((to, from)) = words.split_last() else { return Vec::new() };
    let shown = |word: &OsString, stream: &str| {
        if word == STDIO { stream.to_owned() } else { without_keys(&word.to_string_lossy()) }
    };
    from.iter().map(|from| format!("copy {} to {}", shown(from, "stdin"), shown(to, "stdout"))).collect()
}

/// Rejects `typed` options that do not apply to stdin or stdout; configured ones are for copies of files.
pub(crate) fn check_options(words: &[OsString], typed: &[String], dry_run: bool) -> Result<(), Fault> {
    let Some((_, out)) = split(words) else { return Ok(()) };
    let name = if out { "stdout" } else { "stdin" };
    // Stdin is one file without a name or a length; the files for stdout can be selected.
    let is_inapplicable = |option: &&String| match heading_in_cp(option).as_str() {
        "Existing files" | "Preserved attributes" => {
            !out || !["growing", "no-hard-links"].contains(&option.as_str())
        }
        "Selecting files" => !out,
        _ => *option == "verify",
    };
    match typed.iter().find(is_inapplicable) {
        Some(option) => Err(usage(format!("--{option} does not apply to {name}"), "leave it out")),
        // A stream cannot be examined without consuming it.
        None if dry_run => Err(usage("--dry-run is not possible with stdin or stdout", "leave it out")),
        None => Ok(()),
    }
}

pub(crate) fn is_stream(words: &[OsString]) -> bool {
    split(words).is_some()
}

/// Returns the sources, and whether they go to stdout; `None` if no path is `-`.
fn split(words: &[OsString]) -> Option<(&[OsString], bool)> {
    let (destination, sources) = words.split_last()?;
    let out = destination == STDIO;
    (out || sources.iter().any(|word| word == STDIO)).then_some((sources, out))
}

fn from_stdin(context: &Context, words: &[OsString], ssh: &SshArgs) -> Result<RunReport, Fault> {
    let [_, destination] = words else {
        return Err(usage("stdin must be the only source and goes to one file", "haul cp - DST"));
    };
    check_stdin()?;
    context.check_loss_model(true)?;
    // The source's name is a placeholder for stdin.
    let plan = CopyPlan::parse(&["./-".into(), destination.clone()])?;
    if plan.path.ends_with(b"/") || copies_content(&plan.path) {
        return Err(usage("data from stdin needs a file name", "end the destination with a name"));
    }
    let (destination, durability) = (plan.path, context.transfer.receive_policy.durability);
    let permit = Permit::PutStream(destination.clone(), durability);
    at_server(context, ssh, &plan.to, &permit, |context, url| {
        let request = Request::PutStream { destination, durability };
        with_session(context, &url, (request, BenchLimit::Unlimited), |session, sides| {
            let begin = |link, _| send_stream(Box::new(io::stdin()), link, SendLimits::default());
            drive::send(session, sides, begin)
        })
    })
}

fn to_stdout(context: &Context, sources: &[OsString], args: &CpArgs) -> Result<RunReport, Fault> {
    if context.json {
        return Err(usage(
            "--json and the destination - both mean stdout",
            "leave out --json, or name a file",
        ));
    }
    if sources.iter().any(|word| word == STDIO) {
        return Err(usage("stdin to stdout is what cat does", "use cat, or haul pipe"));
    }
    check_stdout()?;
    let words = [sources, &[".".into()]].concat();
    let plan = CopyPlan::parse(&words)?;
    context.check_loss_model(plan.is_sent_from_here())?;
    let chosen = selection(&args.select, plan.count())?;
    let [(from, sources)] = plan.sources.as_slice() else {
        return Err(usage(
            "stdout accepts files of one machine only",
            "use a separate command for each machine",
        ));
    };
    at_server(context, &args.ssh, from, &Permit::Get(sources.clone()), |context, url| {
        receive(context, &url, sources.clone(), chosen)
    })
}

fn receive(context: &Context, from: &HaulUrl, sources: Vec<Vec<u8>>, selection: Selection) -> RunReport {
    let request = Request::Get {
        sources,
        selection,
        growth: context.transfer.growth,
        run: context.transfer.receive_policy.run,
        // The contents of a file with several names are written once for each.
        preserve: Preserve { hard_links: HardLinks::Copy, ..context.transfer.preserve },
    };
    let is_reader_gone = Arc::new(AtomicBool::new(false));
    let output = Output(is_reader_gone.clone());
    let mut report = with_session(context, from, (request, BenchLimit::Unlimited), |session, sides| {
        let begin = |link, options| receive_to(Box::new(output), link, options);
        drive::receive(session, sides, ReceivePolicy::default(), begin)
    });
    if is_reader_gone.load(Ordering::Relaxed) && !context.cancel.is_requested() {
        // A reader that closes the pipe has read enough, as with cat.
        report.error = None;
    }
    report
}

/// Stdout; sets the flag when its reader has closed it.
struct Output(Arc<AtomicBool>);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if write_stdout(bytes)? {
            self.0.store(true, Ordering::Relaxed);
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dash_alone_is_stdin_or_stdout() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let is_stdout = |line: &str| split(&words(line)).map(|(_, out)| out);
        assert_eq!(is_stdout("a b -"), Some(true));
        assert_eq!(is_stdout("- b"), Some(false));
        assert_eq!(is_stdout("./- b"), None);
        assert_eq!(is_stdout("a ./-"), None);
    }
}
