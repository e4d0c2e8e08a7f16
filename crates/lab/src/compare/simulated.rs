//! The simulated half.

use haul_base::{PathId, Rng, Span, Time};
use haul_sim::tcp::{
    BbrConfig, ControlKind, CubicConfig, MSS, TcpReceiver, TcpReceiverConfig, TcpSender, TcpSenderConfig,
    TcpStats,
};
use haul_sim::{Exit, FlowId, LinkId, NodeId, PacketInfo, Path, PathSpec, SessionNode, World};

use super::cases::{Law, PACKET, TcpCase, UdpCase};
use super::figures::{Arrivals, Sample, Series};
use crate::problem::Problem;
use crate::sim::ends::ClockedNode;

/// Sampling interval of TCP senders.
pub(super) const EVERY: Span = Span::from_millis(100);
const PORT: PathId = PathId(0);

fn wrong(error: impl std::fmt::Display) -> Problem {
    Problem::failed(error.to_string(), "")
}

fn control(law: Law, seed: u64) -> ControlKind {
    match law {
        Law::Reno => ControlKind::Reno,
        Law::Cubic => ControlKind::Cubic(CubicConfig::default()),
        Law::Bbr => ControlKind::Bbr(BbrConfig { seed, ..BbrConfig::default() }),
    }
}

/// Runs the flows of a case in virtual time. Each of several flows starts at a random time within the first
/// round trip: real flows never send at the same nanosecond, and simulated ones that do alternate for ever.
pub(super) fn tcp(case: &TcpCase, seed: u64) -> Result<Series, Problem> {
    let mut world = World::new(seed);
    let (forward, back) = case.paths();
    // As in the emulator: equal seeds drop the same packets, counted from the first.
    let forward = world.add_path("there", Path::new(&forward, seed).map_err(wrong)?);
    let back = world.add_link("back", &back).map_err(wrong)?;
    let mut senders = Vec::new();
    for (index, law) in case.laws.iter().enumerate() {
        let control = control(*law, world.seed_for(index as u64));
        let mut start = Time::ZERO;
        if case.laws.len() > 1 {
            let mut rng = Rng::from_seed(world.seed_for(1_000 + index as u64));
            start += Span::from_nanos(rng.below(case.rtt.as_nanos().max(1)));
        }
        senders.push(flow(&mut world, control, start, (forward, back))?);
    }
    let mut series = Series { flows: vec![Vec::new(); senders.len()] };
    let mut now = Time::ZERO;
    while now.since(Time::ZERO) <= case.time {
        world.run_until(now);
        for (samples, id) in series.flows.iter_mut().zip(&senders) {
            if let Some(node) = world.node::<ClockedNode<TcpSender>>(*id) {
                samples.push(sample(now, &node.machine().stats()));
            }
        }
        now += EVERY;
    }
    Ok(series)
}

fn flow(
    world: &mut World,
    control: ControlKind,
    start: Time,
    (forward, back): (LinkId, LinkId),
) -> Result<NodeId, Problem> {
    let sender = TcpSender::new(TcpSenderConfig::endless(control));
    let sender = world.add_node("sender", ClockedNode::new(start, SessionNode::new(sender)));
    let progress = |machine: &TcpReceiver| Some(machine.in_order() * u64::from(MSS));
    let receiver = SessionNode::new(TcpReceiver::new(TcpReceiverConfig::default())).with_progress(progress);
    let receiver = world.add_node("receiver", receiver);
    world.connect("data", (sender, PORT), (receiver, PORT), &[forward]).map_err(wrong)?;
    world.connect("acks", (receiver, PORT), (sender, PORT), &[back]).map_err(wrong)?;
    Ok(sender)
}

fn sample(now: Time, stats: &TcpStats) -> Sample {
    Sample {
        at_ns: now.as_nanos(),
        delivered: stats.delivered,
        sent: stats.sent,
        repeated: stats.repeated,
        srtt_ns: stats.srtt.map_or(0, Span::as_nanos),
        window: stats.window,
    }
}

/// Sends the packets of a case over its stages in virtual time.
pub(super) fn udp(case: &UdpCase, time: Span, seed: u64) -> Result<Arrivals, Problem> {
    udp_at(case, &case.offer.times(time, seed), seed)
}

/// Sends packets at the given times.
pub(super) fn udp_at(case: &UdpCase, times: &[Span], seed: u64) -> Result<Arrivals, Problem> {
    let mut path = Path::new(&PathSpec { stages: case.stages.clone() }, seed).map_err(wrong)?;
    let mut delays = Vec::with_capacity(times.len());
    let mut take = |at: Time, id: u64, exit: Exit| {
        if exit == Exit::Delivered
            && let Some(sent) = times.get(id as usize)
        {
            delays.push((id, at.since(Time::ZERO + *sent).as_nanos()));
        }
    };
    for (id, at) in times.iter().enumerate() {
        let now = Time::ZERO + *at;
        let (id, flow, ecn) = (id as u64, FlowId(0), haul_base::Ecn::NotEct);
        path.offer(now, PacketInfo { id, flow, bytes: PACKET, ecn });
        path.advance(now, &mut |at, parcel, exit| take(at, parcel.id(), exit));
    }
    while let Some(next) = path.next_event() {
        path.advance(next, &mut |at, parcel, exit| take(at, parcel.id(), exit));
    }
    Ok(Arrivals { sent: times.len() as u64, delays, ..Arrivals::default() })
}

#[cfg(test)]
mod tests {
    use super::super::cases;
    use super::*;

    #[test]
    fn a_flow_is_sampled_every_100_ms_and_its_counts_never_decrease() {
        let case = cases::tcp(Span::from_secs(2)).remove(0);
        let series = tcp(&case, 1).unwrap();
        assert_eq!(series.flows.len(), 1);
        assert_eq!(series.flows[0].len(), 21);
        assert!(series.flows[0].is_sorted_by(|a, b| a.delivered <= b.delivered && a.sent <= b.sent));
        assert_eq!(series, tcp(&case, 1).unwrap(), "equal seeds, equal runs");
    }

    #[test]
    fn an_overloaded_queue_drops_the_excess() {
        let case = cases::udp().into_iter().find(|case| case.name.ends_with("load 1.5")).unwrap();
        let arrivals = udp(&case, Span::from_secs(5), 3).unwrap();
        let loss = arrivals.measure(&case, cases::Measure::Loss);
        assert!((loss - 100.0 / 3.0).abs() < 0.1, "{loss}");
    }
}
