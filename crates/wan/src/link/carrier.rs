//! Carries packets from one device through the path to the other. Uses no threads and reads no clock.

use std::io;
use std::sync::Arc;

use haul_base::Time;
use haul_sim::{
    Damage, DropReason, Exit, FlowId, MAX_PARCEL, PacketInfo, Parcel, Path, SpecError, StageChange, StageRef,
};

use super::drop_log::DirectionLog;
use super::outlet::Outlet;
use super::pool::Pool;
use super::snapshot::{Snapshot, Traffic};
use crate::net::Tun;
use crate::packet::{Layout, VNET_LEN, Vnet};

/// Memory limit of one direction: 100 ms at 80 Gbit/s.
const MEMORY: u64 = 1 << 30;

/// One direction of the path.
#[derive(Debug)]
pub(super) struct Carrier {
    path: Path,
    pool: Pool,
    /// Buffer for the next packet read.
    buffer: Box<[u8]>,
    /// Maximum bytes of a super-packet that travel as one parcel: what the bottleneck sends in
    /// [`MAX_GRANULARITY`](crate::GRAIN).
    granularity: u64,
    out: Outlet,
    sent: Traffic,
    lost: u64,
    drop_log: Option<DirectionLog>,
}

/// Combines the packet's number in the pool with the index of a parcel's first packet.
fn id_of(number: u32, first: u16) -> u64 {
    u64::from(number) << 16 | u64::from(first)
}

fn parts_of(id: u64) -> (u32, u16) {
    ((id >> 16) as u32, id as u16)
}

impl Carrier {
    pub(super) fn new(path: Path, output: Arc<Tun>, seed: u64, granularity: u64) -> Self {
        let mut pool = Pool::new(MEMORY);
        let buffer = pool.buffer();
        let out = Outlet::new(output, seed);
        Self { path, pool, buffer, granularity, out, sent: Traffic::default(), lost: 0, drop_log: None }
    }

    /// Sets the drop log, or disables logging.
    pub(super) fn log_drops(&mut self, log: Option<DirectionLog>) {
        self.drop_log = log;
    }

    /// Reads one packet from `input` and offers it to the path. Returns false if there was none.
    pub(super) fn take(&mut self, input: &Tun, now: Time) -> io::Result<bool> {
        let Some(len) = input.read(&mut self.buffer)? else { return Ok(false) };
        let layout = self.buffer[..len]
            .split_first_chunk::<VNET_LEN>()
            .and_then(|(head, packet)| Layout::parse(Vnet::parse(head)?, packet).ok());
        let Some(layout) = layout else {
            self.sent.count(1, len.saturating_sub(VNET_LEN) as u64);
            self.lost += 1;
            return Ok(true);
        };
        let bytes = (0..layout.packets).map(|index| u64::from(layout.packet_bytes(index))).sum();
        self.sent.count(u64::from(layout.packets), bytes);
        match self.pool.keep(&mut self.buffer, layout) {
            Some(number) => self.offer(number, layout, now),
            None => self.lost += u64::from(layout.packets),
        }
        Ok(true)
    }

    /// Offers a stored packet in parcels.
    fn offer(&mut self, number: u32, layout: Layout, now: Time) {
        let each = u64::from(layout.packet_bytes(0)).max(1);
        let most = (self.granularity / each).clamp(1, MAX_PARCEL as u64) as u16;
        let mut first = 0;
        while first < layout.packets {
            let count = most.min(layout.packets - first);
            let packet = PacketInfo {
                id: id_of(number, first),
                flow: FlowId(layout.flow),
                bytes: layout.packet_bytes(first),
                ecn: layout.ecn,
            };
            let last_bytes = layout.packet_bytes(first + count - 1);
            match Parcel::batch(packet, count.into(), last_bytes) {
                Some(parcel) => self.path.offer_batch(now, parcel),
                // Cannot happen: the count is between 1 and the capacity of a parcel.
                None => self.pool.remove_packets(number, count.into()),
            }
            first += count;
        }
    }

    /// Returns the time of the next event.
    pub(super) fn next_event(&self) -> Option<Time> {
        self.path.next_event()
    }

    /// Writes the parcels that are due and returns their number.
    ///
    /// # Errors
    /// If the drop log cannot be written.
    pub(super) fn deliver(&mut self, now: Time) -> io::Result<usize> {
        let Self { path, pool, out, drop_log, .. } = self;
        let mut parcels = 0;
        path.advance(now, &mut |at, parcel, exit| {
            let (number, first) = parts_of(parcel.id());
            let died = match exit {
                Exit::Copied => None,
                Exit::Dropped(reason) => Some(reason),
                // The receiving kernel detects a wrong checksum or length.
                Exit::Delivered => (parcel.damage() != Damage::None).then_some(DropReason::Corrupted),
            };
            if let (Some(log), Some(reason)) = (drop_log.as_mut(), died) {
                log.add(at, reason, pool.slot(number), parcel.indices().map(|index| first + index as u16));
            }
            match exit {
                Exit::Copied => pool.more(number, parcel.packets()),
                Exit::Dropped(_) => pool.remove_packets(number, parcel.packets()),
                Exit::Delivered => {
                    out.deliver(pool, number, first, parcel);
                    parcels += 1;
                }
            }
        });
        out.flush(pool);
        drop_log.as_mut().map_or(Ok(()), DirectionLog::flush)?;
        Ok(parcels)
    }

    /// Changes a stage.
    pub(super) fn change(
        &mut self,
        now: Time,
        which: &StageRef,
        change: &StageChange,
    ) -> Result<(), SpecError> {
        self.path.change(now, which, change)
    }

    /// Changes the maximum bytes per parcel.
    pub(super) fn set_granularity(&mut self, bytes: u64) {
        self.granularity = bytes;
    }

    /// Returns the counters so far.
    pub(super) fn snapshot(&self, now: Time) -> Snapshot {
        let lost = self.lost + self.out.refused();
        let queue = self.path.standing_queue(now);
        Snapshot::new(self.path.counters(), self.sent, self.out.received(), lost, queue)
    }
}
