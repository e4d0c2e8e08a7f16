//! Sending batches of datagrams.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use haul_base::Ecn;

use crate::cmsg::Control;
use crate::errors::{ErrorClass, FullQueue, SendError};
use crate::name::Name;
use crate::send_state::{Method, is_v4};
use crate::socket::UdpSocket;
use crate::sys::{self, MAX_MESSAGES, SEND_CONTROL, ecn_option, push_ecn, push_segment_size};

/// Number of calls without GSO after the kernel has rejected it, before the next attempt. A rejection costs
/// one system call, so a route that never supports GSO costs about 0.4 % more calls.
const CALLS_WITHOUT_GSO: u32 = 256;

/// How much of a batch was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Bytes, from the start of the batch; always whole datagrams. If fewer than the batch has, send the rest
    /// again, which also returns the error that stopped it.
    pub bytes: usize,
    /// Datagrams.
    pub datagrams: usize,
    /// How the last of them was sent.
    pub method: Method,
}

/// A batch being sent.
struct Batch<'a> {
    segment_size: usize,
    to: Option<&'a Name>,
    control: Control<SEND_CONTROL>,
}

impl UdpSocket {
    /// Sends `data` to the peer as datagrams of `segment_size` bytes; the last one may be shorter. Empty
    /// `data` sends nothing.
    ///
    /// With GSO this takes one system call for up to 128 datagrams (64 on older kernels) and 65,507 bytes,
    /// and several for more.
    ///
    /// # Errors
    /// Only if nothing was sent; see [`SendError`]. If only some datagrams were sent, [`Sent::bytes`] says
    /// how much.
    pub fn send(&self, data: &[u8], segment_size: usize, ecn: Ecn) -> Result<Sent, SendError> {
        let is_v4 = self.sending.is_peer_v4.load(Ordering::Relaxed);
        self.transmit(data, segment_size, ecn, is_v4, None)
    }

    /// Like [`send`](Self::send), but to `to`, from an unconnected socket.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_to(
        &self,
        data: &[u8],
        segment_size: usize,
        ecn: Ecn,
        to: SocketAddr,
    ) -> Result<Sent, SendError> {
        self.transmit(data, segment_size, ecn, is_v4(to.ip()), Some(&Name::new(to)))
    }

    fn transmit(
        &self,
        data: &[u8],
        segment_size: usize,
        ecn: Ecn,
        v4: bool,
        to: Option<&Name>,
    ) -> Result<Sent, SendError> {
        if segment_size == 0 {
            return Err(SendError::Io(io::ErrorKind::InvalidInput.into()));
        }
        let control = self.ecn_control(v4, ecn).map_err(SendError::from_os)?;
        let batch = Batch { segment_size, to, control };
        let method = if data.len() > segment_size { self.sending.method() } else { Method::Plain };
        let mut sent = Sent { bytes: 0, datagrams: 0, method };
        match self.send_batch(&batch, data, &mut sent) {
            Err(error) if sent.bytes == 0 => Err(error),
            _ => Ok(sent),
        }
    }

    /// Sends until everything is sent or an error occurs; `sent` has the progress.
    fn send_batch(&self, batch: &Batch<'_>, data: &[u8], sent: &mut Sent) -> Result<(), SendError> {
        let mut second_try = false;
        while let Some(rest) = data.get(sent.bytes..).filter(|rest| !rest.is_empty()) {
            let error = match self.send_some(batch, rest, sent.method) {
                Ok((bytes, complete)) => {
                    sent.bytes += bytes;
                    sent.datagrams += bytes.div_ceil(batch.segment_size);
                    if !complete {
                        // sendmmsg discards the error, but errors from the network stay queued.
                        self.drain_errors();
                        return Ok(());
                    }
                    continue;
                }
                Err(error) => error,
            };
            match ErrorClass::of(&error) {
                ErrorClass::Interrupted => {}
                ErrorClass::Offload if sent.method == Method::Gso => {
                    self.gso_refused(&error);
                    sent.method = Method::Fallback;
                }
                // A router's report about an earlier datagram: this one was not tried yet.
                class @ ErrorClass::TooLarge if self.count_error(class) > 0 && !second_try => {
                    second_try = true;
                }
                class => return Err(self.give_up(class, error)),
            }
        }
        Ok(())
    }

    /// Does one system call. Returns how many bytes the kernel accepted, and whether that was all it was
    /// offered.
    fn send_some(&self, batch: &Batch<'_>, rest: &[u8], method: Method) -> io::Result<(usize, bool)> {
        let Batch { segment_size, to, control } = batch;
        if rest.len() <= *segment_size {
            let bytes = sys::send(self.fd(), rest, *to, control.as_bytes())?;
            return Ok((bytes, true));
        }
        if method == Method::Gso {
            let part = &rest[..rest.len().min(self.sending.gso_bytes(*segment_size))];
            let mut control = *control;
            if part.len() > *segment_size {
                push_segment_size(&mut control, *segment_size);
            }
            let bytes = sys::send(self.fd(), part, *to, control.as_bytes())?;
            return Ok((bytes, true));
        }
        let offered = rest.len().div_ceil(*segment_size).min(MAX_MESSAGES);
        let taken = sys::send_many(self.fd(), rest, *segment_size, *to, control.as_bytes())?;
        Ok(((taken * segment_size).min(rest.len()), taken == offered))
    }

    fn gso_refused(&self, error: &io::Error) {
        if self.counters.gso_refused.get() == 0 {
            tracing::warn!(%error, peer = ?self.peer_addr(), "GSO refused on this route, sending datagram by datagram");
        }
        self.counters.gso_refused.add_one();
        self.sending.without_gso.store(CALLS_WITHOUT_GSO, Ordering::Relaxed);
    }

    fn give_up(&self, class: ErrorClass, error: io::Error) -> SendError {
        match class {
            ErrorClass::QueueFull(FullQueue::SocketBuffer) => self.counters.socket_full.add_one(),
            ErrorClass::QueueFull(FullQueue::LocalQueue) => self.counters.queue_full.add_one(),
            ErrorClass::Refused | ErrorClass::Unreachable | ErrorClass::NotPermitted => {
                self.count_error(class);
            }
            _ => {}
        }
        SendError::from_os(error)
    }

    /// Returns the control message with the ECN bits. If the kernel does not support that, sets the socket's
    /// ECN bits.
    fn ecn_control(&self, v4: bool, ecn: Ecn) -> io::Result<Control<SEND_CONTROL>> {
        let mut control = Control::EMPTY;
        if self.sending.ecn_per_call {
            if ecn != Ecn::NotEct {
                push_ecn(&mut control, v4, ecn);
            }
        } else if self.sending.socket_ecn.swap(ecn as u8, Ordering::Relaxed) != ecn as u8 {
            let (level, name) = ecn_option(v4);
            sys::set_option(self.fd(), level, name, ecn as i32)?;
        }
        Ok(control)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::send_state::MAX_CALL;
    use crate::{Interest, Options, Receiver};

    fn pair() -> (UdpSocket, UdpSocket) {
        let bind = || UdpSocket::bind("127.0.0.1:0".parse().unwrap(), &Options::default()).unwrap();
        let (sending, receiving) = (bind(), bind());
        sending.connect(receiving.local_addr().unwrap()).unwrap();
        (sending, receiving)
    }

    /// Returns the bytes and ECN bits of all queued messages.
    fn received(socket: &UdpSocket) -> (Vec<u8>, Vec<Ecn>) {
        let mut receiver = Receiver::new(socket);
        let (mut bytes, mut bits) = (Vec::new(), Vec::new());
        socket.wait(Interest::Read, Duration::from_secs(5)).unwrap();
        while receiver.recv(socket).is_ok() {
            for batch in receiver.datagrams() {
                bytes.extend_from_slice(batch.data);
                bits.push(batch.ecn);
            }
        }
        (bytes, bits)
    }

    #[test]
    fn refused_gso_falls_back_and_is_retried() {
        let (sending, receiving) = pair();
        if !sending.capabilities().gso.support.is_available() {
            return;
        }
        // The kernel does not support GSO without checksums, so this is a real rejection.
        sys::set_option(sending.fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
        let data = [9; 10_000];
        let sent = sending.send(&data, 1_000, Ecn::NotEct).unwrap();
        assert_eq!(sent, Sent { bytes: 10_000, datagrams: 10, method: Method::Fallback });
        assert_eq!(sending.stats().gso_refused, 1);
        assert_eq!(received(&receiving).0, data);
        sys::set_option(sending.fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, 0).unwrap();
        for _ in 0..CALLS_WITHOUT_GSO {
            assert_eq!(sending.send(&data, 5_000, Ecn::NotEct).unwrap().method, Method::Fallback);
            received(&receiving);
        }
        assert_eq!(sending.send(&data, 5_000, Ecn::NotEct).unwrap().method, Method::Gso);
        assert_eq!(sending.stats().gso_refused, 1);
    }

    #[test]
    fn ecn_uses_a_socket_option_where_calls_do_not_support_it() {
        let (mut sending, receiving) = pair();
        sending.sending.ecn_per_call = false;
        for ecn in [Ecn::Ect0, Ecn::Ect0, Ecn::Ce, Ecn::NotEct] {
            sending.send(&[1], 1, ecn).unwrap();
            assert_eq!(received(&receiving).1, [ecn]);
        }
    }

    #[test]
    fn a_dual_stack_socket_sends_ecn_to_both_families() {
        let options = Options { dual_stack: true, ..Options::default() };
        for (at, as_seen) in [("127.0.0.1:0", "::ffff:127.0.0.1"), ("[::1]:0", "::1")] {
            let (Ok(sending), Ok(receiving)) = (
                UdpSocket::bind("[::]:0".parse().unwrap(), &options),
                UdpSocket::bind(at.parse().unwrap(), &Options::default()),
            ) else {
                return eprintln!("SKIPPED: no IPv6 here");
            };
            let port = receiving.local_addr().unwrap().port();
            sending.connect(SocketAddr::new(as_seen.parse().unwrap(), port)).unwrap();
            sending.send(&[1; 20], 10, Ecn::Ect0).unwrap();
            assert!(received(&receiving).1.iter().all(|ecn| *ecn == Ecn::Ect0), "{at}");
        }
    }

    #[test]
    fn calls_stay_within_both_limits() {
        let (sending, _receiving) = pair();
        let max = sending.sending.max_segments;
        for segment_size in [1, 100, 1_448, 8_972, 40_000, 65_507] {
            let bytes = sending.sending.gso_bytes(segment_size);
            assert!(bytes <= MAX_CALL && bytes <= max * segment_size && bytes.is_multiple_of(segment_size));
            assert!(bytes + segment_size > MAX_CALL || bytes == max * segment_size, "as many as fit");
        }
    }
}
