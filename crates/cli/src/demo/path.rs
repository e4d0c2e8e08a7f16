//! The demo's path, the stages that it is made of, and what happened to its packets. It lies between two network
//! namespaces where they can be made, else it leads through a relay on the loopback interface.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::OnceLock;

use haul_base::{Bytes, Probability, Rate, Span};
use haul_sim::{BottleneckSpec, DropReason, Limit, QueueSpec, StageSpec};
use haul_wan::{
    Emulator, EmulatorOptions, Names, Relay, Relayed, Side, Snapshot, TcpWindow, V4, WanError, acquire,
};
use serde::Serialize;

use crate::fault::{self, Fault, FaultCode};

/// The least number of packets that the bottleneck's queue holds.
const MIN_QUEUE_PACKETS: u64 = 64;

/// What kind of path; both directions are alike.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PathSpec {
    /// Round-trip time without queueing, half of it in each direction.
    pub rtt: Span,
    /// Rate of the bottleneck in each direction, counting IP packets.
    pub rate: Rate,
    /// Share of the packets that get lost at random, in each direction.
    pub loss: Probability,
    pub mtu: u16,
    pub seed: u64,
}

impl PathSpec {
    /// What the bottleneck's queue holds: one bandwidth-delay product, and at least 64 packets.
    pub(crate) fn queue(&self) -> Bytes {
        let least = MIN_QUEUE_PACKETS * u64::from(self.mtu);
        Bytes(self.rate.bytes_in(self.rtt).max(least))
    }

    /// One direction, in the order in which a packet meets the stages. A packet that is lost at random has used its
    /// time at the bottleneck.
    pub(crate) fn stages(&self) -> haul_sim::PathSpec {
        let queue = QueueSpec::TailDrop(Limit::Bytes(self.queue()));
        haul_sim::PathSpec {
            stages: vec![
                StageSpec::Mtu(self.mtu.into()),
                StageSpec::Bottleneck(BottleneckSpec { rate: self.rate, queue }),
                StageSpec::Loss(self.loss),
                StageSpec::Delay(self.rtt / 2),
            ],
        }
    }
}

/// What one direction has done: with datagrams through a relay, with all packets between namespaces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct DirectionCounts {
    pub offered: u64,
    pub delivered: u64,
    /// Bytes that came out: payload through a relay, IP packets between namespaces.
    #[serde(skip)]
    pub delivered_bytes: u64,
    pub queue_full: u64,
    pub random: u64,
    pub too_large: u64,
    /// Dropped because the emulation itself had no room or could not pass them on. On a machine that keeps up
    /// these are none.
    pub relay: u64,
    /// Socket buffers (each up to 44 packets) that the kernel dropped because the relay came too late.
    pub overrun: u64,
}

impl DirectionCounts {
    /// Of a direction between namespaces; `device` is what the kernel dropped before the emulator had it.
    fn of(way: &Snapshot, device: u64) -> Self {
        let (sent, received, mut drops) = (way.sent, way.received, way.drops);
        drops.count(DropReason::Carrier, device);
        Relayed { sent, received, drops, overrun: 0 }.into()
    }
}

impl From<Relayed> for DirectionCounts {
    fn from(Relayed { sent, received, drops, overrun }: Relayed) -> Self {
        Self {
            offered: sent.packets,
            delivered: received.packets,
            delivered_bytes: received.bytes,
            queue_full: drops.of(DropReason::QueueFull),
            random: drops.of(DropReason::Random),
            too_large: drops.of(DropReason::TooLarge),
            relay: drops.of(DropReason::Carrier),
            overrun,
        }
    }
}

impl fmt::Display for DirectionCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offered, queue_full, random, too_large, relay, overrun, .. } = self;
        write!(f, "{offered} packets, lost {random} at random, {queue_full} at the full queue")?;
        for (number, why) in
            [(too_large, "too large"), (relay, "in the emulation"), (overrun, "buffers overrun")]
        {
            if *number > 0 {
                write!(f, ", {number} {why}")?;
            }
        }
        Ok(())
    }
}

#[derive(Debug, Clone)]
pub(crate) enum Namespaces {
    Possible,
    /// With why not.
    Impossible(String),
}

impl Namespaces {
    /// Gets the right to make them. The process must have one thread only: it may enter a user namespace.
    pub(crate) fn acquire() -> Self {
        match acquire() {
            Ok(_) => Self::Possible,
            Err(error) => {
                let hint = if error.is_missing_privilege() { "; root (sudo) has it" } else { "" };
                Self::Impossible(format!("{error}{hint}"))
            }
        }
    }
}

/// A running path; stops when dropped.
#[derive(Debug)]
pub(crate) struct EmulatedPath {
    spec: PathSpec,
    carrier: Carrier,
}

#[derive(Debug)]
enum Carrier {
    Namespaces(Box<Emulator>),
    /// Started when the server's address is known; with why there are no namespaces.
    Relay(OnceLock<Relay>, String),
}

impl EmulatedPath {
    /// Makes a path. Between namespaces a server and a client may start in any order; through a relay the server starts
    /// first.
    pub(crate) fn start(spec: &PathSpec, namespaces: &Namespaces) -> Result<Self, Fault> {
        let carrier = match namespaces {
            Namespaces::Possible => match emulator(spec) {
                Ok(emulator) => Carrier::Namespaces(Box::new(emulator)),
                Err(error @ WanError::Path(_)) => return Err(no_path(&error)),
                Err(error) => Carrier::Relay(OnceLock::new(), error.to_string()),
            },
            Namespaces::Impossible(why) => Carrier::Relay(OnceLock::new(), why.clone()),
        };
        Ok(Self { spec: *spec, carrier })
    }

    /// Why the path leads through a relay, if it does.
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

    /// Does `work` where the server is. Threads and processes that it starts stay there.
    pub(crate) fn at_server<T: Send>(
        &self,
        work: impl FnOnce() -> Result<T, Fault> + Send,
    ) -> Result<T, Fault> {
        self.inside(|emulator| &emulator.world.b, work)
    }

    /// Does `work` where the client is. Threads and processes that it starts stay there.
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

    /// Where the client reaches the server, which listens at `server`. Only the first server of a path is reached.
    pub(crate) fn address_of(&self, server: SocketAddr) -> Result<SocketAddr, Fault> {
        let Carrier::Relay(relay, _) = &self.carrier else { return Ok(server) };
        if let Some(relay) = relay.get() {
            return Ok(relay.address());
        }
        let started = Relay::start(&self.spec.stages(), self.spec.seed, server).map_err(|e| no_path(&e))?;
        Ok(relay.get_or_init(|| started).address())
    }

    /// From the client to the server, and back.
    pub(crate) fn counts(&self) -> Result<[DirectionCounts; 2], Fault> {
        match &self.carrier {
            Carrier::Namespaces(emulator) => counts(emulator),
            Carrier::Relay(relay, _) => {
                Ok(relay.get().map(Relay::counts).unwrap_or_default().map(Into::into))
            }
        }
    }
}

fn no_path(error: &WanError) -> Fault {
    match error {
        WanError::Path(why) => {
            fault::usage(format!("there is no such path: {why}"), "see `haul demo --help`")
        }
        other => Fault::new(FaultCode::Internal, format!("cannot start the emulated path: {other}"), ""),
    }
}

/// The namespaces and what carries packets between them. The namespaces have no names, so they are gone when this
/// process is.
pub(super) fn emulator(spec: &PathSpec) -> Result<Emulator, WanError> {
    let stages = spec.stages();
    Emulator::start(&EmulatorOptions {
        forth: &stages,
        back: &stages,
        seed: spec.seed,
        mtu: spec.mtu.into(),
        offload: true,
        window: TcpWindow::Path,
        cpu: None,
        names: Names::Hidden,
        drop_log: None,
    })
}

fn counts(emulator: &Emulator) -> Result<[DirectionCounts; 2], Fault> {
    let failed = || Fault::new(FaultCode::Internal, "the emulated path has failed", "");
    let [up, down] = emulator.snapshots().ok_or_else(failed)?;
    let device = |side: &Side| {
        side.device_drops()
            .map_err(|error| fault::io("the kernel does not tell what a device dropped", &error))
    };
    Ok([
        DirectionCounts::of(&up, device(&emulator.world.a)?),
        DirectionCounts::of(&down, device(&emulator.world.b)?),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_holds_one_bandwidth_delay_product_and_some_packets_at_least() {
        let spec = |rtt_ms, mbps| {
            let (rtt, rate) = (Span::from_millis(rtt_ms), Rate::from_mbps(mbps));
            PathSpec { rtt, rate, loss: Probability::ZERO, mtu: 1_500, seed: 1 }
        };
        assert_eq!(spec(100, 120).queue(), Bytes(1_500_000));
        assert_eq!(spec(0, 1_000).queue(), Bytes(96_000));
    }
}
