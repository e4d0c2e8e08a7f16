//! The demo's path: between two network namespaces where they can be made, through a relay on the loopback interface
//! elsewhere.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::OnceLock;

use haul_wan::{Emulator, EmulatorOptions, Names, Relay, Side, TcpWindow, V4, WanError, acquire};

use super::spec::{DirectionCounts, PathSpec};
use crate::fault::{self, Fault, FaultCode};

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
