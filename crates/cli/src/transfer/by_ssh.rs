//! `haul cp` with a machine that ssh leads to.

use haul_engine::HaulUrl;
use haul_wire::control::Fault;

use crate::args::SshArgs;
use crate::endpoint;
use crate::fault;
use crate::output::RunReport;
use crate::ssh::{Permit, Remote, SshCommand, SshHost};
use crate::transfer::context::Context;
use crate::transfer::plan::Server;
use crate::transfer::reach::{reach, with_way_out};

/// A server that ssh has started. It ends when this is dropped, unless it has a client.
pub(crate) struct Served {
    pub(crate) remote: Remote,
    /// Its URL; the host in it is to be one of `hosts`.
    pub(crate) url: HaulUrl,
    /// The ways to it, the best first.
    pub(crate) hosts: Vec<String>,
}

impl Served {
    /// Starts one on `host` that does what `permit` says.
    pub(crate) fn start(
        context: &Context,
        command: &SshCommand,
        host: &SshHost,
        permit: &Permit,
    ) -> Result<Self, Fault> {
        let mut remote = Remote::start(command, host, command.serve(host), &context.cancel)?;
        let url = remote.announcement.url.as_deref();
        let url =
            endpoint::parse_url(url.ok_or_else(|| fault::usage(format!("{host} announced no server"), ""))?)?;
        remote.tell(permit)?;
        let mut hosts = vec![command.hostname(host)];
        hosts.extend(remote.announcement.hosts.iter().cloned());
        tracing::info!("haul {} on {host} serves at port {}", remote.announcement.program, url.port);
        Ok(Self { remote, url, hosts })
    }
}

pub(crate) fn not_detached() -> Fault {
    fault::usage(
        "--detach is for copies between two other machines: this one takes part in the transfer",
        "leave it out, and start the command under `nohup` or in a `tmux` session",
    )
}

/// Runs `work` with the URL of a server: the one that is there, or one that ssh starts and that does what `permit`
/// says.
pub(crate) fn at_server<R: MayFail>(
    context: &Context,
    args: &SshArgs,
    server: &Server,
    permit: &Permit,
    work: impl FnOnce(HaulUrl) -> R,
) -> Result<R, Fault> {
    let host = match server {
        Server::Url(url) => return Ok(work(url.clone())),
        Server::Ssh(host) => host,
    };
    let command = SshCommand::new(args)?;
    let mut server = Served::start(context, &command, host, permit)?;
    let way_out = |fault| with_way_out(fault, server.url.port, command.ports());
    let url = reach(context, &server.url, &server.hosts).map_err(way_out)?;
    let mut is_done = true;
    let result = work(url).map_fault(|fault| {
        is_done = false;
        way_out(fault)
    });
    if let Some(note) = server.remote.early_end() {
        let rest = if is_done { "; the transfer did not need it" } else { "" };
        context.say(format!("note: {note}{rest}"));
    }
    Ok(result)
}

/// What can hold a fault.
pub(crate) trait MayFail {
    fn map_fault(self, change: impl FnOnce(Fault) -> Fault) -> Self;
}

impl MayFail for RunReport {
    fn map_fault(mut self, change: impl FnOnce(Fault) -> Fault) -> Self {
        self.error = self.error.map(change);
        self
    }
}

impl<T> MayFail for Result<T, Fault> {
    fn map_fault(self, change: impl FnOnce(Fault) -> Fault) -> Self {
        self.map_err(change)
    }
}
