//! Both ends of a connection with a path between them in virtual time: opening, messages, a client whose
//! address changes, keep-alives and closes, cut anywhere.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use haul_base::{Bytes, Ecn, Machine, PathId, Received, Rng, Span, Time};
use haul_proto::connection::{
    ConnectionKeys, ConnectionOptions, ConnectionState, Failure, FrameKeys, Header, Keys, Outgoing,
    PacketVerdict, PeerAddress, ResumptionSecret, ResumptionState, Role, compile,
};
use haul_proto::micro::registry;
use haul_proto::presets::preset;
use haul_stack::{Ends, Recipe, RecipeError, SendOptions};
use haul_wire::control::Cipher;
use haul_wire::packet::{
    CloseReason, ConnectionId, ControlFrame, ControlFrameKind, DatagramKind, INITIAL_HEADER_LEN,
    InitialHeader,
};
use proptest::prelude::*;

use crate::promises::cases;

const KEY: [u8; 32] = [6; 32];
const DURATION: Span = Span::from_secs(300);
const OPENING: Span = Span::from_secs(10);

fn server_address() -> SocketAddr {
    ([198, 51, 100, 1], 2640).into()
}

fn message(number: usize) -> Vec<u8> {
    vec![number as u8; 1 + number * 37 % 1_000]
}

fn client_address(moves: u16) -> SocketAddr {
    ([192, 0, 2, 7], 5000 + moves).into()
}

/// What a case does, by the time since its start.
#[derive(Clone, Debug)]
struct Case {
    preset: &'static str,
    seed: u64,
    loss: f64,
    duplicate: f64,
    delay: Span,
    spread: Span,
    /// When each message is sent; the server returns each one.
    messages: Vec<Span>,
    /// When the client's NAT assigns it another address.
    moves: Vec<Span>,
    /// Nothing sent during this time arrives.
    outage: Range<Span>,
    /// The server's application does not read during this time.
    pause: Range<Span>,
    /// Bytes of messages that each end queues for its application.
    inbox: u64,
    keep_alive: Option<Span>,
    /// When an end changes the recipe: the parts if true, else parameters.
    changes: Vec<(Span, Role, bool)>,
    /// When an end closes, and whether it first waits until everything has arrived.
    close: (Role, Span, bool),
}

struct End {
    state: ConnectionState<Failure>,
    keys: Keys,
    received: Vec<Vec<u8>>,
    is_closing: bool,
    /// Whether all it had sent had arrived when it closed.
    is_complete: bool,
    /// Messages sent.
    messages: usize,
}

struct InTransit {
    bytes: Vec<u8>,
    from: SocketAddr,
    to: SocketAddr,
}

struct World {
    now: Time,
    case: Case,
    rng: Rng,
    resumption: [ResumptionState; 2],
    id: ConnectionId,
    client: End,
    server: Option<End>,
    moves: u16,
    in_transit: BinaryHeap<Reverse<(Time, u64)>>,
    datagrams: Vec<Option<InTransit>>,
    sent: usize,
    orders: usize,
    /// Changes begun.
    changes: usize,
    /// Whether the server's application reads again after its pause.
    has_resumed: bool,
}

/// Returns a recipe that the present one can be changed to.
fn changed(recipe: &Recipe, parts: bool) -> Recipe {
    let mut recipe = recipe.clone();
    if !parts {
        let rate =
            if recipe.text("fixed_rate", "rate").as_deref() == Some("3Mbit") { "5Mbit" } else { "3Mbit" };
        registry().set(&mut recipe, "fixed_rate.rate", rate).unwrap();
        return recipe;
    }
    if recipe.has("statistics") {
        return recipe.without("statistics");
    }
    recipe.without("seal").with("statistics").with("seal")
}

fn resumption(role: Role, recipe: &str, round_trip: Span) -> ResumptionState {
    let cipher = Cipher::Aes128Gcm;
    let compiled = compile(&Arc::new(registry()), &preset(recipe).unwrap().unwrap(), cipher).unwrap();
    let secret = ResumptionSecret([1; 32].into());
    ResumptionState { role, identity: 7, secret, cipher, compiled, round_trip }
}

fn begin(now: Time, known: &ResumptionState, id: ConnectionId, peer: PeerAddress, case: &Case) -> End {
    let keys = ConnectionKeys::new(&known.secret, &id, known.role);
    let keep_alive = case.keep_alive.map(Duration::from);
    let inbox = Bytes(case.inbox);
    let options = ConnectionOptions { keep_alive, inbox, ..ConnectionOptions::default() };
    let state = ConnectionState::begin(now, known, &keys, peer, OPENING, &options, Ends::default());
    let (state, keys) = (state.unwrap(), Keys::Resumable(keys));
    End { state, keys, received: Vec::new(), is_closing: false, is_complete: false, messages: 0 }
}

impl End {
    /// Sends what is pending, as a driver does after each input.
    fn process(&mut self, now: Time) -> Vec<Outgoing> {
        let mut out = Vec::new();
        self.state.transmit_at = None;
        if !self.state.lifecycle.is_ended() && self.state.peer.validated().is_some() {
            let mut slot = vec![0; 65_536];
            while let Some(sent) = self.state.stack.poll_transmit(now, &mut slot) {
                let is_opening = self.state.lifecycle.on_transmit(now);
                for packet in slot[..sent.len].chunks(sent.segment_size.max(1)) {
                    let header = is_opening.then(|| self.keys.frames().initial_header());
                    let datagram = header.iter().flatten().chain(packet).copied().collect();
                    out.push((datagram, self.state.peer.at));
                }
            }
        }
        out.extend(self.state.take_events(now, &self.keys).1);
        out
    }

    fn on_packets(&mut self, now: Time, data: &mut [u8], from: SocketAddr, header: Header) -> Vec<Outgoing> {
        let stride = data.len();
        let (path, ecn) = (PathId::default(), Ecn::NotEct);
        let mut received = Received { data, stride, arrival: None, path, ecn, socket_drops: None };
        let verdict = self.state.on_packets(now, &self.keys, &KEY, &mut received, (from, header));
        let mut out: Vec<_> = match verdict {
            PacketVerdict::Consumed(challenge) => challenge.into_iter().collect(),
            PacketVerdict::Unauthentic => Vec::new(),
            PacketVerdict::Ended | PacketVerdict::InboxFull => return Vec::new(),
        };
        if self.state.replies && self.state.stack.waiting_messages() > 0 {
            self.state.defer(now, None);
            out.extend(self.state.take_events(now, &self.keys).1);
        } else {
            out.extend(self.process(now));
        }
        out
    }

    fn on_frame(&mut self, now: Time, frame: &ControlFrame, from: SocketAddr) -> Vec<Outgoing> {
        let answer = self.state.on_frame(now, &self.keys, &KEY, frame, from);
        answer.into_iter().chain(self.process(now)).collect()
    }

    fn on_deadline(&mut self, now: Time) -> Vec<Outgoing> {
        let mut out = Vec::new();
        if !self.state.lifecycle.is_over() {
            out = if self.state.on_deadline(now) {
                self.process(now)
            } else {
                self.state.take_events(now, &self.keys).1.into_iter().collect()
            };
            out.extend(self.state.due_frames(now, &self.keys));
        }
        self.state.release_if_idle(now);
        out
    }

    fn send(&mut self, now: Time, body: &[u8]) -> Vec<Outgoing> {
        if self.state.lifecycle.is_closing() {
            return Vec::new();
        }
        self.state.stack.send(now, body, SendOptions::default()).unwrap();
        self.messages += 1;
        self.state.on_message_sent(now);
        self.process(now)
    }

    /// Changes the recipe, unless a change is in progress or the connection is closing.
    fn change(&mut self, now: Time, parts: bool) -> Vec<Outgoing> {
        let recipe = changed(self.state.stack.recipe(), parts);
        let begun = self.state.stack.reconfigure(now, &recipe);
        assert!(matches!(begun, Ok(()) | Err(RecipeError::Busy | RecipeError::Ended)), "{begun:?}");
        self.process(now)
    }

    fn close(&mut self, now: Time) -> Vec<Outgoing> {
        self.is_closing = true;
        self.is_complete = self.state.stack.outstanding() == 0;
        let reason = if self.is_complete { CloseReason::Graceful } else { CloseReason::Abort };
        let mut out = self.process(now);
        self.state.lifecycle.start_close(now, ControlFrameKind::Close, reason);
        out.extend(self.state.due_frames(now, &self.keys));
        out
    }

    fn is_over(&self) -> bool {
        self.state.lifecycle.is_over()
    }
}

impl World {
    fn new(case: Case) -> Self {
        let resumption =
            [Role::Client, Role::Server].map(|role| resumption(role, case.preset, case.delay * 2));
        let id = ConnectionId { identity: 7, epoch: 1, salt: 0 };
        let peer = PeerAddress { at: server_address(), moves: Some(0) };
        let client = begin(Time::ZERO, &resumption[0], id, peer, &case);
        Self {
            now: Time::ZERO,
            rng: Rng::from_seed(case.seed),
            resumption,
            id,
            client,
            server: None,
            moves: 0,
            in_transit: BinaryHeap::new(),
            datagrams: Vec::new(),
            sent: 0,
            orders: 0,
            changes: 0,
            has_resumed: false,
            case,
        }
    }

    fn enqueue(&mut self, from: Role, out: Vec<Outgoing>) {
        let source = if from == Role::Client { client_address(self.moves) } else { server_address() };
        for (bytes, to) in out {
            self.sent += 1;
            let age = self.now.since(Time::ZERO);
            if self.case.outage.contains(&age) || self.rng.chance(self.case.loss) {
                continue;
            }
            let copies = if self.rng.chance(self.case.duplicate) { 2 } else { 1 };
            for _ in 0..copies {
                let spread = Span::from_nanos(self.rng.below(self.case.spread.as_nanos().max(1)));
                let number = self.datagrams.len();
                self.in_transit.push(Reverse((self.now + self.case.delay + spread, number as u64)));
                self.datagrams.push(Some(InTransit { bytes: bytes.clone(), from: source, to }));
            }
        }
    }

    fn arrive(&mut self, number: u64) {
        let InTransit { mut bytes, from, to } = self.datagrams[number as usize].take().unwrap();
        if to == server_address() {
            let out = self.at_server(&mut bytes, from);
            self.enqueue(Role::Server, out);
            self.read(Role::Server);
        } else if to == client_address(self.moves) {
            let out = self.at_client(&mut bytes, from);
            self.enqueue(Role::Client, out);
            self.read(Role::Client);
        }
    }

    fn at_client(&mut self, bytes: &mut [u8], from: SocketAddr) -> Vec<Outgoing> {
        let now = self.now;
        match DatagramKind::of(bytes) {
            DatagramKind::ControlFrame => {
                let frame = ControlFrame::parse(bytes).unwrap();
                assert!(self.client.keys.frames().verifies(&frame));
                self.client.on_frame(now, &frame, from)
            }
            _ => self.client.on_packets(now, bytes, from, Header::Absent),
        }
    }

    /// Dispatches as a server's endpoint does, which opens the connection for the first initial header.
    fn at_server(&mut self, bytes: &mut [u8], from: SocketAddr) -> Vec<Outgoing> {
        let now = self.now;
        match DatagramKind::of(bytes) {
            DatagramKind::Initial => {
                let (header, _) = InitialHeader::parse(bytes).unwrap();
                let frames = FrameKeys::new(&self.resumption[1].secret, header.id, Role::Server);
                assert!(frames.verifies_initial(&header));
                let peer = PeerAddress { at: from, moves: None };
                let (known, id, case) = (&self.resumption[1], self.id, &self.case);
                let server = self.server.get_or_insert_with(|| begin(now, known, id, peer, case));
                let mut out = vec![server.state.on_header(&server.keys, &KEY, from)];
                let inner = &mut bytes[INITIAL_HEADER_LEN..];
                out.extend(match inner.len() {
                    0 => server.process(now),
                    _ => server.on_packets(now, inner, from, Header::Present),
                });
                out
            }
            DatagramKind::ControlFrame => {
                let frame = ControlFrame::parse(bytes).unwrap();
                let Some(server) = &mut self.server else { return Vec::new() };
                assert!(server.keys.frames().verifies(&frame));
                server.on_frame(now, &frame, from)
            }
            _ => {
                let Some(server) = &mut self.server else { return Vec::new() };
                server.on_packets(now, bytes, from, Header::Absent)
            }
        }
    }

    fn end(&mut self, role: Role) -> Option<&mut End> {
        if role == Role::Client { Some(&mut self.client) } else { self.server.as_mut() }
    }

    /// The application at this end reads all messages; the server's returns each.
    fn read(&mut self, role: Role) {
        let now = self.now;
        if role == Role::Server && self.case.pause.contains(&now.since(Time::ZERO)) {
            return;
        }
        while let Some(end) = self.end(role)
            && let Some((_, buffer)) = end.state.stack.recv()
        {
            let body = buffer.to_vec();
            end.state.stack.recycle(buffer);
            end.state.reply_pending = true;
            end.received.push(body.clone());
            if role == Role::Server {
                let out = end.send(now, &body);
                self.enqueue(role, out);
            }
        }
    }

    /// The application's next action, and the time of it.
    fn order(&mut self) {
        let now = self.now;
        let age = now.since(Time::ZERO);
        while self.orders < self.case.messages.len() && self.case.messages[self.orders] <= age {
            let body = message(self.orders);
            self.orders += 1;
            let out = self.client.send(now, &body);
            self.enqueue(Role::Client, out);
        }
        while let Some(at) = self.case.moves.get(usize::from(self.moves))
            && *at <= age
        {
            self.moves += 1;
        }
        while let Some(&(at, role, parts)) = self.case.changes.get(self.changes)
            && at <= age
        {
            self.changes += 1;
            let out = self.end(role).map_or_else(Vec::new, |end| end.change(now, parts));
            self.enqueue(role, out);
        }
        if age >= self.case.pause.end && !self.has_resumed {
            self.has_resumed = true;
            self.read(Role::Server);
        }
        let (role, at, waits) = self.case.close;
        if age >= at
            && let Some(end) = self.end(role)
            && !end.is_closing
            && (!waits || end.state.stack.outstanding() == 0 || end.is_over())
        {
            let out = end.close(now);
            self.enqueue(role, out);
        }
    }

    fn next(&self) -> Option<Time> {
        let at = |span: &Span| Time::ZERO + *span;
        let orders = [
            self.case.messages.get(self.orders).map(at),
            self.case.moves.get(usize::from(self.moves)).map(at),
            self.case.changes.get(self.changes).map(|(span, ..)| at(span)),
            Some(at(&self.case.pause.end)).filter(|_| !self.has_resumed),
            Some(at(&self.case.close.1)).filter(|at| *at > self.now),
        ];
        let ends = [Some(&self.client), self.server.as_ref()];
        let deadlines = ends.into_iter().flatten().filter_map(|end| end.state.deadline());
        let arrival = self.in_transit.peek().map(|Reverse((at, _))| *at);
        orders.into_iter().flatten().chain(deadlines).chain(arrival).min()
    }

    /// Runs until nothing is left to happen, or `until`.
    fn run(&mut self, until: Time) {
        let mut steps_now = 0;
        while let Some(at) = self.next().filter(|at| *at <= until) {
            steps_now = if at > self.now { 0 } else { steps_now + 1 };
            assert!(steps_now < 2_000, "no progress at {:?}", self.now);
            self.now = self.now.max(at);
            self.order();
            while let Some(&Reverse((at, number))) = self.in_transit.peek()
                && at <= self.now
            {
                self.in_transit.pop();
                self.arrive(number);
                self.order();
            }
            for role in [Role::Client, Role::Server] {
                let now = self.now;
                if let Some(end) = self.end(role)
                    && end.state.deadline().is_some_and(|at| at <= now)
                {
                    let out = end.on_deadline(now);
                    self.enqueue(role, out);
                }
                self.order();
            }
        }
    }
}

fn millis(range: Range<u64>) -> impl Strategy<Value = Span> {
    range.prop_map(Span::from_millis)
}

fn role() -> impl Strategy<Value = Role> {
    any::<bool>().prop_map(|is_client| if is_client { Role::Client } else { Role::Server })
}

fn sorted(times: impl Strategy<Value = Vec<Span>>) -> impl Strategy<Value = Vec<Span>> {
    times.prop_map(|mut times| {
        times.sort();
        times
    })
}

prop_compose! {
    fn any_case()(
        preset in prop::sample::select(vec!["msg", "sensor", "viz"]),
        seed in any::<u64>(),
        (loss, duplicate) in (prop_oneof![Just(0.0), 0.0..0.3], prop_oneof![Just(0.0), 0.0..0.2]),
        (delay, spread) in (millis(1..300), millis(0..40)),
        messages in sorted(prop::collection::vec(millis(0..20_000), 0..40)),
        moves in sorted(prop::collection::vec(millis(0..20_000), 0..4)),
        (from, len) in (millis(0..20_000), prop_oneof![Just(Span::ZERO), millis(0..6_000)]),
        (inbox, pause_from, pause) in (1_u64..20_000, millis(0..20_000), prop_oneof![Just(Span::ZERO), millis(0..30_000)]),
        keep_alive in prop::option::of(millis(50..3_000)),
        mut changes in prop::collection::vec((millis(0..25_000), role(), any::<bool>()), 0..6),
        close in (role(), millis(0..25_000), any::<bool>()),
    ) -> Case {
        let outage = from..from + len;
        let pause = pause_from..pause_from + pause;
        changes.sort_by_key(|(at, ..)| *at);
        Case { preset, seed, loss, duplicate, delay, spread, messages, moves, outage, pause, inbox, keep_alive, changes, close }
    }
}

fn check(case: &Case) -> Result<(), TestCaseError> {
    let mut world = World::new(case.clone());
    world.run(Time::ZERO + DURATION);
    let client = &world.client;
    let failures =
        (client.state.lifecycle.failure(), world.server.as_ref().map(|it| it.state.lifecycle.failure()));
    let pings = case.keep_alive.map_or(0, |every| DURATION.as_nanos() / every.as_nanos());
    // A full inbox drops data, which is repeated like lost data until the application reads.
    let unread = case.pause.end.saturating_sub(case.pause.start).as_micros() / 1_000;
    let bound = 500 + 60 * (case.messages.len() + case.changes.len()) + 3 * pings as usize + unread as usize;
    prop_assert!(world.sent < bound, "{} datagrams, {bound} expected", world.sent);
    // Each end that closes finishes closing.
    let (role, ..) = case.close;
    let closer = if role == Role::Client { Some(client) } else { world.server.as_ref() };
    if let Some(closer) = closer {
        prop_assert!(closer.is_over() || !closer.is_closing, "{role:?} has not ended, {failures:?}");
    }
    // A client repeats what is not acknowledged, also from another address.
    let is_repeated = (role, case.keep_alive, case.preset) == (Role::Client, None, "msg");
    // Opening has a deadline, which an outage may exceed.
    let is_opened = case.outage.is_empty() || !matches!(failures.0, Some(Failure::Unanswered(_)));
    if is_repeated && case.close.2 && case.loss == 0.0 && is_opened {
        prop_assert!(client.is_complete && client.state.lifecycle.failure().is_none(), "{failures:?}");
    }
    // Without losses no end fails, unless the client moves and misses the server's close, or its keep-alives
    // end before its new address is validated.
    let is_found = case.moves.is_empty()
        || role == Role::Client
            && case.moves.len() == 1
            && case.keep_alive.is_some_and(|every| every > case.delay * 4);
    if case.loss == 0.0 && case.outage.is_empty() && case.close.2 && is_found {
        prop_assert!(matches!(failures, (None, None | Some(None))), "{failures:?}");
    }
    // With keep-alives both ends notice.
    if case.keep_alive.is_some() {
        let is_over = client.is_over() && world.server.as_ref().is_none_or(End::is_over);
        prop_assert!(is_over, "keep-alives go on forever: {failures:?}");
    }
    // Every received message was sent, and none is received twice.
    let Some(server) = &world.server else { return Ok(()) };
    let [requested, answered] =
        [server, client].map(|end| end.received.iter().map(|body| body[0]).collect::<BTreeSet<_>>());
    prop_assert!(answered.is_subset(&requested));
    for end in [server, client] {
        prop_assert!(end.received.iter().all(|body| *body == message(usize::from(body[0]))));
    }
    prop_assert_eq!((requested.len(), answered.len()), (server.received.len(), client.received.len()));
    // With acknowledgements, an end that closes without a failure has had everything acknowledged.
    let (closer, arrived) = if role == Role::Client { (client, &requested) } else { (server, &answered) };
    if case.preset == "msg" && closer.is_complete && closer.state.lifecycle.failure().is_none() {
        prop_assert_eq!(arrived.len(), closer.messages);
    }
    Ok(())
}

/// The server has switched to the new recipe, and the client still asks for it, from another address.
#[test]
fn a_client_that_moves_before_it_learns_of_a_change_is_found() {
    let at = Span::from_millis;
    let case = Case {
        preset: "msg",
        seed: 0,
        loss: 0.0,
        duplicate: 0.0,
        delay: at(71),
        spread: at(34),
        messages: vec![at(320), at(320), at(10_069)],
        moves: vec![at(10_069)],
        outage: at(0)..at(0),
        pause: at(0)..at(0),
        inbox: 1 << 20,
        keep_alive: None,
        changes: vec![(at(471), Role::Server, false), (at(9_806), Role::Server, true)],
        close: (Role::Client, at(10_069), true),
    };
    check(&case).unwrap();
}

proptest! {
    #![proptest_config(cases(500))]
    #[test]
    fn both_ends_of_a_connection_end_wherever_it_is_interrupted(case in any_case()) {
        check(&case)?;
    }
}
