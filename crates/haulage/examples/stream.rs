//! A reliable byte stream over the bulk transport, with the traits of the standard library. Run it with
//! `cargo run --example stream`.

use std::error::Error;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

use haulage::{Endpoint, Listener, Options, preset};

const BYTES: usize = 20_000_000;

/// Both peers in one program; usually they are two programs.
pub fn main() -> Result<(), Box<dyn Error>> {
    let listener = Listener::bind("127.0.0.1:0".parse()?)?;
    let url = listener.url("127.0.0.1");
    let writer = std::thread::spawn(move || write(&url).map_err(|error| error.to_string()));
    let mut reader = listener.accept_reader().wait_for(Duration::from_secs(10))?;
    let (mut buffer, mut bytes, began) = (vec![0; 1 << 20], 0, Instant::now());
    loop {
        let read = reader.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        if let Some(wrong) = buffer[..read].iter().zip(bytes..).position(|(&byte, i)| byte != (i % 251) as u8)
        {
            return Err(format!("byte {} is another", bytes + wrong).into());
        }
        bytes += read;
    }
    println!("{bytes} bytes in {:?}", began.elapsed());
    writer.join().map_err(|_| "the writer has panicked")??;
    if bytes == BYTES { Ok(()) } else { Err("the stream was cut short".into()) }
}

fn write(url: &str) -> Result<(), Box<dyn Error>> {
    let mut writer = Endpoint::client()?.open_writer(url, &preset("bulk")?, &Options::default()).wait()?;
    let data: Vec<u8> = (0..BYTES).map(|i| (i % 251) as u8).collect();
    writer.write_all(&data)?;
    Ok(writer.finish().wait()?)
}
