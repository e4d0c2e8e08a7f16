use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use haul_proto::connection::{Peer, ResumptionSecret, ResumptionState, Terms, refusal, server_recipe};
use haul_stack::RecipeError;
use haul_wire::control::{Accept, ControlMessage, Fault, Request, Settings};

use crate::clock::after;
use crate::endpoint::{PendingSession, Service, SharedEndpoint};
use crate::session::udp_options;
use crate::wake::lock;
use crate::{EngineError, Role, Session};

/// Program name and version sent to clients.
pub(super) const PROGRAM: &str = concat!("haul ", env!("CARGO_PKG_VERSION"));

/// An authenticated client waiting for the server's decision. Dropping it closes the connection.
#[derive(derive_more::Debug, derive_more::Deref)]
#[debug("Incoming({}, {:?})", self.peer(), self.request())]
pub struct Incoming {
    /// The session, as it starts if accepted.
    #[deref]
    pub(crate) session: Session,
    /// Error in the session's recipe, which is empty then.
    pub(super) recipe_error: Option<RecipeError>,
    pub(super) pending: Arc<PendingSession>,
    pub(crate) secret: ResumptionSecret,
    pub(super) local: SocketAddr,
    pub(crate) port: Weak<SharedEndpoint>,
    pub(super) udp_timeout: Duration,
}

impl Incoming {
    pub(super) fn has_failed(&self) -> bool {
        self.session.control().failure().is_some()
    }

    /// Accepts the session as the client proposes it.
    ///
    /// # Errors
    /// If the control channel failed.
    pub fn accept(self) -> Result<Session, EngineError> {
        let settings = self.settings().clone();
        self.accept_with(settings)
    }

    /// Accepts the session with settings that the server permits; they are sent to the client.
    ///
    /// # Errors
    /// If the client was refused because of its recipe, or the control channel failed.
    pub fn accept_with(mut self, settings: Settings) -> Result<Session, EngineError> {
        if settings.recipe != self.settings().recipe {
            let recipe = server_recipe(&settings, self.cipher());
            self.recipe_error = recipe.map(|recipe| self.session.recipe = recipe).err();
        }
        if let Some(error) = self.recipe_error.take() {
            return Err(self.refuse_because(refusal(&error)));
        }
        self.session.settings = settings;
        let accept = self.answer();
        let Self { session, pending, local, udp_timeout, .. } = self;
        // Start serving UDP first: data can follow the accept at once.
        pending.serve(Service {
            control: session.control.clone(),
            local,
            options: udp_options(&session.settings, true),
            deadline: after(udp_timeout),
        });
        session.control.send(ControlMessage::Accept(accept))?;
        Ok(session)
    }

    /// Agrees on the recipe of a client that requests connections, or refuses it, and closes the control
    /// channel. [`Endpoint::poll_accept`](crate::Endpoint::poll_accept) returns its connections.
    ///
    /// # Errors
    /// Why it was refused, or why the control channel failed.
    ///
    /// # Panics
    /// If the client requests anything else.
    pub fn agree(self, terms: &Terms) -> Result<(), EngineError> {
        let Request::Connect { recipe, versions } = self.request() else {
            panic!("the client does not request connections");
        };
        let cipher = self.cipher();
        let compiled = match terms.agree(recipe, versions, cipher) {
            Ok(compiled) => compiled,
            Err(error) => return Err(self.refuse_because(refusal(&error))),
        };
        let accept = self.answer();
        let (identity, round_trip) = (accept.session, self.session.round_trip);
        let secret = self.secret.clone();
        let resumption =
            ResumptionState { role: Role::Server, identity, secret, cipher, compiled, round_trip };
        let shared = self.port.upgrade().ok_or(EngineError::Closed)?;
        let peer = Peer::new(resumption, shared.clock.now(), Some(self.peer().ip().to_canonical()));
        let added = lock(&shared.table).insert(peer);
        if let Err(reason) = added {
            return Err(self.refuse_because(reason.fault()));
        }
        self.session.control.send(ControlMessage::Accept(accept))?;
        // The agreement holds even if this close is not sent.
        let _ = self.session.control.send_now(&ControlMessage::Close);
        Ok(())
    }

    /// Checks whether the recipe of the client's session is permitted. An invalid recipe passes: accepting
    /// the session refuses it, with the reason.
    ///
    /// # Errors
    /// The reason for the refusal.
    pub fn check(&self, terms: &Terms) -> Result<(), Fault> {
        if self.recipe_error.is_some() { Ok(()) } else { terms.check(self.recipe()) }
    }

    /// Returns the answer for a client that is accepted.
    pub(crate) fn answer(&self) -> Accept {
        Accept {
            session: self.pending.session,
            cipher: self.cipher(),
            udp_port: self.local.port(),
            server: PROGRAM.to_owned(),
            settings: self.settings().clone(),
        }
    }

    /// Refuses the client and sends it the reason.
    pub fn refuse(self, fault: Fault) {
        self.session.control.end_with(&ControlMessage::Refuse(fault));
    }

    /// Like [`Incoming::refuse`]; returns the error for the local caller.
    pub(crate) fn refuse_because(self, fault: Fault) -> EngineError {
        self.refuse(fault.clone());
        EngineError::Peer(fault)
    }
}
