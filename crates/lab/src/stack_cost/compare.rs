//! Compares modes in alternating slices of some milliseconds between the same two processes. Other load on
//! the machine affects all modes alike, so ratios of adjacent slices show differences that whole runs do not.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use haul_base::WithCauses;
use haul_udp::{Interest, Options as SocketOptions, Receiver, RecvError, UdpSocket};

use super::modes::{Item, Mode};
use super::sides::{Reading, Sending};

const SLICE: Duration = Duration::from_millis(40);
/// Pause between two slices, so that the receiver has emptied its buffer.
const PAUSE: Duration = Duration::from_millis(10);
/// The receiver ends when nothing has arrived for this long.
const QUIET: Duration = Duration::from_secs(3);

/// Returns the port of an item.
fn port(addr: SocketAddr, place: usize) -> SocketAddr {
    SocketAddr::new(addr.ip(), addr.port() + place as u16)
}

/// Sends slices of all modes in turn for `time`.
pub(super) fn send(items: &[Item], to: SocketAddr, time: Duration) -> Result<(), Box<dyn Error>> {
    let mut sendings = Vec::new();
    for (place, item) in items.iter().enumerate() {
        sendings.push(Sending::new(item.mode, port(to, place), item.size)?);
    }
    let start = Instant::now();
    while start.elapsed() < time {
        for sending in &mut sendings {
            sending.run(start, SLICE)?;
            thread::sleep(PAUSE);
        }
    }
    Ok(())
}

/// Receives what [`send`] sends and prints medians of the rates, and of their ratios to the first and second
/// modes of the same turn.
pub(super) fn receive(items: &[Item], bind: SocketAddr) -> Result<(), Box<dyn Error>> {
    let gap = (SLICE + PAUSE) * (items.len() as u32).saturating_sub(1) / 2;
    let (results, received) = mpsc::channel();
    for (place, item) in items.iter().enumerate() {
        let socket = UdpSocket::bind(port(bind, place), &SocketOptions::default())?;
        let (mode, results) = (item.mode, results.clone());
        thread::spawn(move || {
            results.send((place, slices(&socket, mode, gap).map_err(|error| WithCauses(&*error).to_string())))
        });
    }
    drop(results);
    let mut rates = vec![Vec::new(); items.len()];
    for (place, found) in received {
        rates[place] = found?;
    }
    let turns = rates.iter().map(Vec::len).min().unwrap_or(0);
    println!(
        "| median of {turns} slices of {} ms | Gbit/s | to the first | to the second |",
        SLICE.as_millis()
    );
    println!("|---|---|---|---|");
    for (item, of) in items.iter().zip(&rates) {
        let ratio = |to: usize| {
            let to = &rates[to.min(rates.len() - 1)];
            median(of.iter().zip(to).map(|(a, b)| a / b).collect())
        };
        println!("| {} | {:.2} | {:.3} | {:.3} |", item.name, median(of.clone()), ratio(0), ratio(1));
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Returns the Gbit/s of message bytes in each slice; a pause of `gap` ends a slice.
fn slices(socket: &UdpSocket, mode: Mode, gap: Duration) -> Result<Vec<f64>, Box<dyn Error>> {
    let mut reading = Reading::new(mode)?;
    let mut receiver = Receiver::new(socket);
    let (start, mut rates) = (Instant::now(), Vec::new());
    while !socket.wait(Interest::Read, Duration::from_secs(3_600))? {}
    loop {
        let (begin, before) = (Instant::now(), reading.bytes());
        let mut last = begin;
        loop {
            match receiver.recv(socket) {
                Ok(_) => {
                    for batch in receiver.datagrams() {
                        reading.take(batch.data, batch.stride, start);
                    }
                    last = Instant::now();
                }
                Err(RecvError::WouldBlock) if !socket.wait(Interest::Read, gap)? => break,
                Err(error) if error.is_fatal() => return Err(error.into()),
                Err(_) => {}
            }
        }
        rates.push((reading.bytes() - before) as f64 * 8e-9 / (last - begin).as_secs_f64());
        if !socket.wait(Interest::Read, QUIET)? {
            return Ok(rates);
        }
    }
}
