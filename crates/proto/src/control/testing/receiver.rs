//! Receiver of the harness: reads packets when it has a processor, and sends reports.

use haul_base::{Span, Time};

use super::Harness;
use super::packets::{Report, SentRun};

impl Harness {
    /// Returns when arriving packets are read, and how many the socket drops.
    pub(super) fn read(&mut self, arrives: Time, packets: u64) -> (Time, u64) {
        let Some(drain) = self.path.drain else { return (arrives, 0) };
        let processor_time = |at| self.path.processor(at).0;
        let begin = processor_time(self.reader_free.max(arrives));
        let waiting = drain.bytes_in(begin.saturating_sub(processor_time(arrives)));
        let fits = (self.path.socket_buffer.saturating_sub(waiting) / self.path.datagram).min(packets);
        self.reader_free = self.path.time_at_processor(begin + drain.time_for(fits * self.path.datagram));
        (self.reader_free, packets - fits)
    }

    /// Reads what has arrived, and sends a report if there is anything.
    pub(super) fn make_report(&mut self) {
        self.next_report += self.path.feedback;
        if self.path.processor(self.now).2 > self.path.processor(self.now - Span::from_nanos(1)).2 {
            // A receiver without a processor sends no report.
            return;
        }
        while let Some(in_flight_runs) =
            self.in_flight_runs.pop_front_if(|in_flight_runs| in_flight_runs.read <= self.now)
        {
            self.receive(in_flight_runs);
        }
        let receiving = &mut self.receiving;
        let Some(newest) = receiving.newest.filter(|_| receiving.acked > 0 || !receiving.lost.is_empty())
        else {
            return;
        };
        if self.now < self.outage_until {
            return;
        }
        self.reports.push_back(Report {
            due: self.now + self.path.rtt / 2,
            made: self.now,
            acked: std::mem::take(&mut receiving.acked),
            lost: std::mem::take(&mut receiving.lost),
            newest,
            host: self.path.host_at(self.now),
            bytes: receiving.bytes,
            total: receiving.total,
        });
    }

    fn receive(&mut self, in_flight_runs: SentRun) {
        let (receiving, datagram) = (&mut self.receiving, self.path.datagram);
        receiving.total.socket_drops =
            receiving.total.socket_drops.wrapping_add(in_flight_runs.dropped_by_socket as u32);
        receiving.silent.extend(in_flight_runs.lost);
        if in_flight_runs.arriving == 0 {
            return;
        }
        receiving.total.packets += in_flight_runs.arriving;
        receiving.total.buffers = receiving.total.buffers.wrapping_add(1);
        receiving.total.ecn_ce = receiving.total.ecn_ce.wrapping_add(in_flight_runs.marked as u32);
        let delay = in_flight_runs.read.since(in_flight_runs.arrives);
        receiving.total.read_delay_us = delay.as_micros() as u32;
        receiving.bytes += in_flight_runs.arriving * datagram;
        receiving.acked += in_flight_runs.arriving;
        receiving.lost.append(&mut receiving.silent);
        receiving.newest = Some((
            in_flight_runs.last_pn,
            in_flight_runs.sent_at,
            in_flight_runs.arrives,
            in_flight_runs.read,
        ));
        self.sums.bytes += in_flight_runs.arriving * datagram;
    }
}
