//! From the words on the command line to an exit code.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::CommandFactory;
use haul_base::printable_bytes;
use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};

use crate::args::{Cli, Command, Global, RecipeArgs};
use crate::commands;
use crate::config::{ConfigRow, Resolved, Setting, Show, Sources, StartError, resolve};
use crate::demo::Namespaces;
use crate::fault::{self, Fault, FaultCode, shown};
use crate::logging;
use crate::output::{
    EventLog, ItemStyle, Items, Lines, ProgressStyle, RunReport, Summary, json, out, out_json, out_verbatim,
    tell, without_keys,
};
use crate::settings::{Preset, Recipe};
use crate::signals::{self, Hangup, INTERRUPTED};
use crate::transfer::context::Context;
use crate::transfer::facts::Cpu;
use crate::transfer::plan::DryRun;

/// Runs the program with this process's arguments and environment.
pub fn main() -> ExitCode {
    raise_open_files();
    let argv: Vec<OsString> = std::env::args_os().collect();
    ExitCode::from(start(&argv))
}

/// Raises the limit on open files to what this process may have: small files are committed by the thousand.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    // Without it, files are closed and opened again.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn start(argv: &[OsString]) -> u8 {
    let wants_json = || argv.iter().take_while(|word| *word != "--").any(|word| word == "--json");
    match resolve(argv, &Sources::of_process()) {
        Ok(resolved) => {
            let global = resolved.global.clone();
            act(argv, resolved).unwrap_or_else(|fault| fail(&global, fault))
        }
        Err(StartError::Clap(error)) => {
            let code = error.exit_code() as u8;
            if error.use_stderr() {
                not_understood(error, argv, wants_json());
            } else {
                // Help that nobody reads any more is no failure.
                let _ = error.print();
            }
            code
        }
        Err(StartError::Fault(fault)) => fail(&Global { json: wants_json(), ..Global::default() }, fault),
    }
}

/// Says what is wrong with the words of the command line, whatever they hold: a shell may have put names of files there,
/// and clap puts them among lines of its own.
fn not_understood(error: clap::Error, argv: &[OsString], wants_json: bool) {
    let shown: Vec<OsString> = argv.iter().map(|word| printable_bytes(word.as_bytes()).into()).collect();
    let error = match resolve(&shown, &Sources::of_process()) {
        Err(StartError::Clap(again)) => again,
        _ => error,
    };
    let text = error.to_string();
    let mut lines = Lines::default();
    text.trim_end().lines().for_each(|line| lines.push(line));
    tell(lines);
    if wants_json {
        let message = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        out_json(&json(&RunReport::failed(fault::usage(message, "see --help"))));
    }
}

/// Reports a run that failed before it began.
fn fail(global: &Global, fault: Fault) -> u8 {
    finish(global, &RunReport::failed(fault), None)
}

fn act(argv: &[OsString], resolved: Resolved) -> Result<u8, Fault> {
    logging::start(&resolved.global)?;
    let Resolved { global, command, settings, mut rows, words, typed, notes } = resolved;
    for note in notes.iter().filter(|_| !global.quiet) {
        tell(format_args!("note: {note}"));
    }
    let preset = preset(&command.recipe())?;
    if global.show_config {
        let recipe = Recipe::collect(&preset, &settings)?;
        rows.extend(recipe.rows());
        show_config(&global, &rows);
        return Ok(0);
    }
    match &command {
        Command::Ctl(args) => return commands::ctl::run(args, global.json),
        Command::Presets(args) => return commands::presets::run(args, global.json),
        Command::Diagnose(args) => return commands::diagnose::run(args, global.json),
        Command::Train(args) => return commands::train::run(args, global.json),
        Command::Completions(args) => return Ok(completions(args.shell)),
        Command::Man => return man(),
        Command::Pipe(args) => {
            hide_memory();
            return commands::pipe::run(args, global.quiet, global.json);
        }
        Command::Status(args) => return Ok(commands::leftovers::status(args, global.quiet, global.json)),
        Command::Clean(args) => return Ok(commands::leftovers::clean(args, global.quiet, global.json)),
        Command::Cp(args) if args.ssh.for_ssh => {
            hide_memory();
            return commands::agent::run();
        }
        Command::Cp(args) => commands::cp::check_streams(&args.paths, &typed)?,
        // The others move data.
        _ => {}
    }
    // Before anything starts a thread, and while this process may be looked into: it may enter a user namespace.
    let namespaces = match command {
        Command::Demo(_) => Namespaces::acquire(),
        _ => Namespaces::Impossible("only the demo asks for them".to_owned()),
    };
    hide_memory();
    let context = context(&global, &command, &preset, &settings, words)?;
    run(argv, &global, &command, &context, &namespaces)
}

/// What a command that moves data works with.
fn context(
    global: &Global,
    command: &Command,
    preset: &Preset,
    settings: &[Setting],
    options: Vec<(String, OsString)>,
) -> Result<Context, Fault> {
    let items = ItemStyle::choose(global, command);
    let quiet = Context::quiet(command, preset, settings, signals::watch(hangup(command))?)?;
    Ok(Context {
        receive_policy: items.receive_policy(command.receive_policy()),
        items: Items::new(items),
        events: events(command)?,
        style: ProgressStyle::choose(global),
        quiet: global.quiet || global.json,
        json: global.json,
        options,
        ..quiet
    })
}

/// Keeps other programs of the same user from this process's memory, which holds secrets, and its core from being
/// written (`PR_SET_DUMPABLE(2const)`). Programs that it starts are not affected.
fn hide_memory() {
    // Where the system refuses, it is as without it.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// A server that ssh has started needs ssh only until its session stands.
fn hangup(command: &Command) -> Hangup {
    match command {
        Command::Serve(args) if args.for_ssh => Hangup::PassesBy,
        _ => Hangup::Stops,
    }
}

fn run(
    argv: &[OsString],
    global: &Global,
    command: &Command,
    context: &Context,
    namespaces: &Namespaces,
) -> Result<u8, Fault> {
    let report = match command {
        Command::Cp(args) if args.transfer.dry_run => return commands::cp::dry_run(context, args),
        Command::Bench(args) if args.transfer.dry_run => {
            return Ok(plan(global, &commands::bench::plan(context, args)?));
        }
        Command::Cp(args) => commands::cp::run(context, args),
        Command::Bench(args) => commands::bench::run(context, args, Cpu::ALL),
        Command::Demo(args) => commands::demo::run(context, args, namespaces),
        Command::Serve(args) => return commands::serve::run(context, args),
        Command::Doctor(args) => return commands::doctor::run(context, args),
        Command::DemoReceiver { ip } => return commands::demo::receiver(context, *ip),
        // The others have been run already.
        _ => return Ok(0),
    };
    // What goes on elsewhere is not to be run again.
    let goes_on = matches!(command, Command::Cp(args) if args.ssh.detach);
    let code = finish(global, &report, Some(argv).filter(|_| !goes_on));
    context.events.finish()?;
    Ok(code)
}

/// Prints the outcome and gives the exit code.
fn finish(global: &Global, report: &RunReport, argv: Option<&[OsString]>) -> u8 {
    let code = report.exit_code();
    if global.json {
        out_json(&json(report));
    }
    if global.quiet || global.json {
        tell(Summary(report).failures());
        if let Some(error) = &report.error {
            tell(shown(error));
        }
    } else {
        tell(Summary(report));
    }
    if let Some(argv) = argv.filter(|_| code == INTERRUPTED) {
        let command = signals::command_line(argv);
        let is_whole = without_keys(&command) == command;
        let rest = if is_whole { "" } else { " (with the URL's key, or @FILE in place of the URL)" };
        tell(format_args!("Run it again with: {command}{rest}"));
    }
    code
}

fn plan(global: &Global, plan: &DryRun) -> u8 {
    if global.json {
        out_json(&plan.json());
    } else {
        out(plan);
    }
    0
}

fn preset(recipe: &RecipeArgs) -> Result<Preset, Fault> {
    recipe.preset.as_deref().map_or_else(|| Ok(Preset::default_preset()), Preset::find)
}

fn events(command: &Command) -> Result<EventLog, Fault> {
    let path = match command {
        Command::Cp(args) => args.transfer.events.as_deref(),
        Command::Bench(args) => args.transfer.events.as_deref(),
        Command::Demo(args) => args.events.as_deref(),
        _ => None,
    };
    path.map_or_else(|| Ok(EventLog::none()), EventLog::create)
}

fn show_config(global: &Global, rows: &[ConfigRow]) {
    if global.json {
        out_json(&serde_json::to_string(rows).expect("texts always have a JSON form"));
    } else {
        out(Show(rows));
    }
}

fn completions(shell: clap_complete::Shell) -> u8 {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "haul", &mut script);
    out_verbatim(String::from_utf8_lossy(&script).trim_end());
    0
}

/// One page: the program, then each command.
fn man() -> Result<u8, Fault> {
    let problem = |e: std::io::Error| Fault::new(FaultCode::Internal, format!("no manual page: {e}"), "");
    let mut page = Vec::new();
    let mut command = Cli::command();
    command.build();
    clap_mangen::Man::new(command.clone()).render(&mut page).map_err(problem)?;
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let man = clap_mangen::Man::new(sub.clone());
        writeln!(page, ".SH \"HAUL {}\"", sub.get_name().to_uppercase()).map_err(problem)?;
        man.render_synopsis_section(&mut page).map_err(problem)?;
        man.render_description_section(&mut page).map_err(problem)?;
        man.render_options_section(&mut page).map_err(problem)?;
    }
    out_verbatim(String::from_utf8_lossy(&page).trim_end());
    Ok(0)
}
