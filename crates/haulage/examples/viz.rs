//! A stream at a fixed rate that the receiver sets and changes while it runs; nothing is retransmitted. Run
//! it with `cargo run --example viz`.

use std::error::Error;
use std::time::{Duration, Instant};

use haulage::{Connection, ConnectionError, Listener, Options, Rate, SendError, preset, stats};

const TIMEOUT: Duration = Duration::from_secs(10);
const FRAME: [u8; 1_000] = [7; 1_000];

/// Both peers in one program; usually they are two programs.
pub fn main() -> Result<(), Box<dyn Error>> {
    let listener = Listener::bind("127.0.0.1:0".parse()?)?;
    let url = listener.url("127.0.0.1");
    let sender = std::thread::spawn(move || send(&url).map_err(|error| error.to_string()));

    let viewer = listener.accept().wait_for(TIMEOUT)?;
    let mut frames = 0;
    for megabits in [40, 10] {
        viewer.set_rate(Rate::from_bps(megabits * 1_000_000));
        let until = Instant::now() + Duration::from_millis(500);
        let before = frames;
        while Instant::now() < until {
            viewer.recv().wait_for(TIMEOUT)?;
            frames += 1;
        }
        println!("requested {megabits} Mbit/s: {} frames in half a second", frames - before);
    }
    if let Some(stats::ArrivalStats { missing, jitter, .. }) = viewer.statistics().of() {
        println!("{missing} packets are missing; jitter: {jitter}");
    }
    viewer.close().wait_for(TIMEOUT)?;
    sender.join().map_err(|_| "the sender has panicked")?.map_err(Into::into)
}

/// Sends frames as fast as the rate allows, until the viewer closes.
fn send(url: &str) -> Result<(), haulage::Error> {
    let connection = Connection::open(url, &preset("viz")?, &Options::default()).wait()?;
    loop {
        match connection.send(&FRAME).wait() {
            Ok(_) => {}
            Err(SendError::Ended(ConnectionError::Closed)) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}
