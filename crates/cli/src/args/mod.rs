//! The command line, defined with clap. Help, man page, completions, configuration keys and environment
//! variables are all derived from it.

mod copy;
mod help;
mod values;

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::builder::ArgPredicate;
use clap::{ArgAction, Args, Parser, Subcommand};
use haul_base::{Bytes, Probability, Rate, Span};
use haul_diagnosis::PAPERS_WORD;
use haul_proto::law_names;
use haul_wire::control::{
    Durability, Equal, Extraneous, Growth, Leftovers, Newer, Preserve, Readback, ReceivePolicy, RunMode,
};
use serde::{Deserialize, Serialize};

#[cfg(test)]
pub(crate) use copy::RuleArgs;
pub(crate) use copy::{PreserveArgs, Preserved, RuleArg, SelectArgs, SshArgs, StorageArgs, SyncArgs};
pub(crate) use values::{Assignment, PortRange};

/// Environment variable with a server's URL.
pub(crate) const URL_VARIABLE: &str = "HAUL_URL";

/// Moves files fast over long fat networks and reports what limited them.
#[derive(Debug, Clone, Parser)]
#[command(name = "haul", version, max_term_width = 100, after_help = help::EXAMPLES, arg_required_else_help = true)]
#[command(disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub global: Global,
    /// Subcommand; may be absent only with `--show-config`.
    #[command(subcommand)]
    pub command: Option<Command>,
}

#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "General options")]
pub(crate) struct Global {
    /// Print more to stderr (-v: what happens, -vv: why, -vvv: everything)
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
    /// Print only errors, failed files and the requested result
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Print the result as one JSON object on stdout
    #[arg(long, global = true)]
    pub json: bool,
    /// Print every setting with its value and origin, then exit
    #[arg(long, global = true)]
    pub show_config: bool,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Command {
    /// Copy files and directories to or from another machine
    #[command(after_help = help::CP, override_usage = "haul cp [OPTIONS] SRC... DST")]
    Cp(Box<CpArgs>),
    /// Serve a directory and print the URL that grants access to it
    #[command(after_help = help::SERVE)]
    Serve(ServeArgs),
    /// Measure the throughput of a path, memory to memory
    #[command(after_help = help::BENCH, override_usage = "haul bench [OPTIONS] URL")]
    Bench(BenchArgs),
    /// Connect stdin on one machine to stdout on another, with any preset
    #[command(after_help = help::PIPE, override_usage = "haul pipe [OPTIONS] URL\n       haul pipe [OPTIONS] --listen [ADDR:PORT]")]
    Pipe(PipeArgs),
    /// Show what interrupted transfers left behind and what can be resumed
    #[command(after_help = help::STATUS)]
    Status(PlaceArgs),
    /// Remove what interrupted transfers left behind
    #[command(after_help = help::CLEAN)]
    Clean(CleanArgs),
    /// List running copies on this machine, inspect one, or change how it sends
    #[command(after_help = help::CTL, override_usage = "haul ctl [PID [KEY=VALUE]...]")]
    Ctl {
        /// Process ID of a copy; without it, all copies are listed
        #[arg(value_name = "PID", value_parser = copy_name)]
        copy: Option<String>,
        /// Parameter of `rate_control` to change, for example rate=50Mbit or controller=reno
        #[arg(value_name = "KEY=VALUE", requires = "copy")]
        changes: Vec<Assignment>,
    },
    /// List the presets, or print one as a recipe
    #[command(after_help = help::PRESETS)]
    Presets {
        /// Preset to print as TOML
        name: Option<String>,
    },
    /// Classify the cause of packet losses from their pattern
    #[command(after_help = help::DIAGNOSE)]
    Diagnose {
        /// Signature files, or traces written by --events; - is stdin
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
        /// Loss model written by `haul train` [default: the shipped model]
        #[arg(long, value_name = "FILE")]
        model: Option<PathBuf>,
    },
    /// Fit the loss classifier to signatures with known causes
    #[command(after_help = help::TRAIN)]
    Train(TrainArgs),
    /// Report what limits transfers on this machine or on a path, and how to fix it
    #[command(after_help = help::DOCTOR)]
    Doctor(DoctorArgs),
    /// Run a demonstration on this machine: a receiver, an emulated long path, a verified copy
    #[command(after_help = help::DEMO)]
    Demo(DemoArgs),
    /// Print a completion script for a shell
    #[command(hide = true)]
    Completions {
        /// Shell to generate it for
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Print the manual page (roff)
    #[command(hide = true)]
    Man,
    /// Receiver that the demo suspends; started only by the demo
    #[command(hide = true)]
    DemoReceiver {
        /// Address to listen on.
        ip: Ipv4Addr,
    },
}

/// Transfer options of a command, serialised for `haul` on another machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TransferOptions {
    /// How existing entries at the destination are treated.
    pub receive_policy: ReceivePolicy,
    /// How files that grow while being sent are treated.
    pub growth: Growth,
    /// File attributes to preserve; for a server, those that clients may set.
    pub preserve: Preserve,
    /// Memory limit for the names, links, holes and attributes of one file set; `None` for the mover's.
    pub set_memory: Option<Bytes>,
}

impl Command {
    /// Returns the command's transfer options; defaults for commands that transfer nothing.
    pub(crate) fn transfer(&self) -> TransferOptions {
        let mut options = TransferOptions::default();
        match self {
            Self::Cp(args) => {
                options.receive_policy = args.receive_policy();
                options.growth = if args.sync.growing { Growth::Accept } else { Growth::Refuse };
                options.preserve = args.preserve.preserve();
                options.set_memory = args.set_memory;
            }
            Self::Serve(args) => {
                options.preserve = copy::preserve_from(&args.preserve);
                options.set_memory = args.set_memory;
            }
            // The files are deleted afterwards.
            Self::Demo(_) => options.receive_policy.durability = Durability::Cached,
            _ => {}
        }
        options
    }

    /// Returns the preset of the command if none is given.
    pub(crate) fn default_preset(&self) -> &'static str {
        match self {
            // A reliable byte stream.
            Self::Pipe(_) => "bulk",
            // It can act on the cause of losses.
            Self::Demo(args) if args.busy_receiver => "fobs-classifier",
            _ => "default",
        }
    }
}

#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Transport")]
pub(crate) struct RecipeArgs {
    /// Preset name (see `haul presets`) or recipe file
    #[arg(long, value_name = "NAME|FILE")]
    pub preset: Option<String>,
    /// Set a recipe parameter, for example chunk=64MB; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Assignment>,
    /// Maximum sending rate, for example 800Mbit, or unlimited
    #[arg(long, value_parser = values::ceiling)]
    pub rate: Option<String>,
    /// Rate control law
    #[arg(long, value_name = "NAME")]
    #[arg(help = format!("Rate control law: {}; `haul presets` describes each", law_names().join(", ")))]
    pub controller: Option<String>,
    /// Evidence used to classify losses; reported, and acted on by recipes with `cause_aware` (the default)
    #[arg(long, value_name = "MODE", value_parser = values::diagnosis())]
    pub diagnosis: Option<String>,
    /// Loss model written by `haul train`; used when this side sends
    #[arg(long, value_name = "FILE")]
    pub diagnosis_model: Option<PathBuf>,
}

/// Options of the commands that move data to or from a server.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct TransferArgs {
    // Among the options of the command, whatever stands before them.
    /// Connect and show what would be done, without doing it
    #[arg(short = 'n', long, help_heading = None::<&str>)]
    pub dry_run: bool,
    /// Start from scratch even if an earlier attempt can be resumed
    #[arg(long, help_heading = None::<&str>)]
    pub no_resume: bool,
    /// Write a trace of the run, one JSON object per line; - is stdout
    #[arg(long, value_name = "FILE", help_heading = None::<&str>)]
    pub events: Option<PathBuf>,
    #[command(flatten)]
    pub recipe: RecipeArgs,
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct CpArgs {
    /// One or more sources, then the destination: local paths, @FILE (a file that contains a server's URL),
    /// haul:// URLs, or USER@HOST:PATH over ssh
    #[arg(value_name = "PATH|URL", help_heading = "Arguments")]
    pub paths: Vec<OsString>,
    #[command(flatten)]
    pub sync: SyncArgs,
    #[command(flatten)]
    pub storage: StorageArgs,
    #[command(flatten)]
    pub preserve: PreserveArgs,
    /// Memory limit for the names, links, holes and attributes of one file set [default: 1GiB]
    #[arg(long, value_name = "SIZE")]
    pub set_memory: Option<Bytes>,
    #[command(flatten)]
    pub transfer: TransferArgs,
    #[command(flatten)]
    pub select: SelectArgs,
    #[command(flatten)]
    pub ssh: SshArgs,
}

impl CpArgs {
    fn receive_policy(&self) -> ReceivePolicy {
        let Self { sync, storage, transfer, .. } = self;
        ReceivePolicy {
            equal: match (sync.checksum, sync.ignore_times) {
                (true, _) => Equal::Contents,
                (false, true) => Equal::Nothing,
                (false, false) => Equal::SizeAndTime,
            },
            newer: if sync.update { Newer::Keep } else { Newer::Replace },
            extraneous: match (sync.delete, sync.max_delete) {
                (false, _) => Extraneous::Keep,
                (true, None) => Extraneous::Delete,
                (true, Some(most)) => Extraneous::DeleteAtMost(most),
            },
            leftovers: match (transfer.no_resume, sync.growing) {
                (true, _) => Leftovers::Ignore,
                (false, true) => Leftovers::Extend,
                (false, false) => Leftovers::Resume,
            },
            run: if transfer.dry_run { RunMode::ListChanges } else { RunMode::Move },
            durability: storage.sync,
            readback: if storage.verify { Readback::FromDisk } else { Readback::No },
        }
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ServeArgs {
    /// Directory to serve; nothing outside it can be read or written
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub root: PathBuf,
    /// Address and port to listen on (TCP and UDP)
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:2640", value_parser = values::listen_address)]
    pub listen: SocketAddr,
    /// Listen on the first free port in this range instead
    #[arg(long, value_name = "A-B")]
    pub port_range: Option<PortRange>,
    /// Write the URL to a file readable only by you, instead of printing it
    #[arg(long, value_name = "FILE")]
    pub url_file: Option<PathBuf>,
    /// Total receive rate of this machine, divided among concurrent uploads
    #[arg(long, value_name = "RATE")]
    pub capacity: Option<Rate>,
    /// Maximum number of concurrent sessions
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    pub max_sessions: u16,
    /// Maximum number of concurrent sessions per client address
    #[arg(long, value_name = "N", default_value_t = 48, value_parser = clap::value_parser!(u16).range(1..))]
    pub max_per_address: u16,
    /// At --max-sessions, a new session replaces one that has made no progress for this long
    #[arg(long, value_name = "TIME", default_value = "1m")]
    pub idle_timeout: Span,
    /// Refuse data that would leave less free disk space [default: 1 % of the disk, at most 1 GiB]
    #[arg(long, value_name = "SIZE")]
    pub min_free: Option<Bytes>,
    /// Allow clients to read only
    #[arg(long)]
    pub read_only: bool,
    /// When received files are synced to disk at the latest; clients may request earlier
    #[arg(long, value_name = "WHEN", value_parser = values::durability(), default_value = "none")]
    pub sync: Durability,
    /// Attributes that clients may set on files they send: owner, xattrs, acls, all, none
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',', default_value = "xattrs,acls")]
    // Clients over ssh have the permissions of this user.
    #[arg(default_value_if("for_ssh", ArgPredicate::IsPresent, "all"))]
    pub preserve: Vec<Preserved>,
    /// Memory limit for the names, links, holes and attributes of one file set [default: 1GiB]
    #[arg(long, value_name = "SIZE")]
    pub set_memory: Option<Bytes>,
    /// Exit after the first session
    #[arg(long)]
    pub once: bool,
    /// Refuse new sessions after this time, for example 12h
    #[arg(long, value_name = "TIME", value_parser = values::positive::<Span>)]
    pub expires: Option<Span>,
    /// Name or address of this machine to put in the URL
    #[arg(long, value_name = "NAME", value_parser = values::host)]
    pub host: Option<String>,
    /// Permit or prefer a setting, for example crypto=none; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Assignment>,
    /// Loss model written by `haul train`; used when this side sends
    #[arg(long, value_name = "FILE")]
    pub diagnosis_model: Option<PathBuf>,
    /// Serve the ssh user from the home directory until stdin is closed
    #[arg(long, hide = true)]
    pub for_ssh: bool,
}

// It never resumes.
#[derive(Debug, Clone, Default, Args)]
#[command(mut_arg("no_resume", |arg| arg.hide(true)))]
pub(crate) struct BenchArgs {
    /// URL printed by `haul serve`: @FILE, @- (stdin) or the URL itself [default: `HAUL_URL`]
    #[arg(value_name = "URL", help_heading = "Arguments")]
    pub url: Option<OsString>,
    /// How long to send [default: 10s, unless --bytes is given]
    #[arg(long, value_name = "TIME", conflicts_with = "bytes", value_parser = values::positive::<Span>)]
    pub time: Option<Span>,
    /// Amount of data to send
    #[arg(long, value_name = "SIZE")]
    pub bytes: Option<Bytes>,
    /// Send from the server to this machine
    #[arg(long)]
    pub reverse: bool,
    #[command(flatten)]
    pub transfer: TransferArgs,
}

const PIPE_PRESET: &str =
    "Any of `haul presets`, or a recipe file [default: bulk, a reliable byte stream]; a listener accepts any";
const PIPE_RATE: &str = "Maximum sending rate, or unlimited; with viz, the sending rate itself";

#[derive(Debug, Clone, Default, Args)]
#[command(mut_arg("preset", |arg| arg.help(PIPE_PRESET)), mut_arg("rate", |arg| arg.help(PIPE_RATE)))]
pub(crate) struct PipeArgs {
    /// URL printed by `haul pipe --listen` on the other machine: @FILE, @- (stdin) or the URL itself
    /// [default: `HAUL_URL`]
    #[arg(value_name = "URL", help_heading = "Arguments", conflicts_with = "listen")]
    pub url: Option<OsString>,
    /// Wait for a connection on this address (TCP and UDP) [without a value: 0.0.0.0:2640]
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, default_missing_value = "0.0.0.0:2640")]
    #[arg(value_parser = values::listen_address)]
    pub listen: Option<SocketAddr>,
    /// Write the URL to a file readable only by you, instead of printing it
    #[arg(long, value_name = "FILE")]
    pub url_file: Option<PathBuf>,
    /// Name or address of this machine to put in the URL
    #[arg(long, value_name = "NAME", value_parser = values::host)]
    pub host: Option<String>,
    /// Connect the listener's stdin to the other side's stdout; give it on both sides
    #[arg(long)]
    pub reverse: bool,
    /// Split stdin into messages of this size [default: lines; with viz: 1000B]
    #[arg(long, value_name = "SIZE", value_parser = values::positive::<Bytes>)]
    pub frame: Option<Bytes>,
    /// Write a trace of the run, one JSON object per line; - is stdout
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
    #[command(flatten)]
    pub recipe: RecipeArgs,
}

impl PipeArgs {
    /// Whether stdout of this side is for the data.
    pub(crate) fn writes_stdout(&self) -> bool {
        self.listen.is_some() != self.reverse
    }
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct PlaceArgs {
    /// Destination directories of transfers
    #[arg(value_name = "DIR", help_heading = "Arguments", default_value = ".")]
    pub directories: Vec<PathBuf>,
    /// Include subdirectories; symbolic links are not followed
    #[arg(short, long)]
    pub recursive: bool,
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct CleanArgs {
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Show what would be removed, without removing it
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Keep leftovers written to within this time, for example 7d
    #[arg(long, value_name = "TIME")]
    pub older_than: Option<Span>,
}

/// Parses a process ID, optionally followed by `.` and the number of one of its copies.
pub(crate) fn copy_name(text: &str) -> Result<String, String> {
    let is_number = |part: &str| part.parse::<u32>().is_ok_and(|number| number > 0);
    if text.splitn(2, '.').all(is_number) {
        Ok(text.to_owned())
    } else {
        Err("write a process ID, for example 4711; `haul ctl` lists them".to_owned())
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct TrainArgs {
    /// Signatures of losses caused by the receiving host
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub host: Vec<PathBuf>,
    /// Signatures of losses caused by the network
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub network: Vec<PathBuf>,
    /// Word length of the complexity measure, 1 to 24 packets
    #[arg(long, value_name = "N", default_value_t = PAPERS_WORD, value_parser = clap::value_parser!(u32).range(1..=24))]
    pub word_length: u32,
    /// Window at which the first held-out part starts; recorded in the model's provenance
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u32,
    /// File to write the model to
    #[arg(short, long, value_name = "MODEL")]
    pub output: PathBuf,
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct DoctorArgs {
    /// Also measure the path to this server, both ways: URL printed by `haul serve`, @FILE or @-
    #[arg(value_name = "URL")]
    pub url: Option<OsString>,
    /// How long to measure in each direction
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = values::positive::<Span>)]
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
    /// Bottleneck rate of the emulated path
    #[arg(long, value_name = "RATE", default_value = "1Gbit")]
    #[arg(default_value_if("busy_receiver", ArgPredicate::Equals("true".into()), "600Mbit"))]
    pub path_rate: Rate,
    /// Random packet loss of the emulated path: 0.001 or 0.1%
    #[arg(long, value_name = "SHARE", default_value = "0.1%")]
    #[arg(default_value_if("busy_receiver", ArgPredicate::Equals("true".into()), "0%"))]
    pub loss: Probability,
    /// Seed for the file set and the losses
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DemoArgs {
    /// What to copy [default: a generated file set]
    pub path: Option<PathBuf>,
    /// Size of the generated file set
    #[arg(long, value_name = "SIZE", default_value = "256MB", conflicts_with = "path")]
    pub size: Bytes,
    /// Number of files to generate
    #[arg(long, value_name = "N", default_value_t = 64, conflicts_with = "path")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub files: u32,
    #[command(flatten)]
    pub emulated: PathArgs,
    /// Do not run TCP over the same path afterwards (TCP needs permission to create network namespaces)
    #[arg(long)]
    pub no_tcp: bool,
    /// Instead of copying files, send from memory to a receiver that is suspended periodically: first with a
    /// control law that acts on the cause of losses, then with one that does not [preset: fobs-classifier,
    /// path: 600Mbit without random loss, maximum rate: two thirds of that]
    #[arg(long, conflicts_with_all = ["path", "size", "files", "no_tcp"])]
    pub busy_receiver: bool,
    /// Duration of each of the two runs of --busy-receiver [default: 10s]
    #[arg(long, value_name = "TIME", requires = "busy_receiver", value_parser = values::positive::<Span>)]
    pub time: Option<Span>,
    /// Write a trace of the run, one JSON object per line; - is stdout
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
    #[command(flatten)]
    pub recipe: RecipeArgs,
}

#[cfg(test)]
mod tests;
