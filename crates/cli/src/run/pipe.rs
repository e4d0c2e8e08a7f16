//! `haul pipe`: stdin of one machine to stdout of another.

mod input;
mod output;

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use haul_base::{Bytes, Rate, Span};
use haul_wire::control::{Fault, FaultCode};
use haulage::{
    Accepted, ByteReader, ByteWriter, Connection, Error, ListenOptions, Listener, Options, Recipe,
    StreamsPermitted,
};

use self::input::{Cut, Input};
use self::output::Output;
use super::serve::{own_address, write_secret};
use super::usage;
use crate::args::PipeArgs;
use crate::fault::{self, Shown};
use crate::output::{CpuSeconds, Packets, RunReport, json, tell};
use crate::signals::{self, Cancel};

/// How often a wait looks whether it should end.
const LOOK: Duration = Duration::from_millis(100);
/// How long the rest of the messages may take to arrive after the last one was read.
const LAST_WORDS: Duration = Duration::from_secs(60);
/// The other side is asked for a sign of life so often.
const KEEP_ALIVE: Duration = Duration::from_secs(3);
/// Size of viz messages where nothing else is said: one fits into a packet on every path.
const VIZ_FRAME: Bytes = Bytes(1_000);
/// Names of recipes say who sends, so that the two sides cannot misunderstand each other.
const SENDING: &str = "pipe to the listener: ";
const RECEIVING: &str = "pipe from the listener: ";

/// What was carried.
#[derive(Clone, Debug, Default)]
struct Tally {
    bytes: u64,
    messages: u64,
    /// Messages that are missing between the first and the last that came.
    lost: u64,
    /// What a connection in messages knows besides; a stream of bytes does not say.
    connection: Option<Known>,
}

/// What a connection in messages knows at its end.
#[derive(Clone, Debug)]
struct Known {
    recipe: String,
    rtt: Span,
    packets: Packets,
}

impl Known {
    fn of(connection: &Connection) -> Self {
        let statistics = connection.statistics();
        let (sent, resent) = (statistics.totals.data_sent, statistics.totals.data_resent);
        let name = connection.recipe().name;
        let bare = name.strip_prefix(SENDING).or_else(|| name.strip_prefix(RECEIVING)).unwrap_or(&name);
        Self { recipe: bare.to_owned(), rtt: statistics.rtt, packets: Packets { sent, resent } }
    }
}

struct Pipe<'a> {
    args: &'a PipeArgs,
    cancel: Cancel,
    quiet: bool,
}

/// Carries stdin to stdout of the other side, or the other way round. Gives the exit code.
///
/// # Errors
/// What kept it from arriving.
pub(crate) fn pipe(args: &PipeArgs, quiet: bool, json: bool) -> Result<u8, Fault> {
    let pipe = Pipe { args, cancel: signals::watch(signals::Hangup::Stops)?, quiet: quiet || json };
    let began = Instant::now();
    let result = pipe.run();
    let elapsed = began.elapsed();
    match result {
        Ok(tally) if json => pipe.print(&pipe.report(tally, elapsed.into())),
        Ok(tally) => pipe.summary(&tally, elapsed),
        Err(fault) if json && pipe.writes_stdout() => {
            let report = RunReport::failed(fault.clone());
            tell(Shown(&fault));
            pipe.print(&report);
            return Ok(report.exit_code());
        }
        Err(fault) => return Err(fault),
    }
    Ok(0)
}

impl Pipe<'_> {
    fn run(&self) -> Result<Tally, Fault> {
        match (&self.args.url, self.args.listen) {
            (Some(url), None) => self.connect(url),
            (None, Some(address)) => self.listen(address.0),
            _ => Err(fault::usage("a URL or --listen is needed", "haul pipe --listen, on the other machine")),
        }
    }

    /// Whether stdout of this side is for the data.
    fn writes_stdout(&self) -> bool {
        self.args.listen.is_some() != self.args.reverse
    }

    /// Prints the object where no data is: on stdout of the side that reads, on stderr of the side that writes.
    fn print(&self, report: &RunReport) {
        // A reader that is gone misses nothing that it wanted.
        let _ = if self.writes_stdout() {
            writeln!(io::stderr(), "{}", json(report))
        } else {
            writeln!(io::stdout(), "{}", json(report))
        };
    }

    fn report(&self, tally: Tally, elapsed: Span) -> RunReport {
        let cpu = Some(usage::process_cpu().as_secs_f64());
        let (sender, receiver) = if self.writes_stdout() { (None, cpu) } else { (cpu, None) };
        let known = tally.connection;
        RunReport {
            bytes: tally.bytes,
            elapsed,
            goodput: rate(tally.bytes, elapsed),
            rtt: known.as_ref().map(|known| known.rtt),
            packets: known.as_ref().map(|known| known.packets).unwrap_or_default(),
            preset: known.map_or_else(|| "bulk".to_owned(), |known| known.recipe),
            cpu: CpuSeconds { sender, receiver },
            max_rss: usage::max_rss(),
            ..RunReport::default()
        }
    }

    fn say(&self, words: &str) {
        if !self.quiet {
            tell(words);
        }
    }

    fn summary(&self, tally: &Tally, elapsed: Duration) {
        let rate = rate(tally.bytes, elapsed.into());
        let mut words = format!("{} in {:.1} s, {rate}", Bytes(tally.bytes), elapsed.as_secs_f64());
        if tally.messages > 0 {
            let _ = write!(words, ", {} messages", tally.messages);
        }
        if tally.lost > 0 {
            let share = tally.lost as f64 / (tally.lost + tally.messages) as f64;
            let _ = write!(words, ", {} more were lost ({:.3} %)", tally.lost, share * 100.0);
        }
        self.say(&words);
    }

    fn connect(&self, url: &str) -> Result<Tally, Fault> {
        let options = Options { rate: self.args.rate, keep_alive: Some(KEEP_ALIVE), ..Options::default() };
        match self.recipe()? {
            None if self.args.reverse => self.receive_bytes(ByteReader::open(url, &options)?),
            None => self.send_bytes(ByteWriter::open(url, &options)?),
            Some(mut recipe) => {
                let cut = self.cut(&recipe);
                let direction = if self.args.reverse { RECEIVING } else { SENDING };
                recipe.name = format!("{direction}{}", recipe.name);
                let connection = Connection::open(url, &recipe, &options)?;
                self.talk(&connection, cut, !self.args.reverse)
            }
        }
    }

    fn listen(&self, addr: SocketAddr) -> Result<Tally, Fault> {
        if self.args.preset.is_some() {
            return Err(fault::usage(
                "a listener takes the preset that the other side brings",
                "give --preset beside the URL",
            ));
        }
        let (streams, direction) = if self.args.reverse {
            (StreamsPermitted::ToClients, RECEIVING)
        } else {
            (StreamsPermitted::FromClients, SENDING)
        };
        let mut options = ListenOptions::new(addr);
        (options.streams, options.keep_alive) = (streams, Some(KEEP_ALIVE));
        options.permit = Box::new(move |recipe| {
            let agrees = recipe.name.starts_with(direction);
            if agrees {
                Ok(())
            } else {
                Err("it is for the other direction: --reverse belongs on both sides".to_owned())
            }
        });
        let listener = Listener::bind_with(options)?;
        self.announce(&listener)?;
        loop {
            if self.cancel.is_requested() {
                return Err(interrupted());
            }
            match listener.accept_any(LOOK)? {
                Some(Accepted::Messages(connection)) => {
                    let cut = self.cut(&connection.recipe());
                    return self.talk(&connection, cut, self.args.reverse);
                }
                Some(Accepted::Reader(reader)) => return self.receive_bytes(*reader),
                Some(Accepted::Writer(writer)) => return self.send_bytes(*writer),
                None => {}
            }
        }
    }

    /// The URL goes to stderr: stdout is for the data.
    fn announce(&self, listener: &Listener) -> Result<(), Fault> {
        let host = self.args.host.clone();
        let host = host.unwrap_or_else(|| own_address(listener.local_addr().ip()).to_string());
        let url = listener.url(&host);
        if let Some(path) = &self.args.url_file {
            write_secret(path, &format!("{url}\n"))
                .map_err(|e| fault::io(format!("cannot write the URL to {}", path.display()), &e))?;
        } else {
            // Even a quiet listener has to say where it is.
            tell(url);
        }
        Ok(())
    }

    /// The recipe of a preset that carries messages; `None` for a stream of bytes.
    fn recipe(&self) -> Result<Option<Recipe>, Fault> {
        let name = self.args.preset.as_deref().unwrap_or("bulk");
        let mut recipe = match name {
            "bulk" => return Ok(None),
            path if path.contains('/') || Path::new(path).extension().is_some_and(|end| end == "toml") => {
                let text = std::fs::read_to_string(path)
                    .map_err(|e| fault::io(format!("cannot read the recipe {path}"), &e))?;
                Recipe::parse(&text).map_err(Error::from)?
            }
            name => haulage::preset(name)?,
        };
        // What goes into a pipe comes out in order.
        if recipe.has("retransmit") && recipe.has("positive_ack") && !recipe.has("in_order") {
            recipe = recipe.with("in_order");
        }
        if let Some(rate) = self.args.rate {
            recipe.set("fixed_rate.rate", &format!("{}bit", rate.as_bps())).map_err(Error::from)?;
        }
        Ok(Some(recipe))
    }

    fn cut(&self, recipe: &Recipe) -> Cut {
        match self.args.frame {
            Some(size) => Cut::Frames(size.0 as usize),
            None if recipe.has("retransmit") => Cut::Lines,
            None => Cut::Frames(VIZ_FRAME.0 as usize),
        }
    }

    fn talk(&self, connection: &Connection, cut: Cut, sends: bool) -> Result<Tally, Fault> {
        let done =
            if sends { self.send_messages(connection, cut) } else { self.receive_messages(connection) };
        done.inspect_err(|_| connection.abort())
    }

    fn send_bytes(&self, mut writer: ByteWriter) -> Result<Tally, Fault> {
        let mut tally = Tally::default();
        let mut buffer = vec![0; 1 << 20];
        loop {
            if self.cancel.is_requested() {
                return Err(interrupted());
            }
            match Input::read(&mut buffer, LOOK).map_err(|e| fault::io("cannot read stdin", &e))? {
                None => writer.check()?,
                Some(0) => break,
                Some(read) => {
                    writer.write_all(&buffer[..read]).map_err(|e| stream_fault(&e))?;
                    tally.bytes += read as u64;
                }
            }
        }
        writer.finish()?;
        Ok(tally)
    }

    fn receive_bytes(&self, mut reader: ByteReader) -> Result<Tally, Fault> {
        let (mut output, mut tally) = (Output::new(), Tally::default());
        let mut buffer = vec![0; 1 << 20];
        loop {
            if self.cancel.is_requested() {
                return Err(interrupted());
            }
            match reader.read_timeout(&mut buffer, LOOK) {
                Ok(0) => break,
                Ok(read) => {
                    tally.bytes += read as u64;
                    if output.write(&buffer[..read])?.is_closed() {
                        self.say("nobody reads stdout any more");
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                Err(error) => return Err(stream_fault(&error)),
            }
        }
        Ok(tally)
    }

    fn send_messages(&self, connection: &Connection, cut: Cut) -> Result<Tally, Fault> {
        let (mut input, mut tally) = (Input::new(), Tally::default());
        loop {
            if self.cancel.is_requested() {
                return Err(interrupted());
            }
            if let Some(error) = connection.ended() {
                return Err(gone(error));
            }
            match input.message(cut, LOOK).map_err(|e| fault::io("cannot read stdin", &e))? {
                None => {}
                Some([]) => break,
                Some(message) => {
                    self.send(connection, message)?;
                    tally.bytes += message.len() as u64;
                    tally.messages += 1;
                }
            }
        }
        self.flush(connection)?;
        tally.connection = Some(Known::of(connection));
        connection.close(LAST_WORDS).map_err(gone)?;
        Ok(tally)
    }

    /// Sends one message; gives up when asked to.
    fn send(&self, connection: &Connection, message: &[u8]) -> Result<(), Fault> {
        loop {
            match connection.send_with(message, haulage::SendOptions::default(), Some(LOOK)) {
                Ok(_) => return Ok(()),
                Err(Error::TimedOut { what: "room for the message", .. }) if !self.cancel.is_requested() => {}
                Err(Error::TimedOut { what: "room for the message", .. }) => return Err(interrupted()),
                Err(error) => return Err(gone(error)),
            }
        }
    }

    fn flush(&self, connection: &Connection) -> Result<(), Fault> {
        let until = Instant::now() + LAST_WORDS;
        while Instant::now() < until {
            if self.cancel.is_requested() {
                return Err(interrupted());
            }
            match connection.flush(Some(LOOK)) {
                Ok(()) => return Ok(()),
                Err(Error::TimedOut { what: "the arrival of all messages", .. }) => {}
                Err(error) => return Err(gone(error)),
            }
        }
        Ok(())
    }

    fn receive_messages(&self, connection: &Connection) -> Result<Tally, Fault> {
        let (mut output, mut tally) = (Output::new(), Tally::default());
        let mut numbers: Option<(u64, u64)> = None;
        loop {
            if self.cancel.is_requested() {
                return Err(interrupted());
            }
            match connection.recv(Some(LOOK)) {
                Ok(message) => {
                    let (first, last) = numbers.unwrap_or((message.id, message.id));
                    numbers = Some((first.min(message.id), last.max(message.id)));
                    tally.bytes += message.data.len() as u64;
                    tally.messages += 1;
                    if output.write(&message.data)?.is_closed() {
                        self.say("nobody reads stdout any more");
                        break;
                    }
                }
                Err(Error::TimedOut { what: "a message", .. }) => {}
                Err(Error::Closed) => break,
                Err(error) => return Err(gone(error)),
            }
        }
        tally.connection = Some(Known::of(connection));
        let span = numbers.map_or(0, |(first, last)| last - first + 1);
        // Suppressed readings have numbers too, and are not lost.
        if !connection.recipe().has("selective_transfer") {
            tally.lost = span.saturating_sub(tally.messages);
        }
        Ok(tally)
    }
}

fn rate(bytes: u64, elapsed: Span) -> Rate {
    Rate::from_bps((bytes as f64 * 8.0 / elapsed.as_secs_f64().max(1e-6)) as u64)
}

fn interrupted() -> Fault {
    Fault::new(FaultCode::Interrupted, "interrupted", "")
}

/// An end of a conversation that is no end of the data.
fn gone(error: Error) -> Fault {
    match error {
        Error::Closed => Fault::new(
            FaultCode::PeerSilent,
            "the other side ended before everything was sent",
            "run it again there",
        ),
        error => error.into(),
    }
}

/// What an error of a stream says underneath.
fn stream_fault(error: &io::Error) -> Fault {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    inner.map_or_else(|| fault::io("the stream failed", error), Error::fault)
}
