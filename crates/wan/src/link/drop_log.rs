//! Drop log: a line for each packet dropped by the path.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use haul_base::{Span, Time};
use haul_sim::DropReason;

use super::PathDirection;
use super::pool::Slot;

/// Number of UDP payload bytes logged: in packets of `haul`, the kind, the packet number and one more byte.
const LOGGED: usize = 8;

/// The log file, shared by both directions. A line is `SECONDS WAY REASON udp FROM TO PAYLOAD` (ports, and
/// the first payload bytes in hexadecimal), or `SECONDS WAY REASON PROTOCOL` (protocol number) for other
/// protocols.
#[derive(Clone, Debug)]
pub(crate) struct DropLog(Arc<Mutex<BufWriter<File>>>);

/// Log of one direction.
#[derive(Debug)]
pub(crate) struct DirectionLog {
    log: DropLog,
    direction: PathDirection,
    /// Result of the writes since the last flush; `None` if there were none.
    written: Option<io::Result<()>>,
}

impl DropLog {
    /// Creates a log in this file.
    pub(crate) fn new(file: File) -> Self {
        Self(Arc::new(Mutex::new(BufWriter::new(file))))
    }

    /// Returns the log of one direction.
    pub(crate) fn of(self, direction: PathDirection) -> DirectionLog {
        DirectionLog { log: self, direction, written: None }
    }

    fn file(&self) -> MutexGuard<'_, BufWriter<File>> {
        // A panic elsewhere leaves at most half a line.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DirectionLog {
    /// Logs packets of a super-packet. Errors are reported by [`DirectionLog::flush`].
    pub(super) fn add(
        &mut self,
        now: Time,
        reason: DropReason,
        slot: &Slot,
        packets: impl Iterator<Item = u16>,
    ) {
        let mut file = self.log.file();
        let seconds = now.since(Time::ZERO);
        let start = Line { seconds, direction: self.direction.name(), reason: reason.name() };
        let mut add = packets.map(|index| start.write(&mut *file, slot, index));
        let written = add.find(Result::is_err).unwrap_or(Ok(()));
        self.written = Some(self.written.take().unwrap_or(Ok(())).and(written));
    }

    /// Flushes what was added since the last call.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        match self.written.take() {
            None => Ok(()),
            Some(written) => written.and_then(|()| self.log.file().flush()),
        }
    }
}

/// Fields shared by the lines of one drop.
struct Line {
    seconds: Span,
    direction: &'static str,
    reason: &'static str,
}

impl Line {
    fn write(&self, file: &mut impl Write, slot: &Slot, index: u16) -> io::Result<()> {
        let Self { seconds, direction, reason } = self;
        write!(file, "{:.6} {direction} {reason} ", seconds.as_secs_f64())?;
        let Some((from, to, payload)) = slot.udp(index) else {
            return writeln!(file, "{}", slot.layout.protocol);
        };
        write!(file, "udp {from} {to} ")?;
        payload.iter().take(LOGGED).try_for_each(|byte| write!(file, "{byte:02x}"))?;
        writeln!(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::pool::Pool;
    use crate::packet::{Layout, VNET_LEN, Vnet};

    const HEADERS: usize = 28;
    /// Device header of a UDP super-packet over IPv4: 28 bytes of headers, payloads of 10 bytes.
    const SUPER: [u8; VNET_LEN] = [1, 5, HEADERS as u8, 0, 10, 0, 20, 0, 6, 0];

    /// Stores a packet with these IPv4 fields, from port 1,000 to port 2,000, with this payload.
    fn keep(pool: &mut Pool, head: [u8; VNET_LEN], (protocol, fragment): (u8, u16), payload: &[u8]) -> u32 {
        let mut packet = vec![0u8; HEADERS];
        packet[0] = 0x45;
        packet[6..8].copy_from_slice(&fragment.to_be_bytes());
        packet[9] = protocol;
        packet[20..24].copy_from_slice(&[3, 232, 7, 208]);
        packet.extend(payload);
        let layout = Layout::parse(Vnet::parse(&head).unwrap(), &packet).unwrap();
        let mut buffer = pool.buffer();
        buffer[VNET_LEN..VNET_LEN + packet.len()].copy_from_slice(&packet);
        pool.keep(&mut buffer, layout).unwrap()
    }

    #[test]
    fn each_packet_has_a_line_that_its_sender_can_identify() {
        let mut pool = Pool::new(1 << 20);
        let payload: Vec<u8> = (0..35).collect();
        let udp = (17, 0x4000);
        let alone = [0; VNET_LEN];
        let builder = keep(&mut pool, SUPER, udp, &payload);
        let short = keep(&mut pool, alone, udp, &[0xfe, 0xdc]);
        let fragment = keep(&mut pool, alone, (17, 0x0005), &payload);
        let icmp = keep(&mut pool, alone, (1, 0), &payload);
        let path = std::env::temp_dir().join(format!("haul-wan-drop-log-{}", std::process::id()));
        let log = DropLog::new(File::create(&path).unwrap());
        let (mut forth, mut back) = (log.clone().of(PathDirection::Forth), log.of(PathDirection::Back));
        let at = |micros| Time::ZERO + Span::from_micros(micros);
        forth.add(at(1_500_000), DropReason::QueueFull, pool.slot(builder), [1, 3].into_iter());
        back.add(at(1_500_001), DropReason::Random, pool.slot(short), [0].into_iter());
        forth.add(at(2_000_000), DropReason::Outage, pool.slot(fragment), [0].into_iter());
        forth.add(at(2_000_000), DropReason::Outage, pool.slot(icmp), [0].into_iter());
        back.flush().unwrap();
        forth.flush().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        let expected = [
            "1.500000 forth queue_full udp 1000 2000 0a0b0c0d0e0f1011",
            "1.500000 forth queue_full udp 1000 2000 1e1f202122",
            "1.500001 back random udp 1000 2000 fedc",
            "2.000000 forth outage 17",
            "2.000000 forth outage 1",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn an_unwritable_log_is_an_error_of_the_direction() {
        let Ok(full) = File::options().write(true).open("/dev/full") else { return };
        let mut pool = Pool::new(1 << 20);
        let packet = keep(&mut pool, [0; VNET_LEN], (17, 0), &[1; 20]);
        let mut log = DropLog::new(full).of(PathDirection::Forth);
        assert!(log.flush().is_ok());
        log.add(Time::ZERO, DropReason::Random, pool.slot(packet), [0].into_iter());
        assert!(log.flush().is_err());
    }
}
