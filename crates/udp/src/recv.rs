//! Receiving batches of datagrams.

use std::fmt;
use std::net::SocketAddr;

use haul_base::{AlignedBytes, Ecn};

use crate::clock::Arrival;
use crate::cmsg;
use crate::errors::{ErrorClass, RecvError};
use crate::socket::UdpSocket;
use crate::sys::{self, MAX_MESSAGES, Slot};

/// Buffer size for anything that GRO coalesces: 64 KiB, as no UDP message is longer than 65,507 bytes.
const GRO_BUFFER: usize = 65_536;
/// Number of buffers with GRO: 1 MiB in all, so that received data is still in the cache when processed.
const GRO_BUFFERS: usize = 16;
/// Buffer size for one datagram without GRO: 9,000 bytes of a jumbo frame and some more.
const PLAIN_BUFFER: usize = 9_216;

/// One received message: one datagram, or several of one size that the kernel coalesced (GRO).
#[derive(Debug)]
pub struct Datagrams<'a> {
    /// Contiguous datagrams.
    pub data: &'a mut [u8],
    /// Size of every datagram but the last, which may be shorter.
    pub stride: usize,
    /// Source address.
    pub source: SocketAddr,
    /// ECN bits of all datagrams.
    pub ecn: Ecn,
    /// When the kernel received the first datagram.
    pub arrival: Option<Arrival>,
    /// The socket's count of dropped socket buffers when this one was queued, wrapping; `None` until the
    /// first drop, and if the kernel does not report it. With GRO one drop can be dozens of datagrams.
    pub drops: Option<u32>,
}

impl Datagrams<'_> {
    /// Returns the number of datagrams, at least one.
    pub fn count(&self) -> usize {
        self.data.len().div_ceil(self.stride.max(1)).max(1)
    }

    /// Iterates over the datagrams in order of arrival. Yields nothing for an empty datagram.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.data.chunks_mut(self.stride.max(1))
    }
}

/// Messages that a receiver discarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecvCounts {
    /// Messages longer than a buffer. Haulage never sends such messages; without GRO the limit is 9,216
    /// bytes.
    pub truncated: u64,
    /// Messages whose source address could not be read.
    pub unreadable: u64,
}

/// Metadata of a received message.
#[derive(Clone, Copy, Debug)]
struct RecvMeta {
    len: usize,
    stride: usize,
    source: SocketAddr,
    ecn: Ecn,
    arrival: Option<Arrival>,
    drops: Option<u32>,
}

/// Preallocated buffers for received messages.
pub struct Receiver {
    buffer: AlignedBytes,
    size: usize,
    slots: Box<[Slot]>,
    meta: Box<[Option<RecvMeta>]>,
    filled: usize,
    counts: RecvCounts,
}

impl Receiver {
    /// Allocates buffers for `socket`: 16 of 64 KiB with GRO, else 64 of 9,216 bytes.
    pub fn new(socket: &UdpSocket) -> Self {
        if socket.capabilities().gro.is_available() {
            Self::with_buffers(GRO_BUFFERS, GRO_BUFFER)
        } else {
            Self::with_buffers(MAX_MESSAGES, PLAIN_BUFFER)
        }
    }

    /// Allocates `count` buffers (1 to 64) of `size` bytes. With GRO, buffers below 64 KiB lose messages.
    pub fn with_buffers(count: usize, size: usize) -> Self {
        let (count, size) = (count.clamp(1, MAX_MESSAGES), size.max(1));
        Self {
            buffer: AlignedBytes::zeroed(count * size),
            size,
            slots: vec![Slot::EMPTY; count].into(),
            meta: vec![None; count].into(),
            filled: 0,
            counts: RecvCounts::default(),
        }
    }

    /// Receives queued messages, up to the number of buffers, with one non-blocking system call. Returns the
    /// number of messages available from [`datagrams`](Self::datagrams), which replace the previous ones. It
    /// is 0 if messages were received but all were discarded ([`counts`](Self::counts)).
    ///
    /// # Errors
    /// [`RecvError::WouldBlock`] if nothing is queued; otherwise see [`RecvError`].
    pub fn recv(&mut self, socket: &UdpSocket) -> Result<usize, RecvError> {
        self.filled = 0;
        let filled = loop {
            match sys::recv_many(socket.fd(), &mut self.buffer, self.size, &mut self.slots) {
                Ok(filled) => break filled,
                Err(error) => match ErrorClass::of(&error) {
                    ErrorClass::Interrupted => {}
                    ErrorClass::QueueFull(_) => return Err(RecvError::from_os(error)),
                    class => {
                        socket.count_error(class);
                        return Err(RecvError::from_os(error));
                    }
                },
            }
        };
        self.filled = filled;
        let mut usable = 0;
        for (slot, meta) in self.slots[..filled].iter().zip(&mut self.meta) {
            *meta = read_meta(slot, &mut self.counts);
            usable += usize::from(meta.is_some());
        }
        Ok(usable)
    }

    /// Whether the last [`recv`](Self::recv) received everything that was queued: it left buffers empty.
    pub fn is_drained(&self) -> bool {
        self.filled < self.slots.len()
    }

    /// Iterates over the messages of the last [`recv`](Self::recv), in order of arrival.
    pub fn datagrams(&mut self) -> impl Iterator<Item = Datagrams<'_>> {
        let parts = self.buffer.chunks_exact_mut(self.size);
        parts.zip(&self.meta[..self.filled]).filter_map(|(part, meta)| {
            let RecvMeta { len, stride, source, ecn, arrival, drops } = (*meta)?;
            Some(Datagrams { data: &mut part[..len], stride, source, ecn, arrival, drops })
        })
    }

    /// Returns the number of discarded messages so far.
    pub fn counts(&self) -> RecvCounts {
        self.counts
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("buffers", &self.slots.len())
            .field("size", &self.size)
            .field("filled", &self.filled)
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

fn read_meta(slot: &Slot, counts: &mut RecvCounts) -> Option<RecvMeta> {
    if slot.flags & libc::MSG_TRUNC != 0 {
        counts.truncated += 1;
        return None;
    }
    let Some(source) = slot.name.addr() else {
        counts.unreadable += 1;
        return None;
    };
    let len = slot.len;
    let mut meta = RecvMeta { len, stride: len, source, ecn: Ecn::NotEct, arrival: None, drops: None };
    for (level, kind, data) in slot.control.messages() {
        match (level, kind) {
            (libc::SOL_UDP, sys::UDP_GRO) => {
                let stride = cmsg::int(data).and_then(|stride| usize::try_from(stride).ok());
                meta.stride = stride.filter(|stride| (1..=len).contains(stride)).unwrap_or(len);
            }
            (libc::SOL_IP, libc::IP_TOS) | (libc::SOL_IPV6, libc::IPV6_TCLASS) => {
                meta.ecn = cmsg::int(data).map_or(Ecn::NotEct, |tos| Ecn::from_bits(tos as u8));
            }
            (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS) => meta.arrival = Arrival::from_timespec(data),
            (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => meta.drops = cmsg::int(data).map(|drops| drops as u32),
            _ => {}
        }
    }
    Some(meta)
}
