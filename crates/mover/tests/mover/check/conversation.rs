//! A peer that says what the bytes of a check hold, and the transport between the two.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use haul_base::Piece;
use haul_wire::check::{Steps, message};
use haul_wire::control::{ControlMessage, Fault, FaultCode, encode_frame};

use haul_mover::{ControlLink, MoveReport, ReceiveJob, SendJob};

/// Most steps of a conversation.
const STEPS: usize = 48;
/// How long a waiting step waits.
const PAUSE: Duration = Duration::from_millis(1);

/// The job's end of a control channel in memory.
struct Link {
    out: Sender<ControlMessage>,
    inc: Receiver<ControlMessage>,
}

impl ControlLink for Link {
    fn send(&self, message: ControlMessage) -> Result<(), Fault> {
        encode_frame(&message, &mut Vec::new()).expect("a job says only what a frame can hold");
        self.out.send(message).map_err(|_| lost())
    }

    fn recv(&self, timeout: Duration) -> Result<Option<ControlMessage>, Fault> {
        match self.inc.recv_timeout(timeout) {
            Ok(message) => Ok(Some(message)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(lost()),
        }
    }
}

fn lost() -> Fault {
    Fault::new(FaultCode::ControlLost, "the other end is gone", "")
}

/// The peer's end; when it is dropped, the peer is gone.
pub(super) struct Peer {
    out: Sender<ControlMessage>,
    inc: Receiver<ControlMessage>,
    understood: bool,
}

impl Peer {
    pub(super) fn new() -> (Self, Arc<dyn ControlLink>) {
        let (ours, theirs) = (unbounded(), unbounded());
        let link = Link { out: ours.0, inc: theirs.1 };
        (Self { out: theirs.0, inc: ours.1, understood: false }, Arc::new(link))
    }

    /// Says what the body of a frame means, if it means anything.
    fn say(&mut self, body: &[u8]) {
        if let Some(message) = message(body) {
            self.understood = true;
            // It may have ended.
            let _ = self.out.send(message);
        }
    }

    /// Waits for the job for a moment.
    fn wait(&self) {
        let _ = self.inc.recv_timeout(PAUSE);
        while self.inc.try_recv().is_ok() {}
    }
}

/// A number (3, big-endian) in front of other bytes; missing bytes are zeros.
fn offset_and_rest(body: &[u8]) -> (u64, &[u8]) {
    let (number, rest) = body.split_at(body.len().min(3));
    (number.iter().fold(0, |number, &byte| number << 8 | u64::from(byte)), rest)
}

/// Runs a receiving job to its end; whether it was told a message.
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

/// Runs a sending job to its end; whether it was told a message.
pub(super) fn sending(mut job: SendJob, mut peer: Peer, steps: &[u8]) -> bool {
    let (mut released, mut upto) = (0, 0);
    for (what, body) in Steps::new(steps).take(STEPS) {
        let available = job.source.available();
        assert!(available.upto >= upto, "there was more to send before");
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
