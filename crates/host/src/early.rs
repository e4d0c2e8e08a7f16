//! Packets dropped by this host before they reach a socket.

use std::fs;
use std::net::IpAddr;

use haul_base::HostSample;
use nix::ifaddrs::{InterfaceAddress, getifaddrs};

use crate::parse;
use crate::schedule::SampleSchedule;
use crate::source::{SensorError, Source};

/// Counters of one sample; all wrap.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    /// Packets of any interface dropped because a CPU's backlog queue was full.
    backlog: Option<u32>,
    /// Packets of this interface that the kernel dropped, including those of unknown protocols.
    dropped: Option<u32>,
    /// Packets of this interface dropped because its ring was full. Drivers use either of two counters.
    missed: Option<u32>,
    fifo: Option<u32>,
}

/// Returns the growth of a counter: 0 if it was reset, `None` if it is missing in either sample.
fn growth(new: Option<u32>, old: Option<u32>) -> Option<u32> {
    let growth = new?.wrapping_sub(old?);
    Some(if growth > u32::MAX / 2 { 0 } else { growth })
}

impl Counters {
    /// Returns the packets of this interface dropped since `before`. Linux counts a packet dropped at a full
    /// backlog both for the CPU and for the interface (`enqueue_to_backlog`): what only one of them counts
    /// belongs to another interface or to no protocol. `None` if nothing is known of the interface.
    fn since(&self, before: &Self) -> Option<u32> {
        let backlog = growth(self.backlog, before.backlog);
        let backlog = growth(self.dropped, before.dropped).and_then(|dropped| Some(dropped.min(backlog?)));
        let ring = growth(self.missed, before.missed).max(growth(self.fifo, before.fifo));
        (backlog.is_some() || ring.is_some()).then(|| backlog.unwrap_or(0).wrapping_add(ring.unwrap_or(0)))
    }
}

/// Counts dropped packets of one interface.
pub(crate) struct EarlyDrops {
    backlog: Option<Source>,
    dropped: Option<Source>,
    missed: Option<Source>,
    fifo: Option<Source>,
    last: Counters,
    /// Total since the sensors were created, wrapping.
    total: u32,
    pub(crate) known: Option<u32>,
    pub(crate) schedule: SampleSchedule,
}

impl EarlyDrops {
    /// Selects the interface with this address. Without one, nothing is known.
    pub(crate) fn of_interface_with(address: Option<IpAddr>) -> Result<Self, SensorError> {
        let name = address.and_then(interface_with);
        let statistic = |counter: &str| match &name {
            Some(name) => Source::open(&format!("/sys/class/net/{name}/statistics/{counter}")),
            None => Ok(None),
        };
        let mut drops = Self {
            backlog: Source::open("/proc/net/softnet_stat")?,
            dropped: statistic("rx_dropped")?,
            missed: statistic("rx_missed_errors")?,
            fifo: statistic("rx_fifo_errors")?,
            last: Counters::default(),
            total: 0,
            known: None,
            schedule: SampleSchedule::new(HostSample::INTERVAL),
        };
        drops.read();
        Ok(drops)
    }

    pub(crate) fn read(&mut self) {
        let read = |file: &mut Option<Source>| file.as_mut().and_then(|file| file.read(parse::statistic));
        let now = Counters {
            backlog: self.backlog.as_mut().and_then(|file| file.read_complete(parse::backlog_drops)),
            dropped: read(&mut self.dropped),
            missed: read(&mut self.missed),
            fifo: read(&mut self.fifo),
        };
        self.update(now);
    }

    fn update(&mut self, now: Counters) {
        let growth = now.since(&std::mem::replace(&mut self.last, now));
        self.total = self.total.wrapping_add(growth.unwrap_or(0));
        self.known = growth.map(|_| self.total);
    }
}

fn ip(of: &InterfaceAddress) -> Option<IpAddr> {
    let address = of.address.as_ref()?;
    let four = address.as_sockaddr_in().map(|address| address.ip().into());
    four.or_else(|| address.as_sockaddr_in6().map(|address| address.ip().into()))
}

/// Returns the interface that has this address, if `/sys` shows this network namespace: a `/sys` mounted in
/// another shows that one's interfaces, which may have the same names.
fn interface_with(address: IpAddr) -> Option<String> {
    let all: Vec<InterfaceAddress> = getifaddrs().ok()?.collect();
    let name = &all.iter().find(|of| ip(of) == Some(address.to_canonical()))?.interface_name;
    let mut of_same_name = all.iter().filter(|of| of.interface_name == *name);
    let card = of_same_name.find_map(|of| of.address.as_ref()?.as_link_addr()?.addr());
    let shown = fs::read_to_string(format!("/sys/class/net/{name}/address")).ok()?;
    is_card(shown.trim(), card).then(|| name.clone())
}

/// Whether `/sys` shows this hardware address. It is empty for devices without one (TUN).
fn is_card(shown: &str, card: Option<[u8; 6]>) -> bool {
    let bytes = card.unwrap_or_default();
    let text = bytes.map(|byte| format!("{byte:02x}")).join(":");
    shown == text || (shown.is_empty() && bytes == [0; 6])
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn counters(backlog: u32, dropped: u32, missed: u32, fifo: u32) -> Counters {
        Counters { backlog: Some(backlog), dropped: Some(dropped), missed: Some(missed), fifo: Some(fifo) }
    }

    fn totals(samples: &[Counters]) -> Vec<Option<u32>> {
        let mut drops = EarlyDrops::of_interface_with(None).unwrap();
        let total = |sample: &Counters| {
            drops.update(*sample);
            drops.known
        };
        samples.iter().map(total).collect()
    }

    #[test]
    fn a_packet_counts_once_and_only_for_its_interface() {
        let samples = [
            counters(10, 20, 30, 40),
            counters(13, 23, 30, 40),
            // Packets of another interface, and of no protocol.
            counters(99, 23, 30, 40),
            counters(99, 80, 30, 40),
            // A full ring, in both counters and in one.
            counters(99, 80, 35, 45),
            counters(99, 80, 42, 45),
        ];
        assert_eq!(totals(&samples), [None, Some(3), Some(3), Some(3), Some(8), Some(15)]);
    }

    #[test]
    fn counters_can_wrap_and_decreasing_or_missing_ones_count_nothing() {
        let near = u32::MAX - 1;
        let samples = [
            counters(near, near, near, near),
            counters(1, 1, near, near),
            counters(1, 1, 2, 0),
            // The interface is recreated, then vanishes and returns with other counters.
            counters(0, 0, 0, 0),
            Counters { backlog: Some(7), ..Counters::default() },
            counters(9, 50, 60, 70),
            counters(9, 50, 61, 70),
        ];
        assert_eq!(totals(&samples), [None, Some(3), Some(7), Some(7), None, None, Some(8)]);
    }

    #[test]
    fn the_interface_of_an_address_is_found_or_unknown() {
        assert_eq!(interface_with(Ipv4Addr::LOCALHOST.to_ipv6_mapped().into()).as_deref(), Some("lo"));
        assert_eq!(interface_with(IpAddr::from([192, 0, 2, 1])), None);
        let mut of_lo = EarlyDrops::of_interface_with(Some(Ipv4Addr::LOCALHOST.into())).unwrap();
        of_lo.read();
        assert!(of_lo.known.is_some());
        let mut of_none = EarlyDrops::of_interface_with(None).unwrap();
        of_none.read();
        assert_eq!(of_none.known, None);
    }

    #[test]
    fn interfaces_of_equal_name_in_other_namespaces_differ_by_hardware_address() {
        let card = [2, 0, 0xac, 0x10, 0, 1];
        assert!(is_card("02:00:ac:10:00:01", Some(card)) && !is_card("02:00:ac:10:00:02", Some(card)));
        assert!(is_card("", None) && is_card("", Some([0; 6])) && !is_card("", Some(card)));
    }
}
