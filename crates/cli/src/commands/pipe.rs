//! `haul pipe`: carries stdin of one machine to stdout of another.

mod control;
mod recipe;
mod stdio;

pub(crate) use self::recipe::choose as settings;

use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use haul_base::{Bytes, Rate, Span};
use haul_engine::HaulUrl;
use haul_host::{peak_memory, process_cpu};
use haul_proto::{ChosenLaw, Part};
use haul_wire::control::{Fault, FaultCode};
use haulage::{
    AcceptError, Accepted, ByteReader, ByteWriter, Connection, ConnectionError, ConnectionOptions, Endpoint,
    Error, ListenOptions, Listener, OpenError, Options, StreamStatistics, StreamsPermitted, WaitError,
    stats::RateControlStats,
};
use serde_json::json;
use zeroize::Zeroizing;

use self::control::{Controls, LAW, with_control};
use self::stdio::Input;
use crate::args::PipeArgs;
use crate::commands::serve::{own_address, write_url};
use crate::endpoint;
use crate::fault;
use crate::output::{CpuSeconds, Packets, RunReport, count, eprint_verbatim, write_stdout};
use crate::settings::{Settings, ciphers};
use crate::standard_streams::{check_stderr, check_stdin, check_stdout};
use crate::transfer::Context;
use crate::transfer::control_socket::Side;

/// Interval at which waits check whether to end, and of `progress` events.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// After the end of stdin, timeout for the remaining messages to arrive, and then for closing.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(60);
const KEEP_ALIVE: Duration = Duration::from_secs(3);
/// Timeout for the other side's answer after an abort.
const ABORT_TIMEOUT: Duration = Duration::from_secs(3);
const RESTART_HINT: &str = "start both sides again: a pipe cannot be resumed";
/// Advice when only one side was given `--reverse`.
const REVERSE_HINT: &str = "give --reverse on both sides or on neither, and start both again";
/// Prefixes of recipe names: they say who sends, so that a listener can reject the wrong direction.
const SENDING: &str = "pipe to the listener: ";
const RECEIVING: &str = "pipe from the listener: ";

#[derive(Default)]
struct Tally {
    report: RunReport,
    messages: u64,
    /// Messages missing between the first and the last received.
    lost: u64,
}

impl Tally {
    /// Adds what is known at the end of a connection.
    fn add(&mut self, recipe: &str, law: Option<&Part>, rtt: Option<Span>, packets: Packets) {
        let preset = recipe.strip_prefix(SENDING).or_else(|| recipe.strip_prefix(RECEIVING));
        preset.unwrap_or(recipe).clone_into(&mut self.report.preset);
        let law = law.and_then(|law| ChosenLaw::check(law).ok());
        law.as_ref().map_or("fixed_rate", ChosenLaw::controller).clone_into(&mut self.report.controller);
        (self.report.rtt, self.report.packets) = (rtt, packets);
    }

    fn add_messages(&mut self, connection: &Connection) {
        let (statistics, recipe) = (connection.statistics(), connection.recipe());
        let (sent, resent) = (statistics.totals.data_sent, statistics.totals.data_resent);
        let law = recipe.part(LAW);
        self.report.lost =
            statistics.of().map(|law: &RateControlStats| law.lost_by_cause).unwrap_or_default();
        self.report.cipher = connection.cipher().to_string();
        self.add(&recipe.name, law, Some(statistics.rtt), Packets { sent, resent });
    }
}

struct Pipe<'a> {
    context: &'a Context,
    args: &'a PipeArgs,
    traced: Cell<Instant>,
    /// Bytes so far, also for `haul ctl`.
    moved: AtomicU64,
    tally: RefCell<Tally>,
}

pub(crate) fn run(context: &Context, args: &PipeArgs) -> RunReport {
    let started = Instant::now();
    // A listener learns the recipe from its client.
    let of_client = args.listen.is_none().then(|| context.report(RunReport::default()));
    let tally = Tally { report: of_client.unwrap_or_default(), ..Tally::default() };
    let (traced, moved, tally) = (Cell::new(started), AtomicU64::new(0), RefCell::new(tally));
    let pipe = Pipe { context, args, traced, moved, tally };
    let report = context.traced(json!({ "receives": args.writes_stdout() }), || {
        let error = pipe.run().err();
        Ok(pipe.report(started.elapsed().into(), error))
    });
    if report.is_ok() {
        pipe.summary(&report);
    }
    report
}

impl Pipe<'_> {
    fn run(&self) -> Result<(), Fault> {
        if self.args.writes_stdout() { check_stdout() } else { check_stdin() }?;
        self.context.check_loss_model(!self.args.writes_stdout())?;
        self.check_options()?;
        if let Some(address) = self.args.listen {
            return self.listen(address);
        }
        let usage = "haul pipe [OPTIONS] URL, or haul pipe --listen on the other machine";
        self.connect(&endpoint::url(self.args.url.as_deref(), usage)?)
    }

    /// Rejects typed options of the other side.
    fn check_options(&self) -> Result<(), Fault> {
        let (options, message, place) = if self.args.listen.is_some() {
            let options = &["preset", "set", "rate", "controller", "diagnosis"][..];
            (options, "a listener uses the preset and settings of the other side", "the URL")
        } else {
            (&["url-file", "host"][..], "only a listener makes a URL", "--listen")
        };
        let rejected = self.context.typed.iter().find(|typed| options.contains(&typed.as_str()));
        let hint = |option| format!("give --{option} beside {place}");
        rejected.map_or(Ok(()), |option| Err(fault::usage(message, hint(option))))
    }

    fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    fn count(&self, bytes: usize, messages: u64) {
        self.moved.fetch_add(bytes as u64, Ordering::Relaxed);
        self.tally.borrow_mut().messages += messages;
    }

    /// Writes a `progress` event, at most once per [`POLL_INTERVAL`]; fails when the user cancels.
    fn check(&self) -> Result<(), Fault> {
        if self.context.events.is_enabled() && self.traced.get().elapsed() >= POLL_INTERVAL {
            self.traced.set(Instant::now());
            let messages = self.tally.borrow().messages;
            self.context.events.write("progress", json!({ "bytes": self.moved(), "messages": messages }));
        }
        self.context.cancel.check("")
    }

    fn report(&self, elapsed: Span, error: Option<Fault>) -> RunReport {
        let cpu = Some(process_cpu().as_secs_f64());
        let (sender, receiver) = if self.args.writes_stdout() { (None, cpu) } else { (cpu, None) };
        RunReport {
            bytes: self.moved(),
            elapsed,
            goodput: Rate::from_transfer(self.moved(), elapsed),
            cpu: CpuSeconds { sender, receiver },
            max_rss: peak_memory(),
            error,
            ..self.tally.borrow().report.clone()
        }
        .of_application(&["sender_storage", "receiver_storage"])
    }

    fn summary(&self, report: &RunReport) {
        let RunReport { bytes, elapsed, goodput, .. } = report;
        let tally = self.tally.borrow();
        let mut words = format!("{} in {:.1} s, {goodput}", Bytes(*bytes), elapsed.as_secs_f64());
        if tally.messages > 0 {
            let _ = write!(words, ", {}", count(tally.messages, "message"));
        }
        if tally.lost > 0 {
            let share = tally.lost as f64 / (tally.lost + tally.messages) as f64;
            let _ = write!(words, ", {} more were lost ({:.3} %)", tally.lost, share * 100.0);
        }
        self.context.inform(words);
        let limit = report.limited_by.is_some().then(|| report.limit());
        report.loss_summary().into_iter().chain(limit).for_each(|line| self.context.inform(line));
    }

    fn connect(&self, url: &HaulUrl) -> Result<(), Fault> {
        // The library takes the URL as text.
        let url = Zeroizing::new(url.to_string());
        let Settings { crypto, offload, socket_buffer, mut recipe } = self.context.settings.clone();
        let options = Options {
            ciphers: ciphers(crypto),
            offload,
            socket_buffer: Some(socket_buffer),
            loss_model: self.context.loss_model.clone(),
            connection: keep_alive_options(),
            ..Options::default()
        };
        let is_stream = recipe.has("object");
        if !is_stream {
            // Checked before there is a connection that would have to be aborted.
            stdio::framing(self.args.frame, &recipe)?;
        }
        recipe.name.insert_str(0, if self.args.reverse { RECEIVING } else { SENDING });
        let endpoint = Endpoint::client().map_err(refused)?;
        match (is_stream, self.args.reverse) {
            (true, true) => {
                self.receive_bytes(endpoint.open_reader(&url, &recipe, &options).wait().map_err(refused)?)
            }
            (true, false) => {
                self.send_bytes(endpoint.open_writer(&url, &recipe, &options).wait().map_err(refused)?)
            }
            (false, _) => self.exchange(&endpoint.connect(&url, &recipe, &options).wait().map_err(refused)?),
        }
    }

    fn listen(&self, addr: SocketAddr) -> Result<(), Fault> {
        let is_misdirected = Arc::new(AtomicBool::new(false));
        let options = self.listen_options(addr, is_misdirected.clone());
        if self.args.url_file.is_none() {
            check_stderr()?;
        }
        let listener = Listener::bind_with(options).map_err(fault::of)?;
        self.announce(&listener)?;
        match self.next_client(&listener, &is_misdirected)? {
            Accepted::Messages(connection) => {
                // It would accept and acknowledge other clients' data, which nobody would read.
                drop(listener);
                self.exchange(&connection)
            }
            Accepted::Reader(reader) => self.receive_bytes(*reader),
            Accepted::Writer(writer) => self.send_bytes(*writer),
        }
    }

    /// Returns the next client. Fails if one that was started for the other direction has been refused.
    fn next_client(&self, listener: &Listener, is_misdirected: &AtomicBool) -> Result<Accepted, Fault> {
        while !is_misdirected.load(Ordering::Relaxed) {
            self.context.cancel.check("")?;
            match listener.accept_any().wait_for(POLL_INTERVAL) {
                Err(AcceptError::TimedOut(_)) => {}
                accepted => return accepted.map_err(fault::of),
            }
        }
        // Time for the refusal to reach the other side.
        std::thread::sleep(POLL_INTERVAL);
        let verb = if self.args.writes_stdout() { "receives" } else { "sends" };
        Err(fault::usage(format!("both sides were started so that each {verb}"), REVERSE_HINT))
    }

    /// Accepts only clients of this direction; one of the other direction sets `is_misdirected`.
    fn listen_options(&self, addr: SocketAddr, is_misdirected: Arc<AtomicBool>) -> ListenOptions {
        let (streams, accepted_prefix, rejected_prefix) = if self.args.reverse {
            (StreamsPermitted::ToClients, RECEIVING, SENDING)
        } else {
            (StreamsPermitted::FromClients, SENDING, RECEIVING)
        };
        let mut options = ListenOptions::new(addr);
        (options.streams, options.connection) = (streams, keep_alive_options());
        options.loss_model.clone_from(&self.context.loss_model);
        options.permit = Box::new(move |recipe| {
            if recipe.name.starts_with(rejected_prefix) {
                is_misdirected.store(true, Ordering::Relaxed);
                return Err("it is for the other direction".to_owned());
            }
            // For byte streams from other programs, `streams` restricts the direction.
            if recipe.has("object") || recipe.name.starts_with(accepted_prefix) {
                Ok(())
            } else {
                Err("its name does not start like those of `haul pipe`".to_owned())
            }
        });
        options
    }

    /// Writes the URL to `--url-file`, or to stderr: stdout is for the data.
    fn announce(&self, listener: &Listener) -> Result<(), Fault> {
        let host = self.args.host.clone();
        let host = host.unwrap_or_else(|| own_address(listener.local_addr().ip()).to_string());
        let url = endpoint::parse_url(&Zeroizing::new(listener.url(&host)))?;
        if let Some(path) = &self.args.url_file {
            return write_url(path, &url);
        }
        // Also with `--quiet`: the other side needs it.
        eprint_verbatim(&url);
        Ok(())
    }

    fn exchange(&self, connection: &Connection) -> Result<(), Fault> {
        let receives = self.args.writes_stdout();
        let side = if receives { Side::Receives } else { Side::Sends };
        let result = with_control(side, &mut &*connection, &self.moved, || {
            if receives { self.receive_messages(connection) } else { self.send_messages(connection) }
        });
        self.tally.borrow_mut().add_messages(connection);
        result.inspect_err(|_| {
            connection.abort();
            // Keeps the process alive until the other side has been told; one that is gone never answers.
            let _ = connection.closed().wait_for(ABORT_TIMEOUT);
        })
    }

    fn send_bytes(&self, mut writer: ByteWriter) -> Result<(), Fault> {
        let result = self.write_all(&mut writer);
        let StreamStatistics { bytes, rtt, packets: sent, resent, lost, .. } = writer.statistics();
        if result.is_err() {
            // The rest of what was written may not have arrived.
            self.moved.store(bytes, Ordering::Relaxed);
        }
        let mut tally = self.tally.borrow_mut();
        (tally.report.lost, tally.report.limited_by) = (lost, writer.limit());
        tally.report.cipher = writer.cipher().to_string();
        tally.add(writer.recipe(), writer.law(), rtt, Packets { sent, resent });
        result
    }

    fn write_all(&self, writer: &mut ByteWriter) -> Result<(), Fault> {
        let mut controls = Controls::new(writer, self.args.listen.is_none());
        let (mut buffer, mut unsent) = (vec![0; 1 << 20], 0..0);
        loop {
            self.check()?;
            controls.answer(writer, self.moved());
            if !unsent.is_empty() {
                let written = self.until_done(|| {
                    controls.answer(writer, self.moved());
                    writer.write_some(&buffer[unsent.clone()]).wait_for(POLL_INTERVAL).map_err(stream_error)
                })?;
                unsent.start += written;
                self.count(written, 0);
                continue;
            }
            match Input::read(&mut buffer, POLL_INTERVAL).map_err(|e| fault::io("cannot read stdin", &e))? {
                None => writer.check().map_err(connection_fault)?,
                Some(0) => break,
                Some(read) => unsent = 0..read,
            }
        }
        self.until_done(|| {
            controls.answer(writer, self.moved());
            writer.finish().wait_for(POLL_INTERVAL)
        })
    }

    /// Repeats a step that waits up to [`POLL_INTERVAL`] until it is done; fails when the user cancels.
    fn until_done<T, E: Into<Error>>(&self, mut step: impl FnMut() -> Result<T, E>) -> Result<T, Fault> {
        loop {
            self.check()?;
            match step().map_err(Into::into) {
                Err(Error::TimedOut { .. }) => {}
                done => return done.map_err(connection_fault),
            }
        }
    }

    fn receive_bytes(&self, mut reader: ByteReader) -> Result<(), Fault> {
        let mut requests = reader.law_requests();
        let result = with_control(Side::Receives, &mut requests, &self.moved, || self.read_all(&mut reader));
        let (rtt, mut tally) = (reader.statistics().rtt, self.tally.borrow_mut());
        tally.report.cipher = reader.cipher().to_string();
        tally.add(reader.recipe(), requests.law(), rtt, Packets::default());
        result
    }

    fn read_all(&self, reader: &mut ByteReader) -> Result<(), Fault> {
        let mut buffer = vec![0; 1 << 20];
        loop {
            let read = || reader.read_some(&mut buffer).wait_for(POLL_INTERVAL).map_err(stream_error);
            let read = self.until_done(read)?;
            self.count(read, 0);
            if read == 0 || self.write(&buffer[..read])? {
                return Ok(());
            }
        }
    }

    /// Writes to stdout what was received and counted. Returns whether its reader has closed it.
    fn write(&self, data: &[u8]) -> Result<bool, Fault> {
        let written = write_stdout(data).map_err(|e| fault::io("cannot write to stdout", &e));
        if written != Ok(false) {
            // It was counted before, so that `haul ctl` shows it while the reader does not read.
            self.moved.fetch_sub(data.len() as u64, Ordering::Relaxed);
        }
        if written == Ok(true) {
            self.context.inform("the reader of stdout has gone");
        }
        written
    }

    fn send_messages(&self, connection: &Connection) -> Result<(), Fault> {
        let framing = stdio::framing(self.args.frame, &connection.recipe())?;
        let (mut input, mut checked) = (Input::default(), Ok(()));
        loop {
            self.check()?;
            if let Some(error) = connection.ended() {
                return Err(connection_fault(error));
            }
            match input.message(framing, POLL_INTERVAL).map_err(|e| fault::io("cannot read stdin", &e))? {
                None => {}
                Some([]) => break,
                Some(message) => {
                    checked = stdio::check_reading(message, framing);
                    if checked.is_err() {
                        break;
                    }
                    self.until_done(|| connection.send(message).wait_for(POLL_INTERVAL))?;
                    self.count(message.len(), 1);
                }
            }
        }
        let until = Instant::now() + DELIVERY_TIMEOUT;
        self.until_done(|| match connection.flush().wait_for(POLL_INTERVAL) {
            Err(WaitError::TimedOut(_)) if Instant::now() >= until => Ok(()),
            flushed => flushed,
        })?;
        checked?;
        connection.close().wait_for(DELIVERY_TIMEOUT).map_err(connection_fault)
    }

    fn receive_messages(&self, connection: &Connection) -> Result<(), Fault> {
        let mut numbers: Option<(u64, u64)> = None;
        let next = || match connection.recv().wait_for(POLL_INTERVAL) {
            Err(WaitError::Ended(ConnectionError::Closed)) => Ok(None),
            message => message.map(Some),
        };
        while let Some(message) = self.until_done(next)? {
            let (first, last) = numbers.unwrap_or((message.id, message.id));
            numbers = Some((first.min(message.id), last.max(message.id)));
            self.count(message.data.len(), 1);
            if self.write(&message.data)? {
                break;
            }
        }
        let span = numbers.map_or(0, |(first, last)| last - first + 1);
        // Suppressed messages have numbers too, but are not lost.
        if !connection.recipe().has("selective_transfer") {
            let mut tally = self.tally.borrow_mut();
            tally.lost = span.saturating_sub(tally.messages);
        }
        Ok(())
    }
}

/// Converts a failure to open; `haul pipe --listen` forbids other pipes only because of their direction.
fn refused(error: OpenError) -> Fault {
    let mut fault = fault::of(error);
    if fault.code == FaultCode::NotPermitted && fault.hint.is_empty() {
        REVERSE_HINT.clone_into(&mut fault.hint);
    }
    fault
}

fn keep_alive_options() -> ConnectionOptions {
    ConnectionOptions { keep_alive: Some(KEEP_ALIVE), ..ConnectionOptions::default() }
}

/// Returns the fault for a connection that ended before the data did.
fn connection_fault(error: impl Into<Error>) -> Fault {
    match error.into() {
        Error::Closed => {
            Fault::new(FaultCode::PeerSilent, "the other side ended before everything was sent", RESTART_HINT)
        }
        error => fault::if_lost(fault::of(error), RESTART_HINT),
    }
}

/// Returns the error inside an I/O error of a stream.
fn stream_error(error: io::Error) -> Error {
    let other = |error: io::Error| Error::System { what: "the stream failed", source: error.into() };
    error.downcast().unwrap_or_else(other)
}
