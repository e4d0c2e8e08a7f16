//! Servers for `haul cp`: running ones, those that ssh starts, and those within this process.

use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};

use haul_engine::HaulUrl;

use crate::args::SshArgs;
use crate::endpoint::{self, Machine};
use crate::fault::{self, Fault, FaultCode};
use crate::output::RunReport;
use crate::ssh::{Permit, Remote, SshCommand};
use crate::transfer::{Context, CopyPlan, Cpu, session, with_local_server};

/// A server that ssh has started. It ends when this is dropped, unless it has a client.
pub(crate) struct RemoteServer {
    pub(crate) remote: Remote,
    /// The server's URL, with a placeholder for the host.
    pub(crate) url: HaulUrl,
}

impl RemoteServer {
    pub(crate) fn start(context: &Context, command: &SshCommand, permit: &Permit) -> Result<Self, Fault> {
        let host = &command.host;
        let mut remote = Remote::start(command, command.serve(), &context.cancel)?;
        let missing = || fault::usage(format!("{host} announced no server"), "");
        let url = endpoint::parse_url(remote.announcement.url.as_deref().ok_or_else(missing)?)?;
        remote.send(permit)?;
        // The best address is the first.
        remote.announcement.hosts.insert(0, command.hostname());
        tracing::info!("haul {} on {host} serves at port {}", remote.announcement.program, url.port);
        Ok(Self { remote, url })
    }
}

pub(crate) fn not_detached() -> Fault {
    fault::usage(
        "--detach is for copies between two other machines, but this machine takes part in the transfer",
        "leave it out, and start the command under `nohup` or in a `tmux` session",
    )
}

pub(crate) fn put_permit(context: &Context, plan: &CopyPlan) -> Permit {
    Permit::Put(plan.path.clone(), context.transfer.receive_policy, context.transfer.preserve)
}

/// Calls `work` with the context of the run and the URL of a server on `machine`: a running one, one that ssh
/// starts with `permit`, or one within this process.
pub(crate) fn at_server(
    context: &Context,
    args: &SshArgs,
    machine: &Machine,
    permit: &Permit,
    work: impl FnOnce(&Context, HaulUrl) -> RunReport,
) -> Result<RunReport, Fault> {
    let host = match machine {
        Machine::Here => {
            let context = &Context { cpu: Cpu::DataThread, ..context.clone() };
            return with_local_server(context, Ipv4Addr::LOCALHOST, |listener| {
                work(context, listener.url("127.0.0.1", b""))
            });
        }
        Machine::Url(url) => return Ok(work(context, url.clone())),
        Machine::Ssh(host) => host,
    };
    let command = SshCommand::new(args, host)?;
    let mut server = RemoteServer::start(context, &command, permit)?;
    let add_hint = |fault| with_firewall_hint(fault, server.url.port, command.ports.as_deref());
    let url = reach(context, &server.url, &server.remote.announcement.hosts).map_err(add_hint)?;
    let mut report = work(context, url);
    report.error = report.error.map(add_hint);
    if let Some(note) = server.remote.early_end() {
        let suffix = if report.error.is_none() { "; the transfer did not need it" } else { "" };
        context.inform(format!("note: {note}{suffix}"));
    }
    Ok(report)
}

/// Returns the URL with the first of `hosts` that can be reached by TCP and UDP.
pub(crate) fn reach(context: &Context, url: &HaulUrl, hosts: &[String]) -> Result<HaulUrl, Fault> {
    let with_host = |host: &String| HaulUrl { host: host.clone(), ..url.clone() };
    let candidates = candidates(hosts, addresses);
    if let [] | [_] = candidates.as_slice() {
        // There is no choice: the transfer itself shows whether it works.
        return Ok(candidates.first().map_or_else(|| url.clone(), with_host));
    }
    let mut faults = Vec::new();
    for url in candidates.iter().map(with_host) {
        match session::negotiate(context, &url) {
            Ok(_) => return Ok(url),
            // Another address may work.
            Err(fault) if fault::is_network_fault(fault.code) || fault.code == FaultCode::NotAuthorised => {
                faults.push((url.host, fault));
            }
            Err(fault) => return Err(fault),
        }
    }
    Err(none_reached(&faults))
}

fn none_reached(faults: &[(String, Fault)]) -> Fault {
    let tried: Vec<String> =
        faults.iter().map(|(host, fault)| format!("by {host}: {}", fault.message)).collect();
    let is_udp = faults.iter().any(|(_, fault)| fault.code == FaultCode::UdpBlocked);
    let code = if is_udp { FaultCode::UdpBlocked } else { FaultCode::Unreachable };
    Fault::new(code, format!("cannot reach the server that ssh started: {}", tried.join("; ")), "")
}

/// Removes duplicates. An address that a name resolves to replaces the name: ssh has connected to it.
fn candidates(hosts: &[String], addresses: impl Fn(&str) -> Vec<IpAddr>) -> Vec<String> {
    let mut kept: Vec<(&String, Vec<IpAddr>)> = Vec::new();
    for host in hosts {
        let ips = addresses(host);
        kept.retain(|(name, other_ips)| *name != host && !ips.iter().any(|ip| other_ips.contains(ip)));
        kept.push((host, ips));
    }
    kept.into_iter().map(|(host, _)| host.clone()).collect()
}

fn addresses(host: &str) -> Vec<IpAddr> {
    let found = (host, 0).to_socket_addrs();
    found.map(|found| found.map(|address| address.ip()).collect()).unwrap_or_default()
}

/// Replaces the hint if the server is unreachable; `ports` is the port range given to the server.
pub(crate) fn with_firewall_hint(mut fault: Fault, port: u16, ports: Option<&str>) -> Fault {
    if !matches!(fault.code, FaultCode::Unreachable | FaultCode::UdpBlocked) {
        return fault;
    }
    fault.hint = match ports {
        Some(ports) => {
            format!("open TCP and UDP ports {ports} of the serving machine in its firewall and on the path")
        }
        None => format!(
            "the system chose port {port} on the serving machine, which must be open for TCP and UDP: choose open ports with --port-range A-B, or open it in the firewall and on the path"
        ),
    };
    fault
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(hosts: &[&str]) -> Vec<String> {
        let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
        candidates(&hosts, |host| match host {
            "name" => vec![IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2])],
            "nowhere" => Vec::new(),
            address => vec![address.parse().unwrap()],
        })
    }

    #[test]
    fn the_address_ssh_connected_to_replaces_its_name() {
        assert_eq!(chosen(&["name", "10.0.0.2"]), ["10.0.0.2"]);
        assert_eq!(chosen(&["10.0.0.2", "10.0.0.2"]), ["10.0.0.2"]);
        assert_eq!(chosen(&["name", "10.0.0.3"]), ["name", "10.0.0.3"]);
        assert_eq!(chosen(&["nowhere", "::1"]), ["nowhere", "::1"]);
        assert_eq!(chosen(&["nowhere", "nowhere"]), ["nowhere"]);
        assert!(chosen(&[]).is_empty());
    }

    #[test]
    fn the_firewall_hint_names_the_ports_and_the_port_range_option() {
        let fault = Fault::new(FaultCode::UdpBlocked, "no", "old");
        let hint = with_firewall_hint(fault.clone(), 7123, None).hint;
        assert!(hint.contains("7123") && hint.contains("--port-range"), "{hint}");
        assert!(with_firewall_hint(fault.clone(), 7123, Some("5000-5009")).hint.contains("5000-5009"));
        let other = Fault { code: FaultCode::DiskFull, ..fault };
        assert_eq!(with_firewall_hint(other.clone(), 1, None), other);
    }

    #[test]
    fn every_address_tried_is_named() {
        let fault = |code| Fault::new(code, "refused", "");
        let all = none_reached(&[
            ("a".into(), fault(FaultCode::Unreachable)),
            ("b".into(), fault(FaultCode::UdpBlocked)),
        ]);
        assert!(all.message.contains("by a: refused; by b: refused"), "{all}");
        assert_eq!(all.code, FaultCode::UdpBlocked);
    }
}
