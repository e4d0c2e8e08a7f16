//! Registry of control laws: the project's own and those of users' crates.

use std::sync::RwLock;

use super::registration::{ControllerConfig, ControllerError, LawRegistration};
use super::{
    RateController, asynch, bbr, cubic, delivery, fast, fixed, gtp, highspeed, ledbat_plus_plus,
    non_aggressive, proactive, rapid_plus, reno, sabul, scalable, state_based, stop_and_go, tfrc, udt,
};

/// The project's own laws. To add a law, add a line here.
static BUILT_IN: &[&LawRegistration] = &[
    &delivery::LAW,
    &bbr::LAW,
    &fixed::LAW,
    &highspeed::LAW,
    &rapid_plus::LAW,
    &asynch::LAW,
    &proactive::LAW,
    &stop_and_go::LAW,
    &non_aggressive::LAW,
    &state_based::LAW,
    &reno::LAW,
    &scalable::LAW,
    &tfrc::LAW,
    &fast::LAW,
    &cubic::LAW,
    &udt::LAW,
    &sabul::LAW,
    &gtp::LAW,
    &ledbat_plus_plus::LAW,
];

/// Laws of users' crates, in the order of registration.
static REGISTERED: RwLock<Vec<&'static LawRegistration>> = RwLock::new(Vec::new());

/// Returns all laws: the project's own, then the registered ones.
pub fn laws() -> Vec<&'static LawRegistration> {
    let registered = REGISTERED.read().unwrap_or_else(std::sync::PoisonError::into_inner);
    BUILT_IN.iter().chain(registered.iter()).copied().collect()
}

/// The project's own laws, without those registered by tests.
#[cfg(test)]
pub(super) fn built_in_laws() -> impl Iterator<Item = &'static LawRegistration> {
    BUILT_IN.iter().copied()
}

/// Returns the names of all laws.
pub fn law_names() -> Vec<&'static str> {
    laws().iter().map(|law| law.name).collect()
}

/// Returns the law called `name`.
///
/// # Errors
/// [`ControllerError::Unknown`] lists the known names.
pub fn law(name: &str) -> Result<&'static LawRegistration, ControllerError> {
    laws().into_iter().find(|law| law.name == name).ok_or_else(|| {
        let known = law_names().join(", ");
        ControllerError::Unknown { name: name.to_owned(), known }
    })
}

/// Registers a law. The caller has checked its parameters against those of `rate_control`.
///
/// # Errors
/// [`ControllerError::Taken`] if the name is taken.
pub(crate) fn add_law(law: &'static LawRegistration) -> Result<(), ControllerError> {
    let mut registered = REGISTERED.write().unwrap_or_else(std::sync::PoisonError::into_inner);
    if BUILT_IN.iter().chain(registered.iter()).any(|known| known.name == law.name) {
        let message = "there is one of this name already".to_owned();
        return Err(ControllerError::Taken { law: law.name, message });
    }
    registered.push(law);
    Ok(())
}

/// Builds the controller called `name` with default parameters.
///
/// # Errors
/// If there is no such law, or it needs a value that `config` lacks.
pub fn build_controller(
    name: &str,
    config: &ControllerConfig,
) -> Result<Box<dyn RateController>, ControllerError> {
    law(name)?.build(&[], config)
}
