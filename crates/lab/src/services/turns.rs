//! Turn-around of small messages (figures 10 and 11 of wu-h-ctp section 5): both ends, and the table.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use haul_engine::{Channel, ConnectionOptions};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

use super::connect::{
    LONG_TIMEOUT, TIMEOUT, channel, engine, next_message, recipe, submit, tcp, tcp_listener,
};
use super::emulated::{Emulator, PathConfig};
use super::figures::{mean, quantile};
use super::ideal::Comparison;
use super::incoming::IncomingChannels;
use super::job::{Carrier, Job, Turns};
use super::points::{MessageTransport, Points, ROUNDS};
use super::stolen_time::{QUIET, Ticks};
use crate::outcome::Outcome;
use crate::problem::{Problem, While};

const SMALL: usize = 10;
/// Port of the plain UDP server.
const UDP_PORT: u16 = 7_915;
/// Timeout of an answer over plain UDP, which never retransmits.
const UDP_TIMEOUT: Duration = Duration::from_millis(300);

/// Minimum number of messages for a claim: at 1 % each way, this many lose six.
const MIN_MESSAGES: usize = 300;

/// Turns whose times are shown on loss-free paths, where both ends learn the path's properties.
const EARLY_EXCHANGES: [usize; 7] = [1, 2, 3, 5, 8, 12, 20];

/// Results of the rounds of one carrier: means and 99 % quantiles, milliseconds.
#[derive(Debug, Default)]
struct Rounds {
    means: Vec<f64>,
    p99s: Vec<f64>,
    /// CPU time of A per turn, microseconds.
    processor: Vec<f64>,
    /// Share of CPU time that the hypervisor took meanwhile.
    stolen: Vec<f64>,
    /// First turns of each round, milliseconds.
    first: Vec<Vec<f64>>,
    unanswered: usize,
}

/// Carrier, and busy-poll time of the ends of a recipe.
type Setup = (Carrier, Option<u64>);

/// Measures a 10-byte message and its answer, for each carrier in turn.
pub(super) fn table(lab: &Emulator, points: &Points, outcome: &mut Outcome) -> Result<(), Problem> {
    println!(
        "\n## Turn-around of a {SMALL}-byte message, ms: medians of {} rounds\n",
        points.rounds_or_default(ROUNDS)
    );
    println!(
        "| RTT ms | loss each way | carrier | mean | 99 % | CPU of A, us | means | 99 % of each round | stolen |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let (mut early, mut undisturbed) = (Vec::new(), UndisturbedRounds::default());
    let mut comparison = Comparison::default();
    for &rtt_ms in points.rtt.as_deref().unwrap_or(&[1, 60]) {
        let messages = if rtt_ms < 10 { 500.0 } else { 100.0 };
        let messages = points.messages.unwrap_or((messages * points.share).max(1.0) as usize);
        for loss in points.loss.as_deref().unwrap_or(&[0.0, 1.0, 2.0, 5.0, 10.0]) {
            let point = (rtt_ms, *loss);
            let loss = format!("{loss}%");
            let path = PathConfig { rtt_ms, rate: "1Gbit", loss: loss.clone(), untuned: false };
            let all = in_turn(lab, points, &path, messages)?;
            undisturbed.add(&format!("| {rtt_ms} | {loss}"), &all);
            check_times(point, &all, messages * points.rounds_or_default(ROUNDS) as usize, outcome);
            for (setup, rounds) in all {
                println!("| {rtt_ms} | {loss} | {} | {} |", name(&setup), rounds.cells());
                if setup.0 == Carrier::Recipe("msg".to_owned()) {
                    comparison.add(point, &name(&setup), rounds.medians());
                }
                if loss == "0%" {
                    early.push(format!("| {rtt_ms} | {} | {} |", name(&setup), rounds.early_cells()));
                }
            }
        }
    }
    undisturbed.print();
    comparison.print();
    if !early.is_empty() {
        println!("\nThe first turns without loss, ms: medians of the rounds\n");
        println!("| RTT ms | carrier | {} |", EARLY_EXCHANGES.map(|number| format!("{number}.")).join(" | "));
        println!("|---|---|{}\n{}", "---|".repeat(EARLY_EXCHANGES.len()), early.join("\n"));
    }
    println!("\nUDP: bare datagrams, answered ones only: the time of hosts and path without a protocol.");
    println!("All ends have priority over other tasks of the host (nice -20).");
    Ok(())
}

/// Adds a point's rounds, and the claim that `msg` answers sooner than TCP on lossy paths (figures 10 and
/// 11).
fn check_times((rtt_ms, loss): (u64, f64), all: &[(Setup, Rounds)], messages: usize, outcome: &mut Outcome) {
    for (setup, rounds) in all {
        let Rounds { means, p99s, processor, .. } = rounds;
        let row = json!({
            "rtt_ms": rtt_ms, "loss_percent": loss, "carrier": name(setup), "mean_ms": means, "p99_ms": p99s,
            "processor_us": processor,
        });
        outcome.row("turnaround", row);
    }
    let of = |searched: &Carrier| {
        all.iter().find(|((carrier, _), _)| carrier == searched).map(|(_, rounds)| rounds.medians()[0])
    };
    let (Some(msg), Some(tcp)) = (of(&Carrier::Recipe("msg".to_owned())), of(&Carrier::Tcp)) else { return };
    if loss > 0.0 && messages >= MIN_MESSAGES {
        let claim = format!("msg is faster than TCP, RTT {rtt_ms} ms, loss {loss} %");
        outcome.claim(claim, "faster", format!("{msg:.3} and {tcp:.3} ms"), msg < tcp);
    }
}

fn name((carrier, busy_poll_us): &Setup) -> String {
    let poll = busy_poll_us.map_or(String::new(), |us| format!(", busy poll {us} us"));
    carrier.name() + &poll
}

fn setups(points: &Points) -> Vec<Setup> {
    let polls: Vec<_> = match &points.busy_poll {
        Some(polls) => polls.iter().map(|poll| Some(*poll)).collect(),
        None => vec![None],
    };
    let setups_of = |transport: &MessageTransport| match transport {
        MessageTransport::Msg => {
            polls.iter().map(|poll| (Carrier::Recipe("msg".to_owned()), *poll)).collect()
        }
        MessageTransport::Tcp => vec![(Carrier::Tcp, None)],
        MessageTransport::Thin => vec![(Carrier::TcpThin, None)],
        MessageTransport::Udp => vec![(Carrier::Udp, None)],
    };
    points.carriers.iter().flat_map(setups_of).collect()
}

/// Measures one point of the table. Each round starts with a different carrier.
fn in_turn(
    lab: &Emulator,
    points: &Points,
    path: &PathConfig,
    messages: usize,
) -> Result<Vec<(Setup, Rounds)>, Problem> {
    let mut all: Vec<(Setup, Rounds)> =
        setups(points).into_iter().map(|setup| (setup, Rounds::default())).collect();
    for round in 0..points.rounds_or_default(ROUNDS) {
        for place in 0..all.len() {
            let count = all.len();
            let (setup, rounds) = &mut all[(round as usize + place) % count];
            let (carrier, busy_poll_us) = setup.clone();
            let job = Job::Turnaround { carrier, messages, busy_poll_us };
            let before = Ticks::now();
            let results = lab.run_round(round, path, &job)?;
            rounds.add(results.load("a.json")?, Ticks::now().stolen_since(before));
        }
    }
    Ok(all)
}

impl Rounds {
    fn add(&mut self, mut turns: Turns, stolen: f64) {
        let last = EARLY_EXCHANGES.last().copied().unwrap_or(0);
        self.first.push(turns.times_us.iter().take(last).map(|us| us / 1e3).collect());
        self.means.push(mean(&turns.times_us) / 1e3);
        self.p99s.push(quantile(&mut turns.times_us, 0.99) / 1e3);
        self.processor.push(turns.processor_us);
        self.stolen.push(stolen);
        self.unanswered += turns.unanswered;
    }

    /// Returns the medians of the means and of the 99 % quantiles, milliseconds.
    fn medians(&self) -> [f64; 2] {
        [median(&self.means), median(&self.p99s)]
    }

    fn cells(&self) -> String {
        let each = |of: &[f64]| of.iter().map(|ms| format!("{ms:.2}")).collect::<Vec<_>>().join(" ");
        let stolen: Vec<_> = self.stolen.iter().map(|share| format!("{:.1}%", share * 100.0)).collect();
        let (means, p99s) = (&self.means, &self.p99s);
        let unanswered = match self.unanswered {
            0 => String::new(),
            lost => format!("; {lost} unanswered"),
        };
        let (mean, p99, processor) = (median(means), median(p99s), median(&self.processor));
        format!(
            "{mean:.3} | {p99:.2} | {processor:.0} | {} | {}{unanswered} | {}",
            each(means),
            each(p99s),
            stolen.join(" ")
        )
    }
}

impl Rounds {
    /// Formats the times of early turns; a turn that no round reached stays empty.
    fn early_cells(&self) -> String {
        let cells = EARLY_EXCHANGES.map(|number| {
            let mut times: Vec<f64> =
                self.first.iter().filter_map(|of| of.get(number - 1).copied()).collect();
            if times.is_empty() { String::new() } else { format!("{:.2}", quantile(&mut times, 0.5)) }
        });
        cells.join(" | ")
    }
}

/// The same points, restricted to rounds in which hardly any CPU time was stolen from any carrier.
#[derive(Debug, Default)]
struct UndisturbedRounds {
    lines: Vec<String>,
    /// Number of rounds left out.
    without: usize,
}

impl UndisturbedRounds {
    fn add(&mut self, point: &str, all: &[(Setup, Rounds)]) {
        let rounds = all.first().map_or(0, |(_, rounds)| rounds.stolen.len());
        let is_quiet = |round: &usize| all.iter().all(|(_, rounds)| rounds.stolen[*round] <= QUIET);
        let quiet: Vec<usize> = (0..rounds).filter(is_quiet).collect();
        self.without += rounds - quiet.len();
        for (setup, rounds) in all {
            let of = |values: &[f64]| median(&quiet.iter().map(|&round| values[round]).collect::<Vec<_>>());
            let (mean, p99) = (of(&rounds.means), of(&rounds.p99s));
            let figures = if quiet.is_empty() { " | ".to_owned() } else { format!("{mean:.3} | {p99:.2}") };
            self.lines.push(format!("{point} | {} | {} | {figures} |", name(setup), quiet.len()));
        }
    }

    /// Prints the table, unless it would be the same.
    fn print(&self) {
        if self.without > 0 {
            let percent = QUIET * 100.0;
            println!(
                "\nOnly rounds with at most {percent} % of processor time stolen by the hypervisor, for each carrier\n"
            );
            println!(
                "| RTT ms | loss each way | carrier | rounds | mean | 99 % |\n|---|---|---|---|---|---|"
            );
            println!("{}", self.lines.join("\n"));
        }
    }
}

fn median(of: &[f64]) -> f64 {
    quantile(&mut of.to_vec(), 0.5)
}

fn channel_options(busy_poll_us: Option<u64>) -> ConnectionOptions {
    let mut options = ConnectionOptions::default();
    if let Some(micros) = busy_poll_us {
        options.busy_poll = Duration::from_micros(micros);
    }
    options
}

/// Runs side A: sends each message after the previous one was answered.
pub(super) fn exchange(
    carrier: &Carrier,
    busy_poll_us: Option<u64>,
    messages: usize,
    directory: &Path,
) -> Result<Turns, Problem> {
    match carrier {
        Carrier::Recipe(name) => {
            let channel = channel(&recipe(name, &[])?, channel_options(busy_poll_us), directory)?;
            channel
                .wait_for(Some(TIMEOUT), "an answer", |context| channel.poll_confirmed(context))
                .map_err(|e| engine("no answer", &e))?;
            measure_exchanges(messages, || exchange_by_channel(&channel))
        }
        Carrier::Udp => {
            // The other side listens for TCP after everything else is ready.
            drop(tcp(0)?);
            let socket = udp(0)?;
            let host = std::env::var("HAUL_WAN_B").unwrap_or_default();
            socket.connect((host, UDP_PORT)).while_doing("cannot connect")?;
            measure_exchanges(messages, || exchange_by_udp(&socket))
        }
        _ => {
            let mut stream = tcp(0)?;
            if *carrier == Carrier::TcpThin {
                let socket = socket2::SockRef::from(&stream);
                socket.set_tcp_thin_linear_timeouts(true).while_doing("cannot enable linear timeouts")?;
            }
            stream.set_read_timeout(Some(TIMEOUT)).while_doing("cannot set a timeout")?;
            measure_exchanges(messages, || exchange_by_tcp(&mut stream))
        }
    }
}

/// Measures the time of each turn; `one` returns false if there was no answer.
fn measure_exchanges(
    messages: usize,
    mut one: impl FnMut() -> Result<bool, Problem>,
) -> Result<Turns, Problem> {
    let mut turns = Turns::default();
    let before = processor_micros();
    for _ in 0..messages {
        let start = Instant::now();
        if one()? {
            turns.times_us.push(start.elapsed().as_secs_f64() * 1e6);
        } else {
            turns.unanswered += 1;
        }
    }
    turns.processor_us = (processor_micros() - before) / messages as f64;
    Ok(turns)
}

/// Returns the CPU time of this process, including all threads.
fn processor_micros() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

fn exchange_by_channel(channel: &Channel) -> Result<bool, Problem> {
    submit(channel, &[7; SMALL])?;
    Ok(next_message(channel, TIMEOUT).is_ok())
}

fn exchange_by_tcp(stream: &mut TcpStream) -> Result<bool, Problem> {
    stream.write_all(&[7; SMALL]).while_doing("cannot send")?;
    stream.read_exact(&mut [0; SMALL]).while_doing("no answer")?;
    Ok(true)
}

fn exchange_by_udp(socket: &UdpSocket) -> Result<bool, Problem> {
    socket.send(&[7; SMALL]).while_doing("cannot send")?;
    match socket.recv(&mut [0; SMALL]) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(false),
        Err(error) => Err(error).while_doing("no answer"),
    }
}

fn udp(port: u16) -> Result<UdpSocket, Problem> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).while_doing("cannot bind")?;
    socket.set_read_timeout(Some(UDP_TIMEOUT)).while_doing("cannot set a timeout")?;
    Ok(socket)
}

/// Runs side B: answers until killed.
pub(super) fn answer(
    carrier: &Carrier,
    busy_poll_us: Option<u64>,
    incoming: &IncomingChannels,
) -> Result<(), Problem> {
    match carrier {
        Carrier::Recipe(_) => {
            incoming.set_options(channel_options(busy_poll_us));
            let _tcp = tcp_listener(0)?;
            answer_messages(&incoming.next()?);
        }
        Carrier::Udp => {
            let socket = udp(UDP_PORT)?;
            let _tcp = tcp_listener(0)?;
            answer_datagrams(&socket);
        }
        _ => answer_bytes(tcp_listener(0)?.accept().while_doing("cannot accept")?.0),
    }
    // The other side kills this one when it is done.
    std::thread::sleep(LONG_TIMEOUT);
    Ok(())
}

fn answer_messages(channel: &Channel) {
    while let Ok(message) = next_message(channel, LONG_TIMEOUT) {
        if submit(channel, &message.data).is_err() {
            return;
        }
    }
}

fn answer_datagrams(socket: &UdpSocket) {
    let mut message = [0; SMALL];
    loop {
        match socket.recv_from(&mut message) {
            Ok((len, from)) if socket.send_to(&message[..len], from).is_ok() => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            _ => return,
        }
    }
}

fn answer_bytes(mut stream: TcpStream) {
    let mut message = [0; SMALL];
    let _ = stream.set_nodelay(true);
    while stream.read_exact(&mut message).is_ok() && stream.write_all(&message).is_ok() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_precede_their_rounds() {
        let mut rounds = Rounds::default();
        for ms in [3.0, 1.0, 2.0] {
            rounds.add(Turns { times_us: vec![ms * 1e3; 5], processor_us: ms, unanswered: 0 }, ms / 1e3);
        }
        assert_eq!(rounds.cells(), "2.000 | 2.00 | 2 | 3.00 1.00 2.00 | 3.00 1.00 2.00 | 0.3% 0.1% 0.2%");
        assert_eq!(rounds.early_cells(), "2.00 | 2.00 | 2.00 | 2.00 |  |  | ");
        rounds.add(Turns { unanswered: 4, ..Turns::default() }, 0.0);
        assert!(rounds.cells().contains("; 4 unanswered |"));
    }

    #[test]
    fn a_round_is_undisturbed_only_if_it_is_for_all_carriers() {
        let of = |rounds: &[(f64, f64)]| {
            let mut all = Rounds::default();
            for &(ms, stolen) in rounds {
                all.add(Turns { times_us: vec![ms * 1e3; 5], ..Turns::default() }, stolen);
            }
            all
        };
        let all = [
            ((Carrier::Tcp, None), of(&[(1.0, 0.0), (9.0, 0.2), (2.0, 0.01), (3.0, 0.0)])),
            ((Carrier::Udp, None), of(&[(1.0, 0.0), (1.0, 0.0), (1.0, 0.0), (7.0, 0.02)])),
        ];
        let mut undisturbed = UndisturbedRounds::default();
        undisturbed.add("| 1 | 0%", &all);
        undisturbed.add("| 1 | 1%", &[((Carrier::Udp, None), of(&[(7.0, 0.02)]))]);
        assert_eq!(undisturbed.without, 3);
        assert_eq!(
            undisturbed.lines,
            [
                "| 1 | 0% | TCP | 2 | 2.000 | 2.00 |",
                "| 1 | 0% | UDP | 2 | 1.000 | 1.00 |",
                "| 1 | 1% | UDP | 0 |  |  |"
            ]
        );
    }
}
