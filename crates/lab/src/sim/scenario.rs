//! What a scenario file may say.

use std::collections::BTreeMap;

use haul_base::{Bytes, Rate, Span};
use haul_sim::{AggregateSpec, StageChange, StageRef, StageSpec, UdpSourceSpec};
use serde::Deserialize;

use super::text::{Names, Text};

/// A scenario: topology, sessions, what happens beside them, and what must come out.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Scenario {
    /// What it shows, for people.
    #[serde(default)]
    pub about: String,
    /// Every random decision follows from it.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// The longest simulated time.
    pub cap: Text<Span>,
    /// Whether a run may end at the cap.
    #[serde(default)]
    pub expect_cap: bool,
    /// Whatever sends begins by up to so much later, all by the same time, which the seed decides: what else has a time
    /// of its own (events, outages, loads) meets it at another moment with each seed.
    #[serde(default)]
    pub start_within: Text<Span>,
    /// Interval of the rates over time; none are recorded if absent.
    pub record: Option<Text<Span>>,
    #[serde(default)]
    pub path: Vec<PathEntry>,
    /// Receiving hosts.
    #[serde(default)]
    pub host: Vec<HostEntry>,
    /// Transfers.
    #[serde(default)]
    pub session: Vec<SessionEntry>,
    /// Messages, carried by recipes of micro-protocols.
    #[serde(default)]
    pub service: Vec<ServiceEntry>,
    /// Traffic beside them.
    #[serde(default)]
    pub traffic: Vec<TrafficEntry>,
    /// Changes over time.
    #[serde(default)]
    pub event: Vec<EventEntry>,
    /// What must hold at the end.
    #[serde(default)]
    pub check: Vec<CheckEntry>,
    /// Keys with lists of values; taken apart before the rest is read.
    #[serde(default, rename = "sweep")]
    pub _sweep: toml::Table,
}

impl Scenario {
    /// Names of the entries of a list.
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

/// A link in both directions.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PathEntry {
    /// By which sessions find it.
    pub name: String,
    /// Stages toward the receivers.
    pub forward: Vec<StageSpec>,
    /// Stages toward the senders; those of `forward` if absent.
    pub back: Option<Vec<StageSpec>>,
}

/// A host on which receivers or senders run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostEntry {
    /// By which sessions find it.
    pub name: String,
    /// Who shares out its core.
    #[serde(default)]
    pub scheduler: SchedulerName,
    /// What programs ask for with `SO_RCVBUF`.
    pub socket_buffer: Option<Text<Bytes>>,
    /// Core time that a receiving program takes for each packet.
    pub per_packet: Option<Text<Span>>,
    /// Core time that a sending program takes for each packet; nothing if absent.
    pub per_sent: Option<Text<Span>>,
    /// Core time that interrupts take for each packet, before any program.
    pub interrupt: Option<Text<Span>>,
    /// Slots of the network card's ring.
    pub ring: Option<u32>,
    /// Whether the card merges packets (GRO). If absent, a simulated one does not, and a real one does.
    pub gro: Option<bool>,
    /// What else runs there.
    #[serde(default)]
    pub loads: Vec<LoadEntry>,
}

/// The CPU scheduler of a simulated host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SchedulerName {
    /// The one of Linux 2.6.
    O1,
    /// Fair, as Linux from 6.6.
    #[default]
    Fair,
}

/// A load on a host.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LoadEntry {
    pub kind: LoadKind,
    /// How many processes, or the most of the generator.
    pub processes: Option<u32>,
    /// Of `computation`: how nice they are.
    pub nice: Option<i8>,
    /// Of `computation`: the sleep average with which they start; for the O(1) scheduler.
    pub sleep_average: Option<Text<Span>>,
    /// Of `forwarding`.
    pub packets_per_second: Option<u64>,
    /// Of `forwarding`: core time for each packet.
    pub per_packet: Option<Text<Span>>,
    /// Of `forwarding`: packets per interrupt.
    pub burst: Option<u32>,
    /// Of `system_calls`: how long a process runs on average before it waits. Of `quota`: how much processor time the
    /// receivers get.
    pub run: Option<Text<Span>>,
    /// Of `system_calls`: how long it waits on average.
    pub wait: Option<Text<Span>>,
    /// Of `system_calls`: what the waits are for the scheduler.
    pub sleep: Option<SleepName>,
    /// Of `memory`: by which factor receivers are slower.
    pub slowdown: Option<f64>,
    /// Of `generator`: shortest and longest time for which its processes run.
    pub runs: Option<[Text<Span>; 2]>,
    /// Of `generator`: shortest and longest pause.
    pub pauses: Option<[Text<Span>; 2]>,
    /// Of `suspension`: time from one stop of the receivers to the next. Of `quota`: for which time they get it.
    pub every: Option<Text<Span>>,
    /// Of `suspension`: how long each lasts.
    pub stop: Option<Text<Span>>,
    /// Virtual time at which the load begins.
    #[serde(default)]
    pub at: Text<Span>,
    /// How long it lasts; to the end if absent.
    pub length: Option<Text<Span>>,
}

/// How a process waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SleepName {
    /// For a pipe, a timer or the network: the O(1) scheduler takes such a program for interactive.
    Interruptible,
    /// For a disk.
    Uninterruptible,
}

/// The loads of the papers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum LoadKind {
    /// Only computes.
    Computation,
    /// Short work, short waits.
    SystemCalls,
    /// Makes the cache cold.
    Memory,
    /// Packets for others.
    Forwarding,
    /// A random number of computing processes for a random time.
    Generator,
    /// Stops the receivers again and again.
    Suspension,
    /// Bounds the processor time of the receivers by a control group; real ones only.
    Quota,
}

/// A transfer: one sender, one receiver, one object.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own in scenario files")]
pub(super) struct SessionEntry {
    /// Its name in the report.
    pub name: String,
    /// The links that it crosses.
    pub path: Names,
    /// Where its receiver runs; a machine without limits if absent.
    pub host: Option<String>,
    /// The same for its sender.
    pub sender_host: Option<String>,
    /// Virtual time at which the session begins.
    #[serde(default)]
    pub start: Text<Span>,
    /// How much it sends, or ...
    pub bytes: Option<Text<Bytes>>,
    /// ... how long.
    pub time: Option<Text<Span>>,
    /// A shipped recipe that carries objects.
    #[serde(default = "default_recipe")]
    pub recipe: String,
    /// Parameters of it that are to be others: `"rapid_plus.k" = "4"`.
    #[serde(default)]
    pub set: BTreeMap<String, String>,
    /// Whether the sender is told the true causes of its losses, in place of its own diagnosis.
    #[serde(default)]
    pub truth: bool,
    /// Whether its losses and its diagnosis drive a virtual transfer on a path of 10 Gbit/s.
    #[serde(default)]
    pub virtual_transfer: bool,
    /// Whether the report has its transmission windows that lost something, with what is measured of them.
    #[serde(default)]
    pub windows: bool,
    /// Whether the published discriminators look at its packets too.
    #[serde(default)]
    pub discriminators: bool,
    /// The rate controller; the recipe's if absent.
    pub controller: Option<String>,
    /// Its fixed rate, or its ceiling; the recipe's if absent.
    pub rate: Option<Text<Rate>>,
    /// The object is cut at multiples of this.
    pub chunk: Option<Text<Bytes>>,
    /// Datagram size, fixed: UDP payload bytes. If absent, the path is searched.
    pub datagram: Option<u16>,
    /// How often the receiver reports.
    pub feedback: Option<Text<Span>>,
    /// Other laws, or other parameters of the law, from a time on.
    #[serde(default)]
    pub switch: Vec<Switch>,
    /// Times in which the application has nothing to send.
    #[serde(default)]
    pub pause: Vec<Pause>,
    /// Jumps of the clock of either end.
    #[serde(default)]
    pub clock_jump: Vec<ClockJump>,
    /// The rate at which the sender's storage reads; at once if absent. For a session with bytes.
    pub reads: Option<Text<Rate>>,
    /// The rate at which the receiver's storage writes; at once if absent.
    pub writes: Option<Text<Rate>>,
}

/// A pause of the application that sends.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pause {
    /// When, from the start of the session.
    pub at: Text<Span>,
    pub length: Text<Span>,
}

/// A jump of a clock, as on a machine that was suspended: what the clock counted has not happened.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClockJump {
    /// When, from the start of the session.
    pub at: Text<Span>,
    /// By how much it goes forward; the clock that machines read never goes back.
    pub by: Text<Span>,
    /// Whose clock.
    #[serde(default)]
    pub end: SessionEnd,
}

/// An end of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SessionEnd {
    /// Where the object comes from.
    #[default]
    Sender,
    /// Where it goes.
    Receiver,
}

/// A switch of a running session's law.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Switch {
    /// When, from the start of the session.
    pub at: Text<Span>,
    /// The new law; the present one if absent.
    pub controller: Option<String>,
    /// The rate that the law is given.
    pub rate: Option<Text<Rate>>,
}

fn default_recipe() -> String {
    "bulk".to_owned()
}

/// Messages of one sender to one receiver.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ServiceEntry {
    /// Its name in the report.
    pub name: String,
    /// The links that it crosses.
    pub path: Names,
    /// Where its receiver runs; a machine without limits if absent.
    pub host: Option<String>,
    /// Virtual time at which the sender begins.
    #[serde(default)]
    pub start: Text<Span>,
    /// A shipped recipe.
    pub recipe: String,
    /// Parameters of it that are to be others: `"fixed_rate.rate" = "200Mbit"`.
    #[serde(default)]
    pub set: BTreeMap<String, String>,
    /// Bytes of a message.
    pub message: Text<Bytes>,
    /// Number of messages to send.
    pub messages: u64,
    /// Time between two; as fast as the recipe allows if absent.
    pub every: Option<Text<Span>>,
}

/// Traffic beside the sessions: exactly one of the three kinds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TrafficEntry {
    /// Its name in the report.
    pub name: String,
    /// The links that it crosses.
    pub path: Names,
    /// Whether it goes toward the receivers or comes from them.
    #[serde(default)]
    pub direction: Way,
    /// Where its end on the receivers' side is; nowhere in particular if absent.
    pub host: Option<String>,
    /// One stream.
    pub udp: Option<UdpSourceSpec>,
    /// Many flows that come and go.
    pub aggregate: Option<AggregateSpec>,
    /// A flow of TCP.
    pub tcp: Option<TcpEntry>,
}

/// A flow of TCP.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TcpEntry {
    pub control: TcpLaw,
    /// How much it sends; without end if absent.
    pub bytes: Option<Text<Bytes>>,
    /// Virtual time at which the flow begins.
    #[serde(default)]
    pub start: Text<Span>,
    /// The receiver's buffer, which bounds the window; plenty if absent.
    pub buffer: Option<Text<Bytes>>,
}

/// A law of congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum TcpLaw {
    /// RFC 5681.
    Reno,
    /// RFC 9438.
    Cubic,
    /// Version 1.
    Bbr,
}

/// A change of a link while packets are on it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EventEntry {
    /// Time from the start.
    pub at: Text<Span>,
    /// Name of the link.
    pub path: String,
    #[serde(default)]
    pub direction: Direction,
    pub stage: StageRef,
    /// What becomes of it.
    pub change: StageChange,
}

/// A direction of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Direction {
    /// Toward the receivers.
    Forward,
    /// Toward the senders.
    Back,
    /// Either.
    #[default]
    Both,
}

/// Where traffic goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Way {
    /// Toward the receivers.
    #[default]
    Forward,
    /// Toward the senders.
    Back,
}

/// A condition on what came out: of a session, of traffic, of a link, or of the whole run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckEntry {
    /// Name of the session that the condition is about.
    pub session: Option<String>,
    /// Name of the service that the condition is about.
    pub service: Option<String>,
    /// Name of the traffic that the condition is about.
    pub traffic: Option<String>,
    /// Name of the link that the condition is about.
    pub path: Option<String>,
    /// The condition: `goodput >= 800Mbit`.
    pub that: String,
}
