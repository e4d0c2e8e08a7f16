//! The options of `haul-lab wan`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use haul_base::{Rate, Span};
use haul_wan::TcpWindow;

use super::change::Scheduled;
use super::values::{self, Aqm, Bursts, OutageTime, Policing, QueueSize, Reorder, Share};
use crate::load::Background;

const EXAMPLES: &str = "Examples:
  A shell on side A of a path; the other side answers to $HAUL_WAN_B:
    haul-lab wan --rtt 100ms --rate 1Gbit -- bash
  A server on side B and a client on side A:
    haul-lab wan --rtt 50ms --loss 0.1% --server 'python3 -m http.server' -- \\
        sh -c 'curl -o /dev/null http://$HAUL_WAN_B:8000/big'
  The way back is slower than the way there:
    haul-lab wan --rate 1Gbit --rate-back 20Mbit -- ./test.sh
  The path gets worse after ten seconds, and its truth goes to a file:
    haul-lab wan --rtt 20ms --change '10s:loss=1%' --counters truth.json -- ./test.sh
  A receiver that shares its core, and a CUBIC flow that shares the bottleneck:
    haul-lab wan --rate 500Mbit --burners 2 --background cubic -- ./test.sh

Options whose name ends in -back are for the way from B to A; without them it is like the way from A to B.";

/// What `haul-lab wan` takes.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct WanArgs {
    /// The path, each direction on its own
    #[command(flatten)]
    pub path: PathArgs,

    /// What else happens on the two sides
    #[command(flatten)]
    pub load: LoadArgs,

    /// Longest packet that the devices take: 1500, 9000 or another
    #[arg(long, value_name = "BYTES", default_value = "1500", value_parser = values::mtu, help_heading = "Path")]
    pub mtu: u32,

    /// Takes the stages of both directions from a file; the options above are then not for it
    #[arg(long = "path", value_name = "FILE.toml", help_heading = "Path", conflicts_with_all = PATH_OPTIONS)]
    pub path_file: Option<PathBuf>,

    /// Seed of every random decision [default: drawn, and printed]
    #[arg(long, value_name = "N", help_heading = "Path")]
    pub seed: Option<u64>,

    /// Changes the path while it runs: TIME:KEY=VALUE, with keys as in the options (10s:loss=1%, 5s:rate-back=1Mbit)
    #[arg(long, value_name = "AT:KEY=VALUE", help_heading = "Path")]
    pub change: Vec<Scheduled>,

    /// Takes commands (`set KEY=VALUE`, `counters`, `stop`), one per line, on this Unix socket
    #[arg(long, value_name = "SOCKET")]
    pub control: Option<PathBuf>,

    /// Writes the counters to this file as JSON when it ends
    #[arg(long, value_name = "FILE")]
    pub counters: Option<PathBuf>,

    /// Writes a line to this file for each packet that the path drops (docs/wan-emulator.md)
    #[arg(long, value_name = "FILE")]
    pub drop_log: Option<PathBuf>,

    /// Writes the counters to standard output as JSON when it ends
    #[arg(long)]
    pub json: bool,

    /// Takes super-packets apart at the devices, as without TSO and USO
    #[arg(long)]
    pub no_offload: bool,

    /// Largest TCP window on both sides, or `kernel` for what the kernel gives [default: four times the
    /// bandwidth-delay product]
    #[arg(long, value_name = "SIZE", value_parser = tcp_window)]
    pub tcp_window: Option<TcpWindow>,

    /// Pins both directions of the emulator to this processor
    #[arg(long, value_name = "CPU")]
    pub path_cpu: Option<usize>,

    /// Pins what runs on side A to this processor
    #[arg(long, value_name = "CPU")]
    pub cpu_a: Option<usize>,

    /// Pins what runs on side B to this processor
    #[arg(long, value_name = "CPU")]
    pub cpu_b: Option<usize>,

    /// Runs this shell command on side B first; it is ended when COMMAND has ended
    #[arg(long, value_name = "CMD")]
    pub server: Option<String>,

    /// Measures the emulator against what it is asked for, for so long each; other options do not matter
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "2s", conflicts_with_all = ["server", "command"])]
    pub self_test: Option<Span>,

    /// Says nothing to people
    #[arg(long, short)]
    pub quiet: bool,

    /// What to run on side A; without it, the path waits for Ctrl-C
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Options that describe stages, which a file describes instead.
const PATH_OPTIONS: [&str; 24] = [
    "rtt",
    "rate",
    "rate_back",
    "queue",
    "queue_back",
    "aqm",
    "aqm_back",
    "policer",
    "policer_back",
    "loss",
    "loss_back",
    "burst_loss",
    "burst_loss_back",
    "jitter",
    "jitter_back",
    "reorder",
    "reorder_back",
    "duplicate",
    "duplicate_back",
    "corrupt",
    "corrupt_back",
    "outage",
    "outage_back",
    "path_mtu",
];

/// The stages of both directions.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Path")]
pub(crate) struct PathArgs {
    /// Round-trip time without queueing, half of it in each direction
    #[arg(long, value_name = "TIME", default_value = "0ms")]
    pub rtt: Span,

    /// Rate of the bottleneck, in bits of IP packets: 1Gbit, 20Mbit, unlimited
    #[arg(long, value_name = "RATE", default_value = "unlimited", value_parser = values::rate)]
    pub rate: Rate,

    /// Rate of the way back
    #[arg(long, value_name = "RATE", value_parser = values::rate)]
    pub rate_back: Option<Rate>,

    /// What the bottleneck's queue holds: 1bdp (at least 64 packets), 64KiB, 100ms or 1000p
    #[arg(long, value_name = "SIZE", default_value = "1bdp")]
    pub queue: QueueSize,

    /// Queue of the way back
    #[arg(long, value_name = "SIZE")]
    pub queue_back: Option<QueueSize>,

    /// Manages the queue instead of dropping at its tail
    #[arg(long, value_name = "KIND")]
    pub aqm: Option<Aqm>,

    /// Queue management of the way back
    #[arg(long, value_name = "KIND")]
    pub aqm_back: Option<Aqm>,

    /// Drops what exceeds a rate and a burst, before the bottleneck: 50Mbit:64KiB
    #[arg(long, value_name = "RATE:SIZE")]
    pub policer: Option<Policing>,

    /// Policer of the way back
    #[arg(long, value_name = "RATE:SIZE")]
    pub policer_back: Option<Policing>,

    /// Share of the packets lost at random: 0.1% or 0.001
    #[arg(long, value_name = "SHARE")]
    pub loss: Option<Share>,

    /// Loss of the way back
    #[arg(long, value_name = "SHARE")]
    pub loss_back: Option<Share>,

    /// Losses come in bursts: P:R (probabilities that one begins and ends), or the mean length with --loss
    #[arg(long, value_name = "P:R|N")]
    pub burst_loss: Option<Bursts>,

    /// Burst loss of the way back
    #[arg(long, value_name = "P:R|N")]
    pub burst_loss_back: Option<Bursts>,

    /// Extra delay of each packet, uniform between nothing and this; packets keep their order
    #[arg(long, value_name = "TIME")]
    pub jitter: Option<Span>,

    /// Jitter of the way back
    #[arg(long, value_name = "TIME")]
    pub jitter_back: Option<Span>,

    /// Share of the packets that come late, and by how much at most: 1% or 1%:5ms [default: a tenth of the
    /// round-trip time, at least 1 ms]
    #[arg(long, value_name = "SHARE[:TIME]")]
    pub reorder: Option<Reorder>,

    /// Reordering of the way back
    #[arg(long, value_name = "SHARE[:TIME]")]
    pub reorder_back: Option<Reorder>,

    /// Share of the packets that arrive twice
    #[arg(long, value_name = "SHARE")]
    pub duplicate: Option<Share>,

    /// Duplicates of the way back
    #[arg(long, value_name = "SHARE")]
    pub duplicate_back: Option<Share>,

    /// Share of the packets that arrive with a wrong bit
    #[arg(long, value_name = "SHARE")]
    pub corrupt: Option<Share>,

    /// Wrong bits of the way back
    #[arg(long, value_name = "SHARE")]
    pub corrupt_back: Option<Share>,

    /// Time without any packet getting through: START+LENGTH, or START+LENGTH/PERIOD to repeat it
    #[arg(long, value_name = "TIMES")]
    pub outage: Vec<OutageTime>,

    /// Outages of the way back
    #[arg(long, value_name = "TIMES")]
    pub outage_back: Vec<OutageTime>,

    /// Drops longer packets on the way without a word, as a black hole does
    #[arg(long, value_name = "BYTES", value_parser = values::mtu)]
    pub path_mtu: Option<u32>,
}

/// Load beside the receiver, and traffic in the bottleneck.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Load")]
pub(crate) struct LoadArgs {
    /// Processes that only compute, on side B's processor (--cpu-b, or the last one)
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub burners: u32,

    /// 0 to 7 such processes for 1 to 7 s, then a pause of 0 to 20 s, again and again
    #[arg(long)]
    pub generator: bool,

    /// A flow from A to B through the bottleneck: cubic, bbr, reno or udp:RATE; may be given several times
    #[arg(long, value_name = "KIND")]
    pub background: Vec<Background>,
}

fn tcp_window(text: &str) -> Result<TcpWindow, String> {
    if text == "kernel" {
        return Ok(TcpWindow::Kernel);
    }
    let size: haul_base::Bytes = text.parse().map_err(|e: haul_base::UnitError| e.to_string())?;
    if (4_096..=1 << 30).contains(&size.0) {
        Ok(TcpWindow::Bytes(size.0))
    } else {
        Err("it must lie between 4 KiB and 1 GiB".to_owned())
    }
}
