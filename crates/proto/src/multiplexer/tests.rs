use proptest::prelude::*;

use super::*;

const LIMITS: StreamLimits = StreamLimits { window: 1_000, most: 3, frame: 100 };

fn pair() -> [Multiplexer; 2] {
    [true, false].map(|initiator| Multiplexer::new(initiator, LIMITS))
}

/// Byte `at` of the direction of a stream written by `writer`.
fn byte(writer: usize, number: StreamId, at: u64) -> u8 {
    (at * 31 + u64::from(number) * 7 + writer as u64) as u8
}

/// What is known of one direction of a stream, from outside.
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
#[derive(Clone, Debug, Default)]
struct Direction {
    written: u64,
    read: u64,
    finished: bool,
    reset: bool,
    stopped: bool,
    ended: bool,
}

/// Two ends, the frames in flight between them, and the state of their applications.
struct World {
    ends: [Multiplexer; 2],
    /// Frames to each end, in any order.
    in_transit: [Vec<Vec<u8>>; 2],
    /// By writer and number. Both ends have the streams that they opened and accepted.
    directions: HashMap<(usize, StreamId), Direction>,
    known: [Vec<StreamId>; 2],
    messages: [(u64, u64); 2],
}

impl World {
    fn new() -> Self {
        Self {
            ends: pair(),
            in_transit: Default::default(),
            directions: HashMap::new(),
            known: Default::default(),
            messages: Default::default(),
        }
    }

    fn learn(&mut self, end: usize, number: StreamId) {
        self.known[end].push(number);
        self.directions.entry((0, number)).or_default();
        self.directions.entry((1, number)).or_default();
    }

    /// Sends the pending frames of an end.
    fn flush(&mut self, end: usize) {
        while let Some((pending, frame)) = self.ends[end].next_pending() {
            self.in_transit[1 - end].push(frame.to_bytes());
            self.ends[end].on_frame_sent(pending);
        }
    }

    /// Delivers one of the frames to this end.
    fn deliver(&mut self, end: usize, which: usize) -> bool {
        let frames = &mut self.in_transit[end];
        if frames.is_empty() {
            return false;
        }
        let frame = frames.swap_remove(which % frames.len());
        let frame = Frame::parse(&frame).expect("what an end sends is a frame");
        self.ends[end].on_frame(0, frame).expect("a correct end sends valid frames");
        true
    }

    fn write(&mut self, end: usize, number: StreamId, len: usize) {
        let Some(Ok((offset, room))) = self.ends[end].space(number) else { return };
        let direction = self.directions.get_mut(&(end, number)).unwrap();
        assert!(!direction.finished && !direction.reset && offset == direction.written);
        let bytes: Vec<u8> =
            (offset..offset + room.min(len as u64)).map(|at| byte(end, number, at)).collect();
        let frame = Frame::Data { stream: number, offset, last: false, bytes: &bytes };
        self.in_transit[1 - end].push(frame.to_bytes());
        self.ends[end].on_sent(number, bytes.len());
        direction.written += bytes.len() as u64;
    }

    /// Reads, and compares with what was written. Returns whether there was anything.
    fn read(&mut self, end: usize, number: StreamId, len: usize) -> bool {
        let mut into = vec![0; len + 1];
        let direction = self.directions.get_mut(&(1 - end, number)).unwrap();
        if direction.stopped || direction.ended {
            return false;
        }
        match self.ends[end].read(number, &mut into) {
            None => false,
            Some(Ok(0)) => {
                assert!(
                    direction.finished && direction.read == direction.written,
                    "a silent end: {direction:?}"
                );
                direction.ended = true;
                true
            }
            Some(Ok(read)) => {
                let at = direction.read..;
                assert!(into[..read].iter().zip(at).all(|(&got, at)| got == byte(1 - end, number, at)));
                direction.read += read as u64;
                assert!(direction.read <= direction.written);
                true
            }
            Some(Err(Aborted)) => {
                assert!(direction.reset);
                direction.ended = true;
                true
            }
        }
    }

    fn message(&mut self, end: usize) {
        if self.ends[end].reserve(&[end as u8; 40]).is_some() {
            self.in_transit[1 - end].push(Frame::Message(&[end as u8; 40]).to_bytes());
            self.messages[end].0 += 1;
        }
    }

    fn recv(&mut self, end: usize) -> bool {
        let Some((_, message)) = self.ends[end].message() else { return false };
        assert_eq!(message, [1 - end as u8; 40]);
        self.messages[1 - end].1 += 1;
        true
    }

    fn step(&mut self, (what, end, which, len): (u8, usize, usize, usize)) {
        let number = (!self.known[end].is_empty()).then(|| self.known[end][which % self.known[end].len()]);
        match (what, number) {
            (0, _) => {
                if let Some(number) = self.ends[end].open() {
                    self.learn(end, number);
                }
            }
            (1, _) => {
                if let Some(number) = self.ends[end].accept() {
                    self.learn(end, number);
                }
            }
            (2, _) => self.message(end),
            (3, _) => drop(self.recv(end)),
            (4..=6, _) => self.flush(end),
            (7..=12, _) => drop(self.deliver(end, which)),
            (13..=15, Some(number)) => self.write(end, number, len),
            (16..=18, Some(number)) => drop(self.read(end, number, len)),
            (19, Some(number)) => {
                let finished = self.ends[end].finish(number);
                self.directions.get_mut(&(end, number)).unwrap().finished |= finished;
            }
            (20, Some(number)) => {
                let direction = self.directions.get_mut(&(end, number)).unwrap();
                direction.reset |= !direction.finished;
                self.ends[end].reset(number);
            }
            (21, Some(number)) => {
                self.ends[end].stop(number);
                self.directions.get_mut(&(1 - end, number)).unwrap().stopped = true;
            }
            _ => {}
        }
        for end in &self.ends {
            assert!(end.streams.len() <= 2 * LIMITS.most as usize, "too many streams");
        }
    }

    /// Delivers and reads everything, and ends every stream.
    fn settle(&mut self) {
        loop {
            let mut changed = false;
            for end in 0..2 {
                self.flush(end);
                while self.deliver(end, 0) {
                    changed = true;
                }
                changed |= !self.in_transit[1 - end].is_empty();
                while let Some(number) = self.ends[end].accept() {
                    self.learn(end, number);
                }
                for number in self.known[end].clone() {
                    let finished = self.ends[end].finish(number);
                    self.directions.get_mut(&(end, number)).unwrap().finished |= finished;
                    changed |= finished;
                    while self.read(end, number, 77) {
                        changed = true;
                    }
                }
                while self.recv(end) {
                    changed = true;
                }
            }
            if !changed {
                return;
            }
        }
    }
}

proptest! {
    #[test]
    fn streams_and_messages_arrive_whole_whatever_order_frames_come_in(
        steps in proptest::collection::vec((0_u8..22, 0_usize..2, any::<usize>(), 1_usize..400), 0..300),
    ) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
        world.settle();
        for ((_, number), direction) in &world.directions {
            let is_over = direction.stopped || direction.ended;
            prop_assert!(is_over, "{number}: {direction:?}");
            prop_assert!(direction.reset || direction.stopped || direction.read == direction.written);
        }
        for end in &world.ends {
            // Nothing is left, and as many streams can be opened as at the start.
            prop_assert!(end.streams.is_empty() && end.gaps == 0 && end.unsent == 0, "{:?}", end);
            prop_assert_eq!(end.may_open - end.opened, LIMITS.most);
        }
        for (sent, received) in world.messages {
            prop_assert_eq!(sent, received);
        }
    }

    #[test]
    fn a_peer_that_sends_anything_gets_no_more_memory_than_the_limits(
        frames in proptest::collection::vec((0_u8..8, 0_u32..12, 0_u64..3_000, 0_usize..100), 0..300),
    ) {
        let mut end = Multiplexer::new(false, LIMITS);
        prop_assert!(end.open().is_some());
        let bytes = [7; 100];
        for (kind, number, offset, len) in frames {
            let frame = match kind {
                0 => Frame::Message(&bytes[..len]),
                1 | 2 => Frame::Data { stream: number, offset, last: kind == 2, bytes: &bytes[..len] },
                3 => Frame::Reset(number),
                4 => Frame::Stop(number),
                5 => Frame::StreamLimit { stream: number, limit: offset },
                6 => Frame::MessageLimit(offset),
                _ => Frame::Streams(number),
            };
            if end.on_frame(0, frame).is_err() {
                break;
            }
            while let Some((pending, _)) = end.next_pending() {
                end.on_frame_sent(pending);
            }
            prop_assert!(end.streams.len() <= LIMITS.most as usize + 1);
            prop_assert!(end.to_accept.len() <= LIMITS.most as usize);
            let waiting: usize = end.messages.received.iter().map(|(_, data)| data.len()).sum();
            prop_assert!(waiting as u64 <= LIMITS.window && end.messages.received.len() <= 16);
        }
    }
}

/// What the peer may not do, and the error.
#[test]
fn protocol_violations_are_detected() {
    let data = |stream, offset, last, bytes| Frame::Data { stream, offset, last, bytes };
    let (full, more) = ([1; 1_000], [1; 1_001]);
    let cases: &[(&[Frame<'_>], &str)] = &[
        (&[data(6, 0, false, b"x")], "more streams"),
        (&[Frame::Reset(6)], "more streams"),
        (&[data(2 * ((1 << 20) - 1), 0, true, b"")], "more streams"),
        (&[data(1, 0, false, b"x")], "not opened"),
        (&[Frame::Stop(1)], "not opened"),
        (&[data(0, 0, false, &more)], "not permitted"),
        (&[data(0, 0, false, &full), data(0, 1_000, false, b"x")], "not permitted"),
        (&[data(0, u64::MAX, false, b"x")], "not permitted"),
        (&[data(0, 10, true, b""), data(0, 10, false, b"x")], "not permitted"),
        (&[data(0, 10, true, b""), data(0, 11, true, b"")], "not permitted"),
        (&[data(0, 10, false, b"x"), data(0, 10, true, b"")], "not permitted"),
        (&[Frame::Message(&full)], "more messages"),
    ];
    for (frames, expected) in cases {
        let mut end = Multiplexer::new(false, LIMITS);
        let results: Vec<_> = frames.iter().map(|&frame| end.on_frame(0, frame)).collect();
        let (last, before) = results.split_last().unwrap();
        assert!(before.iter().all(Result::is_ok), "{frames:?}");
        assert!(last.unwrap_err().contains(expected), "{frames:?}: {last:?}");
    }
    // Every second byte: the ranges would use more memory than the bytes.
    let limits = StreamLimits { window: 1 << 20, ..LIMITS };
    let mut end = Multiplexer::new(false, limits);
    let mut holes = (1..).step_by(2).map(|offset| end.on_frame(0, data(0, offset, false, b"x")));
    let refused = holes.by_ref().take(1 << 17).position(|it| it.is_err());
    assert_eq!(refused, Some(MAX_GAPS + 1));
}

#[test]
fn an_empty_stream_ends_and_frees_its_number() {
    let [mut client, mut server] = pair();
    for round in 0..10 {
        let Some(number) = client.open() else { panic!("round {round}") };
        assert!(client.finish(number) && !client.finish(number));
        let (pending, frame) = client.next_pending().unwrap();
        server.on_frame(0, frame).unwrap();
        client.on_frame_sent(pending);
        assert!(matches!(server.accept(), Some(it) if it == number));
        assert!(matches!(server.read(number, &mut [0; 9]), Some(Ok(0))));
        assert!(server.finish(number));
        while let Some((pending, frame)) = server.next_pending() {
            client.on_frame(0, frame).unwrap();
            server.on_frame_sent(pending);
        }
        assert!(matches!(client.read(number, &mut [0; 9]), Some(Ok(0))));
        assert!(client.streams.is_empty() && server.streams.is_empty());
    }
}

/// Pending frames of finished streams cannot be sent while the peer acknowledges nothing.
#[test]
fn a_peer_that_cycles_streams_uses_bounded_memory() {
    let mut end = Multiplexer::new(false, LIMITS);
    let mut opened = 0;
    for index in 0..1_000 {
        let last = Frame::Data { stream: stream_id(index, true), offset: 0, last: true, bytes: b"" };
        if end.on_frame(0, last).is_err() {
            break;
        }
        opened += 1;
        let Some(number) = end.accept() else { panic!("no stream {index}") };
        assert!(matches!(end.read(number, &mut [0]), Some(Ok(0))) && end.finish(number));
        // It cannot be sent.
        let (pending, _) = end.next_pending().unwrap();
        end.requeue(pending);
    }
    assert!(
        opened <= LIMITS.most && end.pending.len() <= LIMITS.most as usize,
        "{opened} {}",
        end.pending.len()
    );
}

#[test]
fn operations_that_cannot_proceed_return_none() {
    let [mut client, _] = pair();
    let numbers: Vec<_> = (0..LIMITS.most).map(|_| client.open().unwrap()).collect();
    assert!(client.open().is_none() && client.accept().is_none());
    assert!(client.read(numbers[0], &mut [0]).is_none());
}

#[test]
fn changes_are_reported_exactly_once() {
    let [mut client, _] = pair();
    let changed = |client: &mut Multiplexer| client.take_changed().collect::<Vec<_>>();
    let full = [1; 400];
    assert!(client.message().is_none() && client.accept().is_none());
    assert!(client.reserve(&full).is_some() && client.reserve(&full).is_some());
    assert!(client.reserve(&full).is_none());
    assert_eq!(changed(&mut client), []);
    client.unreserve(&full);
    assert_eq!(changed(&mut client), [Wait::MessageRoom]);
    client.reset(0);
    assert!(client.flushed().is_some() && client.open().is_some());
    assert_eq!(changed(&mut client), []);
    client.reset(0);
    assert!(client.flushed().is_none());
    assert_eq!(changed(&mut client), [Wait::SendSpace(0)]);
    let (pending, _) = client.next_pending().unwrap();
    client.requeue(pending);
    assert_eq!(changed(&mut client), []);
    let (pending, _) = client.next_pending().unwrap();
    assert!(client.flushed().is_none(), "it was not sent");
    client.on_frame_sent(pending);
    assert_eq!(changed(&mut client), [Wait::Flushed]);
    client.on_frame(0, Frame::Message(b"x")).unwrap();
    assert_eq!(changed(&mut client), [Wait::Message]);
}
