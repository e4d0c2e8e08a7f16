//! A stream over a lossy path with any recipe: messages on time, messages delivered, and the cost.

use haul_base::{Probability, Span, Time};
use haul_proto::config::FecConfig;
use haul_proto::presets;
use haul_sim::{BurstLossSpec, PathSpec, StageSpec};
use haul_stack::Recipe;

use super::exchange::{Exchange, ExchangeNode, Role, compiled};

/// Bytes of a message; one packet with any of the recipes here.
pub(crate) const MESSAGE: usize = 1_000;
/// Interval between messages: 50 Mbit/s.
pub(crate) const SPACING: Span = Span::from_micros(160);
/// Permitted delay in addition to that of the path.
pub(crate) const TIMEOUT: Span = Span::from_millis(5);

/// Result of a stream.
#[derive(Debug)]
pub(crate) struct StreamOutcome {
    /// Share of messages later than the path's delay plus [`TIMEOUT`], or lost.
    pub(crate) late: f64,
    /// Share of messages lost.
    pub(crate) lost: f64,
    /// 99.9 % quantile of the additional delay of delivered messages.
    pub(crate) p999: Span,
    /// Ratio of UDP payload to message bytes: with the stream, and against it.
    pub(crate) cost: (f64, f64),
}

/// `viz` or `msg`, with repair packets for each block of 20 data packets if requested. The rate does not
/// limit the stream.
pub(crate) fn recipe(preset: &str, repairs: Option<u8>) -> Recipe {
    let mut recipe: Recipe = presets::preset(preset).expect("it is shipped").expect("it is a recipe");
    haul_proto::micro::registry()
        .set(&mut recipe, "fixed_rate.rate", "200Mbit")
        .expect("a parameter of the recipe");
    match repairs {
        Some(repair) => recipe.with(FecConfig { data: 20, repair: repair.into(), ..FecConfig::default() }),
        None => recipe,
    }
}

fn share(p: f64) -> Probability {
    Probability::new(p).expect("a share")
}

/// Independent loss with this probability.
pub(crate) fn alone(p: f64) -> StageSpec {
    StageSpec::Loss(share(p))
}

/// Loss of the same share in runs with this mean length.
pub(crate) fn runs(p: f64, mean_run: f64) -> StageSpec {
    StageSpec::BurstLoss(BurstLossSpec { share: share(p), mean_run })
}

/// Sends `count` messages in one direction over a path with `loss` in both directions.
pub(crate) fn stream(seed: u64, recipe: &Recipe, rtt: Span, loss: &StageSpec, count: u32) -> StreamOutcome {
    let at = |n: u64| Time::ZERO + SPACING * n;
    let sent: Vec<_> = (0..u64::from(count)).map(|n| (at(n), vec![n as u8; MESSAGE])).collect();
    let parts = (Role::Sender { readings: sent.into_iter() }, Role::Receiver { received: Vec::new() });
    let path = PathSpec { stages: vec![loss.clone(), StageSpec::Delay(rtt / 2)] };
    let mut exchange = Exchange::new(seed, &compiled(recipe), rtt, &path, parts);
    exchange.run(SPACING * u64::from(count) + Span::from_secs(1), rtt * 20);
    let (first, second) = (exchange.end(exchange.first), exchange.end(exchange.second));
    assert_eq!(
        first.stack.stats().data_sent - first.stack.stats().data_resent,
        u64::from(count),
        "one packet each"
    );
    let Role::Receiver { received } = &second.role else { unreachable!("the second end receives") };
    let mut added: Vec<Span> = received.iter().map(|&(when, id, _)| when.since(at(id) + rtt / 2)).collect();
    added.sort_unstable();
    let cost = |end: &ExchangeNode| end.stack.stats().bytes_sent as f64 / (f64::from(count) * MESSAGE as f64);
    let of_all = |messages: usize| 1.0 - messages as f64 / f64::from(count);
    StreamOutcome {
        late: of_all(added.partition_point(|&added| added <= TIMEOUT)),
        lost: of_all(added.len()),
        p999: added[(added.len() * 999).div_ceil(1_000) - 1],
        cost: (cost(first), cost(second)),
    }
}

/// Probability that `fec` cannot repair a packet with independent loss of probability `p`: the packet itself
/// is lost, and of the others of its block of `data` and `repairs` at least as many as there are repairs.
pub(crate) fn loss_after_repair(p: f64, data: i32, repairs: i32) -> f64 {
    let others = data + repairs - 1;
    // Binomial distribution, term by term.
    let mut term = (1.0 - p).powi(others);
    let mut fewer = 0.0;
    for k in 0..repairs {
        fewer += term;
        term *= f64::from(others - k) / f64::from(k + 1) * p / (1.0 - p);
    }
    p * (1.0 - fewer)
}
