//! Parsers of `/proc` and `/sys` files.

use std::str::FromStr;

use haul_base::Span;

/// Parses a decimal number of digits only.
fn number<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Returns the first line; `None` if it is incomplete.
fn first_line(text: &[u8]) -> Option<&str> {
    let end = text.iter().position(|&byte| byte == b'\n')?;
    std::str::from_utf8(&text[..end]).ok()
}

/// Parses the time for which a task was runnable without a CPU from `/proc/PID/schedstat`: nanoseconds
/// running, nanoseconds waiting, and number of time slices (`Documentation/scheduler/sched-stats.rst` of
/// Linux). The reading task has had at least one time slice, so zero means that this kernel does not count.
pub(crate) fn run_delay(text: &[u8]) -> Option<Span> {
    let mut fields = first_line(text)?.split(' ');
    let (_, waited, times) = (number::<u64>(fields.next()?)?, number(fields.next()?)?, fields.next()?);
    let counts = number::<u64>(times)? > 0 && fields.next().is_none();
    counts.then(|| Span::from_nanos(waited))
}

/// Parses the share of the last 10 s in which some task waited, in thousandths, from `/proc/pressure/*`:
/// `some avg10=12.34 ...`, percent (`Documentation/accounting/psi.rst` of Linux).
pub(crate) fn pressure(text: &[u8]) -> Option<u16> {
    let share = first_line(text)?.strip_prefix("some avg10=")?.split(' ').next()?;
    let (percent, hundredths) = share.split_once('.')?;
    let hundredths = number::<u16>(hundredths).filter(|_| hundredths.len() == 2)?;
    let share = number::<u16>(percent)?.checked_mul(100)?.checked_add(hundredths)?;
    (share <= 10_000).then_some((share + 5) / 10)
}

/// Parses the ticks stolen by the hypervisor from all CPUs: eighth number of the first line of `/proc/stat`
/// (proc(5)).
pub(crate) fn steal_ticks(text: &[u8]) -> Option<u64> {
    let mut fields = first_line(text)?.strip_prefix("cpu ")?.split_ascii_whitespace();
    number(fields.nth(7)?)
}

/// Parses a counter in `/sys/class/net/*/statistics`; returns its low half
/// (`Documentation/ABI/testing/sysfs-class-net-statistics` of Linux).
pub(crate) fn statistic(text: &[u8]) -> Option<u32> {
    number(first_line(text)?).map(|count: u64| count as u32)
}

/// Sums, with wrapping, the packets dropped because a CPU's backlog queue was full: second hexadecimal number
/// of each line of `/proc/net/softnet_stat` (`softnet_seq_show` of Linux).
pub(crate) fn backlog_drops(text: &[u8]) -> Option<u32> {
    let lines = std::str::from_utf8(text).ok()?.strip_suffix('\n')?;
    let dropped = |line: &str| u32::from_str_radix(line.split(' ').nth(1)?, 16).ok();
    lines.split('\n').try_fold(0, |sum: u32, line| Some(sum.wrapping_add(dropped(line)?)))
}

/// Parses the number of UDP datagrams over IPv4 with a wrong checksum from `/proc/net/snmp`: a line of names
/// and one of numbers (`snmp_seq_show_tcp_udp` of Linux). Returns its low half.
pub(crate) fn damaged_datagrams(text: &[u8]) -> Option<u32> {
    let mut lines = std::str::from_utf8(text).ok()?.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let place = names.split(' ').position(|name| name == "InCsumErrors")?;
    number(numbers.split(' ').nth(place)?).map(|count: u64| count as u32)
}

/// The same for IPv6, from `/proc/net/snmp6`: one name and number per line (`snmp6_seq_show` of Linux).
pub(crate) fn damaged_datagrams_6(text: &[u8]) -> Option<u32> {
    let mut lines = std::str::from_utf8(text).ok()?.lines();
    let count = lines.find_map(|line| line.strip_prefix("Udp6InCsumErrors"))?;
    number(count.trim()).map(|count: u64| count as u32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn damaged_datagrams_are_found_by_the_name_of_their_column() {
        let text = b"Tcp: RtoAlgorithm InCsumErrors\nTcp: 1 8\nUdp: InDatagrams InErrors InCsumErrors IgnoredMulti\n\
            Udp: 13987 146 4294967441 0\nUdpLite: InDatagrams InCsumErrors\nUdpLite: 0 5\n";
        assert_eq!(damaged_datagrams(text), Some(145));
        for strange in
            ["", "Udp: InCsumErrors\n", "Udp: InCsumErrors\nUdp: many\n", "Udp: InErrors\nUdp: 3\n"]
        {
            assert_eq!(damaged_datagrams(strange.as_bytes()), None, "{strange:?}");
        }
        let text = b"Udp6InErrors                    \t4\nUdp6InCsumErrors                \t3\nUdpLite6InCsumErrors\t9\n";
        assert_eq!(damaged_datagrams_6(text), Some(3));
        assert_eq!(damaged_datagrams_6(b"Udp6InCsumErrors"), None);
    }

    #[test]
    fn linux_6_18_texts_are_read() {
        assert_eq!(run_delay(b"120493 56605 7\n"), Some(Span::from_nanos(56_605)));
        let text = b"some avg10=12.34 avg60=0.01 avg300=1.32 total=456457770\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
        assert_eq!(pressure(text), Some(123));
        let text = b"cpu  402297 319 61132 1706445 4790 0 1802 235 0 0\ncpu0 193074 175 28191 866118 958 0 749 115 0 0\n";
        assert_eq!(steal_ticks(text), Some(235));
        let text = b"02a7ab38 00000010 00000005 00000000\n01d7ed41 0000000a 00000003 00000000\n";
        assert_eq!(backlog_drops(text), Some(26));
        assert_eq!(statistic(b"4294967299\n"), Some(3));
    }

    #[test]
    fn per_processor_counters_wrap_and_malformed_ones_are_ignored() {
        assert_eq!(backlog_drops(b"0 ffffffff 0\n0 2 0\n"), Some(1));
        for strange in ["", "\n", "1 2 3", "1\n", "1 2 3\n1 zz 3\n", "1 100000000 3\n", "1 2 3\n\n"] {
            assert_eq!(backlog_drops(strange.as_bytes()), None, "{strange:?}");
        }
        for strange in ["", "\n", "7", "-1\n", "+1\n", "0x1\n", "18446744073709551616\n"] {
            assert_eq!(statistic(strange.as_bytes()), None, "{strange:?}");
        }
    }

    #[test]
    fn missing_kernel_counters_are_unknown() {
        assert_eq!(run_delay(b"0 0 0\n"), None, "sched_info is off");
        assert_eq!(steal_ticks(b"cpu  1 2 3 4 5 6 7\n"), None, "before Linux 2.6.11");
        assert_eq!(pressure(b""), None);
    }

    #[test]
    fn invalid_shares_and_texts_are_rejected() {
        for share in ["100.01", "700.00", "1.5", "-1.00", "+1.00", "nan", "1e1.00", "65535.99", ".50"] {
            let text = format!("some avg10={share} avg60=0.00 avg300=0.00 total=0\n");
            assert_eq!(pressure(text.as_bytes()), None, "{share}");
        }
        assert_eq!(pressure(b"full avg10=1.00 avg60=0.00 avg300=0.00 total=0\n"), None);
        assert_eq!(run_delay(b"1 +2 3\n"), None);
        assert_eq!(run_delay(b"1 2 3 4\n"), None);
        assert_eq!(steal_ticks(b"cpu0 1 2 3 4 5 6 7 8 9 10\n"), None);
    }

    proptest! {
        #[test]
        fn kernel_texts_are_read(on: u64, waited: u64, times in 1u64.., share in 0u16..=10_000, ticks: [u64; 10]) {
            prop_assert_eq!(run_delay(format!("{on} {waited} {times}\n").as_bytes()), Some(Span::from_nanos(waited)));
            let text = format!("some avg10={}.{:02} avg60=1.00 avg300=2.00 total={on}\n", share / 100, share % 100);
            let read = pressure(text.as_bytes()).unwrap();
            prop_assert!((f64::from(read) - f64::from(share) / 10.0).abs() <= 0.5, "{} of {}", read, text);
            let numbers: Vec<String> = ticks.iter().map(u64::to_string).collect();
            let text = format!("cpu  {}\ncpu0 1 2 3\n", numbers.join(" "));
            prop_assert_eq!(steal_ticks(text.as_bytes()), Some(ticks[7]));
        }

        #[test]
        fn truncated_values_are_not_read(waited: u64, share in 0u16..=10_000, ticks: [u64; 10]) {
            let numbers: Vec<String> = ticks.iter().map(u64::to_string).collect();
            let texts = [
                format!("1 {waited} 3\n"),
                format!("some avg10={}.{:02} avg60=1.00 avg300=2.00 total=1\n", share / 100, share % 100),
                format!("cpu  {}\n", numbers.join(" ")),
            ];
            for (i, text) in texts.iter().enumerate() {
                for end in 0..text.len() {
                    let cut = &text.as_bytes()[..end];
                    let read = [run_delay(cut).is_some(), pressure(cut).is_some(), steal_ticks(cut).is_some()];
                    prop_assert!(!read[i], "{:?}", &text[..end]);
                }
            }
        }

        #[test]
        fn any_bytes_are_tolerated(text in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(pressure(&text).is_none_or(|share| share <= 1_000));
            let _ = (run_delay(&text), steal_ticks(&text), statistic(&text), backlog_drops(&text));
            let _ = (damaged_datagrams(&text), damaged_datagrams_6(&text));
        }
    }
}
