//! What this process has used.

use std::net::{Ipv4Addr, SocketAddr};

use haul_base::Span;
use haul_udp::{Offload, Options, UdpSocket};
use rustix::time::{ClockId, clock_gettime};

use crate::settings::Settings;

/// Processor time of the whole process so far.
pub(crate) fn process_cpu() -> Span {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Span::from_secs(time.tv_sec.unsigned_abs()) + Span::from_nanos(time.tv_nsec.unsigned_abs())
}

/// What this system does without although the settings ask for it, with what to do about it.
pub(crate) fn fallbacks(settings: &Settings) -> Vec<String> {
    let options = Options {
        offload: if settings.offload { Offload::Auto } else { Offload::Off },
        recv_buffer: settings.socket_buffer,
        send_buffer: settings.socket_buffer,
        ..Options::default()
    };
    let socket = UdpSocket::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), &options);
    let found = socket.map(|socket| socket.capabilities().fallbacks()).unwrap_or_default();
    found.iter().map(ToString::to_string).collect()
}

/// The most memory that the process has held, in bytes; `None` where `/proc` does not say.
pub(crate) fn max_rss() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    peak_of(&status)
}

fn peak_of(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_read_from_the_kernels_words() {
        assert_eq!(peak_of("Name:\thaul\nVmHWM:\t  2048 kB\nVmRSS:\t 1 kB\n"), Some(2_097_152));
        assert_eq!(peak_of("Name:\thaul\n"), None);
        assert_eq!(peak_of("VmHWM: many kB\n"), None);
    }

    #[test]
    fn processor_time_grows() {
        let before = process_cpu();
        let sum = (0..2_000_000u64).fold(0, |sum, i| std::hint::black_box(sum ^ i));
        assert!(process_cpu() > before, "{sum}");
    }
}
