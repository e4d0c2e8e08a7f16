//! A peer that sends the messages encoded in the bytes of a check, and the transport between peer and job.

use std::sync::Arc;
use std::time::Duration;

use haul_base::Piece;
use haul_wire::check::{Steps, message};
use haul_wire::control::Fault;

use haul_mover::{ControlLink, MoveReport, ReceiveJob, SendJob};

use super::link::{Link, links};

/// Maximum number of steps of a conversation.
const STEPS: usize = 48;
/// Duration of a waiting step.
const PAUSE: Duration = Duration::from_millis(1);

/// The peer's end of the channel; dropping it disconnects the peer.
pub(super) struct Peer {
    link: Link,
    understood: bool,
}

impl Peer {
    pub(super) fn new() -> (Self, Arc<dyn ControlLink>) {
        let (ours, link) = links();
        (Self { link, understood: false }, Arc::new(ours))
    }

    /// Sends the message that the body of a frame decodes to, if any.
    fn say(&mut self, body: &[u8]) {
        if let Some(message) = message(body) {
            self.understood = true;
            // The job may have ended.
            let _ = self.link.out.send(message);
        }
    }

    /// Waits briefly for the job.
    fn wait(&self) {
        let _ = self.link.inc.recv_timeout(PAUSE);
        while self.link.inc.try_recv().is_ok() {}
    }
}

/// Splits off a number (3 bytes, big-endian); missing bytes are zeros.
fn offset_and_rest(body: &[u8]) -> (u64, &[u8]) {
    let (number, rest) = body.split_at(body.len().min(3));
    (number.iter().fold(0, |number, &byte| number << 8 | u64::from(byte)), rest)
}

/// Runs a receiving job to its end; returns whether it received a message.
pub(super) fn receiving(mut job: ReceiveJob, mut peer: Peer, steps: &[u8]) -> bool {
    for (what, body) in Steps::new(steps).take(STEPS) {
        match what % 4 {
            0 | 1 => peer.say(body),
            2 => {
                let (offset, data) = offset_and_rest(body);
                if offset + (data.len() as u64) < job.sink.limit() {
                    job.sink.deliver(data, &[Piece { offset, range: 0..data.len() }]);
                }
            }
            _ if body.is_empty() => peer.wait(),
            _ => job.sink.complete(offset_and_rest(body).0),
        }
    }
    let understood = peer.understood;
    drop(peer);
    assert_no_panic(job.handle.join());
    understood
}

/// Runs a sending job to its end; returns whether it received a message.
pub(super) fn sending(mut job: SendJob, mut peer: Peer, steps: &[u8]) -> bool {
    let (mut released, mut upto) = (0, 0);
    for (what, body) in Steps::new(steps).take(STEPS) {
        let available = job.source.available();
        assert!(available.upto >= upto, "the available length decreased");
        upto = available.upto;
        let (number, _) = offset_and_rest(body);
        match what % 4 {
            0 | 1 => peer.say(body),
            2 => {
                let offset = released + number.min(upto - released);
                let mut room = vec![0; (upto - offset).min(1_400) as usize];
                job.source.read(offset, &mut room);
            }
            _ if body.is_empty() => peer.wait(),
            _ => {
                released += number.min(upto - released);
                job.source.release(released);
            }
        }
    }
    let understood = peer.understood;
    drop(peer);
    assert_no_panic(job.handle.join());
    understood
}

fn assert_no_panic(ended: Result<MoveReport, Fault>) {
    if let Err(fault) = ended {
        assert!(!fault.message.contains("panic"), "{fault}");
    }
}
