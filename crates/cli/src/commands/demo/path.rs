//! The demo's path, between two network namespaces if they can be made, otherwise through a relay on the
//! loopback interface; and its output.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::OnceLock;

use haul_base::{Bytes, Rate};
use haul_sim::{BottleneckSpec, DropReason, Limit, QueueSpec, StageSpec};
use haul_wan::{
    Emulator, EmulatorOptions, Names, Relay, Relayed, Side, Snapshot, TcpWindow, V4, WanError, acquire,
};
use serde_json::{Value, json};

use crate::args::PathArgs;
use crate::fault::{self, Fault, FaultCode};
use crate::output::{count, percent};
use crate::transfer::Context;

const MTU: u32 = 1_500;
const MIN_QUEUE_PACKETS: u64 = 64;

impl PathArgs {
    /// Returns the capacity of the bottleneck's queue: one bandwidth-delay product, but at least 64 packets.
    pub(crate) fn queue(&self) -> Bytes {
        let least = MIN_QUEUE_PACKETS * u64::from(MTU);
        Bytes(self.path_rate.bytes_in(self.rtt).max(least))
    }

    /// Returns the stages of one direction. Packets lost at random have used their time at the bottleneck.
    pub(crate) fn stages(&self) -> haul_sim::PathSpec {
        let queue = QueueSpec::TailDrop(Limit::Bytes(self.queue()));
        haul_sim::PathSpec {
            stages: vec![
                StageSpec::Mtu(MTU),
                StageSpec::Bottleneck(BottleneckSpec { rate: self.path_rate, queue }),
                StageSpec::Loss(self.loss),
                StageSpec::Delay(self.rtt / 2),
            ],
        }
    }
}

/// Describes what one direction did to datagrams (relay) or packets (namespaces), as text and for the trace.
fn told(way: &Relayed) -> (String, Value) {
    let [random, queue_full, too_large, relay] =
        [DropReason::Random, DropReason::QueueFull, DropReason::TooLarge, DropReason::Carrier]
            .map(|reason| way.drops.of(reason));
    let (offered, overrun) = (way.sent.packets, way.overrun);
    let mut lost = vec![format!("{random} at random"), format!("{queue_full} at the full queue")];
    // Shown only if there are any: on a machine that keeps up, the emulation and its buffers lose none.
    let others = [(too_large, "too large"), (relay, "in the emulation"), (overrun, "buffers overrun")];
    let others = others.into_iter().filter(|(number, _)| *number > 0);
    lost.extend(others.map(|(number, why)| format!("{number} {why}")));
    let (lost, bytes) = (lost.join(", "), Bytes(way.received.bytes));
    let words = format!("{}, lost {lost}; {bytes} delivered", count(offered, "packet"));
    let event = json!({
        "offered": offered, "delivered": way.received.packets, "queue_full": queue_full, "random": random,
        "too_large": too_large, "relay": relay, "overrun": overrun,
    });
    (words, event)
}

/// Whether network namespaces can be made; if not, why.
pub(crate) type Namespaces = Result<(), String>;

/// Acquires the right to make them. The process must have only one thread, as it may enter a user namespace.
pub(crate) fn acquire_namespaces() -> Namespaces {
    acquire().map(drop).map_err(|error| {
        let hint = if error.is_missing_privilege() { "; root (sudo) has it" } else { "" };
        format!("{error}{hint}")
    })
}

/// A running path; stops when dropped.
#[derive(Debug)]
pub(crate) struct EmulatedPath {
    spec: PathArgs,
    carrier: Carrier,
}

#[derive(Debug)]
enum Carrier {
    Namespaces(Box<Emulator>),
    /// The relay, started when the server's address is known, and why there are no namespaces.
    Relay(OnceLock<Relay>, String),
}

impl EmulatedPath {
    /// Starts a path. Through a relay, the server has to start before the client.
    pub(crate) fn start(spec: &PathArgs, namespaces: &Namespaces) -> Result<Self, Fault> {
        let carrier = match namespaces {
            Ok(()) => match emulator(spec) {
                Ok(emulator) => Carrier::Namespaces(Box::new(emulator)),
                Err(error @ WanError::Path(_)) => return Err(no_path(&error)),
                Err(error) => Carrier::Relay(OnceLock::new(), error.to_string()),
            },
            Err(why) => Carrier::Relay(OnceLock::new(), why.clone()),
        };
        Ok(Self { spec: spec.clone(), carrier })
    }

    pub(crate) fn why_relay(&self) -> Option<&str> {
        match &self.carrier {
            Carrier::Namespaces(_) => None,
            Carrier::Relay(_, why) => Some(why),
        }
    }

    pub(crate) fn server_ip(&self) -> Ipv4Addr {
        match self.carrier {
            Carrier::Namespaces(_) => V4[1],
            Carrier::Relay(..) => Ipv4Addr::LOCALHOST,
        }
    }

    /// Runs `work` in the server's namespace, if any. Threads and processes that it starts stay there.
    pub(crate) fn at_server<T: Send>(
        &self,
        work: impl FnOnce() -> Result<T, Fault> + Send,
    ) -> Result<T, Fault> {
        self.inside(|emulator| &emulator.world.b, work)
    }

    /// Like [`at_server`](Self::at_server), for the client.
    pub(crate) fn at_client<T: Send>(
        &self,
        work: impl FnOnce() -> Result<T, Fault> + Send,
    ) -> Result<T, Fault> {
        self.inside(|emulator| &emulator.world.a, work)
    }

    fn inside<T: Send>(
        &self,
        side: fn(&Emulator) -> &Side,
        work: impl FnOnce() -> Result<T, Fault> + Send,
    ) -> Result<T, Fault> {
        let Carrier::Namespaces(emulator) = &self.carrier else { return work() };
        let entered = side(emulator).namespace.run(|| Ok(work()));
        entered.map_err(|error| fault::io("cannot work inside a network namespace", &error))?
    }

    /// Returns the address at which the client reaches the server that listens at `server`. A relay reaches
    /// only the first server of its path.
    pub(crate) fn address_of(&self, server: SocketAddr) -> Result<SocketAddr, Fault> {
        let Carrier::Relay(relay, _) = &self.carrier else { return Ok(server) };
        if let Some(relay) = relay.get() {
            return Ok(relay.address());
        }
        let started = Relay::start(&self.spec.stages(), self.spec.seed, server).map_err(|e| no_path(&e))?;
        Ok(relay.get_or_init(|| started).address())
    }

    /// Returns the counts of the direction from client to server, and of the one back.
    pub(crate) fn counts(&self) -> Result<[Relayed; 2], Fault> {
        match &self.carrier {
            Carrier::Namespaces(emulator) => counts(emulator),
            Carrier::Relay(relay, _) => Ok(relay.get().map(Relay::counts).unwrap_or_default()),
        }
    }
}

fn no_path(error: &WanError) -> Fault {
    match error {
        WanError::Path(why) => {
            fault::usage(format!("cannot emulate this path: {why}"), "see `haul demo --help`")
        }
        other => Fault::new(FaultCode::Internal, format!("cannot start the emulated path: {other}"), ""),
    }
}

/// Starts the namespaces, which are unnamed and so end with this process, and the emulator between them.
pub(super) fn emulator(spec: &PathArgs) -> Result<Emulator, WanError> {
    let stages = spec.stages();
    Emulator::start(&EmulatorOptions {
        forth: &stages,
        back: &stages,
        seed: spec.seed,
        mtu: MTU,
        offload: true,
        window: TcpWindow::Path,
        cpu: None,
        names: Names::Hidden,
        drop_log: None,
    })
}

fn counts(emulator: &Emulator) -> Result<[Relayed; 2], Fault> {
    let failed = || Fault::new(FaultCode::Internal, "the emulated path has failed", "");
    let [up, down] = emulator.snapshots().ok_or_else(failed)?;
    // Packets that the kernel dropped because the emulator did not read them in time count as the emulator's.
    let way = |Snapshot { sent, received, mut drops, .. }: Snapshot, side: &Side| {
        let device = side.device_drops();
        drops.count(
            DropReason::Carrier,
            device.map_err(|e| fault::io("the kernel does not report a device's drops", &e))?,
        );
        Ok(Relayed { sent, received, drops, overrun: 0 })
    };
    Ok([way(up, &emulator.world.a)?, way(down, &emulator.world.b)?])
}

/// Prints the parameters of the path, and writes the trace's `start`.
pub(super) fn announce(context: &Context, spec: &PathArgs) {
    let &PathArgs { rtt, path_rate, loss, seed } = spec;
    let (loss, queue) = (loss.get(), spec.queue());
    context.say(format!(
        "Path:  {path_rate}, rtt {rtt}, {:.3} % random loss each way, queue {queue}, seed {seed}",
        loss * 100.0
    ));
    context.events.write(
        "start",
        json!({
            "rtt_ms": rtt.as_millis_f64(), "rate_bps": path_rate.as_bps(), "loss": loss, "seed": seed,
            "queue_bytes": queue.0,
        }),
    );
}

/// Starts the path; if it is not between network namespaces, prints why.
pub(super) fn start(
    context: &Context,
    spec: &PathArgs,
    namespaces: &Namespaces,
) -> Result<EmulatedPath, Fault> {
    let path = EmulatedPath::start(spec, namespaces)?;
    if let Some(why) = path.why_relay() {
        context.say(format!(
            "       through a relay on the loopback interface, which takes processor time from both ends: {why}"
        ));
    }
    Ok(path)
}

/// Prints what the path did to the packets, for comparison with the report.
pub(super) fn show_counts(context: &Context, path: &EmulatedPath) -> Result<(), Fault> {
    for (name, way) in ["Data", "Back"].into_iter().zip(&path.counts()?) {
        let (words, mut event) = told(way);
        context.say(format!("{name}:  {words}"));
        event["direction"] = json!(name.to_lowercase());
        context.events.write("path", event);
    }
    Ok(())
}

/// Formats a line of a table: who, its goodput, and the goodput's share of the rate `whole`.
pub(super) fn row(who: &str, goodput: Rate, whole: Rate, remark: &str) -> String {
    let share = goodput.as_bps() as f64 / whole.as_bps().max(1) as f64;
    format!("  {who:<22}  {:<13}  {:<7}{remark}", goodput.to_string(), percent(share)).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use haul_base::{Probability, Span};

    use super::*;

    #[test]
    fn the_queue_holds_one_bandwidth_delay_product_and_some_packets_at_least() {
        let spec = |rtt_ms, mbps| {
            let (rtt, path_rate) = (Span::from_millis(rtt_ms), Rate::from_mbps(mbps));
            PathArgs { rtt, path_rate, loss: Probability::ZERO, seed: 1 }
        };
        assert_eq!(spec(100, 120).queue(), Bytes(1_500_000));
        assert_eq!(spec(0, 1_000).queue(), Bytes(96_000));
    }
}
