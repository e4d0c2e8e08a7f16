//! Reliable messages at low latency: a request and its response, then a client that resumes without a
//! handshake. Run it with `cargo run --example msg`.

use std::error::Error;
use std::time::{Duration, Instant};

use haulage::{Connection, Endpoint, Listener, Options, preset};

const TIMEOUT: Duration = Duration::from_secs(10);

/// Both peers in one program; usually they are two programs.
pub fn main() -> Result<(), Box<dyn Error>> {
    let listener = Listener::bind("127.0.0.1:0".parse()?)?;
    let url = listener.url("127.0.0.1");
    let server = std::thread::spawn(move || serve(&listener));

    // The client resumes with this file, which is as secret as a password.
    let file = std::env::temp_dir().join(format!("haulage-example-{}.resumption", std::process::id()));
    let options = Options { resumption: Some(file.clone()), ..Options::default() };
    let endpoint = Endpoint::client()?;
    let connection = endpoint.connect(&url, &preset("msg")?, &options).wait()?;
    exchange(&connection, "how far is the moon?")?;
    connection.close().wait_for(TIMEOUT)?;

    // Later, perhaps in another process: the first packet carries the request.
    let again = endpoint.resume(&options)?;
    exchange(&again, "and the sun?")?;
    again.close().wait_for(TIMEOUT)?;
    std::fs::remove_file(file)?;
    server.join().map_err(|_| "the server has failed")?.map_err(Into::into)
}

fn exchange(connection: &Connection, question: &str) -> Result<(), Box<dyn Error>> {
    let started = Instant::now();
    connection.send(question.as_bytes()).wait()?;
    let answer = connection.recv().wait_for(TIMEOUT)?;
    println!("{question} {} ({:?})", String::from_utf8_lossy(&answer.data), started.elapsed());
    Ok(())
}

/// Serves two connections, from two clients or one that resumes.
fn serve(listener: &Listener) -> Result<(), haulage::Error> {
    for _ in 0..2 {
        let connection = listener.accept().wait_for(TIMEOUT)?;
        let question = connection.recv().wait_for(TIMEOUT)?;
        connection
            .send(if question.data.ends_with(b"moon?") { b"1.3 light seconds" } else { b"8.3 light minutes" })
            .wait()?;
        connection.flush().wait_for(TIMEOUT)?;
        // Until the client closes.
        while connection.recv().wait_for(TIMEOUT).is_ok() {}
    }
    Ok(())
}
