//! Server side of a session: handles each kind of request.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use haul_engine::{EngineError, Incoming, ListenOptions, Listener, Session};
use haul_mover::{SendLimits, receive_files, receive_stream, send_files};
use haul_wire::control::{BenchLimit, Fault, FaultCode, ReceivePolicy, Request};

use crate::args::PortRange;
use crate::fault;
use crate::output::RunReport;
use crate::transfer::{Context, Policy, Sides, bench, drive};

/// Interval at which a server checks whether to stop.
pub(crate) const POLL: Duration = Duration::from_millis(100);
const CHECK: Duration = Duration::from_secs(10);
/// Limit of a bench whose client sets none: 10 s.
const LONGEST_BENCH: BenchLimit = BenchLimit::Micros(10_000_000);

/// Answers a request. `context` is the policy's, or a copy of it for this session, with its own progress and
/// CPU time.
pub(crate) fn answer(incoming: Incoming, policy: &Policy, context: &Context) -> RunReport {
    let began = Instant::now();
    let request = incoming.request().clone();
    let settings = policy.settle(incoming.settings().clone(), incoming.recipe());
    if let Err(fault) = policy.check(&request, incoming.recipe()) {
        incoming.refuse(fault.clone());
        return context.failed(fault);
    }
    let mut session = match incoming.accept_with(settings) {
        Ok(session) => session,
        Err(error) => return context.failed(fault::of(error)),
    };
    session.set_loss_model(context.loss_model.clone());
    let sides = Sides::new(context, &session, began, session.peer().ip().to_string());
    if matches!(request, Request::Get { .. } | Request::BenchReceive)
        && let Some(law) = session.law()
    {
        sides.permit_law(law, policy.law_limits());
    }
    let report = serve_request(&mut session, &request, policy, &sides);
    let report = report.unwrap_or_else(|fault| {
        session.control().abort(fault.clone());
        context.failed(fault)
    });
    let controller = session.controller();
    RunReport { preset: session.recipe().name.clone(), controller, ..report }
}

fn serve_request(
    session: &mut Session,
    request: &Request,
    policy: &Policy,
    sides: &Arc<Sides>,
) -> Result<RunReport, Fault> {
    let context = &sides.context;
    let limit = match session.settings().bench_limit {
        BenchLimit::Unlimited => LONGEST_BENCH,
        limit => limit,
    };
    match request {
        Request::Put { destination, layout, receive_policy } => {
            drive::receive(session, sides, *receive_policy, |link, options| {
                receive_files(destination, &policy.root, *layout, link, policy.within(options))
            })
        }
        Request::PutStream { destination, durability } => {
            let receive_policy = ReceivePolicy { durability: *durability, ..ReceivePolicy::default() };
            drive::receive(session, sides, receive_policy, |link, options| {
                receive_stream(destination, &policy.root, link, policy.within(options))
            })
        }
        Request::Get { sources, selection, growth, preserve, .. } => {
            drive::send(session, sides, |link, limits| {
                let limits = SendLimits { growth: *growth, preserve: *preserve, ..limits };
                send_files(sources.clone(), policy.root.clone(), selection, link, limits)
            })
        }
        Request::BenchSend => bench::receive(session, sides),
        Request::BenchReceive => bench::send(session, limit, sides),
        // Only a check: the policy has refused the others.
        Request::Check | Request::Connect { .. } | Request::StreamSend | Request::StreamReceive => {
            check_path(session).map(|()| context.report(RunReport::default()))
        }
    }
}

/// Answers the client's path check until it sends a message or closes the session.
fn check_path(session: &mut Session) -> Result<(), Fault> {
    let _answering = session.check_path(CHECK).map_err(fault::of)?;
    match session.control().recv(Some(CHECK)) {
        Ok(_) | Err(EngineError::Closed) => Ok(()),
        Err(error) => Err(fault::of(error)),
    }
}

/// Returns the next client; `None` once `until` holds.
pub(crate) fn next_client(listener: &Listener, until: impl Fn() -> bool) -> Option<Incoming> {
    while !until() {
        let incoming = listener.accept(POLL);
        if incoming.is_some() {
            return incoming;
        }
    }
    None
}

/// Calls `client` with a server within this process that serves one session. `context.cpu` must be that of the
/// data thread, because the process does the work of both sides.
pub(crate) fn with_local_server<R: Send>(
    context: &Context,
    ip: Ipv4Addr,
    client: impl FnOnce(&Listener) -> R,
) -> Result<R, Fault> {
    let policy = &Policy::for_local_copy(context);
    let listener = Listener::bind(policy.listen_options((ip, 0).into())).map_err(fault::of)?;
    let is_over = AtomicBool::new(false);
    let serve_one = || {
        if let Some(incoming) = next_client(&listener, || is_over.load(Ordering::Relaxed)) {
            answer(incoming, policy, &policy.context);
        }
    };
    thread::scope(|scope| {
        let server = thread::Builder::new().spawn_scoped(scope, serve_one);
        let server = server.map_err(|error| fault::io("cannot start a thread", &error))?;
        let result = client(&listener);
        is_over.store(true, Ordering::Relaxed);
        let crashed = |_| Fault::new(FaultCode::Internal, "the receiver within this process has crashed", "");
        server.join().map_err(crashed).map(|()| result)
    })
}

/// Listens on the first free port of `range`, or on that of the options, at the first possible of `ips`.
pub(crate) fn bind(
    options: &ListenOptions,
    ips: &[IpAddr],
    range: Option<&PortRange>,
) -> Result<Listener, Fault> {
    let given = options.addr.port();
    let ports = range.map_or(given..=given, |range| range.0.clone());
    let mut last = Fault::new(FaultCode::Internal, "there is no address to listen on", "");
    for (ip, port) in ports.flat_map(|port| ips.iter().map(move |&ip| (ip, port))) {
        // Keeps the zone of an IPv6 address.
        let mut addr = options.addr;
        addr.set_ip(ip);
        addr.set_port(port);
        match Listener::bind(ListenOptions { addr, ..options.clone() }) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = fault::of(error),
        }
    }
    let Some(range) = range else { return Err(last) };
    let last = last.message;
    let message = format!("none of the ports {range} is free for both TCP and UDP; the last: {last}");
    let hint = "choose a larger --port-range (`ss -tulpn` lists the ports in use)";
    Err(Fault::new(FaultCode::Busy, message, hint))
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};

    use super::*;

    #[test]
    fn taken_ports_are_skipped_and_named_if_none_is_free() {
        let ip = IpAddr::from(Ipv4Addr::LOCALHOST);
        let taken = TcpListener::bind((ip, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let options = ListenOptions::new(SocketAddr::new(ip, 0));
        let only: PortRange = port.to_string().parse().unwrap();
        let fault = bind(&options, &[ip], Some(&only)).unwrap_err();
        assert!(fault.message.contains(&port.to_string()) && fault.hint.contains("--port-range"), "{fault}");
        let more: PortRange = format!("{port}-{}", port.saturating_add(200)).parse().unwrap();
        let listener = bind(&options, &[ip], Some(&more)).unwrap();
        assert!(listener.local_addr().port() > port);
    }
}
