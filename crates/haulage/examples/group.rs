//! Three senders share a receiver's 60 Mbit/s: one sends little, one has double weight. Run it with
//! `cargo run --example group`.

use std::error::Error;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use haulage::{Connection, ConnectionError, Group, Listener, Options, Rate, SendError, WaitError, preset};

const TIMEOUT: Duration = Duration::from_secs(10);
const ROUND: Duration = Duration::from_millis(250);
const FRAME: [u8; 1_000] = [7; 1_000];

/// All peers in one program; usually they are four programs.
pub fn main() -> Result<(), Box<dyn Error>> {
    let listener = Listener::bind("127.0.0.1:0".parse()?)?;
    let mut group = Group::new(Rate::from_mbps(60));
    let mut threads = Vec::new();
    for (pause, weight) in [(Some(Duration::from_millis(4)), 1), (None, 1), (None, 2)] {
        let url = listener.url("127.0.0.1");
        threads.push(std::thread::spawn(move || send(&url, pause).map_err(|error| error.to_string())));
        let sender = listener.accept().wait_for(TIMEOUT)?;
        group.add(sender.clone(), NonZeroU32::new(weight).ok_or("no sender counts nothing")?);
        threads.push(std::thread::spawn(move || read(&sender).map_err(|error| error.to_string())));
    }
    let until = Instant::now() + 8 * ROUND;
    while Instant::now() < until {
        std::thread::sleep(ROUND);
        group.round();
    }
    let shares: Vec<Rate> = group.shares().map(|(_, rate)| rate).collect();
    println!("low demand, high demand, double weight: {shares:?}");
    for (sender, _) in group.shares() {
        sender.close().wait_for(TIMEOUT)?;
    }
    threads
        .into_iter()
        .try_for_each(|thread| thread.join().map_err(|_| "a thread has panicked")?.map_err(Into::into))
}

/// Sends frames as fast as the rate allows, or one per `pause`, until the receiver closes.
fn send(url: &str, pause: Option<Duration>) -> Result<(), haulage::Error> {
    let connection = Connection::open(url, &preset("viz")?, &Options::default()).wait()?;
    loop {
        match connection.send(&FRAME).wait() {
            Ok(_) => std::thread::sleep(pause.unwrap_or_default()),
            Err(SendError::Ended(ConnectionError::Closed)) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn read(sender: &Connection) -> Result<(), haulage::Error> {
    loop {
        match sender.recv().wait_for(TIMEOUT) {
            Ok(_) => {}
            Err(WaitError::Ended(ConnectionError::Closed)) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}
