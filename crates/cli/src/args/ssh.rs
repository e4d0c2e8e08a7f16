//! Options for copies over ssh.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

/// Options of `haul cp` for reaching `HOST:PATH`.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Over ssh (HOST:PATH)")]
pub(crate) struct SshArgs {
    /// Command to run as ssh, including any options [default: ssh]
    #[arg(long, value_name = "COMMAND")]
    pub ssh: Option<String>,
    /// Path of haul on the remote machine, if not in PATH [default: haul]
    #[arg(long, value_name = "PATH")]
    pub remote_binary: Option<String>,
    /// Ports that the remote machine may listen on, TCP and UDP [default: any free port]
    #[arg(long, value_name = "A-B")]
    pub port_range: Option<PortRange>,
    /// Port of the ssh server
    #[arg(short = 'P', long, value_name = "PORT")]
    pub ssh_port: Option<u16>,
    /// Private key file for ssh
    #[arg(short = 'i', long, value_name = "FILE")]
    pub ssh_identity: Option<PathBuf>,
    /// Jump host, as with ssh -J
    #[arg(short = 'J', long, value_name = "HOST")]
    pub ssh_jump: Option<String>,
    /// ssh configuration file
    #[arg(short = 'F', long, value_name = "FILE")]
    pub ssh_config: Option<PathBuf>,
    /// ssh option in configuration file syntax, for example ConnectTimeout=5; repeatable
    #[arg(short = 'o', long, value_name = "OPTION")]
    pub ssh_option: Vec<String>,
    /// Between two remote machines: continue if this machine disconnects
    #[arg(long)]
    pub detach: bool,
    /// Read the request from stdin; used for copies between two remote machines
    #[arg(long, hide = true)]
    pub for_ssh: bool,
}

/// Inclusive range of ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// Iterates over the ports in ascending order.
    pub(crate) fn ports(self) -> impl Iterator<Item = u16> {
        self.first..=self.last
    }
}

impl FromStr for PortRange {
    type Err = String;

    /// Parses `5000-5100`, or `5000` for a single port.
    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| text.trim().parse().ok().filter(|&port| port > 0);
        match (port(first), port(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Self { first, last }),
            _ => Err("write for example 50000-50100, the lower port first".to_owned()),
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { self.first.fmt(f) } else { write!(f, "{}-{}", self.first, self.last) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_are_two_ports_or_one() {
        let range: PortRange = "50000-50002".parse().unwrap();
        assert_eq!(range.ports().collect::<Vec<_>>(), [50_000, 50_001, 50_002]);
        assert_eq!("7".parse::<PortRange>().unwrap().ports().count(), 1);
        assert_eq!("1-65535".parse::<PortRange>().unwrap().ports().count(), 65_535);
        for wrong in ["", "-", "0-5", "9-8", "1-70000", "a-b", "1-2-3", "+1-2-"] {
            assert!(wrong.parse::<PortRange>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_back(a in 1u16.., b in 1u16..) {
            let range = PortRange { first: a.min(b), last: a.max(b) };
            prop_assert_eq!(range.to_string().parse(), Ok(range));
        }

        #[test]
        fn nothing_panics(text in ".{0,20}") {
            let _ = text.parse::<PortRange>();
        }
    }
}
