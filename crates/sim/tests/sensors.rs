//! 10,000 sensors and one base station in one process: memory per sensor at the base station. Keys are part
//! of the engine and are counted there; here they are empty.

#[expect(dead_code, reason = "other tests use more of it")]
mod exchange;

use std::alloc::System;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use haul_base::{Ecn, Machine, PathId, Received, Span, Time};
use haul_stack::{Ends, MessageSink, SendOptions, Stack};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const SENSORS: usize = 10_000;
const ROUNDS: u64 = 20;
/// 2 KiB, of which 400 bytes are reserved for keys.
const MAX_BYTES: usize = 2_048 - 400;

/// Returns the bytes that `work` has allocated and not freed.
fn allocated_during<R>(work: impl FnOnce() -> R) -> (R, isize) {
    let region = Region::new(ALLOCATOR);
    let result = work();
    let change = region.change();
    (result, change.bytes_allocated.cast_signed() - change.bytes_deallocated.cast_signed())
}

fn receive(stack: &mut Stack, now: Time, data: &mut [u8], stride: usize) {
    let (path, ecn) = (PathId::default(), Ecn::NotEct);
    stack.on_receive(now, &mut Received { data, stride, arrival: None, path, ecn, socket_drops: None });
}

/// Passes packets from one stack to the other. Returns the growth of both.
fn carry(now: Time, from: &mut Stack, to: &mut Stack, slot: &mut [u8], lost: bool) -> (isize, isize) {
    let (mut sender, mut listener) = (0, 0);
    loop {
        let (sent, more) = allocated_during(|| from.poll_transmit(now, slot));
        sender += more;
        let Some(sent) = sent else { return (sender, listener) };
        if !lost {
            let ((), more) = allocated_during(|| receive(to, now, &mut slot[..sent.len], sent.segment_size));
            listener += more;
        }
    }
}

/// The base station's sink for readings, as small as possible: its processing is not measured.
struct Count(Arc<AtomicU64>);

impl MessageSink for Count {
    fn message(&mut self, _: Time, _: u64, _: &[u8]) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// Messages of `msg` in both directions, at most as many at a time as the pool has buffers, cause no
/// allocations once warmed up.
fn messages_cost_no_allocation() {
    let (compiled, rtt) = (exchange::compiled_preset("msg", &[]), Span::from_millis(1));
    let mut a = exchange::stack(&compiled, true, rtt, Ends::default());
    let mut b = exchange::stack(&compiled, false, rtt, Ends::default());
    let mut slot = vec![0; 65_536];
    let mut round = |now: Time| {
        for stack in [&mut a, &mut b] {
            (0..10).for_each(|_| drop(stack.send(now, &[7; 10], SendOptions::default())));
        }
        for _ in 0..3 {
            carry(now, &mut a, &mut b, &mut slot, false);
            carry(now, &mut b, &mut a, &mut slot, false);
        }
        for stack in [&mut a, &mut b] {
            stack.on_deadline(now);
            while let Some((_, message)) = stack.recv() {
                stack.recycle(message);
            }
            while stack.poll_event().is_some() {}
        }
    };
    let at = |n: u64| Time::ZERO + Span::from_millis(n);
    (0..200).for_each(|n| round(at(n)));
    let region = Region::new(ALLOCATOR);
    (200..1_200).for_each(|n| round(at(n)));
    let change = region.change();
    println!("msg, 20,000 messages: {} allocations", change.allocations + change.reallocations);
    assert_eq!(change.allocations + change.reallocations, 0);
    assert_eq!(a.stats().messages_delivered, 12_000);
    assert_eq!((a.unfinished(), a.stats().data_resent), (0, 0));
}

fn main() {
    messages_cost_no_allocation();
    a_sensor_costs_little_memory();
}

fn a_sensor_costs_little_memory() {
    let compiled = exchange::compiled_preset("sensor", &[]);
    let rtt = Span::from_millis(20);
    let mut sensors: Vec<Stack> =
        (0..SENSORS).map(|_| exchange::stack(&compiled, true, rtt, Ends::default())).collect();
    let readings = Arc::new(AtomicU64::new(0));
    let base = || {
        let message_sink: Option<Box<dyn MessageSink>> = Some(Box::new(Count(readings.clone())));
        exchange::stack(&compiled, false, rtt, Ends { message_sink, ..Ends::default() })
    };
    let make = || (0..SENSORS).map(|_| base()).collect::<Vec<_>>();
    let (mut bases, fresh) = allocated_during(make);
    println!("{} of these are the stack itself", size_of::<Stack>());
    let mut slot = vec![0; 65_536];
    let mut grown = 0;
    for round in 0..ROUNDS {
        let now = Time::ZERO + Span::from_secs(1) * round;
        for (n, (sensor, base)) in sensors.iter_mut().zip(&mut bases).enumerate() {
            let reading = [round as u8, n as u8, (n >> 8) as u8, 0, 0, 0, 0, 0, 0, 0];
            sensor.send(now, &reading, SendOptions::default()).expect("the queue has space");
            // Every tenth reading is lost, and reported by the base station after a delay.
            let lost = (n as u64 + round) % 10 == 3 && round + 1 < ROUNDS;
            grown += carry(now, sensor, base, &mut slot, lost).1;
            let later = now + Span::from_millis(100);
            let ((), timers) = allocated_during(|| base.on_deadline(later));
            grown += timers;
            grown += carry(later, base, sensor, &mut slot, false).0;
            grown += carry(later, sensor, base, &mut slot, false).1;
        }
    }
    let each = |bytes: isize| bytes.unsigned_abs() / SENSORS;
    println!(
        "a base station's stack: {} bytes when new, {} after {ROUNDS} readings with losses ({SENSORS} sensors)",
        each(fresh),
        each(fresh + grown)
    );
    assert_eq!(readings.load(Relaxed), SENSORS as u64 * ROUNDS, "every reading arrived once");
    assert!(fresh + grown > 0 && each(fresh + grown) <= MAX_BYTES, "more than {MAX_BYTES} bytes");
}
