//! `haul ctl` for a pipe that sends.

use haul_proto::{ChosenLaw, Part};
use haul_wire::control::Fault;
use haulage::{ByteWriter, Connection};
use serde_json::Value;

use crate::fault;
use crate::transfer::control_socket::{ControlSocket, Controlled, Side, unknown};

impl Controlled for ByteWriter {
    fn change(&mut self, law: &mut Part, changes: &[(String, String)]) -> Result<(), Fault> {
        let borrowed: Vec<_> = changes.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        self.set_law(&borrowed).map_err(unknown)?;
        *law = self.law().cloned().unwrap_or_else(|| law.clone());
        Ok(())
    }

    fn data(&self) -> Option<Value> {
        None
    }
}

impl Controlled for &Connection {
    fn change(&mut self, law: &mut Part, changes: &[(String, String)]) -> Result<(), Fault> {
        let mut changed = law.clone();
        ChosenLaw::change(&mut changed, changes).map_err(unknown)?;
        let mut recipe = self.recipe();
        for part in recipe.parts.iter_mut().filter(|part| part.name == changed.name) {
            part.clone_from(&changed);
        }
        self.reconfigure(&recipe).map_err(fault::of)?;
        *law = changed;
        Ok(())
    }

    fn data(&self) -> Option<Value> {
        None
    }
}

/// Answers `haul ctl` for a sender, as long as it lives.
pub(super) struct Controls(Option<ControlSocket>);

impl Controls {
    pub(super) fn of_stream(writer: &ByteWriter) -> Self {
        Self(ControlSocket::open(Side::Sends(writer.law().cloned())))
    }

    pub(super) fn of_messages(connection: &Connection) -> Self {
        let law = connection.recipe().parts.into_iter().find(|part| part.name == "rate_control");
        Self(ControlSocket::open(Side::Sends(law)))
    }

    pub(super) fn answer(&mut self, controlled: &mut impl Controlled, moved: u64) {
        if let Some(socket) = &mut self.0 {
            socket.answer(controlled, moved);
        }
    }
}
