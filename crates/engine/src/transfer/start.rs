//! From a session's data path to a running machine.

use std::net::{IpAddr, SocketAddr};

use haul_base::{Bytes, Rate, Span};
use haul_proto::{
    ControllerConfig, ControllerError, Link, ObjectSink, ObjectSource, RateController, Receiver,
    ReceiverConfig, Sender, SenderConfig, build_controller,
};
use haul_udp::UdpSocket;
use haul_wire::control::Settings;

use super::{Peer, Transfer};
use crate::recipe::{feedback_interval, in_force};
use crate::{DataPath, EngineError, Session, Waker};

/// Silence after which the sender gives up: as long as the control channel waits.
const SILENCE: Span = Span::from_secs(15);
/// Feedback packets of this size pass on every path that is supported.
const FEEDBACK_DATAGRAM: u16 = 1_200;
/// Bytes that may be sent before the receiver has said how much it takes. Every sink must take as much.
pub const FIRST_LIMIT: u64 = 64 << 20;
/// UDP payload of a jumbo frame of 9,000 bytes.
fn largest_datagram(peer: SocketAddr) -> u16 {
    match peer.ip() {
        IpAddr::V6(ip) if ip.to_ipv4_mapped().is_none() => 8_952,
        _ => 8_972,
    }
}

/// The controller that the settings name; also for a check before anything is sent.
///
/// # Errors
/// If there is none of that name, or it lacks a parameter.
pub fn controller_for(
    settings: &Settings,
    initial_rtt: Span,
) -> Result<Box<dyn RateController>, ControllerError> {
    let config = ControllerConfig {
        ceiling: settings.rate_bps.map(Rate::from_bps),
        initial_rtt,
        feedback_interval: feedback_interval(settings),
    };
    build_controller(&settings.controller, &config)
}

impl Session {
    /// Sends an object on a thread of its own. `waker` is to be woken when `source` has more to read.
    ///
    /// # Errors
    /// As [`Session::take_data_path`]; [`EngineError::Controller`] if the settings name no known controller,
    /// [`EngineError::Recipe`] if no stack can be made of their recipe.
    pub fn start_sending(
        &mut self,
        source: Box<dyn ObjectSource>,
        waker: Waker,
    ) -> Result<Transfer, EngineError> {
        let path = self.take_data_path()?;
        let initial_rtt = path.probe.round_trip().unwrap_or(path.round_trip);
        let recipe = in_force(&path.settings)?;
        let config = SenderConfig {
            chunk: Bytes(path.settings.chunk_bytes.max(1)),
            datagram: path.probe.datagram(),
            likely_datagram: path.likely_datagram(),
            max_datagram: largest_datagram(path.peer),
            initial_rtt,
            feedback_interval: feedback_interval(&path.settings),
            silence: SILENCE,
            ..SenderConfig::default()
        };
        let controller = controller_for(&path.settings, initial_rtt);
        let now = path.clock.now();
        let (peer, link, socket) = split(path);
        let sender = match recipe {
            None => Sender::with_config(now, &config, link, source, controller?, FIRST_LIMIT)?,
            Some(recipe) => Sender::of_recipe(now, recipe, &config, link, source, FIRST_LIMIT)?,
        };
        Transfer::spawn("haul-send", sender, socket, peer, waker)
    }

    /// Receives an object on a thread of its own, until the transfer is stopped: feedback goes on after the
    /// last byte, as the last feedback may be lost. `waker` is to be woken when `sink` has room again.
    ///
    /// # Errors
    /// As [`Session::take_data_path`]; [`EngineError::Recipe`] if no stack can be made of the settings' recipe.
    pub fn start_receiving(
        &mut self,
        sink: Box<dyn ObjectSink>,
        waker: Waker,
    ) -> Result<Transfer, EngineError> {
        let path = self.take_data_path()?;
        let config = ReceiverConfig {
            feedback_interval: feedback_interval(&path.settings),
            feedback_datagram: FEEDBACK_DATAGRAM,
            silence: SILENCE,
        };
        let recipe = in_force(&path.settings)?;
        let now = path.clock.now();
        let (peer, link, socket) = split(path);
        let receiver = match recipe {
            None => Receiver::with_config(now, config, link, sink)?,
            Some(recipe) => Receiver::of_recipe(now, &recipe, config, link, sink)?,
        };
        Transfer::spawn("haul-receive", receiver, socket, peer, waker)
    }
}

fn split(path: DataPath) -> (Peer, Link, UdpSocket) {
    let DataPath { socket, seal, open, probe, control, clock, registration, .. } = path;
    (Peer { probe, control, clock, _registration: registration }, Link::new(seal, open, 0), socket)
}
