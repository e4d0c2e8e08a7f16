//! From the words on the command line to an exit code.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::sync::Arc;

use haul_base::printable_bytes;
use haul_wire::control::RunMode;
use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};

use crate::args::{Command, Global};
use crate::config::{RequestedOutput, Resolved, Sources, StartError, requested_output, resolve, table};
use crate::fault::{self, Fault, FaultCode};
use crate::output::{
    EventLog, ProgressStyle, RunReport, eprint_lines, eprint_verbatim, error_lines, escape_controls,
    item_lines, json_value, out, out_fields, out_json, out_verbatim, stdout_error, without_keys,
};
use crate::settings::{Preset, Settings, session_key};
use crate::signals::{self, Hangup, INTERRUPTED, ended_by_signals};
use crate::transfer::Context;
use crate::{commands, logging};

/// Runs the program with this process's arguments and environment.
pub fn main() -> ExitCode {
    raise_open_files();
    let argv: Vec<OsString> = std::env::args_os().collect();
    let mut code = start(&argv);
    if let (0, Some(why)) = (code, stdout_error()) {
        let message = format!("cannot write the result to stdout: {why}");
        let hint = "the operation itself succeeded; free space where stdout goes";
        eprint_lines(error_lines(&Fault::new(FaultCode::Io, message, hint)));
        code = FaultCode::Io.exit_code();
    }
    ExitCode::from(code)
}

/// Raises the soft limit on open files: up to 2,048 received files stay open until they are installed.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    // With a low limit, files are closed and opened again.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn start(argv: &[OsString]) -> u8 {
    let sources = Sources::of_process();
    let fault = match resolve(argv, &sources) {
        Ok(resolved) => {
            let failed = |fault| finish(&resolved, &RunReport::failed(fault), None);
            return dispatch(argv, &resolved).unwrap_or_else(failed);
        }
        Err(StartError::Clap(error)) if error.use_stderr() => print_clap_error(error, argv, &sources),
        Err(StartError::Clap(error)) => {
            // A reader that has gone is not a failure.
            let _ = error.print();
            return error.exit_code() as u8;
        }
        Err(StartError::Fault(fault)) => {
            eprint_lines(error_lines(&fault));
            fault
        }
    };
    let report = RunReport::failed(fault);
    print_object(&requested_output(argv, &sources), &report);
    report.exit_code()
}

/// Prints the report as JSON if requested: on stdout, or on stderr if stdout is for data.
fn print_object(output: &RequestedOutput, report: &RunReport) {
    if output.json {
        let json = escape_controls(&json_value(report).to_string());
        if output.is_stdout_for_data { eprint_verbatim(json) } else { out_verbatim(&json) }
    }
}

/// Prints clap's error, with control characters of arguments escaped: a shell may have expanded file names.
fn print_clap_error(error: clap::Error, argv: &[OsString], sources: &Sources) -> Fault {
    let shown: Vec<OsString> = argv.iter().map(|word| printable_bytes(word.as_bytes()).into()).collect();
    let error = match resolve(&shown, sources) {
        Err(StartError::Clap(shown_error)) => shown_error,
        _ => error,
    };
    let text = error.to_string();
    text.trim_end().lines().for_each(eprint_lines);
    let paragraph =
        text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    fault::usage(paragraph.trim_start_matches("error: "), "see --help")
}

fn dispatch(argv: &[OsString], resolved: &Resolved) -> Result<u8, Fault> {
    let Resolved { global, command, settings, rows, notes, .. } = resolved;
    logging::start(global)?;
    for note in notes.iter().filter(|_| !global.quiet) {
        eprint_lines(format_args!("note: {note}"));
    }
    let preset = Preset::find(resolved.preset.as_deref().unwrap_or_else(|| command.default_preset()))?;
    if global.show_config {
        let values = match command {
            Command::Pipe(_) if preset.carries_messages() => commands::pipe::settings(&preset, settings),
            _ => Settings::collect(&preset, settings),
        };
        let transfers = rows.iter().any(|row| row.key == "diagnosis_model");
        let of_recipe = if transfers { values?.rows(&preset, settings) } else { Vec::new() };
        let rows = [&rows[..], &of_recipe].concat();
        if global.json {
            out_json(&serde_json::json!(rows));
        } else {
            out(table(&rows));
        }
        return Ok(0);
    }
    Start { argv, preset, resolved }.run()
}

struct Start<'a> {
    argv: &'a [OsString],
    preset: Preset,
    resolved: &'a Resolved,
}

impl Start<'_> {
    fn run(&self) -> Result<u8, Fault> {
        let &Global { json, quiet, .. } = &self.resolved.global;
        match &self.resolved.command {
            Command::Ctl { copy, changes } => commands::ctl::run(copy.as_deref(), changes, json),
            Command::Presets { name } => commands::presets::run(name.as_deref(), json),
            Command::Diagnose { files, model } => commands::diagnose::run(files, model.as_deref(), json),
            Command::Train(args) => commands::train::run(args, json),
            Command::Completions { shell } => Ok(commands::completions::run(*shell)),
            Command::Man => Ok(commands::man::run()),
            Command::Status(args) => Ok(commands::status::run(args, quiet, json)),
            Command::Clean(args) => Ok(commands::clean::run(args, quiet, json)),
            Command::Pipe(args) => self.with_report(|context| Ok(commands::pipe::run(context, args))),
            Command::Cp(args) if args.ssh.for_ssh => {
                hide_memory();
                commands::agent::run()
            }
            Command::Cp(args) => {
                commands::cp::check_streams(&args.paths, &self.resolved.typed, args.transfer.dry_run)?;
                if args.transfer.dry_run {
                    return self.in_context(|context| commands::cp::dry_run(context, args));
                }
                self.with_report(|context| commands::cp::run(context, args))
            }
            Command::Bench(args) if args.transfer.dry_run => self.in_context(|context| {
                let plan = commands::bench::plan(context, args)?;
                if json {
                    out_fields(plan.value(), None);
                } else {
                    out(&plan);
                }
                Ok(0)
            }),
            Command::Bench(args) => self.with_report(|context| commands::bench::run(context, args)),
            Command::Demo(args) => {
                // Entering a user namespace takes a process with one thread, whose files in /proc are not
                // hidden.
                let namespaces = commands::demo::acquire_namespaces();
                self.with_report(|context| Ok(commands::demo::run(context, args, &namespaces)))
            }
            Command::Serve(args) => self.in_context(|context| commands::serve::run(context, args)),
            Command::Doctor(args) => self.in_context(|context| commands::doctor::run(context, args)),
            Command::DemoReceiver { ip } => self.in_context(|context| commands::demo::receiver(context, *ip)),
        }
    }

    fn in_context(&self, run: impl FnOnce(&Context) -> Result<u8, Fault>) -> Result<u8, Fault> {
        hide_memory();
        let context = ended_by_signals(|| self.context())?;
        let result = run(&context);
        match context.events.finish() {
            Err(lost) if result == Ok(0) => return Err(lost),
            Err(lost) => context.inform(lost.message),
            Ok(()) => {}
        }
        result
    }

    fn with_report(&self, run: impl FnOnce(&Context) -> Result<RunReport, Fault>) -> Result<u8, Fault> {
        self.in_context(|context| {
            let mut report = run(context).unwrap_or_else(|fault| context.failed(fault));
            context.add_trace_error(&mut report);
            // A detached copy continues on the other machine; the data of a stream is lost.
            let is_final = match &self.resolved.command {
                Command::Cp(args) => args.ssh.detach || commands::cp::is_stream(&args.paths),
                command => matches!(command, Command::Pipe(_)),
            };
            Ok(finish(self.resolved, &report, Some(self.argv).filter(|_| !is_final)))
        })
    }

    fn context(&self) -> Result<Context, Fault> {
        let Resolved { global, command, diagnosis_model, events, settings, typed, .. } = self.resolved;
        // A server started over ssh needs ssh only until its session is established.
        let is_for_ssh = matches!(command, Command::Serve(args) if args.for_ssh);
        let cancel = signals::watch(if is_for_ssh { Hangup::Ignores } else { Hangup::Stops })?;
        let session_settings = match command {
            // A server only checks that its settings exist; clients also build the stack.
            Command::Serve(_) => Settings::collect(&self.preset, settings)?,
            Command::Pipe(args) if args.listen.is_some() => self.preset.settings()?,
            Command::Pipe(_) => commands::pipe::settings(&self.preset, settings)?,
            _ => Settings::build(&self.preset, settings)?,
        };
        let mut quiet = Context::quiet(session_settings, command.transfer(), cancel);
        let (is_verbose, is_quiet) = (global.verbose > 0, global.quiet || global.json);
        let on_item = match &mut quiet.transfer.receive_policy.run {
            RunMode::ListChanges => Some(item_lines(is_verbose, out)),
            run if is_verbose && !is_quiet => {
                *run = RunMode::Verbose;
                Some(item_lines(false, eprint_lines))
            }
            _ => None,
        };
        let model = diagnosis_model.as_deref().map(commands::diagnose::model_in).transpose()?;
        Ok(Context {
            on_item,
            loss_model: model.map(Arc::new),
            events: EventLog::open(events.as_deref(), use_of_stdout(global, command))?,
            style: ProgressStyle::choose(global),
            quiet: is_quiet,
            json: global.json,
            named: settings.iter().map(|set| session_key(&set.key).to_owned()).collect(),
            typed: typed.clone(),
            ..quiet
        })
    }
}

/// Returns what uses stdout, which is then not free for `--events -`.
fn use_of_stdout(global: &Global, command: &Command) -> Option<&'static str> {
    match command {
        Command::Pipe(args) if args.writes_stdout() => Some("the data"),
        _ if global.json => Some("--json"),
        Command::Cp(args) if args.transfer.dry_run => Some("--dry-run"),
        Command::Bench(args) if args.transfer.dry_run => Some("--dry-run"),
        Command::Cp(args) if args.paths.last().is_some_and(|path| path == "-") => Some("the destination -"),
        _ => None,
    }
}

/// Hides this process's secrets from debuggers and core dumps (`PR_SET_DUMPABLE(2const)`).
fn hide_memory() {
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

fn finish(resolved: &Resolved, report: &RunReport, argv: Option<&[OsString]>) -> u8 {
    let (Resolved { global, command, .. }, code) = (resolved, report.exit_code());
    // A pipe has printed its summary.
    let is_quiet = global.quiet || global.json || matches!(command, Command::Pipe(_));
    eprint_lines(if is_quiet { report.problems() } else { report.into() });
    let is_stdout_for_data = matches!(command, Command::Pipe(args) if args.writes_stdout());
    print_object(&RequestedOutput { json: global.json, is_stdout_for_data }, report);
    if let Some(argv) = argv.filter(|_| code == INTERRUPTED) {
        let command = signals::command_line(argv);
        let has_no_key = without_keys(&command) == command;
        let suffix = if has_no_key { "" } else { " (with the URL's key, or @FILE in place of the URL)" };
        eprint_lines(format_args!("Run it again with: {command}{suffix}"));
    }
    code
}
