//! Side B: receives streams, answers messages, counts sensor readings.

use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use haul_base::Rate;
use haul_engine::{ListenOptions, Listener};

use super::connect::{LONG_TIMEOUT, engine, next_message, recipe_of, tcp_listener};
use super::figures::{Arrival, stream_result};
use super::incoming::IncomingChannels;
use super::job::{Carrier, Job, Stream, StreamResult, save};
use super::{turns, udt};
use crate::problem::{Problem, While};

/// Port for clients.
const PORT: u16 = 7_910;
/// A stream ends when nothing has arrived for this long.
const QUIET: Duration = Duration::from_millis(1_500);

/// Runs side B of the job, writes `b.json` if there are results, and waits to be killed.
pub(super) fn run(job: &Job, directory: &Path) -> Result<(), Problem> {
    let incoming = IncomingChannels::new(listen(directory)?);
    std::thread::scope(|scope| match job {
        Job::Streams(streams) => {
            let sockets =
                streams.iter().map(|stream| tcp_listener(stream.lane)).collect::<Result<Vec<_>, _>>()?;
            let receive = |(stream, socket): (&Stream, TcpListener)| receive(stream, &socket, &incoming);
            let threads: Vec<_> =
                streams.iter().zip(sockets).map(|pair| scope.spawn(move || receive(pair))).collect();
            let results = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panicked())));
            save(directory, "b.json", &results.collect::<Result<Vec<StreamResult>, Problem>>()?)
        }
        Job::Turnaround { carrier, busy_poll_us, .. } => turns::answer(carrier, *busy_poll_us, &incoming),
        Job::Readings { carrier: Carrier::Recipe(_), .. } => {
            let _tcp = tcp_listener(0)?;
            let channel = incoming.next()?;
            while next_message(&channel, LONG_TIMEOUT).is_ok() {}
            Ok(())
        }
        Job::Readings { .. } => {
            let (mut stream, _) = tcp_listener(0)?.accept().while_doing("cannot accept")?;
            std::io::copy(&mut stream, &mut std::io::sink()).while_doing("cannot read").map(drop)
        }
    })
}

fn panicked() -> Problem {
    Problem::failed("a receiver has panicked", "")
}

fn listen(directory: &Path) -> Result<Listener, Problem> {
    let options = ListenOptions::new((Ipv4Addr::UNSPECIFIED, PORT).into());
    let listener = Listener::bind(options).map_err(|e| engine("cannot listen", &e))?;
    let host = std::env::var("HAUL_WAN_B").unwrap_or_default();
    save(directory, "url.json", &listener.url(&host, b"").to_string())?;
    Ok(listener)
}

fn receive(
    stream: &Stream,
    socket: &TcpListener,
    incoming: &IncomingChannels,
) -> Result<StreamResult, Problem> {
    if let Carrier::Udt(program) = &stream.carrier {
        return Ok(stream_result(&udt::receive(program, stream)?, stream.rate_bps, None, stream.millis));
    }
    let start = Instant::now();
    let now = || start.elapsed().as_nanos() as u64;
    let mut arrivals: Vec<Arrival> = Vec::with_capacity(1 << 20);
    let mut changed = None;
    if let Carrier::Recipe(name) = &stream.carrier {
        let channel = incoming.next_of(&recipe_of(name, stream)?)?;
        if let Some(rate) = stream.rate_bps.filter(|_| stream.change.is_some()) {
            channel.set_rate(Rate::from_bps(rate));
        }
        while let Ok(message) = next_message(&channel, QUIET) {
            arrivals.push((now(), message.data.len()));
            let since = now() - arrivals[0].0;
            if let Some((_, rate)) = stream.change.filter(|c| changed.is_none() && since >= c.0 * 1_000_000) {
                channel.set_rate(Rate::from_bps(rate));
                changed = Some((now(), rate));
            }
        }
    } else {
        let (mut tcp, _) = socket.accept().while_doing("cannot accept")?;
        tcp.set_read_timeout(Some(QUIET * 4)).while_doing("cannot set a timeout")?;
        let mut message = vec![0; stream.message];
        while tcp.read_exact(&mut message).is_ok() {
            arrivals.push((now(), message.len()));
        }
    }
    Ok(stream_result(&arrivals, stream.rate_bps, changed, stream.millis))
}
