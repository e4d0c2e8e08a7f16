//! Sensors and a base station: unchanged readings are not sent, and nothing is acknowledged. Run it with
//! `cargo run --example sensor`.

use std::error::Error;
use std::time::Duration;

use haulage::{Endpoint, Listener, Options, preset};

const TIMEOUT: Duration = Duration::from_secs(10);
const SENSORS: usize = 8;
const READINGS: u32 = 10;

/// All peers in one program; usually the sensors are elsewhere.
pub fn main() -> Result<(), Box<dyn Error>> {
    let base = Listener::bind("127.0.0.1:0".parse()?)?;
    let url = base.url("127.0.0.1");
    // One socket and one thread for all of them.
    let endpoint = Endpoint::client()?;
    let mut sensors = Vec::new();
    for _ in 0..SENSORS {
        sensors.push(endpoint.connect(&url, &preset("sensor")?, &Options::default()).wait()?);
    }
    // The temperature changes with every second reading.
    for reading in 0..READINGS {
        for sensor in &sensors {
            sensor.send(&(20.0 + f64::from(reading / 2)).to_be_bytes()).wait()?;
        }
    }
    let mut readings = 0;
    let mut stations = Vec::new();
    for _ in 0..SENSORS {
        let station = base.accept().wait_for(TIMEOUT)?;
        for _ in 0..READINGS / 2 {
            station.recv().wait_for(TIMEOUT)?;
            readings += 1;
        }
        stations.push(station);
    }
    let sent: u64 = sensors.iter().map(|sensor| sensor.statistics().totals.data_sent).sum();
    let suppressed: u64 = sensors.iter().map(|sensor| sensor.statistics().totals.messages_suppressed).sum();
    println!(
        "{SENSORS} sensors with {READINGS} readings each: {readings} arrived, {suppressed} unchanged ones suppressed"
    );
    println!("{sent} data packets sent");
    drop(stations);
    Ok(())
}
