//! Group transport: several senders of `viz` streams share a bottleneck to one receiver, which assigns a rate
//! to each.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};

use haul_base::{Rate, Span, Time};
use haul_proto::group::{Demand, QuotaAssigner, SenderId, max_min};
use haul_proto::{micro, presets};
use haul_sim::{
    BottleneckSpec, DropReason, Limit, LinkId, NodeId, PathSpec, QueueSpec, SessionNode, StageSpec, World,
};
use haul_stack::{CompiledStack, Ends, MessageSink, MessageSource, Recipe, Registry, Setup, Stack};

type Member = SessionNode<Stack>;

/// Capacity of the line including headers; the receiver assigns less, so that the queue stays empty.
const LINK_RATE: Rate = Rate::from_mbps(100);
const CAPACITY: Rate = Rate::from_mbps(90);
const DELAY: Span = Span::from_millis(20);
/// Five round-trip times.
const ROUND: Span = Span::from_millis(200);

/// Messages of 1,000 bytes, at most at the rate `demand`.
struct Stream {
    demand: Rate,
    sent: u64,
}

impl MessageSource for Stream {
    fn next(&mut self, now: Time, into: &mut [u8]) -> Option<usize> {
        let due = self.demand.bytes_in(now.since(Time::ZERO));
        (self.sent + 1_000 <= due).then(|| {
            self.sent += 1_000;
            into.fill(7);
            1_000
        })
    }

    fn message_len(&self) -> usize {
        1_000
    }
}

struct Discard;

impl MessageSink for Discard {
    fn message(&mut self, _: Time, _: u64, _: &[u8]) {}
}

struct Group {
    world: World,
    line: LinkId,
    assigner: Arc<Mutex<QuotaAssigner>>,
    /// Per sender: its node, its stack at the receiver, its ID at the assigner.
    members: Vec<(NodeId, NodeId, SenderId)>,
}

fn compiled(recipe: &Recipe) -> Arc<CompiledStack> {
    let registry: Registry = micro::registry();
    Arc::new(registry).compile(recipe, 0).unwrap()
}

fn fixed_rate() -> Recipe {
    let mut recipe = presets::preset("viz").unwrap().unwrap().without("seal");
    micro::registry().set(&mut recipe, "fixed_rate.rate", "1Mbit").unwrap();
    recipe
}

/// Returns the preset `name` with a control law instead of a fixed rate.
fn with_law(name: &str, law: &[(&str, &str)]) -> Recipe {
    let recipe = presets::preset(name).unwrap().unwrap().without("seal").without("fixed_rate");
    let mut recipe = recipe.with("receiver_report").with("rate_control");
    for (parameter, text) in law {
        micro::registry().set(&mut recipe, &format!("rate_control.{parameter}"), text).unwrap();
    }
    recipe
}

fn stack(compiled: &Arc<CompiledStack>, number: usize, source: Option<Stream>) -> Member {
    let ends = Ends {
        message_source: source.map(|source| Box::new(source) as Box<dyn MessageSource>),
        message_sink: Some(Box::new(Discard)),
        ..Ends::default()
    };
    let setup = Setup {
        initiator: ends.message_source.is_some(),
        identity: number as u32,
        initial_rtt: DELAY * 2,
        ends,
        ..Setup::new(Time::ZERO)
    };
    SessionNode::new(Stack::new(compiled.clone(), setup).unwrap())
}

impl Group {
    /// Creates senders with these demands and weights. Before the first round each may send 1 Mbit/s.
    fn new(seed: u64, demands: &[(Rate, u32)]) -> Self {
        Self::of_recipe(seed, &fixed_rate(), demands, LINK_RATE)
    }

    /// Runs without rounds, so that no rates are assigned.
    fn run_freely(&mut self, until: Time) {
        let mut now = self.world.now();
        while now < until {
            now += Span::from_millis(2);
            self.world.run_until(now);
            // Polls the sources.
            for (sender, ..) in &self.members {
                self.world.node_mut::<Member>(*sender).unwrap();
            }
        }
    }

    fn of_recipe(seed: u64, recipe: &Recipe, demands: &[(Rate, u32)], line: Rate) -> Self {
        println!("seed {seed}");
        let mut world = World::new(seed);
        let queue = QueueSpec::TailDrop(Limit::Time(Span::from_millis(20)));
        let bottleneck = StageSpec::Bottleneck(BottleneckSpec { rate: line, queue });
        let line =
            world.add_link("line", &PathSpec { stages: vec![bottleneck, StageSpec::Delay(DELAY)] }).unwrap();
        let back = world.add_link("back", &PathSpec { stages: vec![StageSpec::Delay(DELAY)] }).unwrap();
        let (compiled, mut assigner) = (compiled(recipe), QuotaAssigner::new(CAPACITY));
        let mut members = Vec::new();
        for (number, &(demand, weight)) in demands.iter().enumerate() {
            let sender = stack(&compiled, number, Some(Stream { demand, sent: 0 }));
            let sender = world.add_node(&format!("sender {number}"), sender);
            let receiver = world.add_node(&format!("receiver {number}"), stack(&compiled, number, None));
            world.connect_pair(&format!("stream {number}"), (sender, receiver), &[line], &[back]).unwrap();
            members.push((sender, receiver, assigner.add(NonZeroU32::new(weight).unwrap())));
        }
        Self { world, line, assigner: Arc::new(Mutex::new(assigner)), members }
    }

    /// Returns the bytes received from each sender.
    fn received(world: &World, members: &[(NodeId, NodeId, SenderId)]) -> Vec<u64> {
        let bytes = |member: &(NodeId, NodeId, SenderId)| {
            world.node::<Member>(member.1).unwrap().machine().stats().bytes_received
        };
        members.iter().map(bytes).collect()
    }

    /// Runs rounds until `until`; sources are polled every 2 ms.
    fn run(&mut self, until: Time) {
        let mut before = Self::received(&self.world, &self.members);
        let mut now = self.world.now();
        while now < until {
            let end = now + ROUND;
            while now < end {
                now += Span::from_millis(2);
                self.world.run_until(now);
                for (sender, ..) in &self.members {
                    self.world.node_mut::<Member>(*sender).unwrap();
                }
            }
            let received = Self::received(&self.world, &self.members);
            let rate = |at: usize| Rate::from_transfer(received[at] - before[at], ROUND);
            self.end_round(&rate);
            before = received;
        }
    }

    fn end_round(&mut self, rate: &dyn Fn(usize) -> Rate) {
        let now = self.world.now();
        let mut assigner = self.assigner.lock().unwrap();
        let old: Vec<_> = self.members.iter().map(|member| assigner.quota(member.2).unwrap()).collect();
        let place = |id| self.members.iter().position(|member| member.2 == id).unwrap();
        assigner.round(|id| rate(place(id)));
        for (&(_, receiver, id), old) in self.members.iter().zip(old) {
            let new = assigner.quota(id).unwrap();
            if new != old {
                self.world.node_mut::<Member>(receiver).unwrap().machine_mut().request_rate(now, new);
            }
        }
    }

    /// Returns the rate received from each sender over the next two seconds, Mbit/s.
    fn measure(&mut self) -> Vec<f64> {
        let before = Self::received(&self.world, &self.members);
        let span = Span::from_secs(2);
        self.run(self.world.now() + span);
        let after = Self::received(&self.world, &self.members);
        let mbps = |(a, b): (&u64, &u64)| Rate::from_transfer(a - b, span).as_bps() as f64 / 1e6;
        after.iter().zip(&before).map(mbps).collect()
    }
}

#[test]
fn shares_are_max_min_fair_and_nobody_starves() {
    let greedy = Rate::from_mbps(10_000);
    let demands = [
        (Rate::from_mbps(2), 1),
        (Rate::from_mbps(5), 1),
        (Rate::from_mbps(10), 1),
        (greedy, 1),
        (greedy, 1),
        (greedy, 1),
        (greedy, 2),
    ];
    let mut group = Group::new(41, &demands);
    // Four different demands: five rounds, and one for the initial rates.
    group.run(Time::ZERO + ROUND * 6);
    let rates = group.measure();
    // Messages are 1,000 bytes in packets of 1,025: satisfied senders use slightly more than their demand.
    let share = |rate: Rate| if rate == greedy { rate } else { rate.mul_f64(1.025) };
    let weight = |w| NonZeroU32::new(w).unwrap();
    let demands_with = |room: f64| {
        let demand =
            |&(demand, w): &(Rate, u32)| Demand { rate: share(demand).mul_f64(room), weight: weight(w) };
        demands.iter().map(demand).collect::<Vec<_>>()
    };
    let (exact, with_headroom) =
        (max_min(CAPACITY, &demands_with(1.0)), max_min(CAPACITY, &demands_with(1.125)));
    println!("Mbit/s: {rates:.2?}; max-min {exact:?}");
    for (at, rate) in rates.iter().enumerate() {
        let most = exact[at].as_bps() as f64 / 1e6;
        let least = exact[at].min(with_headroom[at]).as_bps() as f64 / 1e6;
        assert!((0.96 * least..=1.03 * most).contains(rate), "sender {at}: {rate}, fair {least} to {most}");
    }
    let drops = group.world.path(group.line).unwrap().counters().drops;
    assert_eq!(drops.of(DropReason::QueueFull), 0, "{drops:?}");
}

#[test]
fn unused_capacity_goes_to_the_other_senders() {
    let greedy = Rate::from_mbps(10_000);
    let mut group = Group::new(43, &[(greedy, 1), (greedy, 1), (greedy, 1)]);
    group.run(Time::ZERO + ROUND * 4);
    let before = group.measure();
    assert!(before.iter().all(|rate| (28.5..=30.5).contains(rate)), "{before:?}");
    let (_, receiver, gone) = group.members.remove(0);
    group.assigner.lock().unwrap().remove(gone);
    let now = group.world.now();
    group.world.node_mut::<Member>(receiver).unwrap().machine_mut().request_rate(now, Rate::ZERO);
    group.run(group.world.now() + ROUND * 2);
    let after = group.measure();
    assert!(after.iter().all(|rate| (43.0..=45.5).contains(rate)), "{after:?}");
}

/// No rates are assigned before the first round: together the senders start with the capacity of the line.
#[test]
fn senders_with_gtp_share_by_the_receivers_quotas() {
    let greedy = Rate::from_mbps(10_000);
    let recipe = with_law("viz", &[("controller", "gtp"), ("first_rate", "30Mbit")]);
    let mut group = Group::of_recipe(
        47,
        &recipe,
        &[(greedy, 1), (greedy, 1), (greedy, 2), (Rate::from_mbps(2), 1)],
        LINK_RATE,
    );
    group.run(Time::ZERO + ROUND * 20);
    let rates = group.measure();
    println!("Mbit/s: {rates:.2?}");
    // 90 minus 2.3 for the last sender, by weight.
    for (rate, fair) in rates.iter().zip([21.9, 21.9, 43.8, 2.05]) {
        assert!((0.93 * fair..=1.03 * fair).contains(rate), "{rates:?}");
    }
}

/// Without a law, senders of messages lose all that exceeds the capacity; with one they share it.
#[test]
fn messages_share_a_narrow_path_with_their_recipes_law() {
    let (line, greedy) = (Rate::from_mbps(10), Rate::from_mbps(50));
    for (name, law) in [("msg", "bbr"), ("msg", "reno"), ("viz", "bbr"), ("viz", "cubic"), ("sensor", "reno")]
    {
        let recipe = with_law(name, &[("controller", law)]);
        let mut group = Group::of_recipe(53, &recipe, &[(greedy, 1), (greedy, 1)], line);
        let mut marks = Vec::new();
        for until in [5, 35] {
            group.run_freely(Time::ZERO + Span::from_secs(until));
            let counters = group.world.path(group.line).unwrap().counters();
            marks.push((
                Group::received(&group.world, &group.members),
                counters.drops.of(DropReason::QueueFull),
            ));
        }
        let [(before, dropped_before), (after, dropped)] = &marks[..] else { panic!("two marks") };
        let shares: Vec<f64> =
            after.iter().zip(before).map(|(a, b)| (a - b) as f64 * 8.0 / 30.0 / 10e6).collect();
        let lost = (dropped - dropped_before) as f64 / (35_000.0 * shares.iter().sum::<f64>());
        println!("{name} with {law}: {shares:.2?} of the line, {lost:.3} lost");
        assert!(
            shares.iter().sum::<f64>() > 0.8 && shares.iter().all(|share| *share > 0.25),
            "{name}, {law}: {shares:?}"
        );
        assert!(lost < 0.05, "{name}, {law}: {lost}");
    }
}

#[test]
fn every_law_carries_messages() {
    for law in haul_proto::laws() {
        let recipe = with_law("msg", &[("controller", law.name), ("rate", "9Mbit")]);
        let demands = [(Rate::from_mbps(50), 1)];
        let mut group = Group::of_recipe(59, &recipe, &demands, Rate::from_mbps(10));
        group.run_freely(Time::ZERO + Span::from_secs(10));
        let before = Group::received(&group.world, &group.members)[0];
        group.run_freely(Time::ZERO + Span::from_secs(20));
        let after = Group::received(&group.world, &group.members)[0];
        let mbps = (after - before) as f64 * 8.0 / 10.0 / 1e6;
        println!("{}: {mbps:.2} of 9 Mbit/s", law.name);
        assert!(mbps > 5.0, "{}: {mbps}", law.name);
    }
}
