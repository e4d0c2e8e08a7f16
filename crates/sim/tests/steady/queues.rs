//! Laws that keep a queue of a given size, alone at a bottleneck: the queue has that size, within 5 %,
//! without losses.

use haul_base::{Rate, Span, Time};
use haul_proto::presets::preset;

use crate::common::{Channel, Run};

/// Returns the mean queueing delay in seconds while the law is in avoidance, after 90 s.
fn queued(law: &str, set: &[(&str, &str)], (mbps, rtt): (u64, Span)) -> f64 {
    let mut recipe = preset("bulk").unwrap().unwrap();
    haul_proto::micro::registry().set(&mut recipe, "rate_control.controller", law).unwrap();
    for (key, value) in set {
        haul_proto::micro::registry().set(&mut recipe, &format!("rate_control.{key}"), value).unwrap();
    }
    let path = Channel { queue: Span::from_secs(1), ..Channel::clean(rtt / 2, Rate::from_mbps(mbps)) };
    let mut run = Run::of_recipe(3, &recipe, u64::MAX >> 20, &path);
    run.world.run_until(Time::ZERO + Span::from_secs(90));
    let lost = run.sent().lost;
    // Transmission time of a packet.
    let on_line = Span::from_micros(1_500 * 8 / mbps);
    let (mut sum, mut count) = (0.0, 0.0);
    for millis in (90_000..150_000).step_by(10) {
        run.world.run_until(Time::ZERO + Span::from_millis(millis));
        let sender = run.session.sender(&run.world);
        if sender.rate_state().phase == "avoidance" {
            sum += sender.stats().rtt.saturating_sub(rtt + on_line).as_secs_f64();
            count += 1.0;
        }
    }
    assert_eq!(run.sent().lost, lost);
    assert!(count > 5_000.0, "{count} samples");
    sum / count
}

/// Wei et al. (2006), section 4: in equilibrium each flow has `a` packets in the queue.
#[test]
fn fast_tcp_has_alpha_packets_in_the_queue() {
    for (alpha, mbps, millis) in [(50.0, 20, 100), (50.0, 40, 40)] {
        let alpha_text = alpha.to_string();
        let path = (mbps, Span::from_millis(millis));
        let packets = queued("fast", &[("alpha", &alpha_text)], path) * mbps as f64 * 1e6 / 8.0 / 1_500.0;
        println!("{packets:.1} of {alpha} packets at {path:?}");
        assert!((packets / alpha - 1.0).abs() < 0.05, "{packets} of {alpha} at {path:?}");
    }
}

/// draft-irtf-iccrg-ledbat-plus-plus, section 4.2: `gain = w (d / target - 1)`, so that `d` is the target
/// except for a share of `gain / w`. A step reacts to the delay of the previous round trip, or older ones
/// because the minimum of four samples counts: on paths about as long as the target or longer the window
/// oscillates, and the mean delay is lower.
#[test]
fn ledbat_plus_plus_has_its_target_in_the_queue() {
    for (target, millis) in [(60, 10), (100, 20)] {
        let target_text = format!("{target}ms");
        let path = (20, Span::from_millis(millis));
        let found = queued("ledbat_plus_plus", &[("target", &target_text)], path) * 1e3;
        println!("{found:.2} of {target} ms at {path:?}");
        assert!((found / f64::from(target) - 1.0).abs() < 0.05, "{found} of {target} ms at {path:?}");
    }
}
