//! The client's side of a session.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use haul_diagnosis::Model;
use haul_engine::{ConnectOptions, EngineError, HaulUrl, Session, connect};
use haul_mover::{Expectations, ReceiveOptions, Root, layout_for, receive_files, send_files};
use haul_wire::control::{BenchLimit, Fault, FaultCode, Host, Request, RunMode, Selection};
use haulage::config::ObjectConfig;
use serde_json::json;

use crate::fault;
use crate::output::RunReport;
use crate::settings::ciphers;
use crate::signals::Cancel;
use crate::transfer::{Context, Cpu, Negotiated, REST_HINT, Sides, drive};

const TICK: Duration = Duration::from_millis(20);
const RESUME_HINT: &str = "run the same command again to resume";
const CHECK: Duration = Duration::from_secs(6);

fn open(context: &Context, url: &HaulUrl, request: Request, limit: BenchLimit) -> Result<Session, Fault> {
    let purpose = request.name();
    let sends = matches!(request, Request::Put { .. } | Request::PutStream { .. } | Request::BenchSend);
    let mut options = ConnectOptions::new(request, context.settings.to_wire(limit));
    options.ciphers = ciphers(context.settings.crypto);
    let mut session = connect_unless(&context.cancel, url.clone(), options)?;
    session.set_loss_model(context.loss_model.clone());
    let (peer, server, cipher) = (session.peer(), session.server(), session.cipher());
    let (controller, round_trip) = (session.controller(), session.round_trip());
    tracing::info!(
        "connected to {peer} ({server}), cipher {cipher}, controller {controller}, round trip {round_trip}"
    );
    let fields = json!({
        "request": purpose,
        "peer": peer.to_string(),
        "server": server,
        "cipher": cipher.as_str(),
        "controller": controller,
        "diagnosis_model": model_hash(context).filter(|_| sends),
        "round_trip_ms": round_trip.as_millis_f64(),
    });
    context.events.write("session", fields);
    Ok(session)
}

/// Returns the BLAKE3 hash of the loss model, as `haul train` prints it; `None` for the built-in one.
fn model_hash(context: &Context) -> Option<String> {
    let model = context.loss_model.as_deref().filter(|model| *model != Model::shipped())?;
    Some(blake3::hash(model.write().as_bytes()).to_hex().to_string())
}

/// Connects in another thread, so that an interruption need not wait.
fn connect_unless(cancel: &Cancel, url: HaulUrl, options: ConnectOptions) -> Result<Session, Fault> {
    let (sender, result) = channel();
    let host = url.host.clone();
    let connecting = move || {
        // After an interruption, nobody receives it, and the session is closed when dropped.
        let _ = sender.send(connect(&url, options));
    };
    fault::spawn("haul-connect", connecting)?;
    loop {
        cancel.check(REST_HINT)?;
        match result.recv_timeout(TICK) {
            Ok(Ok(session)) => return Ok(session),
            Ok(Err(error @ EngineError::Peer(_))) => return Err(fault::of(error).on(Host::Named(host))),
            Ok(Err(error)) => return Err(fault::of(error)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Fault::new(FaultCode::Internal, "connecting has crashed", ""));
            }
        }
    }
}

pub(crate) fn upload(
    context: &Context,
    url: &HaulUrl,
    sources: Vec<Vec<u8>>,
    selection: &Selection,
) -> RunReport {
    let layout = layout_for(&sources, &url.path);
    let request = Request::Put {
        destination: url.path.clone(),
        layout,
        receive_policy: context.transfer.receive_policy,
    };
    with_session(context, url, (request, BenchLimit::Unlimited), |session, sides| {
        let begin = |link, limits| send_files(sources, Root::Anywhere, selection, link, limits);
        drive::send(session, sides, begin).map(resumable)
    })
}

pub(crate) fn download(
    context: &Context,
    from: &HaulUrl,
    sources: &[Vec<u8>],
    selection: &Selection,
    destination: &[u8],
) -> RunReport {
    let layout = layout_for(sources, destination);
    let request = Request::Get {
        sources: sources.to_vec(),
        selection: selection.clone(),
        growth: context.transfer.growth,
        // This side prints the names.
        run: match context.transfer.receive_policy.run {
            RunMode::Verbose => RunMode::Move,
            run => run,
        },
        preserve: context.transfer.preserve,
    };
    with_session(context, from, (request, BenchLimit::Unlimited), |session, sides| {
        let begin = |link, options| {
            let permit = context.transfer.preserve;
            let expectations = Some(Expectations::new(sources, selection));
            let options = ReceiveOptions { permit, expectations, ..options };
            receive_files(destination, &Root::Anywhere, layout, link, options)
        };
        drive::receive(session, sides, context.transfer.receive_policy, begin).map(resumable)
    })
}

/// Opens a session and does `work` in it; `limit` is that of a bench.
pub(crate) fn with_session(
    context: &Context,
    url: &HaulUrl,
    (request, limit): (Request, BenchLimit),
    work: impl FnOnce(&mut Session, &Arc<Sides>) -> Result<RunReport, Fault>,
) -> RunReport {
    let began = Instant::now();
    let connect = || {
        if let Some(callback) = &context.on_negotiated {
            callback(if context.cpu == Cpu::DataThread { Vec::new() } else { negotiate(context, url)? });
        }
        open(context, url, request, limit)
    };
    let mut session = match connect() {
        Ok(session) => session,
        Err(fault) => return context.failed(fault),
    };
    let sides = Sides::new(context, &session, began, url.host.clone());
    match work(&mut session, &sides) {
        Ok(report) => {
            if report.error.is_none() {
                // Everything is final on both sides, whatever becomes of the close.
                let _ = session.control().close();
            }
            report
        }
        Err(fault) => {
            session.control().abort(fault.clone());
            let is_local = sides.peer_name.is_none();
            context.failed(if is_local { fault } else { fault::on_this_machine(fault) })
        }
    }
}

/// Adds the hint that a copy can be resumed if the peer was lost.
fn resumable(mut report: RunReport) -> RunReport {
    report.error = report.error.map(|fault| fault::if_lost(fault, RESUME_HINT));
    report
}

/// Negotiates with a server, and checks the path in both directions.
pub(crate) fn negotiate(context: &Context, url: &HaulUrl) -> Result<Negotiated, Fault> {
    let mut session = open(context, url, Request::Check, BenchLimit::Unlimited)?;
    session.check_path(CHECK).map_err(fault::of)?;
    let recipe = session.recipe();
    let rate = haul_engine::ceiling(recipe).map_or_else(|| "unlimited".to_owned(), |rate| rate.to_string());
    let ObjectConfig { chunk, .. } = recipe.configuration().unwrap_or_default();
    let rows = [
        ("server", format!("{} at {}", session.server(), session.peer())),
        ("cipher", session.cipher().to_string()),
        ("controller", session.controller()),
        ("rate", rate),
        ("chunk", chunk.to_string()),
        ("offload", if session.settings().offload { "on" } else { "off" }.to_owned()),
        ("round_trip", session.round_trip().to_string()),
        ("udp", "works in both directions".to_owned()),
        ("recipe", recipe.name.clone()),
    ];
    let _ = session.control().close();
    Ok(rows.map(|(name, value)| (name.into(), value)).into())
}
