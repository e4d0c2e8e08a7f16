use std::sync::{Arc, Mutex};

use haul_wire::control::{Cipher, FaultCode};
use proptest::prelude::*;

use super::*;
use crate::crypto::DataKeys;

const PEER: &str = "192.0.2.1:7000";

/// HELLOs that came by the listener's socket.
#[derive(Default)]
struct Mailbox(Mutex<Vec<HelloBody>>);

impl LateHellos for Mailbox {
    fn drain(&self, into: &mut Vec<HelloBody>) {
        into.append(&mut self.0.lock().unwrap());
    }
}

fn keys(seed: u8) -> DataKeys {
    DataKeys::new(Cipher::Aes128Gcm, [seed; 32], [seed + 1; 32])
}

fn driver() -> HelloDriver {
    HelloDriver::new(at(0), 77, PEER.parse().unwrap(), &keys(1), 0x55)
}

fn responder() -> HelloResponder {
    HelloResponder::new(&keys(1), 0, Arc::new(Mailbox::default()))
}

fn at(millis: u64) -> Time {
    Time::ZERO + Span::from_millis(millis)
}

fn drain(mut poll: impl FnMut(&mut [u8]) -> Option<usize>) -> Vec<Vec<u8>> {
    let mut slot = vec![0; MAX_HELLO];
    std::iter::from_fn(|| poll(&mut slot).map(|len| slot[..len].to_vec())).collect()
}

fn round(driver: &mut HelloDriver, now: Time) -> Vec<usize> {
    driver.on_deadline(now);
    drain(|slot| driver.poll_transmit(now, slot)).iter().map(Vec::len).collect()
}

#[test]
fn the_first_round_tries_every_size_and_an_answer_to_the_largest_settles_all() {
    let (mut driver, mut responder) = (driver(), responder());
    let hellos = drain(|slot| driver.poll_transmit(at(0), slot));
    assert_eq!(hellos.iter().map(Vec::len).collect::<Vec<_>>(), [1200, 1472, 8972]);
    for mut hello in hellos {
        assert!(is_hello(&hello) && responder.on_packet(&mut hello));
    }
    assert_eq!(responder.sizes(), DatagramSizes { outgoing: 1200, incoming: 8972 });
    for mut ack in drain(|slot| responder.poll_transmit(slot)) {
        assert!(is_hello(&ack) && driver.on_packet(at(60), &mut ack));
    }
    assert!(driver.is_answered());
    assert_eq!(driver.sizes(), DatagramSizes { outgoing: 8972, incoming: 8972 });
    assert_eq!(driver.round_trip(), Some(Span::from_millis(60)));
    assert!(round(&mut driver, at(100)).is_empty());
    assert_eq!(driver.deadline(), None);
}

#[test]
fn ipv6_sizes_leave_room_for_the_longer_header() {
    assert_eq!(sizes_for("[2001:db8::1]:1".parse().unwrap()), [1200, 1452, 8952]);
    assert_eq!(sizes_for("[::ffff:192.0.2.1]:1".parse().unwrap()), [1200, 1472, 8972]);
}

#[test]
fn unanswered_hellos_are_repeated_and_large_ones_given_up() {
    let mut driver = driver();
    assert_eq!(round(&mut driver, at(0)), [1200, 1472, 8972]);
    assert_eq!(round(&mut driver, at(50)), [0; 0]);
    assert_eq!(driver.deadline(), Some(at(100)));
    assert_eq!(round(&mut driver, at(100)), [1200, 1472, 8972]);
    assert_eq!(round(&mut driver, at(200)), [1200, 1472, 8972]);
    assert_eq!(round(&mut driver, at(300)), [1200]);
    assert_eq!(round(&mut driver, at(3900)), [1200]);
}

#[test]
fn sizes_that_the_interface_refuses_are_not_tried_again() {
    let mut driver = driver();
    round(&mut driver, at(0));
    driver.on_too_large(8972);
    assert_eq!(round(&mut driver, at(100)), [1200, 1472]);
}

#[test]
fn a_path_that_loses_large_datagrams_is_used_with_small_ones() {
    let (mut driver, mut responder) = (driver(), responder());
    for millis in [0, 100, 200, 300] {
        driver.on_deadline(at(millis));
        for mut hello in drain(|slot| driver.poll_transmit(at(millis), slot)) {
            if hello.len() <= 1472 {
                responder.on_packet(&mut hello);
            }
        }
        for mut ack in drain(|slot| responder.poll_transmit(slot)) {
            driver.on_packet(at(millis + 40), &mut ack);
        }
    }
    assert_eq!(driver.sizes().outgoing, 1472);
    assert_eq!(driver.deadline(), None);
    assert!(driver.failure(at(10_000), false).is_none());
}

#[test]
fn silence_is_named_with_port_and_direction_four_seconds_after_the_accept() {
    let mut driver = driver();
    driver.on_accepted(at(500));
    assert!(driver.failure(at(4400), false).is_none());
    let fault = |seen| driver.failure(at(4500), seen).unwrap().fault();
    assert_eq!(fault(true).code, FaultCode::UdpBlocked);
    assert!(fault(false).message.contains("from the client to the server (UDP port 7000"));
    assert!(fault(true).message.contains("from the server to the client"));
}

#[test]
fn strangers_reflections_and_replays_do_no_harm() {
    let (mut driver, mut responder) = (driver(), responder());
    let hellos = drain(|slot| driver.poll_transmit(at(0), slot));
    assert!(!driver.on_packet(at(1), &mut hellos[0].clone()), "reflected");
    let mut stranger = HelloResponder::new(&keys(9), 0, Arc::new(Mailbox::default()));
    assert!(!stranger.on_packet(&mut hellos[0].clone()), "other session");
    for _ in 0..100 {
        assert!(responder.on_packet(&mut hellos[0].clone()));
    }
    assert_eq!(drain(|slot| responder.poll_transmit(slot)).len(), 1, "one answer to a hundred replays");
    let mut cut = hellos[2][..1200].to_vec();
    assert!(!responder.on_packet(&mut cut));
}

#[test]
fn hellos_that_came_by_the_listener_are_answered_too() {
    let late = Arc::new(Mailbox::default());
    let mut responder = HelloResponder::new(&keys(1), 0, late.clone());
    late.0.lock().unwrap().push(HelloBody { nonce: 0x55, size: 1472, challenge: 0 });
    let acks = drain(|slot| responder.poll_transmit(slot));
    assert_eq!(acks.iter().map(Vec::len).collect::<Vec<_>>(), [1472]);
    assert!(driver().on_packet(at(5), &mut acks[0].clone()));
}

proptest! {
    #[test]
    fn garbage_is_refused_without_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..1500)) {
        prop_assert!(!driver().on_packet(at(0), &mut bytes.clone()));
        prop_assert!(!responder().on_packet(&mut bytes));
    }

    #[test]
    fn the_exchange_ends_well_on_any_path_that_passes_something(
        losses in prop::collection::vec(any::<bool>(), 400), largest in 1200usize..9000,
    ) {
        let (mut driver, mut responder) = (driver(), responder());
        let mut losses = losses.into_iter();
        let mut passes = |packet: &[u8]| packet.len() <= largest && !losses.next().unwrap_or(false);
        let mut now = at(0);
        while let Some(deadline) = driver.deadline() {
            now = now.max(deadline);
            driver.on_deadline(now);
            for mut hello in drain(|slot| driver.poll_transmit(now, slot)) {
                if passes(&hello) {
                    responder.on_packet(&mut hello);
                }
            }
            now += Span::from_millis(20);
            for mut ack in drain(|slot| responder.poll_transmit(slot)) {
                if passes(&ack) {
                    driver.on_packet(now, &mut ack);
                }
            }
        }
        prop_assert!(driver.is_answered());
        prop_assert!(usize::from(driver.sizes().outgoing) <= largest);
        prop_assert!(driver.round_trip() >= Some(Span::from_millis(20)));
    }
}
