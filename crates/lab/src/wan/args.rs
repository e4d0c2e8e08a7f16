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
  A shell on side A of a path; side B has the address $HAUL_WAN_B:
    haul-lab wan --rtt 100ms --rate 1Gbit -- bash
  A server on side B and a client on side A:
    haul-lab wan --rtt 50ms --loss 0.1% --server 'python3 -m http.server' -- \\
        sh -c 'curl -o /dev/null http://$HAUL_WAN_B:8000/big'
  A return path that is slower than the forward path:
    haul-lab wan --rate 1Gbit --rate-back 20Mbit -- ./test.sh
  A path that starts to lose packets after ten seconds, with its counters written to a file:
    haul-lab wan --rtt 20ms --change '10s:loss=1%' --counters truth.json -- ./test.sh
  A receiver that shares its core, and a CUBIC flow that shares the bottleneck:
    haul-lab wan --rate 500Mbit --burners 2 --background cubic -- ./test.sh

Options ending in -back are for the direction from B to A, which otherwise is like that from A to B.";

/// Arguments of `haul-lab wan`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct WanArgs {
    /// The path, each direction separately
    #[command(flatten)]
    pub path: PathArgs,

    /// Load on the two sides
    #[command(flatten)]
    pub load: LoadArgs,

    /// MTU of the devices: 1500, 9000 or another value
    #[arg(long, value_name = "BYTES", default_value = "1500", value_parser = values::mtu, help_heading = "Path")]
    pub mtu: u32,

    /// Reads the stages of both directions from a file; excludes the path options above
    #[arg(long = "path", value_name = "FILE.toml", help_heading = "Path", conflicts_with_all = PATH_OPTIONS)]
    pub path_file: Option<PathBuf>,

    /// Seed of all random decisions [default: random, and printed]
    #[arg(long, value_name = "N", help_heading = "Path")]
    pub seed: Option<u64>,

    /// Changes the path while it runs: TIME:KEY=VALUE, with keys as in the options (10s:loss=1%,
    /// 5s:rate-back=1Mbit)
    #[arg(long, value_name = "AT:KEY=VALUE", help_heading = "Path")]
    pub change: Vec<Scheduled>,

    /// Accepts commands (`set KEY=VALUE`, `counters`, `stop`), one per line, on this Unix socket
    #[arg(long, value_name = "SOCKET")]
    pub control: Option<PathBuf>,

    /// Writes the counters to this file as JSON at the end
    #[arg(long, value_name = "FILE")]
    pub counters: Option<PathBuf>,

    /// Writes a line to this file for each packet that the path drops (docs/wan-emulator.md)
    #[arg(long, value_name = "FILE")]
    pub drop_log: Option<PathBuf>,

    /// Writes the counters to standard output as JSON at the end
    #[arg(long)]
    pub json: bool,

    /// Splits super-packets at the devices, as without TSO and USO
    #[arg(long)]
    pub no_offload: bool,

    /// Maximum TCP window on both sides, or `kernel` for the kernel's default [default: four times the
    /// bandwidth-delay product]
    #[arg(long, value_name = "SIZE", value_parser = tcp_window)]
    pub tcp_window: Option<TcpWindow>,

    /// Pins both directions of the emulator to this processor
    #[arg(long, value_name = "CPU")]
    pub path_cpu: Option<usize>,

    /// Pins programs on side A to this processor
    #[arg(long, value_name = "CPU")]
    pub cpu_a: Option<usize>,

    /// Pins programs on side B to this processor
    #[arg(long, value_name = "CPU")]
    pub cpu_b: Option<usize>,

    /// Runs this shell command on side B first; it is ended when COMMAND has ended
    #[arg(long, value_name = "CMD")]
    pub server: Option<String>,

    /// Measures the emulator against its specification, this long per measurement; ignores other options
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "2s", conflicts_with_all = ["server", "command"])]
    pub self_test: Option<Span>,

    /// Prints no messages
    #[arg(long, short)]
    pub quiet: bool,

    /// Command to run on side A; without it, the path runs until Ctrl-C
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Options for stages, which conflict with a path file.
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

/// Stages of both directions.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Path")]
pub(crate) struct PathArgs {
    /// Round-trip time without queueing, split equally between the directions
    #[arg(long, value_name = "TIME", default_value = "0ms")]
    pub rtt: Span,

    /// Rate of the bottleneck, counting whole IP packets: 1Gbit, 20Mbit, unlimited
    #[arg(long, value_name = "RATE", default_value = "unlimited", value_parser = values::rate)]
    pub rate: Rate,

    /// Rate from B to A
    #[arg(long, value_name = "RATE", value_parser = values::rate)]
    pub rate_back: Option<Rate>,

    /// Capacity of the bottleneck's queue: 1bdp (at least 64 packets), 64KiB, 100ms or 1000p
    #[arg(long, value_name = "SIZE", default_value = "1bdp")]
    pub queue: QueueSize,

    /// Queue from B to A
    #[arg(long, value_name = "SIZE")]
    pub queue_back: Option<QueueSize>,

    /// Active queue management instead of tail drop
    #[arg(long, value_name = "KIND")]
    pub aqm: Option<Aqm>,

    /// Active queue management from B to A
    #[arg(long, value_name = "KIND")]
    pub aqm_back: Option<Aqm>,

    /// Drops packets that exceed a rate and a burst, before the bottleneck: 50Mbit:64KiB
    #[arg(long, value_name = "RATE:SIZE")]
    pub policer: Option<Policing>,

    /// Policer from B to A
    #[arg(long, value_name = "RATE:SIZE")]
    pub policer_back: Option<Policing>,

    /// Random loss: 0.1% or 0.001
    #[arg(long, value_name = "SHARE")]
    pub loss: Option<Share>,

    /// Loss from B to A
    #[arg(long, value_name = "SHARE")]
    pub loss_back: Option<Share>,

    /// Burst loss: P:R (probabilities that a burst starts and ends), or the mean length with --loss
    #[arg(long, value_name = "P:R|N")]
    pub burst_loss: Option<Bursts>,

    /// Burst loss from B to A
    #[arg(long, value_name = "P:R|N")]
    pub burst_loss_back: Option<Bursts>,

    /// Random extra delay per packet, uniform from zero to this; packets keep their order
    #[arg(long, value_name = "TIME")]
    pub jitter: Option<Span>,

    /// Jitter from B to A
    #[arg(long, value_name = "TIME")]
    pub jitter_back: Option<Span>,

    /// Share of packets that are delayed, and the maximum delay: 1% or 1%:5ms [default: 10 % of the
    /// round-trip time, at least 1 ms]
    #[arg(long, value_name = "SHARE[:TIME]")]
    pub reorder: Option<Reorder>,

    /// Reordering from B to A
    #[arg(long, value_name = "SHARE[:TIME]")]
    pub reorder_back: Option<Reorder>,

    /// Share of packets that are duplicated
    #[arg(long, value_name = "SHARE")]
    pub duplicate: Option<Share>,

    /// Duplication from B to A
    #[arg(long, value_name = "SHARE")]
    pub duplicate_back: Option<Share>,

    /// Share of packets with a bit error
    #[arg(long, value_name = "SHARE")]
    pub corrupt: Option<Share>,

    /// Bit errors from B to A
    #[arg(long, value_name = "SHARE")]
    pub corrupt_back: Option<Share>,

    /// Time in which every packet is dropped: START+LENGTH, or START+LENGTH/PERIOD to repeat it
    #[arg(long, value_name = "TIMES")]
    pub outage: Vec<OutageTime>,

    /// Outages from B to A
    #[arg(long, value_name = "TIMES")]
    pub outage_back: Vec<OutageTime>,

    /// Silently drops longer packets on the path, as a black hole does
    #[arg(long, value_name = "BYTES", value_parser = values::mtu)]
    pub path_mtu: Option<u32>,
}

/// Load beside the receiver, and cross traffic in the bottleneck.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Load")]
pub(crate) struct LoadArgs {
    /// CPU-bound processes on side B's processor (--cpu-b, or the last one)
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub burners: u32,

    /// 0 to 7 such processes for 1 to 7 s, then a pause of 0 to 20 s, repeatedly
    #[arg(long)]
    pub generator: bool,

    /// Cross traffic from A to B through the bottleneck: cubic, bbr, reno or udp:RATE; may be repeated
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
