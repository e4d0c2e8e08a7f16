//! A server's policy: limits and preferences.

use std::net::SocketAddr;

use haul_engine::{ListenOptions, Role, ceiling, offer, take_parameters};
use haul_mover::{MinFree, ReceiveOptions, Root, check_selection};
use haul_wire::control::{
    Cipher, Durability, Fault, FaultCode, Keep, Ownership, Preserve, Request, Settings as WireSettings,
};
use haulage::config::RateControlConfig;

use crate::output::{EventLog, ProgressStyle};
use crate::settings::{IN_RECIPE, ciphers};
use crate::transfer::{Context, LawLimits};

#[derive(Clone)]
pub(crate) struct Policy {
    /// Context of every session. Settings that the owner named take precedence over the clients'.
    pub context: Context,
    pub root: Root,
    pub read_only: bool,
    /// Minimum durability; clients may ask for more.
    pub durability: Durability,
    pub permit: Preserve,
    pub min_free: MinFree,
}

impl Policy {
    pub(crate) fn new(root: Root, read_only: bool, context: Context) -> Self {
        let (durability, permit) = (Durability::Cached, context.transfer.preserve);
        // What is done, and its progress, are the clients' concern.
        let context = Context {
            on_item: None,
            on_negotiated: None,
            role: Role::Server,
            events: EventLog::none(),
            style: ProgressStyle::Hidden,
            ..context
        };
        Self { context, root, read_only, durability, permit, min_free: MinFree::Nothing }
    }

    /// Restricts the file metadata that clients may set to what `theirs` contains too.
    pub(crate) fn permitting(self, theirs: Preserve) -> Self {
        let both = |ours, theirs| if theirs == Keep::Preserve { ours } else { Keep::Drop };
        let owner = if self.permit.owner == Ownership::Receiver { Ownership::Receiver } else { theirs.owner };
        let (xattrs, acls) = (both(self.permit.xattrs, theirs.xattrs), both(self.permit.acls, theirs.acls));
        Self { permit: Preserve { owner, xattrs, acls, ..self.permit }, ..self }
    }

    /// Returns the policy of a server for this process itself, which permits everything.
    pub(crate) fn for_local_copy(context: &Context) -> Self {
        let (named, quotas) = Default::default();
        Self::new(Root::Anywhere, false, Context { named, quotas, ..context.clone() })
    }

    /// Adds the owner's limits to the options of a receiving job.
    pub(crate) fn within(&self, options: ReceiveOptions) -> ReceiveOptions {
        let Self { permit, min_free, .. } = *self;
        let durability = options.durability.max(self.durability);
        ReceiveOptions { durability, permit, min_free, ..options }
    }

    pub(crate) fn check(&self, request: &Request, recipe: &haulage::Recipe) -> Result<(), Fault> {
        self.check_rules(recipe)?;
        let (message, hint) = match request {
            Request::Put { .. } | Request::PutStream { .. } if self.read_only => {
                ("this server is read-only", "start `haul serve` without --read-only there")
            }
            Request::Connect { .. } | Request::StreamSend | Request::StreamReceive => {
                ("this server carries files, not messages or streams", "start `haul pipe --listen` there")
            }
            Request::Get { sources, selection, .. } => return check_selection(selection, sources.len()),
            _ => return Ok(()),
        };
        Err(Fault::new(FaultCode::NotPermitted, message, hint))
    }

    /// Rejects rules of a client's recipe that switch a controller set by the owner.
    fn check_rules(&self, recipe: &haulage::Recipe) -> Result<(), Fault> {
        let Some(fixed) = self.law_limits().controller else { return Ok(()) };
        let law: Option<RateControlConfig> = recipe.configuration();
        if law.is_none_or(|law| law.switch.trim().is_empty()) {
            return Ok(());
        }
        let message =
            format!("this server fixes the controller to {fixed}, which the recipe's rules would switch");
        Err(Fault::new(FaultCode::NotPermitted, message, "remove the rules: --set rate_control.switch="))
    }

    /// Returns the settings of a session: the client's, except for those that the owner named. Of these, a
    /// rate can only lower the client's, and offload can only be switched off.
    pub(crate) fn settle(&self, theirs: WireSettings, recipe: &haulage::Recipe) -> WireSettings {
        let (ours, named) = (&self.context.settings, &self.context.named);
        let is_named = |key: &str| named.iter().any(|named| named == key);
        let is_lower = ceiling(recipe).is_some_and(|theirs| ours.rate().is_none_or(|ours| theirs < ours));
        let mut settled = recipe.clone();
        for (name, key) in IN_RECIPE {
            if is_named(key) && !(key == "rate" && is_lower) {
                take_parameters(&mut settled, &[name], &ours.recipe);
            }
        }
        let socket_buffer =
            if is_named("socket_buffer") { Some(ours.socket_buffer.0) } else { theirs.socket_buffer };
        WireSettings {
            recipe: if settled == *recipe { theirs.recipe } else { Some(offer(&settled)) },
            offload: theirs.offload && (ours.offload || !is_named("offload")),
            socket_buffer,
            ..theirs
        }
    }

    /// Returns the limits of clients' changes to the control law, as [`Policy::settle`] applies them.
    pub(crate) fn law_limits(&self) -> LawLimits {
        let is_named = |name| self.context.named.iter().any(|known| known == name);
        let settings = &self.context.settings;
        LawLimits {
            rate: settings.rate().filter(|_| is_named("rate")),
            controller: is_named("controller").then(|| settings.controller()),
        }
    }

    /// Returns the options of a listener with the ciphers that clients may choose.
    pub(crate) fn listen_options(&self, addr: SocketAddr) -> ListenOptions {
        let crypto = self.context.settings.crypto;
        let permit_cipher_none = crypto == Some(Cipher::None);
        let ciphers = ciphers(crypto.filter(|_| !permit_cipher_none));
        ListenOptions { ciphers, permit_cipher_none, ..ListenOptions::new(addr) }
    }
}

#[cfg(test)]
mod tests {
    use haul_base::{Bytes, Rate};
    use haul_wire::control::{BenchLimit, Growth, Layout, ReceivePolicy, Rule, RunMode, Selection, Verdict};

    use super::*;
    use crate::args::TransferOptions;
    use crate::settings::{Preset, Settings};
    use crate::signals::Cancel;

    fn policy(named: &[&str], change: impl Fn(&mut Settings)) -> Policy {
        let mut settings = Settings::build(&Preset::default_preset(), &[]).unwrap();
        change(&mut settings);
        let named = named.iter().map(|&name| name.to_owned()).collect();
        let quiet = Context::quiet(settings, TransferOptions::default(), Cancel::default());
        let context = Context { named, ..quiet };
        let durability = Durability::Synced;
        Policy { durability, ..Policy::new(Root::Anywhere, true, context) }
    }

    fn recipe() -> haulage::Recipe {
        Settings::build(&Preset::default_preset(), &[]).unwrap().recipe
    }

    fn wire_settings(recipe: &haulage::Recipe) -> WireSettings {
        let settings = Settings::build(&Preset::default_preset(), &[]).unwrap();
        WireSettings { recipe: Some(offer(recipe)), ..settings.to_wire(BenchLimit::Bytes(7)) }
    }

    /// What a client is answered that asks for this recipe.
    fn settled(policy: &Policy, recipe: &haulage::Recipe) -> (WireSettings, haulage::Recipe) {
        let settled = policy.settle(wire_settings(recipe), recipe);
        let recipe = haulage::registry().parse(&settled.recipe.as_ref().unwrap().text).unwrap();
        (settled, recipe)
    }

    #[test]
    fn the_lower_ceiling_applies() {
        let policy = policy(&["rate"], |s| {
            haulage::registry().set(&mut s.recipe, "rate_control.rate", "100bit").unwrap();
        });
        for (rate, agreed) in [("unlimited", 100), ("50bit", 50), ("500bit", 100)] {
            let mut recipe = recipe();
            haulage::registry().set(&mut recipe, "rate_control.rate", rate).unwrap();
            assert_eq!(ceiling(&settled(&policy, &recipe).1), Some(Rate::from_bps(agreed)), "{rate}");
        }
    }

    #[test]
    fn only_explicit_server_settings_override_the_client() {
        let change = |s: &mut Settings| {
            haulage::registry().set(&mut s.recipe, "object.chunk", "1MB").unwrap();
            (s.offload, s.socket_buffer) = (false, Bytes(70_000));
        };
        let recipe = recipe();
        assert_eq!(policy(&[], change).settle(wire_settings(&recipe), &recipe), wire_settings(&recipe));
        let (settings, agreed) = settled(&policy(&["chunk", "offload"], change), &recipe);
        assert_eq!((agreed.text("object", "chunk").as_deref(), settings.offload), (Some("1MB"), false));
        let (settings, agreed) = settled(&policy(&["socket_buffer"], change), &recipe);
        assert_eq!((settings.socket_buffer, agreed.same_stack(&recipe)), (Some(70_000), true));
    }

    #[test]
    fn a_read_only_server_refuses_only_uploads() {
        let policy = policy(&[], |_| {});
        let put = Request::Put {
            destination: Vec::new(),
            layout: Layout::Into,
            receive_policy: ReceivePolicy::default(),
        };
        assert_eq!(policy.check(&put, &recipe()).unwrap_err().code, FaultCode::NotPermitted);
        let selection = Selection::default();
        let get = Request::Get {
            sources: Vec::new(),
            selection,
            growth: Growth::Refuse,
            run: RunMode::Move,
            preserve: Preserve::ALL,
        };
        assert!(policy.check(&get, &recipe()).is_ok());
        assert!(policy.check(&Request::BenchSend, &recipe()).is_ok());
    }

    #[test]
    fn the_stronger_durability_applies() {
        let at_least = |policy: &Policy, durability| {
            let requested = ReceivePolicy { durability, ..ReceivePolicy::default() };
            policy.within(ReceiveOptions::with_policy(1, requested)).durability
        };
        let lax = Policy { durability: Durability::Cached, ..policy(&[], |_| {}) };
        assert_eq!(at_least(&lax, Durability::Synced), Durability::Synced);
        assert_eq!(at_least(&lax, Durability::Cached), Durability::Cached);
        let strict = Policy { durability: Durability::Synced, ..lax };
        assert_eq!(at_least(&strict, Durability::Cached), Durability::Synced);
    }

    #[test]
    fn attributes_are_preserved_only_if_both_sides_permit() {
        let permit = |ours, theirs| Policy { permit: ours, ..policy(&[], |_| {}) }.permitting(theirs).permit;
        let numbers = Preserve { owner: Ownership::Numbers, acls: Keep::Drop, ..Preserve::ALL };
        assert_eq!(permit(Preserve::ALL, numbers), numbers);
        assert_eq!(permit(Preserve::ALL, Preserve::default()), Preserve::default());
        let some = Preserve { owner: Ownership::Receiver, ..Preserve::ALL };
        assert_eq!(permit(some, Preserve::ALL), some);
    }

    #[test]
    fn patterns_that_cannot_be_compiled_are_refused_before_the_session() {
        let rule = Rule { verdict: Verdict::Exclude, pattern: b"[x".to_vec() };
        let selection = Selection { rules: vec![rule], ..Selection::default() };
        let (growth, run) = (Growth::Refuse, RunMode::Move);
        let request =
            Request::Get { sources: vec![Vec::new()], selection, growth, run, preserve: Preserve::ALL };
        assert_eq!(policy(&[], |_| {}).check(&request, &recipe()).unwrap_err().code, FaultCode::Usage);
    }

    #[test]
    fn sessions_without_encryption_need_the_servers_consent() {
        let options = |policy: Policy| policy.listen_options(([127, 0, 0, 1], 0).into());
        assert!(!options(policy(&[], |_| {})).permit_cipher_none);
        let consenting = options(policy(&["crypto"], |s| s.crypto = Some(Cipher::None)));
        assert!(consenting.permit_cipher_none && consenting.ciphers == ciphers(None));
    }
}
