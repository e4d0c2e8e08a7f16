use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use haul_proto::connection::ResumptionSecret;
use haul_stack::{Recipe, RecipeError};
use haul_wire::control::{Accept, ControlMessage, Fault, Settings};

use crate::clock::after;
use crate::endpoint::{PendingSession, Service, Shared};
use crate::session::udp_options;
use crate::{EngineError, Session, recipe};

/// How this program calls itself to clients.
pub(super) const PROGRAM: &str = concat!("haul ", env!("CARGO_PKG_VERSION"));

/// A client that has authenticated and waits for the server's decision: the session as it is wanted. Dropping it closes
/// the connection.
#[derive(derive_more::Debug, derive_more::Deref)]
#[debug("Incoming({}, {:?})", self.peer(), self.request())]
pub struct Incoming {
    /// As it begins if it is accepted.
    #[deref]
    pub(crate) session: Session,
    /// What the session is to run.
    pub(crate) recipe: Result<Recipe, RecipeError>,
    pub(super) pending: Arc<PendingSession>,
    pub(crate) secret: ResumptionSecret,
    pub(super) local: SocketAddr,
    /// The endpoint of the port.
    pub(crate) port: Weak<Shared>,
    pub(super) udp_timeout: Duration,
}

impl Incoming {
    pub(super) fn is_gone(&self) -> bool {
        self.session.control().failure().is_some()
    }

    /// Begins the session as the client wants it.
    ///
    /// # Errors
    /// How the control channel failed.
    pub fn accept(self) -> Result<Session, EngineError> {
        let settings = self.settings().clone();
        self.accept_with(settings)
    }

    /// Begins the session with settings that the server permits; the client is told.
    ///
    /// # Errors
    /// That the client was refused because of its recipe; how the control channel failed.
    pub fn accept_with(mut self, settings: Settings) -> Result<Session, EngineError> {
        let offered = self.recipe.clone();
        self.session.recipe = match offered.and_then(|it| recipe::with_settings(it, &settings)) {
            Ok(recipe) => recipe,
            Err(error) => return Err(self.refuse_because(recipe::refusal(&error))),
        };
        self.session.settings = settings;
        let accept = self.answer();
        let Self { session, pending, local, udp_timeout, .. } = self;
        // The socket first: data can follow the accept at once.
        pending.serve(Service {
            control: session.control.clone(),
            local,
            options: udp_options(&session.settings, true),
            deadline: after(udp_timeout),
        });
        session.control.send(ControlMessage::Accept(accept))?;
        Ok(session)
    }

    /// The answer to a client that may come in.
    pub(crate) fn answer(&self) -> Accept {
        Accept {
            session: self.pending.session,
            cipher: self.cipher(),
            udp_port: self.local.port(),
            server: PROGRAM.to_owned(),
            settings: self.settings().clone(),
        }
    }

    /// Sends the client away and tells it why.
    pub fn refuse(self, fault: Fault) {
        self.session.control.end_with(&ControlMessage::Refuse(fault));
    }

    /// As [`Incoming::refuse`], and what that means here.
    pub(crate) fn refuse_because(self, fault: Fault) -> EngineError {
        self.refuse(fault.clone());
        EngineError::Peer(fault)
    }
}
