//! Several byte streams on one connection, with messages beside them. Run it with `cargo run --example
//! streams`.

use std::error::Error;
use std::io::{Read, Write};
use std::time::Duration;

use haulage::{
    Connection, ConnectionError, Endpoint, Listener, Options, RecvStream, SendStream, WaitError, preset,
};

const TIMEOUT: Duration = Duration::from_secs(10);
const TEXTS: [&str; 3] = ["one stream", "another stream", "the last stream"];

/// Both peers in one program; usually they are two programs.
pub fn main() -> Result<(), Box<dyn Error>> {
    let listener = Listener::bind("127.0.0.1:0".parse()?)?;
    let url = listener.url("127.0.0.1");
    let server = std::thread::spawn(move || serve(&listener).map_err(|error| error.to_string()));

    let connection = Endpoint::client()?.connect(&url, &preset("streams")?, &Options::default()).wait()?;
    let mut answers = Vec::new();
    for text in TEXTS {
        let (mut question, answer) = connection.open_stream().wait_for(TIMEOUT)?;
        question.write_all(text.as_bytes())?;
        question.finish()?;
        answers.push(answer);
    }
    connection.send(b"a message beside them").wait()?;
    for (text, mut answer) in TEXTS.into_iter().zip(answers) {
        let mut capitals = String::new();
        answer.read_to_string(&mut capitals)?;
        println!("{text}: {capitals}");
        if capitals != text.to_uppercase() {
            return Err(format!("`{capitals}` is no answer to `{text}`").into());
        }
    }
    connection.close().wait_for(TIMEOUT)?;
    server.join().map_err(|_| "the server has panicked")?.map_err(Into::into)
}

/// Answers each stream in its own thread.
fn serve(listener: &Listener) -> Result<(), Box<dyn Error>> {
    let connection: Connection = listener.accept().wait_for(TIMEOUT)?;
    println!("{}", String::from_utf8(connection.recv().wait_for(TIMEOUT)?.data)?);
    loop {
        match connection.accept_stream().wait_for(TIMEOUT) {
            Ok((answer, question)) => drop(std::thread::spawn(move || answer_in_capitals(question, answer))),
            Err(WaitError::Ended(ConnectionError::Closed)) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn answer_in_capitals(mut question: RecvStream, mut answer: SendStream) -> std::io::Result<()> {
    let mut text = String::new();
    question.read_to_string(&mut text)?;
    answer.write_all(text.to_uppercase().as_bytes())?;
    answer.finish()
}
