use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use haul_base::Span;
use haul_wire::control::{Accept, Cipher, ControlMessage, Fault, Request, Settings};

use crate::crypto::{DataKeys, FrameKeys, ResumptionSecret};
use crate::endpoint::{Registration, Service};
use crate::session::{UdpSide, udp_options};
use crate::{Clock, Control, EngineError, Role, Session, recipe};

/// How this program calls itself to clients.
const PROGRAM: &str = concat!("haul ", env!("CARGO_PKG_VERSION"));

/// A client that has authenticated and waits for the server's decision. Dropping it closes the connection.
pub struct Incoming {
    pub(super) control: Control,
    pub(super) registration: Registration,
    pub(super) keys: DataKeys,
    pub(super) frame_keys: FrameKeys,
    pub(super) secret: ResumptionSecret,
    pub(super) request: Request,
    pub(super) settings: Settings,
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
    pub(super) round_trip: Span,
    pub(super) udp_timeout: Duration,
}

impl Incoming {
    /// What the client wants.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// How the client wants it.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// How packets will be protected.
    pub fn cipher(&self) -> Cipher {
        self.keys.cipher()
    }

    /// The client's TCP address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The client has gone away.
    pub(super) fn is_gone(&self) -> bool {
        self.control.failure().is_some()
    }

    /// Begins the session as the client wants it.
    ///
    /// # Errors
    /// How the control channel failed.
    pub fn accept(self) -> Result<Session, EngineError> {
        let settings = self.settings.clone();
        self.accept_with(settings)
    }

    /// Begins the session with settings that the server permits; the client is told.
    ///
    /// # Errors
    /// That the client was refused because of its recipe; how the control channel failed.
    pub fn accept_with(self, settings: Settings) -> Result<Session, EngineError> {
        if let Err(fault) = recipe::check_offer(&settings, self.cipher()) {
            self.refuse(fault.clone());
            return Err(EngineError::Peer(fault));
        }
        let accept = self.answer(settings.clone());
        // The socket first: data can follow the accept at once.
        self.registration.pending().serve(Service {
            control: self.control.clone(),
            local: self.local,
            options: udp_options(&settings, true),
            deadline: Instant::now() + self.udp_timeout,
        });
        self.control.send(ControlMessage::Accept(accept))?;
        Ok(Session {
            role: Role::Server,
            peer: self.peer,
            control: self.control,
            request: self.request,
            settings,
            program: PROGRAM.to_owned(),
            keys: self.keys,
            round_trip: self.round_trip,
            clock: Clock::start(),
            udp: Some(UdpSide::Server { registration: self.registration, frame_keys: self.frame_keys }),
        })
    }

    fn answer(&self, settings: Settings) -> Accept {
        Accept {
            session: self.registration.session(),
            cipher: self.keys.cipher(),
            udp_port: self.local.port(),
            server: PROGRAM.to_owned(),
            settings,
        }
    }

    /// What an association with this client is made of: its number, its secret, and about one round trip.
    pub(crate) fn resumption(&self) -> (u32, ResumptionSecret, Span) {
        (self.registration.session(), self.secret.clone(), self.round_trip)
    }

    /// The answer to a client that wants an association, and the channel to send it by.
    pub(crate) fn accept_association(self) -> (Control, Accept) {
        let accept = self.answer(self.settings.clone());
        (self.control, accept)
    }

    /// Sends the client away and tells it why.
    pub fn refuse(self, fault: Fault) {
        self.control.end_with(&ControlMessage::Refuse(fault));
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Incoming");
        out.field("peer", &self.peer).field("request", &self.request).finish_non_exhaustive()
    }
}
