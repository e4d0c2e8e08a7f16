//! A UDP socket's receive buffer with the kernel's accounting.
//!
//! The kernel counts memory, not payload: each queued socket buffer ("skb") is charged with its *truesize*,
//! the allocation for the data and the control structures. `SO_RCVBUF` is doubled when set, to compensate.
//! Measured on Linux 6.18 (loopback, `SO_MEMINFO`), and reproduced by the tests of this file:
//!
//! ```text
//! truesize(payload) = bucket(payload + 59 + 320) + 256      payload <= 16,004
//!                   = payload + 832                         above: the data lie in pages
//! bucket: 576, then powers of two from 1,024
//! 59 = 28 of IP and UDP header + 31 of headroom, 320 = skb_shared_info, 256 = sk_buff
//! ```

use std::collections::VecDeque;

use haul_base::Bytes;

/// `sizeof(struct sk_buff)`, aligned to a cache line (x86-64).
const SK_BUFF: u64 = 256;
/// `sizeof(struct skb_shared_info)`, aligned.
const SHARED_INFO: u64 = 320;
/// IP and UDP headers, and the headroom for a link-layer header.
const HEADERS: u64 = 59;
/// Allocation for small heads.
const SMALL_HEAD: u64 = 576;
/// Larger data are not kept in the linear head (`SKB_MAX_ALLOC`).
const LINEAR_LIMIT: u64 = 16_064;
/// `SOCK_MIN_RCVBUF`: 2,048 + `SK_BUFF`.
const MIN_BUFFER: u64 = 2_304;

/// Memory layout of skbs, which depends on the sender or driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SkbLayout {
    /// Linear head of a power of two, as on loopback, veth and with copying drivers; a GRO buffer keeps one
    /// head per packet (fraglist).
    Linear,
    /// A small head and `page` bytes of a page per packet, as with drivers that receive into page fragments.
    Pages {
        /// Half a page (2,048) for an MTU of up to 1,500 with most drivers.
        page: u32,
    },
}

impl SkbLayout {
    /// Returns the truesize of a single packet with `payload` bytes of UDP payload.
    pub fn truesize(self, payload: u32) -> u64 {
        let payload = u64::from(payload);
        match self {
            Self::Linear if payload + HEADERS >= LINEAR_LIMIT => payload + SMALL_HEAD + SK_BUFF,
            Self::Linear => {
                let head = payload + HEADERS + SHARED_INFO;
                SK_BUFF + if head <= SMALL_HEAD { SMALL_HEAD } else { head.next_power_of_two() }
            }
            Self::Pages { page } => {
                let pages = (payload + HEADERS).div_ceil(u64::from(page.max(1)));
                SMALL_HEAD + SK_BUFF + pages * u64::from(page)
            }
        }
    }
}

/// When a buffer is full. `rmem` is the memory already charged, `size` the truesize of the new skb.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AdmitRule {
    /// Dropped if `rmem + size >= rcvbuf` (`sock_queue_rcv_skb` of 2.6); each read frees its memory.
    Linux26,
    /// Dropped if `rmem > rcvbuf`: the buffer may overshoot by one skb (4.10 to 6.14).
    Linux410,
    /// Dropped if `rmem + size > rcvbuf`, unless nothing is queued (from 6.15).
    #[default]
    Linux615,
}

/// Size and rules of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocketConfig {
    /// Size requested with `SO_RCVBUF`.
    pub requested: Bytes,
    /// Maximum size permitted by the system (`net.core.rmem_max`).
    pub permitted: Bytes,
    /// The kernel's rule for admitting a packet to a nearly full buffer.
    pub rule: AdmitRule,
    /// Memory layout of packets.
    pub layout: SkbLayout,
}

impl Default for SocketConfig {
    fn default() -> Self {
        Self {
            requested: Bytes(4 << 20),
            permitted: Bytes(4 << 20),
            rule: AdmitRule::default(),
            layout: SkbLayout::Linear,
        }
    }
}

impl SocketConfig {
    /// Returns `sk_rcvbuf`: twice the lower of the requested and permitted sizes (`__sock_set_rcvbuf`).
    pub fn rcvbuf(&self) -> u64 {
        (self.requested.0.min(self.permitted.0) * 2).max(MIN_BUFFER)
    }
}

/// A queued skb.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Skb<T> {
    /// The packets in the skb.
    pub content: T,
    /// Memory charged for the skb.
    pub truesize: u64,
    /// The socket's wrapping drop count when the skb was queued (`SO_RXQ_OVFL`); `None` before the first
    /// drop.
    pub drops_before: Option<u32>,
}

/// The receive queue of one socket.
#[derive(Clone, Debug)]
pub struct SocketBuffer<T> {
    config: SocketConfig,
    rcvbuf: u64,
    charged: u64,
    /// Queue filled by interrupts.
    arriving: VecDeque<Skb<T>>,
    /// Queue that the reader has taken over (`reader_queue`).
    reading: VecDeque<Skb<T>>,
    /// Memory read but not yet freed (`forward_deficit`).
    deficit: u64,
    drops: u64,
}

impl<T> SocketBuffer<T> {
    /// Creates an empty buffer.
    pub fn new(config: SocketConfig) -> Self {
        Self {
            config,
            rcvbuf: config.rcvbuf(),
            charged: 0,
            arriving: VecDeque::new(),
            reading: VecDeque::new(),
            deficit: 0,
            drops: 0,
        }
    }

    /// Returns `sk_rcvbuf`.
    pub fn rcvbuf(&self) -> u64 {
        self.rcvbuf
    }

    /// Returns `sk_rmem_alloc`.
    pub fn charged(&self) -> u64 {
        self.charged
    }

    /// Returns the number of dropped skbs; a whole GRO buffer counts as one.
    pub fn drops(&self) -> u64 {
        self.drops
    }

    /// Returns the number of queued skbs.
    pub fn len(&self) -> usize {
        self.arriving.len() + self.reading.len()
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.arriving.is_empty() && self.reading.is_empty()
    }

    fn has_space(&self, size: u64) -> bool {
        match self.config.rule {
            AdmitRule::Linux26 => self.charged + size < self.rcvbuf,
            AdmitRule::Linux410 => self.charged <= self.rcvbuf,
            AdmitRule::Linux615 => self.charged == 0 || self.charged + size <= self.rcvbuf,
        }
    }

    /// Queues an skb (`__udp_enqueue_schedule_skb`).
    ///
    /// # Errors
    /// Returns the content if the buffer is full.
    pub fn push(&mut self, content: T, truesize: u64) -> Result<(), T> {
        if !self.has_space(truesize) {
            self.drops += 1;
            return Err(content);
        }
        self.charged += truesize;
        let drops_before = (self.drops > 0).then_some(self.drops as u32);
        self.arriving.push_back(Skb { content, truesize, drops_before });
        Ok(())
    }

    /// Removes the first skb. Its memory is freed immediately on 2.6, otherwise in steps of a quarter of the
    /// buffer or when the reader's queue is empty (`udp_rmem_release`).
    pub fn pop(&mut self) -> Option<Skb<T>> {
        if self.reading.is_empty() {
            std::mem::swap(&mut self.reading, &mut self.arriving);
        }
        let skb = self.reading.pop_front()?;
        self.deficit += skb.truesize;
        let at_once = self.config.rule == AdmitRule::Linux26 || self.reading.is_empty();
        if at_once || self.deficit >= self.rcvbuf / 4 {
            self.charged -= self.deficit;
            self.deficit = 0;
        }
        Some(skb)
    }
}

#[cfg(test)]
mod tests;
