//! Side A: sends streams, messages and sensor readings.

use std::io::Write;
use std::path::Path;
use std::task::Poll;
use std::time::{Duration, Instant};

use haul_engine::{Channel, ConnectionOptions, EngineError};

use super::connect::{TIMEOUT, channel, engine, recipe, recipe_of, submit, tcp, wait_for};
use super::job::{Carrier, Job, Stream, save};
use super::{turns, udt};
use crate::problem::{Problem, While};

/// Timeout for the peer's answer to a close.
const CLOSE: Duration = Duration::from_secs(3);
const READING: usize = 16;

/// Runs side A of the job; writes `a.json` if there are results.
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
            save(directory, "a.json", &turns::exchange(carrier, *busy_poll_us, *messages, directory)?)
        }
        Job::Readings { carrier, readings, gap_us, constant } => {
            read_out(carrier, *readings, Duration::from_micros(*gap_us), *constant, directory)
        }
    }
}

/// Sends until the time is over. Messages are numbered, so that no two are equal.
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

/// Closes the channel. A loss at the end of an unreliable stream is not an error.
pub(super) fn close(channel: &Channel) -> Result<(), Problem> {
    match channel.wait_for(Some(CLOSE), "the end", |context| channel.poll_close(context, Poll::Ready(()))) {
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
