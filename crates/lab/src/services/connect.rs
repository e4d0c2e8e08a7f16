//! Connections between the two sides: channels with a recipe, and TCP for comparison.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use haul_base::Rate;
use haul_engine::{
    Channel, ConnectionOptions, Endpoint, EngineError, HaulUrl, Message, OpenOptions, block_on,
};
use haul_proto::presets;
use haul_stack::{Ends, Recipe, SendOptions};

use super::job::{Stream, load};
use crate::problem::{Problem, While};

/// First TCP port; each lane has its own. Bound last, because the client starts when it is open.
pub(super) const TCP_PORT: u16 = 7_920;
/// A message without an answer after this time counts as lost.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);
/// Longer than any job.
pub(super) const LONG_TIMEOUT: Duration = Duration::from_secs(600);
/// Time within which the other side must have written its results.
const RESULTS: Duration = Duration::from_secs(20);

pub(super) fn engine(what: &str, error: &EngineError) -> Problem {
    Problem::failed(format!("{what}: {}", error.fault().message), "")
}

pub(super) fn wait_for(path: &Path) -> Result<(), Problem> {
    let until = Instant::now() + RESULTS;
    while !path.exists() {
        if Instant::now() > until {
            return Err(Problem::failed(format!("the peer did not write {}", path.display()), ""));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

pub(super) fn channel(
    recipe: &Recipe,
    channel: ConnectionOptions,
    directory: &Path,
) -> Result<Channel, Problem> {
    wait_for(&directory.join("url.json"))?;
    let text: String = load(directory, "url.json")?;
    let url: HaulUrl =
        text.parse().map_err(|e| Problem::failed(format!("the URL does not parse: {e}"), ""))?;
    let channel = ConnectionOptions { datagram: 1_472, ..channel };
    let options = OpenOptions { connection: channel, ..OpenOptions::default() };
    Endpoint::client()
        .and_then(|it| block_on(it.connect(&url, recipe, &options, Ends::default())))
        .map_err(|e| engine("cannot connect", &e))
}

pub(super) fn submit(channel: &Channel, data: &[u8]) -> Result<(), Problem> {
    let sent = channel.wait_for(Some(TIMEOUT), "buffer space for the message", |context| {
        channel.poll_send(context, data, SendOptions::default())
    });
    sent.map(drop).map_err(|e| engine("cannot send", &e))
}

/// Receives the next message.
pub(super) fn next_message(channel: &Channel, timeout: Duration) -> Result<Message, EngineError> {
    channel.wait_for(Some(timeout), "a message", |context| channel.poll_recv(context))
}

/// Returns the recipe of a stream, with its rate.
pub(super) fn recipe_of(name: &str, stream: &Stream) -> Result<Recipe, Problem> {
    let rate = stream.rate_bps.map(|bps| ("fixed_rate.rate", Rate::from_bps(bps).exact()));
    recipe(name, &rate.into_iter().collect::<Vec<_>>())
}

pub(super) fn recipe(name: &str, changes: &[(&str, String)]) -> Result<Recipe, Problem> {
    let preset = presets::preset(name).ok_or_else(|| Problem::usage(format!("no preset `{name}`"), ""))?;
    let mut recipe = preset.map_err(|e| Problem::failed(e.to_string(), ""))?;
    for (key, value) in changes {
        haul_proto::micro::registry()
            .set(&mut recipe, key, value)
            .map_err(|e| Problem::failed(e.to_string(), ""))?;
    }
    Ok(recipe)
}

pub(super) fn tcp(lane: u16) -> Result<TcpStream, Problem> {
    let host = std::env::var("HAUL_WAN_B").unwrap_or_default();
    let until = Instant::now() + TIMEOUT;
    let stream = loop {
        // The other side may not be listening yet.
        match TcpStream::connect(format!("{host}:{}", TCP_PORT + lane)) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(20));
            }
            result => break result.while_doing("cannot connect")?,
        }
    };
    stream.set_nodelay(true).while_doing("cannot set TCP_NODELAY")?;
    Ok(stream)
}

pub(super) fn tcp_listener(lane: u16) -> Result<TcpListener, Problem> {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, TCP_PORT + lane)).while_doing("cannot listen for TCP")
}
