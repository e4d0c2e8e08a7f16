//! The command line as clap sees it. This is the one definition from which help, man page, completions, the
//! configuration file's keys and the names of the environment variables all follow.

mod files;
mod help;
mod select;
mod ssh;
mod tip;
mod values;

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::builder::ArgPredicate;
use clap::{ArgAction, Args, Parser, Subcommand};
use haul_base::{Bytes, Probability, Rate, Span};
use haul_diagnosis::PAPERS_WORD;
use haul_wire::control::{Durability, Growth, Preserve, ReceivePolicy, RunMode};
use serde::{Deserialize, Serialize};

pub(crate) use files::{PreserveArgs, Preserved, StorageArgs, SyncArgs};
#[cfg(test)]
pub(crate) use select::RuleArgs;
pub(crate) use select::{RuleArg, SelectArgs};
pub(crate) use ssh::{PortRange, SshArgs};
pub(crate) use tip::with_tip;
pub(crate) use values::Assignment;

/// Moves files fast over long networks, and says what limited it.
#[derive(Debug, Clone, Parser)]
#[command(name = "haul", version, max_term_width = 100, after_help = help::EXAMPLES, arg_required_else_help = true)]
#[command(disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub global: Global,
    /// What to do; none is allowed only with `--show-config`.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// Options that every command takes.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "General options")]
pub(crate) struct Global {
    /// Say more on stderr (-v what happens, -vv also why, -vvv everything)
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
    /// Print nothing but errors, failed files and the result asked for
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Print one JSON object as the result, on stdout
    #[arg(long, global = true)]
    pub json: bool,
    /// Print every setting, its value and where it came from, and do nothing else
    #[arg(long, global = true)]
    pub show_config: bool,
}

/// What `haul` can do.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Command {
    /// Copy files and directories, in either direction
    #[command(after_help = help::CP, override_usage = "haul cp [OPTIONS] SRC... DST")]
    Cp(Box<CpArgs>),
    /// Offer a directory to others and print the URL that lets them in
    #[command(after_help = help::SERVE)]
    Serve(ServeArgs),
    /// Measure a path, memory to memory, without files
    #[command(after_help = help::BENCH, override_usage = "haul bench [OPTIONS] URL")]
    Bench(BenchArgs),
    /// Carry stdin of one machine to stdout of another, with any preset
    #[command(after_help = help::PIPE, override_usage = "haul pipe [OPTIONS] URL\n       haul pipe [OPTIONS] --listen [ADDR:PORT]")]
    Pipe(PipeArgs),
    /// Show what transfers that were cut off have left behind, and what of it can be resumed
    #[command(after_help = help::STATUS)]
    Status(PlaceArgs),
    /// Remove what transfers that were cut off have left behind
    #[command(after_help = help::CLEAN)]
    Clean(CleanArgs),
    /// List the copies that run on this machine, look at one, or change how it sends
    #[command(after_help = help::CTL, override_usage = "haul ctl [PID [KEY=VALUE]...]")]
    Ctl(CtlArgs),
    /// List the presets, or print one as a recipe
    #[command(after_help = help::PRESETS)]
    Presets(PresetsArgs),
    /// Tell from the pattern of lost packets why they were lost
    #[command(after_help = help::DIAGNOSE)]
    Diagnose(DiagnoseArgs),
    /// Fit the diagnosis to signatures of which the cause is known
    #[command(after_help = help::TRAIN)]
    Train(TrainArgs),
    /// Say what on this machine, and on the path to another, limits a transfer, and what to do about it
    #[command(after_help = help::DOCTOR)]
    Doctor(DoctorArgs),
    /// Show the whole job on this machine: a receiver, an emulated long path, a verified copy
    #[command(after_help = help::DEMO)]
    Demo(DemoArgs),
    /// Print a completion script for a shell
    #[command(hide = true)]
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Print the manual page (roff)
    #[command(hide = true)]
    Man,
    /// Be the receiver that the demo suspends: started by the demo alone
    #[command(hide = true)]
    DemoReceiver {
        /// Where it listens.
        ip: Ipv4Addr,
    },
}

/// What a command says of a transfer. serde's form is for `haul` on another machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TransferOptions {
    /// What happens to what is at the destination.
    pub receive_policy: ReceivePolicy,
    /// What happens to files that grow while they are sent.
    pub growth: Growth,
    /// What of files is preserved; of a server: what clients may set.
    pub preserve: Preserve,
    /// Memory that the names, links, holes and attributes of one set may take.
    pub set_memory: Bytes,
    /// The options that set a recipe's parameters.
    #[serde(skip)]
    pub recipe: RecipeArgs,
    /// The file for a trace of the run.
    #[serde(skip)]
    pub events: Option<PathBuf>,
}

impl Default for TransferOptions {
    fn default() -> Self {
        let (receive_policy, growth, preserve, recipe) = Default::default();
        Self { receive_policy, growth, preserve, set_memory: haul_mover::SET_MEMORY, recipe, events: None }
    }
}

impl Command {
    /// What it says of a transfer; nothing if it has none.
    pub(crate) fn transfer(&self) -> TransferOptions {
        let others = TransferOptions::default();
        match self {
            Self::Cp(args) => args.transfer(),
            Self::Bench(args) => {
                let TransferArgs { events, recipe, .. } = args.transfer.clone();
                TransferOptions { recipe, events, ..others }
            }
            Self::Pipe(args) => {
                TransferOptions { recipe: args.recipe(), events: args.events.clone(), ..others }
            }
            Self::Doctor(args) => TransferOptions { recipe: args.recipe.clone(), ..others },
            Self::Serve(args) => TransferOptions {
                preserve: files::of(&args.preserve),
                set_memory: args.set_memory.unwrap_or(others.set_memory),
                recipe: RecipeArgs {
                    set: args.set.clone(),
                    diagnosis_model: args.diagnosis_model.clone(),
                    ..RecipeArgs::default()
                },
                ..others
            },
            Self::Demo(args) => TransferOptions {
                // Nobody needs the files afterwards.
                receive_policy: ReceivePolicy { durability: Durability::Cached, ..others.receive_policy },
                recipe: args.recipe(),
                events: args.events.clone(),
                ..others
            },
            _ => others,
        }
    }
}

/// The laws that there are.
fn controller_help() -> String {
    format!(
        "Control law of the rate: {}; `haul presets` says what each does",
        haul_proto::law_names().join(", ")
    )
}

/// Options that choose how data is carried.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "How to carry it")]
pub(crate) struct RecipeArgs {
    /// Preset by name (see `haul presets`) or a recipe file
    #[arg(long, value_name = "NAME|FILE")]
    pub preset: Option<String>,
    /// Set one parameter of the recipe, for example chunk=64MB; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Assignment>,
    /// Ceiling that is never exceeded, for example 800Mbit, or unlimited
    #[arg(long, value_parser = values::ceiling)]
    pub rate: Option<String>,
    /// Control law of the rate
    #[arg(long, value_name = "NAME", help = controller_help())]
    pub controller: Option<String>,
    /// Evidence for why packets are lost; it is reported, and recipes with `cause_aware` (the default) act on it
    #[arg(long, value_name = "MODE", value_parser = values::diagnosis())]
    pub diagnosis: Option<String>,
    /// Judge the pattern of losses by this model, which `haul train` has written, where this side sends
    #[arg(long, value_name = "FILE")]
    pub diagnosis_model: Option<PathBuf>,
}

/// Options of the commands that move data to or from a server.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct TransferArgs {
    // Among the options of the command, whatever stands before them.
    /// Connect and say what would be done, without doing it
    #[arg(short = 'n', long, help_heading = None::<&str>)]
    pub dry_run: bool,
    /// Start afresh even if an earlier attempt left something to resume
    #[arg(long, help_heading = None::<&str>)]
    pub no_resume: bool,
    /// Write a trace of the run as one JSON object per line; - is stdout
    #[arg(long, value_name = "FILE", help_heading = None::<&str>)]
    pub events: Option<PathBuf>,
    #[command(flatten)]
    pub recipe: RecipeArgs,
}

/// `haul cp`.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct CpArgs {
    /// One or more sources, then the destination: local paths, @FILE with a server's URL in FILE, haul:// URLs,
    /// or USER@HOST:PATH over ssh
    #[arg(value_name = "PATH|URL", help_heading = "Arguments")]
    pub paths: Vec<OsString>,
    #[command(flatten)]
    pub sync: SyncArgs,
    #[command(flatten)]
    pub storage: StorageArgs,
    #[command(flatten)]
    pub preserve: PreserveArgs,
    /// Memory that the names, links, holes and attributes of one set may take here [default: 1GiB]
    #[arg(long, value_name = "SIZE", hide = true)]
    pub set_memory: Option<Bytes>,
    #[command(flatten)]
    pub transfer: TransferArgs,
    #[command(flatten)]
    pub select: SelectArgs,
    #[command(flatten)]
    pub ssh: SshArgs,
}

impl CpArgs {
    fn transfer(&self) -> TransferOptions {
        let TransferArgs { dry_run, no_resume, events, recipe } = self.transfer.clone();
        let run = if dry_run { RunMode::ListChanges } else { RunMode::Move };
        TransferOptions {
            receive_policy: ReceivePolicy { run, ..self.sync.receive_policy(no_resume, &self.storage) },
            growth: self.sync.growth(),
            preserve: self.preserve.preserve(),
            set_memory: self.set_memory.unwrap_or(haul_mover::SET_MEMORY),
            recipe,
            events,
        }
    }
}

/// `haul serve`.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServeArgs {
    /// Directory to offer; nothing outside it can be read or written
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub root: PathBuf,
    /// Address and port to listen on, TCP and UDP alike
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:2640", value_parser = values::listen_address)]
    pub listen: SocketAddr,
    /// Listen on the first free port of these instead
    #[arg(long, value_name = "A-B")]
    pub port_range: Option<PortRange>,
    /// Write the URL to a file that only you can read, and nowhere else
    #[arg(long, value_name = "FILE")]
    pub url_file: Option<PathBuf>,
    /// What this machine can receive altogether; uploads at the same time are assigned parts of it
    #[arg(long, value_name = "RATE")]
    pub capacity: Option<Rate>,
    /// Sessions at a time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    pub max_sessions: u16,
    /// Sessions of one address at a time
    #[arg(long, value_name = "N", default_value_t = 48, value_parser = clap::value_parser!(u16).range(1..))]
    pub max_per_address: u16,
    /// When there are too many, a session without progress for so long ends in favour of a new one
    #[arg(long, value_name = "TIME", default_value = "1m")]
    pub idle_timeout: Span,
    /// Refuse what would leave less free on the disk [default: 1 % of it, at most 1 GiB]
    #[arg(long, value_name = "SIZE")]
    pub min_free: Option<Bytes>,
    /// Let others read, never write
    #[arg(long)]
    pub read_only: bool,
    /// When received files must be on the disk at the latest; clients may ask for more
    #[arg(long, value_name = "WHEN", value_parser = values::durability(), default_value = "none")]
    pub sync: Durability,
    /// What clients may set of files that they send: owner, xattrs, acls, all, none
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',', default_value = "xattrs,acls")]
    // Who comes by ssh may do all that this user may.
    #[arg(default_value_if("for_ssh", ArgPredicate::IsPresent, "all"))]
    pub preserve: Vec<Preserved>,
    /// Memory that the names, links, holes and attributes of one set may take here [default: 1GiB]
    #[arg(long, value_name = "SIZE", hide = true)]
    pub set_memory: Option<Bytes>,
    /// Stop after the first session
    #[arg(long)]
    pub once: bool,
    /// Refuse new sessions after this time, for example 12h
    #[arg(long, value_name = "TIME", value_parser = values::some_time)]
    pub expires: Option<Span>,
    /// Name or address of this machine to put into the URL
    #[arg(long, value_name = "NAME", value_parser = values::host)]
    pub host: Option<String>,
    /// What the server permits or prefers, for example crypto=none; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Assignment>,
    /// Judge the pattern of losses by this model, which `haul train` has written, where this side sends
    #[arg(long, value_name = "FILE")]
    pub diagnosis_model: Option<PathBuf>,
    /// Serve the person who came by ssh, from the home directory, until stdin ends
    #[arg(long, hide = true)]
    pub for_ssh: bool,
}

/// `haul bench`. There is nothing that it could resume.
#[derive(Debug, Clone, Default, Args)]
#[command(mut_arg("no_resume", |arg| arg.hide(true)))]
pub(crate) struct BenchArgs {
    /// The URL that `haul serve` printed: @FILE, @- (stdin), or itself [default: `HAUL_URL`]
    #[arg(value_name = "URL", help_heading = "Arguments")]
    pub url: Option<OsString>,
    /// How long to send (10 s when neither --time nor --bytes is given)
    #[arg(long, value_name = "TIME", conflicts_with = "bytes", value_parser = values::some_time)]
    pub time: Option<Span>,
    /// How much to send
    #[arg(long, value_name = "SIZE")]
    pub bytes: Option<Bytes>,
    /// The server sends
    #[arg(long)]
    pub reverse: bool,
    #[command(flatten)]
    pub transfer: TransferArgs,
}

const PIPE_PRESET: &str = "Any of `haul presets`, or a recipe file [default: bulk, a reliable stream of bytes]; a listener takes what comes";
const PIPE_RATE: &str = "Ceiling that is never exceeded, or unlimited; with viz the rate itself";

/// `haul pipe`.
#[derive(Debug, Clone, Default, Args)]
#[command(mut_arg("preset", |arg| arg.help(PIPE_PRESET)), mut_arg("rate", |arg| arg.help(PIPE_RATE)))]
pub(crate) struct PipeArgs {
    /// The URL that `haul pipe --listen` printed on the other machine: @FILE, @- (stdin), or itself [default: `HAUL_URL`]
    #[arg(value_name = "URL", help_heading = "Arguments", conflicts_with = "listen")]
    pub url: Option<OsString>,
    /// Wait for the other side here, TCP and UDP alike [without a value: 0.0.0.0:2640]
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, default_missing_value = "0.0.0.0:2640")]
    #[arg(value_parser = values::listen_address)]
    pub listen: Option<SocketAddr>,
    /// Write the URL to a file that only you can read, and nowhere else
    #[arg(long, value_name = "FILE")]
    pub url_file: Option<PathBuf>,
    /// Name or address of this machine to put into the URL
    #[arg(long, value_name = "NAME", value_parser = values::host)]
    pub host: Option<String>,
    /// The listener's stdin goes to the other side's stdout; to be given on both sides
    #[arg(long)]
    pub reverse: bool,
    /// Cut stdin into messages of this size; without it into lines, with viz into 1000B
    #[arg(long, value_name = "SIZE")]
    pub frame: Option<Bytes>,
    /// Write a trace of the run as one JSON object per line; - is stdout
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
    #[command(flatten)]
    pub recipe: RecipeArgs,
}

impl PipeArgs {
    /// The recipe; a reliable stream of bytes if nothing else is said.
    fn recipe(&self) -> RecipeArgs {
        let bulk = Some("bulk".to_owned());
        RecipeArgs { preset: self.recipe.preset.clone().or(bulk), ..self.recipe.clone() }
    }

    /// Whether stdout of this side is for the data.
    pub(crate) fn writes_stdout(&self) -> bool {
        self.listen.is_some() != self.reverse
    }
}

/// Where to look for what was left behind.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct PlaceArgs {
    /// Destinations of transfers [default: this directory]
    #[arg(value_name = "DIR", help_heading = "Arguments")]
    pub directories: Vec<PathBuf>,
    /// Look below these directories too; links are not followed
    #[arg(short, long)]
    pub recursive: bool,
}

/// `haul clean`.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct CleanArgs {
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Say what would be removed, without doing it
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Leave alone what was written to within this time, for example 7d
    #[arg(long, value_name = "TIME")]
    pub older_than: Option<Span>,
}

/// The number of a process, and which of its copies where it runs several.
fn copy_name(text: &str) -> Result<String, String> {
    let is_number = |part: &str| part.parse::<u32>().is_ok_and(|number| number > 0);
    if text.splitn(2, '.').all(is_number) {
        Ok(text.to_owned())
    } else {
        Err("write the number of a process, for example 4711; `haul ctl` lists them".to_owned())
    }
}

/// `haul ctl`.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct CtlArgs {
    /// Process of the copy, as `haul ctl` lists it; all are listed without
    #[arg(value_name = "PID", value_parser = copy_name)]
    pub copy: Option<String>,
    /// What to change of its `rate_control`, for example rate=50Mbit or controller=reno
    #[arg(value_name = "KEY=VALUE", requires = "copy")]
    pub changes: Vec<Assignment>,
}

/// `haul presets`.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct PresetsArgs {
    /// Preset to print as TOML
    pub name: Option<String>,
}

/// `haul diagnose`.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct DiagnoseArgs {
    /// Signature files, or traces that --events wrote; - is stdin
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// What is known of each cause, as `haul train` writes it; the shipped model if absent
    #[arg(long, value_name = "FILE")]
    pub model: Option<PathBuf>,
}

/// `haul train`.
#[derive(Debug, Clone, Args)]
pub(crate) struct TrainArgs {
    /// Signatures of losses by the receiving host
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub host: Vec<PathBuf>,
    /// Signatures of losses by the network
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub network: Vec<PathBuf>,
    /// Packets of a word, 1 to 24: what the complexity counts
    #[arg(long, value_name = "N", default_value_t = PAPERS_WORD, value_parser = values::word_length)]
    pub word_length: u32,
    /// At which window the first of the parts begins that are held out in turn; the model has it in its provenance
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u32,
    /// Where the model goes
    #[arg(short, long, value_name = "MODEL")]
    pub output: PathBuf,
}

/// `haul doctor`.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct DoctorArgs {
    /// A path to measure as well, both ways: the URL that `haul serve` printed, @FILE or @-
    #[arg(value_name = "URL")]
    pub url: Option<OsString>,
    /// How long to measure each way
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = values::some_time)]
    pub time: Span,
    #[command(flatten)]
    pub recipe: RecipeArgs,
}

/// The emulated path of the demo; both directions are alike.
#[derive(Debug, Clone, Args)]
pub(crate) struct PathArgs {
    /// Round-trip time of the emulated path
    #[arg(long, value_name = "TIME", default_value = "50ms")]
    pub rtt: Span,
    /// Bottleneck of the emulated path
    #[arg(long, value_name = "RATE", default_value = "1Gbit")]
    #[arg(default_value_if("busy_receiver", ArgPredicate::Equals("true".into()), "600Mbit"))]
    pub path_rate: Rate,
    /// Share of packets that the emulated path loses at random: 0.001 or 0.1%
    #[arg(long, value_name = "SHARE", default_value = "0.1%", value_parser = values::share)]
    #[arg(default_value_if("busy_receiver", ArgPredicate::Equals("true".into()), "0%"))]
    pub loss: Probability,
    /// Seed of the file set and of the losses
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// `haul demo`.
#[derive(Debug, Clone, Args)]
pub(crate) struct DemoArgs {
    /// What to copy; a generated file set if absent
    pub path: Option<PathBuf>,
    /// Size of the generated file set
    #[arg(long, value_name = "SIZE", default_value = "256MB")]
    pub size: Bytes,
    /// How many files to generate
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub files: u32,
    #[command(flatten)]
    pub emulated: PathArgs,
    /// Do not run TCP over the same path afterwards (it needs the right to make network namespaces)
    #[arg(long)]
    pub no_tcp: bool,
    /// Instead of a copy: memory to a receiver that is suspended again and again, first by a law that acts upon why
    /// packets are lost, then by one that does not [preset: fobs-classifier, path: 600Mbit without random loss,
    /// ceiling: two thirds of it]
    #[arg(long, conflicts_with_all = ["path", "size", "files", "no_tcp"])]
    pub busy_receiver: bool,
    /// How long each of the two runs lasts with --busy-receiver [default: 10s]
    #[arg(long, value_name = "TIME", requires = "busy_receiver", value_parser = values::some_time)]
    pub time: Option<Span>,
    /// Write a trace of the run as one JSON object per line; - is stdout
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
    #[command(flatten)]
    pub recipe: RecipeArgs,
}

impl DemoArgs {
    /// The recipe; one that can act upon the cause of losses if the receiver is busy.
    fn recipe(&self) -> RecipeArgs {
        let classifier = self.busy_receiver.then(|| "fobs-classifier".to_owned());
        RecipeArgs { preset: self.recipe.preset.clone().or(classifier), ..self.recipe.clone() }
    }
}

#[cfg(test)]
mod tests;
