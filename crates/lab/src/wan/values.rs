//! Syntax of path-specific option values.

use std::str::FromStr;

use haul_base::{Bytes, Probability, Rate, Span};
use haul_sim::PolicerSpec;

/// A share in `[0, 1]`, as a fraction or a percentage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Share(pub(crate) Probability);

/// Capacity of the bottleneck's queue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum QueueSize {
    /// Multiple of the bandwidth-delay product.
    Bdp(f64),
    /// Number of bytes.
    Bytes(Bytes),
    /// Bytes that the link sends in this time.
    Time(Span),
    /// Number of packets.
    Packets(u64),
}

/// Burst loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Bursts {
    /// Transition probabilities per packet.
    Channel {
        /// Probability that a burst starts.
        begins: Probability,
        /// Probability that a burst ends.
        ends: Probability,
    },
    /// Mean length in packets; the share lost is that of `--loss`.
    Length(f64),
}

/// A period in which every packet is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutageTime {
    /// Start, from the start of the path.
    pub at: Span,
    /// Length.
    pub length: Span,
    /// Period from one start to the next, if repeated.
    pub every: Option<Span>,
}

/// Rate and burst of a policer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Policing(pub(crate) PolicerSpec);

/// Reordering: delayed packets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Reorder {
    /// Share of packets that are delayed.
    pub share: Share,
    /// Maximum delay, if given.
    pub extra: Option<Span>,
}

/// Active queue management.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Aqm {
    /// Random early detection.
    Red,
    /// Controlled delay (RFC 8289).
    Codel,
}

const SHARE: &str = "a share between 0 and 1, for example 0.1% or 0.001";

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|_| format!("write {SHARE}"))
    }
}

impl FromStr for QueueSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let lower = text.trim().to_ascii_lowercase();
        let hint = || "write for example 1bdp, 64KiB, 100ms or 1000p".to_owned();
        if let Some(number) = lower.strip_suffix("bdp") {
            let factor = number.trim().parse::<f64>().ok().filter(|f| f.is_finite() && *f > 0.0);
            return factor.map(Self::Bdp).ok_or_else(hint);
        }
        let packets = ["packets", "packet", "p"].iter().find_map(|unit| lower.strip_suffix(unit));
        if let Some(number) = packets {
            let packets = number.trim().parse::<u64>().ok().filter(|packets| *packets > 0);
            return packets.map(Self::Packets).ok_or_else(hint);
        }
        let bytes = lower.parse::<Bytes>().ok().filter(|bytes| bytes.0 > 0).map(Self::Bytes);
        let time = || lower.parse::<Span>().ok().filter(|time| *time > Span::ZERO).map(Self::Time);
        bytes.or_else(time).ok_or_else(hint)
    }
}

impl FromStr for Bursts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let hint = "write P:R, the probabilities that a burst begins and ends (0.01%:25%), or its mean length \
                    in packets (4) beside --loss";
        if let Some((begins, ends)) = text.split_once(':') {
            let share = |text: &str| text.parse().map(|Share(p)| p).map_err(|_| hint.to_owned());
            let (begins, ends) = (share(begins)?, share(ends)?);
            if ends == Probability::ZERO {
                return Err("a burst that never ends is an outage: R must be above 0".to_owned());
            }
            return Ok(Self::Channel { begins, ends });
        }
        let length = text.trim().parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 1.0);
        length.map(Self::Length).ok_or_else(|| hint.to_owned())
    }
}

impl FromStr for OutageTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let hint = |_| "write START+LENGTH, for example 5s+1s, or 5s+1s/30s to repeat it".to_owned();
        let (times, every) = match text.split_once('/') {
            Some((times, every)) => (times, Some(every.parse::<Span>().map_err(|e| hint(e.to_string()))?)),
            None => (text, None),
        };
        let (at, length) = times.split_once('+').ok_or(()).map_err(|()| hint(String::new()))?;
        let span = |text: &str| text.parse::<Span>().map_err(|e| hint(e.to_string()));
        let (at, length) = (span(at)?, span(length)?);
        if every.is_some_and(|every| every <= length) {
            return Err("it would never end: the period after / must be longer than the outage".to_owned());
        }
        Ok(Self { at, length, every })
    }
}

impl FromStr for Policing {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let spec = text.split_once(':').and_then(|(rate, burst)| {
            Some(PolicerSpec { rate: rate.trim().parse().ok()?, burst: burst.trim().parse().ok()? })
        });
        spec.map(Self).ok_or_else(|| "write RATE:SIZE, for example 50Mbit:64KiB".to_owned())
    }
}

impl FromStr for Reorder {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (share, extra) = match text.split_once(':') {
            Some((share, extra)) => {
                (share, Some(extra.parse::<Span>().map_err(|_| "write for example 1% or 1%:5ms".to_owned())?))
            }
            None => (text, None),
        };
        Ok(Self { share: share.parse()?, extra })
    }
}

/// Parses a rate: `unlimited`, or a number with a unit.
pub(crate) fn rate(text: &str) -> Result<Rate, String> {
    if text.trim().eq_ignore_ascii_case("unlimited") {
        return Ok(Rate::MAX);
    }
    text.parse().map_err(|e: haul_base::UnitError| e.to_string())
}

/// Parses an MTU: at least IPv6's minimum, at most what a device supports.
pub(crate) fn mtu(text: &str) -> Result<u32, String> {
    let number = text.trim().trim_end_matches(['B', 'b']).trim().parse::<u32>().ok();
    let fits = number.filter(|mtu| (1_280..=65_535).contains(mtu));
    fits.ok_or_else(|| "it must lie between 1280 (which IPv6 needs) and 65535 bytes".to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn p(value: f64) -> Probability {
        Probability::new(value).unwrap()
    }

    #[test]
    fn queues_have_four_spellings() {
        assert_eq!("1bdp".parse(), Ok(QueueSize::Bdp(1.0)));
        assert_eq!("64KiB".parse(), Ok(QueueSize::Bytes(Bytes(65_536))));
        assert_eq!("100ms".parse(), Ok(QueueSize::Time(Span::from_millis(100))));
        assert_eq!("1000p".parse(), Ok(QueueSize::Packets(1_000)));
        for wrong in ["", "0p", "0bdp", "nanbdp", "10", "-1ms", "0ms"] {
            assert!(wrong.parse::<QueueSize>().unwrap_err().contains("64KiB"), "{wrong}");
        }
    }

    #[test]
    fn bursts_are_a_channel_or_a_length() {
        assert_eq!("0.1%:25%".parse(), Ok(Bursts::Channel { begins: p(0.001), ends: p(0.25) }));
        assert_eq!("4".parse(), Ok(Bursts::Length(4.0)));
        assert!("0.5".parse::<Bursts>().is_err());
        assert!("1%:0".parse::<Bursts>().is_err());
    }

    #[test]
    fn outages_have_a_start_a_length_and_an_optional_period() {
        let outage = OutageTime { at: Span::from_secs(5), length: Span::from_secs(1), every: None };
        assert_eq!("5s+1s".parse(), Ok(outage));
        let every = Some(Span::from_secs(30));
        assert_eq!("5s+1s/30s".parse(), Ok(OutageTime { every, ..outage }));
        assert!("5s+1s/1s".parse::<OutageTime>().is_err());
        assert!("5s".parse::<OutageTime>().is_err());
    }

    #[test]
    fn policers_have_a_rate_and_a_burst() {
        let spec = PolicerSpec { rate: Rate::from_mbps(50), burst: Bytes(65_536) };
        assert_eq!("50Mbit:64KiB".parse(), Ok(Policing(spec)));
        for wrong in ["50Mbit", "50Mbit:", ":64KiB", "64KiB:50Mbit"] {
            assert!(wrong.parse::<Policing>().unwrap_err().contains("50Mbit:64KiB"), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in ".{0,16}") {
            let _ = text.parse::<Share>();
            let _ = text.parse::<QueueSize>();
            let _ = text.parse::<Bursts>();
            let _ = text.parse::<OutageTime>();
            let _ = text.parse::<Policing>();
            let _ = text.parse::<Reorder>();
            let _ = rate(&text);
            let _ = mtu(&text);
        }
    }
}
