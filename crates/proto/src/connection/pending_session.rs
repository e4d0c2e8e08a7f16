//! UDP side of a server's session before its connection begins: answers the client's challenges and
//! determines the client's address. Control frames may arrive before the TLS handshake ends, as the first one
//! usually does.

use std::collections::VecDeque;
use std::net::SocketAddr;

use haul_wire::packet::{ControlFrame, ControlFrameKind};

use super::path_probe::{Challenge, Challenges};
use super::peer_address::PeerAddress;
use super::protection::FrameKeys;

/// Maximum number of control frames kept for sessions that may be about to exist.
const MAX_EARLY: usize = 64;

/// The latest control frames that arrived before their sessions existed.
#[derive(Debug, Default)]
pub struct EarlyFrames(VecDeque<(ControlFrame, SocketAddr)>);

impl EarlyFrames {
    /// Keeps a frame; drops the oldest if there are too many.
    pub fn keep(&mut self, frame: &ControlFrame, source: SocketAddr) {
        if self.0.len() == MAX_EARLY {
            self.0.pop_front();
        }
        self.0.push_back((*frame, source));
    }

    /// Removes and returns the frames of a session.
    pub fn take(&mut self, session: u32) -> impl Iterator<Item = (ControlFrame, SocketAddr)> + use<> {
        let (mine, others) =
            self.0.drain(..).partition::<VecDeque<_>, _>(|(frame, _)| frame.id.identity == session);
        self.0 = others;
        mine.into_iter()
    }
}

/// Result of handling a control frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Accepted: [`PendingSession::poll_response`] returns the responses to challenges.
    Consumed,
    /// Not sent by anybody who knows the keys.
    Unauthentic,
    /// Possibly a copy: send this challenge to its source.
    Challenged(Vec<u8>),
}

/// A session that has no connection yet.
#[derive(Debug)]
pub struct PendingSession {
    keys: FrameKeys,
    /// Key of this end's challenges; never leaves this process.
    challenge_key: [u8; 32],
    /// Address of the client. That of its TCP connection is not validated for UDP: the port may differ.
    peer: PeerAddress,
    challenges: Challenges,
}

impl PendingSession {
    /// Creates the session with these keys, for the client connected from `control_peer` over TCP.
    /// `challenge_key` must be random.
    pub fn new(keys: FrameKeys, control_peer: SocketAddr, challenge_key: [u8; 32]) -> Self {
        let peer = PeerAddress { at: control_peer, moves: None };
        Self { keys, challenge_key, peer, challenges: Challenges::default() }
    }

    /// Returns the client's address, once validated.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.peer.validated()
    }

    /// Returns the size of the largest challenge received; 0 before the first.
    pub fn largest(&self) -> u16 {
        self.challenges.largest
    }

    /// Handles what claims to be a control frame of this session.
    pub fn on_frame(&mut self, frame: &ControlFrame, from: SocketAddr) -> Verdict {
        use ControlFrameKind as Kind;
        if !self.keys.verifies(frame) {
            return Verdict::Unauthentic;
        }
        match (frame.kind, self.is_known(from, frame)) {
            (Kind::Challenge, true) => {
                self.challenges.add_challenge(Challenge { number: frame.number, size: frame.size });
            }
            (Kind::Ping | Kind::Response, true) => {}
            (Kind::Challenge | Kind::Ping, false) => {
                return Verdict::Challenged(self.peer.challenge(&self.challenge_key, &self.keys, from));
            }
            _ => return Verdict::Unauthentic,
        }
        self.peer.move_to(from);
        Verdict::Consumed
    }

    /// Whether the sender of a frame is known to be at `from`: it was validated there, it has the address of
    /// the TCP connection (before the first validation), or it returns what was sent there (RFC 9000,
    /// sections 8 and 9).
    fn is_known(&self, from: SocketAddr, frame: &ControlFrame) -> bool {
        let was_there = match self.peer.validated() {
            Some(peer) => peer == from,
            None => from.ip().to_canonical() == self.peer.at.ip().to_canonical(),
        };
        let expected = || self.peer.expected_response(&self.challenge_key, &self.keys.id, from);
        was_there || frame.kind == ControlFrameKind::Response && frame.number == expected()
    }

    /// Returns the next response, to be sent to the client's address.
    pub fn poll_response(&mut self) -> Option<Vec<u8>> {
        let Challenge { number, size } = self.challenges.poll_transmit()?;
        Some(self.keys.frame(ControlFrameKind::Response, number, size))
    }
}

#[cfg(test)]
mod tests {
    use haul_base::Time;
    use haul_wire::packet::ConnectionId;

    use super::*;
    use crate::connection::{PathProbe, ResumptionSecret, Role};

    const CLIENT: &str = "192.0.2.7:5000";
    const OTHER_ADDRESS: &str = "198.51.100.9:7";

    fn session(session: u32) -> PendingSession {
        PendingSession::new(keys(session, Role::Server), CLIENT.parse().unwrap(), [6; 32])
    }

    fn keys(session: u32, role: Role) -> FrameKeys {
        FrameKeys::new(&ResumptionSecret([1; 32].into()), ConnectionId::of_session(session), role)
    }

    fn probe() -> PathProbe {
        PathProbe::new(Time::ZERO, CLIENT.parse::<SocketAddr>().unwrap().ip(), 7)
    }

    fn next(session: u32, probe: &mut PathProbe) -> Option<ControlFrame> {
        let Challenge { number, size } = probe.poll_transmit()?;
        let packet = keys(session, Role::Client).frame(ControlFrameKind::Challenge, number, size);
        Some(ControlFrame::parse(&packet).unwrap())
    }

    fn challenge(session: u32) -> ControlFrame {
        next(session, &mut probe()).unwrap()
    }

    #[test]
    fn unauthenticated_packets_can_fill_neither_memory_nor_a_session() {
        let mut early = EarlyFrames::default();
        let source: SocketAddr = CLIENT.parse().unwrap();
        for number in 0..1000 {
            early.keep(&challenge(number % 7), source);
        }
        assert_eq!(early.0.len(), 64, "docs/security.md");
        let of = |early: &EarlyFrames| early.0.iter().map(|(frame, _)| frame.id.identity).collect::<Vec<_>>();
        let before = of(&early);
        let mine = early.take(5).count();
        assert_eq!(mine, before.iter().filter(|number| **number == 5).count());
        assert_eq!(of(&early), before.into_iter().filter(|number| *number != 5).collect::<Vec<_>>());
        early.keep(&challenge(9), source);
        assert_eq!(of(&early).last(), Some(&9));
        let mut session = session(5);
        let forged = ControlFrame { number: 99, ..challenge(5) };
        assert_eq!((session.on_frame(&forged, source), session.largest()), (Verdict::Unauthentic, 0));
    }

    /// One datagram with the address of a victim would have all data of a download sent there.
    #[test]
    fn a_copied_packet_gets_no_larger_challenge_and_changes_nothing() {
        let mut session = session(5);
        let (client, other_address) = (CLIENT.parse().unwrap(), OTHER_ADDRESS.parse().unwrap());
        let copy = challenge(5);
        match session.on_frame(&copy, other_address) {
            Verdict::Challenged(challenge) => {
                assert!(challenge.len() <= copy.size.into(), "{}", challenge.len());
            }
            verdict => panic!("{verdict:?}"),
        }
        assert_eq!(session.on_frame(&challenge(5), client), Verdict::Consumed);
        assert_eq!(session.largest(), 1200);
        // The client's answer from its own address moves nothing, either.
        let Verdict::Challenged(challenge) = session.on_frame(&copy, other_address) else {
            panic!("it may be the client, behind another NAT");
        };
        let number = ControlFrame::parse(&challenge).unwrap().number;
        let response = keys(5, Role::Client).frame(ControlFrameKind::Response, number, copy.size);
        let response = ControlFrame::parse(&response).unwrap();
        assert_eq!(session.on_frame(&response, client), Verdict::Consumed);
        assert!(matches!(session.on_frame(&copy, other_address), Verdict::Challenged(_)));
    }

    /// The UDP packets of a client may have another address than its TCP connection.
    #[test]
    fn answering_the_challenge_validates_the_address() {
        let mut session = session(5);
        let other_address: SocketAddr = OTHER_ADDRESS.parse().unwrap();
        let mut probe = probe();
        let mut challenges = Vec::new();
        while let Some(frame) = next(5, &mut probe) {
            match session.on_frame(&frame, other_address) {
                Verdict::Challenged(challenge) => challenges.push(challenge),
                verdict => panic!("{verdict:?}"),
            }
        }
        let challenge = ControlFrame::parse(&challenges[0]).unwrap();
        assert!(
            keys(5, Role::Client).verifies(&challenge) && !probe.on_frame(challenge.kind, challenge.size)
        );
        let response =
            keys(5, Role::Client).frame(ControlFrameKind::Response, challenge.number, challenge.size);
        let response = ControlFrame::parse(&response).unwrap();
        // A response for this address is useless at another one.
        let other = "198.51.100.10:7".parse().unwrap();
        assert_eq!(session.on_frame(&response, other), Verdict::Unauthentic);
        assert_eq!(session.on_frame(&response, other_address), Verdict::Consumed);
        // The client repeats its challenge at once, and is not challenged again.
        let again = next(5, &mut probe).unwrap();
        assert_eq!(session.on_frame(&again, other_address), Verdict::Consumed);
    }
}
