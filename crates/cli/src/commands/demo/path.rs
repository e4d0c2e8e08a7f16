//! The demo's path, between two network namespaces if they can be made, otherwise through a relay on the
//! loopback interface; and its output.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::OnceLock;

use haul_base::{Bytes, Rate};
use haul_engine::Role;
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
pub(crate) enum EmulatedPath {
    Namespaces(Box<Emulator>),
    /// A relay, started when the server's address is known, and why there are no namespaces.
    Relay {
        spec: PathArgs,
        relay: OnceLock<Relay>,
        why: String,
    },
}

impl EmulatedPath {
    /// Starts a path. Through a relay, the server has to start before the client.
    pub(crate) fn start(spec: &PathArgs, namespaces: &Namespaces) -> Result<Self, Fault> {
        let why = match namespaces {
            Ok(()) => match emulator(spec) {
                Ok(emulator) => return Ok(Self::Namespaces(Box::new(emulator))),
                Err(error @ WanError::Path(_)) => return Err(path_fault(&error)),
                Err(error) => error.to_string(),
            },
            Err(why) => why.clone(),
        };
        Ok(Self::Relay { spec: spec.clone(), relay: OnceLock::new(), why })
    }

    pub(crate) fn why_relay(&self) -> Option<&str> {
        match self {
            Self::Namespaces(_) => None,
            Self::Relay { why, .. } => Some(why),
        }
    }

    pub(crate) fn server_ip(&self) -> Ipv4Addr {
        match self {
            Self::Namespaces(_) => V4[1],
            Self::Relay { .. } => Ipv4Addr::LOCALHOST,
        }
    }

    /// Runs `work` in the namespace of an end, if any. Threads and processes that it starts stay there.
    pub(crate) fn at<T: Send>(
        &self,
        end: Role,
        work: impl FnOnce() -> Result<T, Fault> + Send,
    ) -> Result<T, Fault> {
        let Self::Namespaces(emulator) = self else { return work() };
        let side = match end {
            Role::Client => &emulator.world.a,
            Role::Server => &emulator.world.b,
        };
        let entered = side.namespace.run(|| Ok(work()));
        entered.map_err(|error| fault::io("cannot work inside a network namespace", &error))?
    }

    /// Returns the client's address of the server at `server`. A relay reaches only the first server.
    pub(crate) fn address_of(&self, server: SocketAddr) -> Result<SocketAddr, Fault> {
        let Self::Relay { spec, relay, .. } = self else { return Ok(server) };
        if let Some(relay) = relay.get() {
            return Ok(relay.address());
        }
        let started = Relay::start(&spec.stages(), spec.seed, server).map_err(|e| path_fault(&e))?;
        Ok(relay.get_or_init(|| started).address())
    }

    /// Returns the counts of the direction from client to server, and of the one back.
    fn counts(&self) -> Result<[Relayed; 2], Fault> {
        let failed = |error| Fault::new(FaultCode::Internal, format!("the emulated path: {error}"), "");
        match self {
            Self::Namespaces(emulator) => counts(emulator).map_err(failed),
            Self::Relay { relay, .. } => Ok(relay.get().map(Relay::counts).unwrap_or_default()),
        }
    }
}

/// Returns the counts of both directions. What the kernel dropped because the emulator did not read it in time
/// counts as the emulator's.
pub(super) fn counts(emulator: &Emulator) -> io::Result<[Relayed; 2]> {
    let [up, down] = emulator.snapshots().ok_or_else(|| io::Error::other("it has failed"))?;
    let relayed = |Snapshot { sent, received, mut drops, .. }: Snapshot, side: &Side| -> io::Result<_> {
        drops.count(DropReason::Carrier, side.device_drops()?);
        Ok(Relayed { sent, received, drops, overrun: 0 })
    };
    Ok([relayed(up, &emulator.world.a)?, relayed(down, &emulator.world.b)?])
}

fn path_fault(error: &WanError) -> Fault {
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

/// Returns the parameters of a path for the trace's `start`.
pub(super) fn parameters(spec: &PathArgs) -> Value {
    json!({
        "rtt_ms": spec.rtt.as_millis_f64(), "rate_bps": spec.path_rate.as_bps(), "loss": spec.loss.get(),
        "seed": spec.seed, "queue_bytes": spec.queue().0,
    })
}

/// Prints the parameters of the path, and starts it; if it is not between network namespaces, prints why.
pub(super) fn start(
    context: &Context,
    spec: &PathArgs,
    namespaces: &Namespaces,
) -> Result<EmulatedPath, Fault> {
    let &PathArgs { rtt, path_rate, loss, seed } = spec;
    context.inform(format!(
        "Path:  {path_rate}, rtt {rtt}, {:.3} % random loss each way, queue {}, seed {seed}",
        loss.get() * 100.0,
        spec.queue()
    ));
    let path = EmulatedPath::start(spec, namespaces)?;
    if let Some(why) = path.why_relay() {
        context.inform(format!(
            "       through a relay on the loopback interface, which takes processor time from both ends: {why}"
        ));
    }
    Ok(path)
}

/// Prints and traces what each direction did to packets (namespaces) or datagrams (relay).
pub(super) fn show_counts(context: &Context, path: &EmulatedPath) -> Result<(), Fault> {
    for (name, direction) in ["Data", "Back"].into_iter().zip(&path.counts()?) {
        let [random, queue_full, too_large, relay] =
            [DropReason::Random, DropReason::QueueFull, DropReason::TooLarge, DropReason::Carrier]
                .map(|reason| direction.drops.of(reason));
        let (offered, overrun) = (direction.sent.packets, direction.overrun);
        let mut lost = vec![format!("{random} at random"), format!("{queue_full} at the full queue")];
        // Shown only if there are any: on a machine that keeps up, the emulation and its buffers lose none.
        let others = [(too_large, "too large"), (relay, "in the emulation"), (overrun, "buffers overrun")];
        let others = others.into_iter().filter(|(number, _)| *number > 0);
        lost.extend(others.map(|(number, why)| format!("{number} {why}")));
        let (lost, bytes) = (lost.join(", "), Bytes(direction.received.bytes));
        context.inform(format!("{name}:  {}, lost {lost}; {bytes} delivered", count(offered, "packet")));
        let event = json!({
            "direction": name.to_lowercase(), "offered": offered, "delivered": direction.received.packets,
            "queue_full": queue_full, "random": random, "too_large": too_large, "relay": relay,
            "overrun": overrun,
        });
        context.events.write("path", event);
    }
    Ok(())
}

/// Formats a line of a table: who, its goodput, and the goodput's share of the rate `capacity`.
pub(super) fn row(label: &str, goodput: Rate, capacity: Rate, remark: &str) -> String {
    let share = goodput.as_bps() as f64 / capacity.as_bps().max(1) as f64;
    format!("  {label:<22}  {:<13}  {:<7}{remark}", goodput.to_string(), percent(share)).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use haul_base::{Probability, Span};

    use super::*;

    #[test]
    fn the_queue_holds_a_bandwidth_delay_product_or_64_packets() {
        let spec = |rtt_ms, mbps| {
            let (rtt, path_rate) = (Span::from_millis(rtt_ms), Rate::from_mbps(mbps));
            PathArgs { rtt, path_rate, loss: Probability::ZERO, seed: 1 }
        };
        assert_eq!(spec(100, 120).queue(), Bytes(1_500_000));
        assert_eq!(spec(0, 1_000).queue(), Bytes(96_000));
    }
}
