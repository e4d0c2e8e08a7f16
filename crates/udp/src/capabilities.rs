//! Capabilities of a socket, missing kernel features, and their cost.

use std::fmt;

use haul_base::Bytes;

/// Whether a feature works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Support {
    /// It works.
    Available,
    /// The caller disabled it.
    Off,
    /// It works in part or by other means, for this reason.
    Limited(String),
    /// It does not work, for this reason.
    Unavailable(String),
}

impl Support {
    /// Whether it works at least in part.
    pub fn is_available(&self) -> bool {
        matches!(self, Self::Available | Self::Limited(_))
    }

    /// Returns why it does not work, or not fully, although requested.
    pub fn missing_reason(&self) -> Option<&str> {
        match self {
            Self::Available | Self::Off => None,
            Self::Limited(why) | Self::Unavailable(why) => Some(why),
        }
    }
}

impl fmt::Display for Support {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Available => "yes",
            Self::Off => "off",
            Self::Limited(_) => "limited",
            Self::Unavailable(_) => "no",
        })
    }
}

/// Segmentation offload for sending (`UDP_SEGMENT`): one call and one pass through the network stack for many
/// datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gso {
    /// Whether it works. [`Support::Limited`] if the maximum number of segments is assumed.
    pub support: Support,
    /// Maximum number of datagrams per call; 1 if it does not work.
    pub max_segments: usize,
}

/// Size of a socket buffer, in the kernel's accounting of whole socket buffers. The kernel doubles the
/// requested size for its own overhead; `granted` is half of what it reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferGrant {
    /// Requested size.
    pub requested: Bytes,
    /// Granted size, comparable with `requested`.
    pub granted: Bytes,
}

/// A feature that the socket lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// What is missing or smaller than requested.
    pub what: &'static str,
    /// Reason.
    pub why: String,
    /// Cost of the workaround.
    pub cost: &'static str,
    /// How to fix it.
    pub hint: String,
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}. To mend it: {}", self.what, self.why, self.cost, self.hint)
    }
}

/// What one socket can do, probed when it was opened.
///
/// The text form has one line of facts and then one line for each fallback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Segmentation offload for sending.
    pub gso: Gso,
    /// Coalescing of received datagrams (`UDP_GRO`): one message for many datagrams.
    pub gro: Support,
    /// Setting the ECN bits of sent packets.
    pub ecn_send: Support,
    /// Reading the ECN bits of received packets.
    pub ecn_receive: Support,
    /// Kernel arrival timestamps (`SO_TIMESTAMPNS`).
    pub timestamps: Support,
    /// Drop counts on received messages (`SO_RXQ_OVFL`).
    pub drop_counts: Support,
    /// No fragmentation, and no use of the kernel's cached path MTU (`IP_PMTUDISC_PROBE`).
    pub dont_fragment: Support,
    /// Errors from the network (`IP_RECVERR`).
    pub error_queue: Support,
    /// Receive buffer.
    pub recv_buffer: BufferGrant,
    /// Send buffer.
    pub send_buffer: BufferGrant,
}

impl Capabilities {
    /// Returns the missing features that were requested, with how to fix each; empty on a well-tuned machine.
    pub fn fallbacks(&self) -> Vec<Fallback> {
        let gso = if self.gso.support.is_available() { GSO_ASSUMED } else { GSO };
        let features = [
            (&self.gso.support, gso),
            (&self.gro, GRO),
            (&self.ecn_send, ECN_SEND),
            (&self.ecn_receive, ECN_RECEIVE),
            (&self.timestamps, TIMESTAMPS),
            (&self.drop_counts, DROP_COUNTS),
            (&self.dont_fragment, DONT_FRAGMENT),
            (&self.error_queue, ERROR_QUEUE),
        ];
        let missing = features.into_iter().filter_map(|(support, text)| text.fallback(support));
        let buffers = [
            buffer_fallback(self.recv_buffer, "receive buffer", "net.core.rmem_max", RECV_BUFFER_COST),
            buffer_fallback(self.send_buffer, "send buffer", "net.core.wmem_max", SEND_BUFFER_COST),
        ];
        missing.chain(buffers.into_iter().flatten()).collect()
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GSO {}", self.gso.support)?;
        if self.gso.support.is_available() {
            write!(f, " ({} segments)", self.gso.max_segments)?;
        }
        write!(
            f,
            ", GRO {}, ECN out {}, ECN in {}, timestamps {}, drop counts {}, don't fragment {}, error queue {}, \
             receive buffer {}, send buffer {}",
            self.gro,
            self.ecn_send,
            self.ecn_receive,
            self.timestamps,
            self.drop_counts,
            self.dont_fragment,
            self.error_queue,
            self.recv_buffer.granted,
            self.send_buffer.granted,
        )?;
        self.fallbacks().iter().try_for_each(|fallback| write!(f, "\n{fallback}"))
    }
}

/// Texts for one feature.
#[derive(Clone, Copy)]
struct FeatureText {
    what: &'static str,
    cost: &'static str,
    hint: &'static str,
}

impl FeatureText {
    fn fallback(self, support: &Support) -> Option<Fallback> {
        let why = support.missing_reason()?.to_owned();
        Some(Fallback { what: self.what, why, cost: self.cost, hint: self.hint.to_owned() })
    }
}

const GSO: FeatureText = FeatureText {
    what: "GSO (UDP_SEGMENT)",
    cost: "datagrams pass the kernel one by one, at several times the CPU cost per byte",
    hint: "use Linux 4.18 or later",
};
const GSO_ASSUMED: FeatureText = FeatureText {
    what: "GSO (UDP_SEGMENT)",
    cost: "up to twice as many system calls for small datagrams",
    hint: "ip link set lo up",
};
const GRO: FeatureText = FeatureText {
    what: "GRO (UDP_GRO)",
    cost: "datagrams are received one by one, at several times the CPU cost per byte",
    hint: "use Linux 5.0 or later",
};
const ECN_SEND: FeatureText = FeatureText {
    what: "ECN on sent packets",
    cost: "an additional system call per change of the bits, or no ECN",
    hint: "use Linux 3.13 or later, outside of system call emulators",
};
const ECN_RECEIVE: FeatureText = FeatureText {
    what: "ECN on received packets",
    cost: "congestion marks are not detected, only losses",
    hint: "use a kernel with IP_RECVTOS and IPV6_RECVTCLASS",
};
const TIMESTAMPS: FeatureText = FeatureText {
    what: "kernel arrival times",
    cost: "the time of reading is used instead, so delays of the program look like network delays",
    hint: "use a kernel with SO_TIMESTAMPNS",
};
const DROP_COUNTS: FeatureText = FeatureText {
    what: "socket drop counts",
    cost: "drops at this host cannot be located between packets",
    hint: "use a kernel with SO_RXQ_OVFL",
};
const DONT_FRAGMENT: FeatureText = FeatureText {
    what: "don't fragment",
    cost: "large datagrams may be fragmented, and path MTU probes prove nothing",
    hint: "use a kernel with IP_PMTUDISC_PROBE, or set a packet size that fits the path",
};
const ERROR_QUEUE: FeatureText = FeatureText {
    what: "error queue",
    cost: "unreachable peers and full local queues are not detected, only timeouts and losses",
    hint: "use a kernel with IP_RECVERR",
};
const RECV_BUFFER_COST: &str = "shorter pauses of the receiving process cause packet loss";
const SEND_BUFFER_COST: &str = "the sender wakes up more often";

fn buffer_fallback(
    grant: BufferGrant,
    what: &'static str,
    sysctl: &str,
    cost: &'static str,
) -> Option<Fallback> {
    (grant.granted < grant.requested).then(|| Fallback {
        what,
        why: format!("{} granted of {} asked", grant.granted, grant.requested),
        cost,
        hint: format!("sysctl -w {sysctl}={}", grant.requested.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete() -> Capabilities {
        let grant = BufferGrant { requested: Bytes(100), granted: Bytes(100) };
        Capabilities {
            gso: Gso { support: Support::Available, max_segments: 128 },
            gro: Support::Available,
            ecn_send: Support::Available,
            ecn_receive: Support::Available,
            timestamps: Support::Available,
            drop_counts: Support::Available,
            dont_fragment: Support::Available,
            error_queue: Support::Available,
            recv_buffer: grant,
            send_buffer: grant,
        }
    }

    #[test]
    fn nothing_missing_is_one_line() {
        let text = complete().to_string();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.starts_with("GSO yes (128 segments), GRO yes"), "{text}");
    }

    #[test]
    fn each_fallback_has_a_line_with_its_hint() {
        let mut some = complete();
        some.recv_buffer.granted = Bytes(40);
        some.gro = Support::Unavailable("no such option".to_owned());
        let text = some.to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[1].starts_with("GRO (UDP_GRO): no such option; "), "{text}");
        assert!(lines[2].ends_with("sysctl -w net.core.rmem_max=100"), "{text}");
    }

    #[test]
    fn disabled_features_are_not_fallbacks() {
        let mut some = complete();
        some.gso = Gso { support: Support::Off, max_segments: 1 };
        some.gro = Support::Off;
        assert_eq!(some.fallbacks(), []);
    }
}
