//! Listening on one of several ports.

use std::net::{IpAddr, SocketAddr};

use haul_engine::{ListenOptions, Listener};
use haul_wire::control::{Fault, FaultCode};

use crate::args::PortRange;

/// Listens on the first free port of `range`, at the first of `ips` that can be had.
///
/// # Errors
/// When there is none, with why the last one could not be had.
pub(super) fn bind_within(
    options: &ListenOptions,
    ips: &[IpAddr],
    range: PortRange,
) -> Result<Listener, Fault> {
    let mut last = String::new();
    for port in range.ports() {
        for &ip in ips {
            match Listener::bind(ListenOptions { addr: SocketAddr::new(ip, port), ..options.clone() }) {
                Ok(listener) => return Ok(listener),
                Err(error) => last = error.to_string(),
            }
        }
    }
    Err(Fault::new(
        FaultCode::Busy,
        format!("none of the ports {range} is free for TCP and UDP; the last: {last}"),
        "choose more ports with --port-range (`ss -tulpn` shows which are in use)",
    ))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[test]
    fn taken_ports_are_passed_over_and_named_when_there_is_no_other() {
        let ip = IpAddr::from(Ipv4Addr::LOCALHOST);
        let taken = TcpListener::bind((ip, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let options = ListenOptions::new(SocketAddr::new(ip, 0));
        let only: PortRange = port.to_string().parse().unwrap();
        let fault = bind_within(&options, &[ip], only).unwrap_err();
        assert!(fault.message.contains(&port.to_string()) && fault.hint.contains("--port-range"), "{fault}");
        let more: PortRange = format!("{port}-{}", port.saturating_add(200)).parse().unwrap();
        let listener = bind_within(&options, &[ip], more).unwrap();
        assert!(listener.local_addr().port() > port);
    }
}
