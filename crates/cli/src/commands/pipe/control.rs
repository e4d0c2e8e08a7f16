//! `haul ctl` for a pipe that sends.

use std::time::{Duration, Instant};

use haul_proto::{ChosenLaw, Part};
use haul_wire::control::Fault;
use haulage::{ByteWriter, Connection};

use crate::fault;
use crate::transfer::control_socket::{ControlSocket, Controlled, Side, unknown};

impl Controlled for ByteWriter {
    fn change(&mut self, law: &mut Part, changes: &[(String, String)]) -> Result<(), Fault> {
        let borrowed: Vec<_> = changes.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        self.set_law(&borrowed).map_err(unknown)?;
        *law = self.law().cloned().unwrap_or_else(|| law.clone());
        Ok(())
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
}

/// As often as a copy looks for `haul ctl`: not for each of a million messages a second.
const BETWEEN: Duration = Duration::from_millis(50);

/// Answers `haul ctl` for a sender, as long as it lives.
pub(super) struct Controls {
    socket: Option<ControlSocket>,
    looked: Option<Instant>,
}

impl Controls {
    fn of(law: Option<Part>) -> Self {
        Self { socket: ControlSocket::open(Side::Sends(law)), looked: None }
    }

    pub(super) fn of_stream(writer: &ByteWriter) -> Self {
        Self::of(writer.law().cloned())
    }

    pub(super) fn of_messages(connection: &Connection) -> Self {
        Self::of(connection.recipe().parts.into_iter().find(|part| part.name == "rate_control"))
    }

    pub(super) fn answer(&mut self, controlled: &mut impl Controlled, moved: u64) {
        let Some(socket) = &mut self.socket else { return };
        if self.looked.is_none_or(|looked| looked.elapsed() >= BETWEEN) {
            self.looked = Some(Instant::now());
            socket.answer(controlled, moved);
        }
    }
}
