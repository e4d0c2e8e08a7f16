//! Sessions of `haul-proto` in a simulated world, with source and sink that check every byte.

#![expect(clippy::unwrap_used, reason = "test helpers: a panic fails the test")]

use std::sync::{Arc, LazyLock, Mutex};

use haul_base::{PathId, Piece, Probability, RangeSet, Rate, Span, Time};
use haul_proto::config::{Evidence, RateControlConfig};
use haul_proto::{
    Available, ControllerConfig, Link, ObjectSink, ObjectSource, Open, Receiver, ReceiverConfig,
    ReceiverEvent, Seal, Sender, SenderConfig, SenderEvent, SenderStats, Unauthentic, build_controller,
};
use haul_sim::{
    BottleneckSpec, BurstLossSpec, CorruptionSpec, Distribution, Effect, Ended, JitterSpec, Limit, LinkId,
    NodeId, Order, Outage, PathSpec, QueueSpec, ReorderingSpec, SessionNode, StageSpec, UDP_OVERHEAD, World,
};
use haul_stack::Recipe;

/// Tag with a checksum over the packet and its number: detects every corruption on the path.
#[derive(Debug)]
pub(crate) struct Checksum;

const TAG: usize = 8;

/// Eight bytes at a time: most of a simulation's time is spent here. Each step is a bijection, so a change of
/// one word always changes the result.
fn checksum(data: &[u8], pn: u64) -> [u8; TAG] {
    let step = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    let (words, rest) = data.as_chunks::<8>();
    let last = rest.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
    let words = words.iter().map(|&word| u64::from_ne_bytes(word));
    [pn].into_iter().chain(words).chain([last, data.len() as u64]).fold(0, step).to_be_bytes()
}

impl Seal for Checksum {
    fn tag_len(&self) -> usize {
        TAG
    }

    fn seal_batch(&mut self, batch: &mut [u8], stride: usize, _: usize, first_pn: u64) {
        for (i, packet) in batch.chunks_mut(stride).enumerate() {
            let at = packet.len() - TAG;
            let tag = checksum(&packet[..at], first_pn + i as u64);
            packet[at..].copy_from_slice(&tag);
        }
    }
}

impl Open for Checksum {
    fn open(&mut self, packet: &mut [u8], header_len: usize, pn: u64) -> Result<usize, Unauthentic> {
        let at = packet.len().checked_sub(TAG).filter(|&at| at >= header_len).ok_or(Unauthentic)?;
        if checksum(&packet[..at], pn) != packet[at..] {
            return Err(Unauthentic);
        }
        Ok(at - header_len)
    }
}

pub(crate) fn link() -> Link {
    Link::new(Box::new(Checksum), Box::new(Checksum), 0)
}

/// Period of the test object's contents: a prime, so that neither segments nor wrapped numbers are confused.
const PERIOD: usize = 65_521;

/// Returns at most `len` bytes of the test object from `offset` on.
fn contents(offset: u64, len: usize) -> &'static [u8] {
    static PERIODS: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let byte = |at: usize| ((at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8;
        (0..2 * PERIOD).map(|at| byte(at % PERIOD)).collect()
    });
    let start = (offset % PERIOD as u64) as usize;
    &PERIODS[start..start + len.min(PERIOD)]
}

/// State of a sink.
#[derive(Debug, Default)]
pub(crate) struct SinkState {
    ranges: RangeSet,
    delivered: u64,
    /// Number of parts with other contents than the object.
    wrong: u64,
    complete: Option<u64>,
    pub(crate) limit: u64,
}

struct Shared(Arc<Mutex<SinkState>>);

impl ObjectSink for Shared {
    fn deliver(&mut self, data: &[u8], pieces: &[Piece]) {
        let mut sink_state = self.0.lock().unwrap();
        for piece in pieces {
            let bytes = &data[piece.range.clone()];
            for (at, part) in (piece.offset..).step_by(PERIOD).zip(bytes.chunks(PERIOD)) {
                sink_state.wrong += u64::from(part != contents(at, part.len()));
            }
            let before = sink_state.ranges.total();
            sink_state.ranges.insert(piece.offset..piece.offset + bytes.len() as u64);
            assert_eq!(sink_state.ranges.total() - before, bytes.len() as u64, "bytes delivered twice");
            sink_state.delivered += bytes.len() as u64;
        }
    }

    fn limit(&mut self) -> u64 {
        self.0.lock().unwrap().limit
    }

    fn complete(&mut self, len: u64) {
        let mut sink_state = self.0.lock().unwrap();
        assert_eq!(sink_state.complete.replace(len), None, "completed twice");
    }
}

struct PatternSource {
    len: u64,
    released: u64,
}

impl ObjectSource for PatternSource {
    fn available(&mut self) -> Available {
        Available { upto: self.len, end: true }
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) {
        assert!(offset >= self.released, "read below what was released");
        assert!(offset + into.len() as u64 <= self.len);
        for (at, part) in (offset..).step_by(PERIOD).zip(into.chunks_mut(PERIOD)) {
            part.copy_from_slice(contents(at, part.len()));
        }
    }

    fn release(&mut self, offset: u64) {
        assert!(offset >= self.released);
        self.released = offset;
    }
}

/// Properties of a path in one direction.
#[derive(Clone, Debug)]
pub(crate) struct Channel {
    pub(crate) delay: Span,
    pub(crate) rate: Rate,
    pub(crate) queue: Span,
    pub(crate) loss: f64,
    /// Share of packets lost in runs, and the mean length of a run.
    pub(crate) burst_loss: Option<(f64, f64)>,
    pub(crate) duplicate: f64,
    pub(crate) reorder: f64,
    /// Maximum additional delay; packets keep their order.
    pub(crate) jitter: Span,
    pub(crate) corrupt: f64,
    pub(crate) truncate: f64,
    pub(crate) outages: Vec<Outage>,
    /// Maximum datagram size, UDP payload bytes.
    pub(crate) mtu: u32,
}

fn share(p: f64) -> Probability {
    Probability::new(p).unwrap()
}

impl Channel {
    pub(crate) fn clean(delay: Span, rate: Rate) -> Self {
        Self {
            delay,
            rate,
            queue: Span::from_millis(50),
            loss: 0.0,
            burst_loss: None,
            duplicate: 0.0,
            reorder: 0.0,
            jitter: Span::ZERO,
            corrupt: 0.0,
            truncate: 0.0,
            outages: Vec::new(),
            mtu: 1_472,
        }
    }

    /// Returns the stages without those that have no effect, so that batches stay whole where possible.
    pub(crate) fn spec(&self) -> PathSpec {
        let queue = QueueSpec::TailDrop(Limit::Time(self.queue));
        let corruption = |p, effect| StageSpec::Corruption(CorruptionSpec { share: share(p), effect });
        let late = Distribution::Uniform(Span::from_millis(5));
        let jitter = JitterSpec { delay: Distribution::Uniform(self.jitter), order: Order::Keep };
        let (lost, mean_run) = self.burst_loss.unwrap_or((0.0, 1.0));
        let bursts = BurstLossSpec { share: share(lost), mean_run };
        let stages = [
            (true, StageSpec::Mtu(self.mtu + UDP_OVERHEAD)),
            (!self.outages.is_empty(), StageSpec::Outages(self.outages.clone())),
            (true, StageSpec::Bottleneck(BottleneckSpec { rate: self.rate, queue })),
            (self.loss > 0.0, StageSpec::Loss(share(self.loss))),
            (self.burst_loss.is_some(), StageSpec::BurstLoss(bursts)),
            (self.corrupt > 0.0, corruption(self.corrupt, Effect::Flip)),
            (self.truncate > 0.0, corruption(self.truncate, Effect::Truncate)),
            (self.duplicate > 0.0, StageSpec::Duplication(share(self.duplicate))),
            (
                self.reorder > 0.0,
                StageSpec::Reordering(ReorderingSpec { share: share(self.reorder), extra: late }),
            ),
            (self.jitter > Span::ZERO, StageSpec::Jitter(jitter)),
            (true, StageSpec::Delay(self.delay)),
        ];
        PathSpec { stages: stages.into_iter().filter(|(used, _)| *used).map(|(_, stage)| stage).collect() }
    }
}

/// Sender and receiver of one object.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) sender: NodeId,
    pub(crate) receiver: NodeId,
    pub(crate) sink_state: Arc<Mutex<SinkState>>,
    len: u64,
}

pub(crate) type SenderNode = SessionNode<Sender>;
pub(crate) type ReceiverNode = SessionNode<Receiver>;

/// Parameters of a transfer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job<'a> {
    pub(crate) name: &'a str,
    pub(crate) len: u64,
    pub(crate) controller: &'a str,
    pub(crate) ceiling: Option<Rate>,
    pub(crate) rtt: Span,
    /// Offset up to which the receiver initially accepts bytes.
    pub(crate) limit: u64,
}

impl Session {
    /// Adds both machines of a job to a world, without connecting them.
    pub(crate) fn add(world: &mut World, job: Job<'_>) -> Self {
        let Job { len, rtt, .. } = job;
        let interval = Span::from_millis(2);
        let config = ControllerConfig { ceiling: job.ceiling, initial_rtt: rtt, feedback_interval: interval };
        let controller = build_controller(job.controller, &config).unwrap();
        let sink_state = Arc::new(Mutex::new(SinkState { limit: job.limit, ..SinkState::default() }));
        let source = Box::new(PatternSource { len, released: 0 });
        let sender_config =
            SenderConfig { initial_rtt: rtt, feedback_interval: interval, ..SenderConfig::default() };
        let receiver_config = ReceiverConfig {
            feedback_interval: interval,
            feedback_datagram: 1_200,
            silence: Span::from_secs(15),
        };
        let now = world.now();
        let sender = Sender::new(now, &sender_config, link(), source, controller, job.limit);
        let receiver = Receiver::new(now, receiver_config, link(), Box::new(Shared(sink_state.clone())));
        let sender = world.add_node(job.name, SessionNode::new(sender));
        let receiver = Self::add_receiver(world, job.name, receiver);
        Self { sender, receiver, sink_state, len }
    }

    fn add_receiver(world: &mut World, name: &str, receiver: Receiver) -> NodeId {
        let received = |machine: &Receiver| Some(machine.stats().object_bytes);
        let node = SessionNode::new(receiver).with_progress(received);
        world.add_node(&format!("{name} receiver"), node.with_host_sample(Receiver::on_host_sample))
    }

    /// As above, with machines of a recipe. A `cause_aware` sender without its own diagnosis gets the true
    /// causes of losses.
    pub(crate) fn of_recipe(world: &mut World, recipe: &Recipe, len: u64, rtt: Span) -> Self {
        let sink_state = Arc::new(Mutex::new(SinkState { limit: u64::MAX >> 16, ..SinkState::default() }));
        let source = Box::new(PatternSource { len, released: 0 });
        let sender_config = SenderConfig { initial_rtt: rtt, ..SenderConfig::default() };
        let receiver_config = ReceiverConfig {
            feedback_interval: Span::from_millis(2),
            feedback_datagram: 1_200,
            silence: Span::from_secs(15),
        };
        let (now, name) = (world.now(), recipe.name.as_str());
        let sender =
            Sender::of_recipe(now, recipe.clone(), &sender_config, link(), source, u64::MAX >> 16).unwrap();
        let sink = Box::new(Shared(sink_state.clone()));
        let receiver = Receiver::of_recipe(now, recipe, receiver_config, link(), sink).unwrap();
        let mut sender = SessionNode::new(sender);
        let law: Option<RateControlConfig> = recipe.configuration();
        if law.is_some_and(|law| law.cause_aware && law.diagnosis == Evidence::None) {
            sender = sender.with_verdict(Sender::on_verdict);
        }
        let sender = world.add_node(name, sender);
        let receiver = Self::add_receiver(world, name, receiver);
        Self { sender, receiver, sink_state, len }
    }

    pub(crate) fn sender<'a>(&self, world: &'a World) -> &'a Sender {
        world.node::<SenderNode>(self.sender).unwrap().machine()
    }

    pub(crate) fn receiver<'a>(&self, world: &'a World) -> &'a Receiver {
        world.node::<ReceiverNode>(self.receiver).unwrap().machine()
    }

    /// Returns when the sender learnt that all data had arrived.
    pub(crate) fn delivered_at(&self, world: &World) -> Option<Time> {
        let events = world.node::<SenderNode>(self.sender).unwrap().events();
        events.iter().find(|(_, event)| *event == SenderEvent::Delivered).map(|(at, _)| *at)
    }

    pub(crate) fn is_over(&self, world: &World) -> bool {
        let events = world.node::<ReceiverNode>(self.receiver).unwrap().events();
        self.delivered_at(world).is_some()
            && events.iter().any(|(_, event)| matches!(event, ReceiverEvent::Complete(_)))
    }

    /// Returns how often either side reported silence of its peer.
    pub(crate) fn silences(&self, world: &World) -> usize {
        let sender = world.node::<SenderNode>(self.sender).unwrap().events().iter();
        let receiver = world.node::<ReceiverNode>(self.receiver).unwrap().events().iter();
        sender.filter(|(_, event)| matches!(event, SenderEvent::Silent(_))).count()
            + receiver.filter(|(_, event)| matches!(event, ReceiverEvent::Silent(_))).count()
    }

    /// Returns the goodput in Mbit/s until the sender knows that all data have arrived.
    pub(crate) fn goodput(&self, world: &World) -> f64 {
        let time = self.delivered_at(world).expect("delivered").since(Time::ZERO);
        Rate::from_transfer(self.len, time).as_bps() as f64 / 1e6
    }

    /// Panics unless the object arrived complete, once and unchanged.
    pub(crate) fn assert_complete(&self, world: &World) {
        let sink_state = self.sink_state.lock().unwrap();
        assert_eq!(sink_state.complete, Some(self.len), "at {:?}: {:?}", world.now(), self.sender(world));
        assert_eq!(sink_state.wrong, 0);
        assert_eq!(sink_state.delivered, self.len);
        assert!(self.delivered_at(world).is_some(), "the sender does not know: {:?}", self.sender(world));
    }
}

/// One session over one path.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) world: World,
    pub(crate) session: Session,
    pub(crate) forward: LinkId,
    pub(crate) back: LinkId,
}

impl Run {
    pub(crate) fn new(
        seed: u64,
        len: u64,
        controller: &str,
        ceiling: Option<Rate>,
        forth: &Channel,
        back: &Channel,
    ) -> Self {
        Self::with_limit(seed, len, (controller, ceiling), forth, back, u64::MAX >> 16)
    }

    /// As `new`; the receiver initially accepts only bytes below `limit`.
    pub(crate) fn with_limit(
        seed: u64,
        len: u64,
        (controller, ceiling): (&str, Option<Rate>),
        forth: &Channel,
        back: &Channel,
        limit: u64,
    ) -> Self {
        println!("seed {seed}");
        let mut world = World::new(seed);
        let rtt = forth.delay + back.delay;
        let session = Session::add(&mut world, Job { name: "bulk", len, controller, ceiling, rtt, limit });
        Self::over(world, session, forth, back)
    }

    /// A session of a recipe over the same path in both directions.
    pub(crate) fn of_recipe(seed: u64, recipe: &Recipe, len: u64, path: &Channel) -> Self {
        println!("seed {seed}");
        let mut world = World::new(seed);
        let session = Session::of_recipe(&mut world, recipe, len, path.delay * 2);
        Self::over(world, session, path, path)
    }

    fn over(mut world: World, session: Session, forth: &Channel, back: &Channel) -> Self {
        let forward = world.add_link("there", &forth.spec()).unwrap();
        let back = world.add_link("back", &back.spec()).unwrap();
        let port = PathId::default();
        world.connect("data", (session.sender, port), (session.receiver, port), &[forward]).unwrap();
        world.connect("feedback", (session.receiver, port), (session.sender, port), &[back]).unwrap();
        Self { world, session, forward, back }
    }

    /// Runs until both sides have finished or `cap` has passed.
    pub(crate) fn run(&mut self, cap: Span) -> Ended {
        let session = &self.session;
        let ended = self.world.run_while(Time::ZERO + cap, |world| !session.is_over(world));
        assert!(self.world.adds_up(), "{:#?}", self.world.summary());
        ended
    }

    pub(crate) fn assert_complete(&self) {
        self.session.assert_complete(&self.world);
    }

    pub(crate) fn sent(&self) -> SenderStats {
        self.session.sender(&self.world).stats()
    }

    pub(crate) fn elapsed(&self) -> Span {
        self.world.now().since(Time::ZERO)
    }
}
