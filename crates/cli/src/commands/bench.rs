//! `haul bench`: memory-to-memory transfers.

use haul_base::Span;
use haul_engine::HaulUrl;
use haul_wire::control::{BenchLimit, Fault, Request};
use haulage::config::RateControlConfig;
use serde_json::json;

use crate::args::BenchArgs;
use crate::endpoint;
use crate::fault;
use crate::output::RunReport;
use crate::transfer::bench::{receive, send};
use crate::transfer::{Context, DryRun, negotiate, with_session};

const DEFAULT_TIME: Span = Span::from_secs(10);
/// Size of a full packet on Ethernet, bytes.
const PACKET: u64 = 1_500;

pub(crate) fn run(context: &Context, args: &BenchArgs) -> Result<RunReport, Fault> {
    let (url, limit) = checked(context, args)?;
    let request = if args.reverse { Request::BenchReceive } else { Request::BenchSend };
    Ok(context.traced(json!({ "bench": url.authority(), "reverse": args.reverse }), || {
        Ok(with_session(context, &url, (request, limit), |session, sides| {
            if args.reverse { receive(session, sides) } else { send(session, limit, sides) }
        }))
    }))
}

/// Returns the server, and how much to transfer or for how long; fails if no packet would leave in that time.
fn checked(context: &Context, args: &BenchArgs) -> Result<(HaulUrl, BenchLimit), Fault> {
    let url = endpoint::url(args.url.as_deref(), "haul bench [OPTIONS] URL")?;
    context.check_loss_model(!args.reverse)?;
    if let Some(bytes) = args.bytes {
        return Ok((url, BenchLimit::Bytes(bytes.0)));
    }
    let time = args.time.unwrap_or(DEFAULT_TIME);
    let law: Option<RateControlConfig> = context.settings.recipe.configuration();
    match law {
        Some(law) if law.rate.time_for(PACKET) > time => Err(fault::usage(
            format!("at {} not one packet leaves in {time}", law.rate),
            "give a higher --rate, or a longer --time",
        )),
        _ => Ok((url, BenchLimit::Micros(time.as_micros()))),
    }
}

pub(crate) fn plan(context: &Context, args: &BenchArgs) -> Result<DryRun, Fault> {
    let (url, _) = checked(context, args)?;
    let time = || format!("for {}", args.time.unwrap_or(DEFAULT_TIME));
    let amount = args.bytes.map_or_else(time, |bytes| bytes.to_string());
    let verb = if args.reverse { "receive" } else { "send" };
    let actions = vec![format!("{verb} memory {amount}, server {}", url.authority())];
    Ok(DryRun { actions, negotiated: negotiate(context, &url)? })
}
