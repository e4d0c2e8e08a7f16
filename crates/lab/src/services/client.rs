//! Side A: sends streams, messages and readings.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_engine::{
    Channel, ConnectionOptions, Endpoint, EngineError, HaulUrl, Message, OpenOptions, block_on,
};
use haul_proto::{micro, presets};
use haul_stack::{Ends, Recipe, SendOptions};

use super::job::{Carrier, Job, Stream, load, save};
use super::server::{TCP_PORT, engine};
use super::{turns, udt};
use crate::problem::{Problem, While};

/// A message that is not answered in this time counts as lost for good.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);
/// Within this time the other side must have written its results.
const RESULTS: Duration = Duration::from_secs(20);
/// How long the other side may take to answer a close.
const CLOSE: Duration = Duration::from_secs(3);
const READING: usize = 16;

/// Does A's part; writes `a.json` where there is something to tell.
pub(super) fn run(job: &Job, directory: &Path) -> Result<(), Problem> {
    match job {
        Job::Streams(streams) => {
            std::thread::scope(|scope| {
                let threads: Vec<_> =
                    streams.iter().map(|stream| scope.spawn(move || send(stream, directory))).collect();
                threads.into_iter().try_for_each(|thread| {
                    thread.join().unwrap_or_else(|_| Err(Problem::failed("a sender has panicked", "")))
                })
            })?;
            wait_for(&directory.join("b.json"))
        }
        Job::Turnaround { carrier, messages, busy_poll_us } => {
            save(directory, "a.json", &turns::ask(carrier, *busy_poll_us, *messages, directory)?)
        }
        Job::Readings { carrier, readings, gap_us, constant } => {
            read_out(carrier, *readings, Duration::from_micros(*gap_us), *constant, directory)
        }
    }
}

fn wait_for(path: &Path) -> Result<(), Problem> {
    let until = Instant::now() + RESULTS;
    while !path.exists() {
        if Instant::now() > until {
            return Err(Problem::failed(format!("the other side did not write {}", path.display()), ""));
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
    let registry = Arc::new(micro::registry());
    let channel = ConnectionOptions { datagram: 1_472, ..channel };
    let options = OpenOptions { channel, ..OpenOptions::default() };
    Endpoint::client()
        .and_then(|it| block_on(it.connect(&url, recipe, &registry, &options, Ends::default())))
        .map_err(|e| engine("cannot connect", &e))
}

/// The recipe of a stream, with its rate.
pub(super) fn recipe_of(name: &str, stream: &Stream) -> Result<Recipe, Problem> {
    let rate = stream.rate_bps.map(|bps| ("fixed_rate.rate", format!("{bps}bit")));
    recipe(name, &rate.into_iter().collect::<Vec<_>>())
}

pub(super) fn recipe(name: &str, changes: &[(&str, String)]) -> Result<Recipe, Problem> {
    let preset = presets::preset(name).ok_or_else(|| Problem::usage(format!("no preset `{name}`"), ""))?;
    let mut recipe = preset.map_err(|e| Problem::failed(e.to_string(), ""))?;
    for (key, value) in changes {
        recipe.set(key, value).map_err(|e| Problem::failed(e.to_string(), ""))?;
    }
    Ok(recipe)
}

pub(super) fn tcp(lane: u16) -> Result<TcpStream, Problem> {
    let host = std::env::var("HAUL_WAN_B").unwrap_or_default();
    let until = Instant::now() + TIMEOUT;
    let stream = loop {
        // The other side may still be about to listen.
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

/// Sends until the time is over; messages are numbered, so that no two are equal.
fn send(stream: &Stream, directory: &Path) -> Result<(), Problem> {
    let until = |start: Instant| start.elapsed() < Duration::from_millis(stream.millis);
    let mut message = vec![0x5a; stream.message];
    let mut number = 0u64;
    let mut next = |message: &mut [u8]| {
        number += 1;
        message[..8].copy_from_slice(&number.to_be_bytes());
    };
    if let Carrier::Recipe(name) = &stream.carrier {
        let channel = channel(&recipe_of(name, stream)?, ConnectionOptions::default(), directory)?;
        let start = Instant::now();
        while until(start) {
            next(&mut message);
            submit(&channel, &message)?;
        }
        return close(&channel);
    }
    if let Carrier::Udt(program) = &stream.carrier {
        return udt::send(program, stream);
    }
    let mut tcp = tcp(stream.lane)?;
    tcp.set_write_timeout(Some(TIMEOUT)).while_doing("cannot set a timeout")?;
    let start = Instant::now();
    let mut sent = 0u64;
    while until(start) {
        if let Some(rate) = stream.rate_bps {
            let due = Duration::from_nanos((sent as f64 * 8e9 / rate as f64) as u64);
            std::thread::sleep(due.saturating_sub(start.elapsed()));
        }
        next(&mut message);
        sent += message.len() as u64;
        if tcp.write_all(&message).is_err() {
            break;
        }
    }
    Ok(())
}

pub(super) fn submit(channel: &Channel, data: &[u8]) -> Result<(), Problem> {
    let sent = channel.wait_for(Some(TIMEOUT), "room for the message", |context| {
        channel.poll_send(context, data, SendOptions::default())
    });
    sent.map(drop).map_err(|e| engine("cannot send", &e))
}

/// The next message.
pub(super) fn next_message(channel: &Channel, timeout: Duration) -> Result<Message, EngineError> {
    channel.wait_for(Some(timeout), "a message", |context| channel.poll_recv(context))
}

/// What is lost at the end of an unreliable stream is no failure.
pub(super) fn close(channel: &Channel) -> Result<(), Problem> {
    match channel.wait_for(Some(CLOSE), "the end", |context| channel.poll_close(context)) {
        Ok(()) | Err(EngineError::TimedOut { .. } | EngineError::Closed) => Ok(()),
        Err(error) => Err(engine("cannot close", &error)),
    }
}

fn read_out(
    carrier: &Carrier,
    readings: usize,
    gap: Duration,
    constant: bool,
    directory: &Path,
) -> Result<(), Problem> {
    let value = |i: usize| {
        let mut reading = [0; READING];
        reading[..8].copy_from_slice(&(if constant { 1.0 } else { i as f64 }).to_be_bytes());
        reading
    };
    if let Carrier::Recipe(name) = carrier {
        let channel = channel(&recipe(name, &[])?, ConnectionOptions::default(), directory)?;
        for i in 0..readings {
            submit(&channel, &value(i))?;
            std::thread::sleep(gap);
        }
        return close(&channel);
    }
    let mut tcp = tcp(0)?;
    for i in 0..readings {
        tcp.write_all(&value(i)).while_doing("cannot send")?;
        std::thread::sleep(gap);
    }
    Ok(())
}
