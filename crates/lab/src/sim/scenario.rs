//! Format of scenario files.

use std::collections::BTreeMap;

use haul_base::{Bytes, Rate, Span};
use haul_sim::{AggregateSpec, StageChange, StageRef, StageSpec, UdpSourceSpec};
use serde::Deserialize;

use super::text::{Names, Text};

/// A scenario: topology, sessions, other traffic, events and expected results.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Scenario {
    /// Description for users.
    #[serde(default)]
    pub about: String,
    /// Seed of all random decisions.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// Maximum simulated time.
    pub cap: Text<Span>,
    /// Whether a run may end at the cap.
    #[serde(default)]
    pub expect_cap: bool,
    /// Range of a common random delay of all starts, drawn from the seed. Events, outages and loads with
    /// fixed times then meet the traffic at a different moment with each seed.
    #[serde(default)]
    pub start_within: Text<Span>,
    /// Interval of recorded rates; none are recorded if absent.
    pub record: Option<Text<Span>>,
    #[serde(default)]
    pub path: Vec<PathEntry>,
    /// Receiving hosts.
    #[serde(default)]
    pub host: Vec<HostEntry>,
    /// Transfers.
    #[serde(default)]
    pub session: Vec<SessionEntry>,
    /// Message services, carried by recipes of micro-protocols.
    #[serde(default)]
    pub service: Vec<ServiceEntry>,
    /// Other traffic.
    #[serde(default)]
    pub traffic: Vec<TrafficEntry>,
    /// Changes over time.
    #[serde(default)]
    pub event: Vec<EventEntry>,
    /// Conditions at the end.
    #[serde(default)]
    pub check: Vec<CheckEntry>,
    /// Keys with lists of values; removed before the rest is parsed.
    #[serde(default, rename = "sweep")]
    pub _sweep: toml::Table,
}

impl Scenario {
    /// Returns the names of the entries of a list.
    pub(super) fn names(&self, list: &str) -> Vec<&str> {
        match list {
            "session" => self.session.iter().map(|entry| entry.name.as_str()).collect(),
            "service" => self.service.iter().map(|entry| entry.name.as_str()).collect(),
            "traffic" => self.traffic.iter().map(|entry| entry.name.as_str()).collect(),
            _ => self.path.iter().map(|entry| entry.name.as_str()).collect(),
        }
    }
}

fn default_seed() -> u64 {
    1
}

/// A bidirectional link.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PathEntry {
    /// Name used by sessions.
    pub name: String,
    /// Stages towards the receivers.
    pub forward: Vec<StageSpec>,
    /// Stages towards the senders; the same as `forward` if absent.
    pub back: Option<Vec<StageSpec>>,
}

/// A host that runs receivers or senders.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostEntry {
    /// Name used by sessions.
    pub name: String,
    /// Scheduler of its core.
    #[serde(default)]
    pub scheduler: SchedulerName,
    /// Buffer size that programs request with `SO_RCVBUF`.
    pub socket_buffer: Option<Text<Bytes>>,
    /// Core time of a receiving program per packet.
    pub per_packet: Option<Text<Span>>,
    /// Core time of a sending program per packet; zero if absent.
    pub per_sent: Option<Text<Span>>,
    /// Core time of interrupts per packet, before any program runs.
    pub interrupt: Option<Text<Span>>,
    /// Slots of the network card's ring.
    pub ring: Option<u32>,
    /// Whether the card merges packets (GRO). Default: off for a simulated card, on for a real one.
    pub gro: Option<bool>,
    /// Loads on the host.
    #[serde(default)]
    pub loads: Vec<LoadEntry>,
}

/// CPU scheduler of a simulated host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SchedulerName {
    /// O(1) scheduler of Linux 2.6.
    O1,
    /// Fair scheduler, as in Linux from 6.6.
    #[default]
    Fair,
}

/// A load on a host.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LoadEntry {
    pub kind: LoadKind,
    /// Number of processes; for the generator the maximum.
    pub processes: Option<u32>,
    /// `computation`: nice value.
    pub nice: Option<i8>,
    /// `computation`: initial sleep average, for the O(1) scheduler.
    pub sleep_average: Option<Text<Span>>,
    /// `forwarding`: packets per second.
    pub packets_per_second: Option<u64>,
    /// `forwarding`: core time per packet.
    pub per_packet: Option<Text<Span>>,
    /// `forwarding`: packets per interrupt.
    pub burst: Option<u32>,
    /// `system_calls`: mean run time before a wait. `quota`: CPU time of the receivers per `every`.
    pub run: Option<Text<Span>>,
    /// `system_calls`: mean wait time.
    pub wait: Option<Text<Span>>,
    /// `system_calls`: how the scheduler classifies the waits.
    pub sleep: Option<SleepName>,
    /// `memory`: factor by which receivers are slower.
    pub slowdown: Option<f64>,
    /// `generator`: minimum and maximum run time.
    pub runs: Option<[Text<Span>; 2]>,
    /// `generator`: minimum and maximum pause.
    pub pauses: Option<[Text<Span>; 2]>,
    /// `suspension`: period of the stops. `quota`: period of the CPU time limit.
    pub every: Option<Text<Span>>,
    /// `suspension`: length of each stop.
    pub stop: Option<Text<Span>>,
    /// Virtual time at which the load starts.
    #[serde(default)]
    pub at: Text<Span>,
    /// Duration; to the end of the run if absent.
    pub length: Option<Text<Span>>,
}

/// How a process waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SleepName {
    /// For a pipe, a timer or the network: the O(1) scheduler considers such a program interactive.
    Interruptible,
    /// For a disk.
    Uninterruptible,
}

/// The loads of the papers, and a CPU quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum LoadKind {
    /// CPU-bound processes.
    Computation,
    /// Short work, short waits.
    SystemCalls,
    /// Evicts the cache.
    Memory,
    /// Packets forwarded for others.
    Forwarding,
    /// A random number of CPU-bound processes for a random time.
    Generator,
    /// Stops the receivers repeatedly.
    Suspension,
    /// Limits the CPU time of the receivers by a control group; real runs only.
    Quota,
}

/// A transfer: one sender, one receiver, one object.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own in scenario files")]
pub(super) struct SessionEntry {
    /// Name in the report.
    pub name: String,
    /// Links that it crosses.
    pub path: Names,
    /// Host of its receiver; an unlimited machine if absent.
    pub host: Option<String>,
    /// Host of its sender; an unlimited machine if absent.
    pub sender_host: Option<String>,
    /// Virtual time at which the session starts.
    #[serde(default)]
    pub start: Text<Span>,
    /// Bytes to send. Exactly one of `bytes` and `time` is given.
    pub bytes: Option<Text<Bytes>>,
    /// Duration.
    pub time: Option<Text<Span>>,
    /// A preset recipe that carries objects.
    #[serde(default = "default_recipe")]
    pub recipe: String,
    /// Overridden parameters of the recipe: `"rapid_plus.k" = "4"`.
    #[serde(default)]
    pub set: BTreeMap<String, String>,
    /// Whether the sender gets the true causes of its losses, instead of its own diagnosis.
    #[serde(default)]
    pub truth: bool,
    /// Whether its losses and diagnosis drive a virtual transfer on a path of 10 Gbit/s.
    #[serde(default)]
    pub virtual_transfer: bool,
    /// Whether the report includes its transmission windows with losses, and their measures.
    #[serde(default)]
    pub windows: bool,
    /// Whether the published discriminators also evaluate its packets.
    #[serde(default)]
    pub discriminators: bool,
    /// Rate controller; the recipe's if absent.
    pub controller: Option<String>,
    /// Fixed rate, or ceiling of the law; the recipe's if absent.
    pub rate: Option<Text<Rate>>,
    /// Chunk size of the object.
    pub chunk: Option<Text<Bytes>>,
    /// Fixed datagram size: UDP payload bytes. If absent, path MTU discovery is used.
    pub datagram: Option<u16>,
    /// Interval of the receiver's feedback.
    pub feedback: Option<Text<Span>>,
    /// Changes of the law or of its parameters over time.
    #[serde(default)]
    pub switch: Vec<Switch>,
    /// Times in which the application has nothing to send.
    #[serde(default)]
    pub pause: Vec<Pause>,
    /// Clock jumps at either end.
    #[serde(default)]
    pub clock_jump: Vec<ClockJump>,
    /// Read rate of the sender's storage; immediate if absent. For a session with bytes.
    pub reads: Option<Text<Rate>>,
    /// Write rate of the receiver's storage; immediate if absent.
    pub writes: Option<Text<Rate>>,
}

/// A pause of the sending application.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pause {
    /// Time since the start of the session.
    pub at: Text<Span>,
    pub length: Text<Span>,
}

/// A forward jump of a clock, as on a machine that was suspended: no events happened in the skipped time.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClockJump {
    /// Time since the start of the session.
    pub at: Text<Span>,
    /// Length of the jump. Clocks of machines never go back.
    pub by: Text<Span>,
    /// End whose clock jumps.
    #[serde(default)]
    pub end: SessionEnd,
}

/// An end of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SessionEnd {
    /// Sender of the object.
    #[default]
    Sender,
    /// Receiver of the object.
    Receiver,
}

/// A change of a running session's law.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Switch {
    /// Time since the start of the session.
    pub at: Text<Span>,
    /// New law; the current one if absent.
    pub controller: Option<String>,
    /// New rate of the law.
    pub rate: Option<Text<Rate>>,
}

fn default_recipe() -> String {
    "bulk".to_owned()
}

/// Messages from one sender to one receiver.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ServiceEntry {
    /// Name in the report.
    pub name: String,
    /// Links that it crosses.
    pub path: Names,
    /// Host of its receiver; an unlimited machine if absent.
    pub host: Option<String>,
    /// Virtual time at which the sender starts.
    #[serde(default)]
    pub start: Text<Span>,
    /// A preset recipe.
    pub recipe: String,
    /// Overridden parameters of the recipe: `"fixed_rate.rate" = "200Mbit"`.
    #[serde(default)]
    pub set: BTreeMap<String, String>,
    /// Bytes per message.
    pub message: Text<Bytes>,
    /// Number of messages to send.
    pub messages: u64,
    /// Interval; as fast as the recipe permits if absent.
    pub every: Option<Text<Span>>,
}

/// Other traffic: exactly one of the three kinds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TrafficEntry {
    /// Name in the report.
    pub name: String,
    /// Links that it crosses.
    pub path: Names,
    /// Whether it is sent towards the receivers or towards the senders.
    #[serde(default)]
    pub direction: Way,
    /// Host of its end on the receivers' side; an unlimited machine if absent.
    pub host: Option<String>,
    /// A single UDP stream.
    pub udp: Option<UdpSourceSpec>,
    /// Many short flows.
    pub aggregate: Option<AggregateSpec>,
    /// A TCP flow.
    pub tcp: Option<TcpEntry>,
}

/// A TCP flow.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TcpEntry {
    pub control: TcpLaw,
    /// Bytes to send; endless if absent.
    pub bytes: Option<Text<Bytes>>,
    /// Virtual time at which the flow starts.
    #[serde(default)]
    pub start: Text<Span>,
    /// The receiver's buffer, which bounds the window; does not limit the flow if absent.
    pub buffer: Option<Text<Bytes>>,
}

/// Congestion control law.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum TcpLaw {
    /// RFC 5681.
    Reno,
    /// RFC 9438.
    Cubic,
    /// BBR version 1.
    Bbr,
}

/// A change of a link while it carries packets.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EventEntry {
    /// Time since the start of the run.
    pub at: Text<Span>,
    /// Name of the link.
    pub path: String,
    #[serde(default)]
    pub direction: Direction,
    pub stage: StageRef,
    /// Change of the stage.
    pub change: StageChange,
}

/// A direction of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Direction {
    /// Towards the receivers.
    Forward,
    /// Towards the senders.
    Back,
    /// Both directions.
    #[default]
    Both,
}

/// Direction of traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Way {
    /// Towards the receivers.
    #[default]
    Forward,
    /// Towards the senders.
    Back,
}

/// A condition on the results: of a session, service, traffic, link, or of the whole run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckEntry {
    /// Session of the condition.
    pub session: Option<String>,
    /// Service of the condition.
    pub service: Option<String>,
    /// Traffic of the condition.
    pub traffic: Option<String>,
    /// Link of the condition.
    pub path: Option<String>,
    /// The condition: `goodput >= 800Mbit`.
    pub that: String,
}
