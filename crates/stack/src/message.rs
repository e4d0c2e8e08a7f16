//! Messages on their way into and out of a stack, and the pool that their bytes come from.

use haul_base::{Span, Time};

use crate::lazy_deque::LazyDeque;

/// What becomes of a message at a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Verdict {
    /// It goes on.
    #[default]
    Pass,
    /// It goes no further, on purpose (suppressed, too late).
    Drop,
    /// The handler has taken a copy and will deliver it later.
    Held,
}

/// A message that the user hands over.
#[derive(Debug)]
pub struct Submission<'m> {
    /// Its number: counted from 0 in each direction.
    pub id: u64,
    /// Contents of the message.
    pub data: &'m [u8],
    /// Smaller is sooner; messages of one priority keep their order.
    pub priority: u8,
    /// It is worth nothing after this time.
    pub deadline: Option<Time>,
    /// What becomes of it.
    pub verdict: Verdict,
}

/// How a message is to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendOptions {
    /// Smaller is sooner (with `priority` in the recipe).
    pub priority: u8,
    /// It is worth nothing so long after now (with `deadline` in the recipe).
    pub lifetime: Option<Span>,
}

/// A message for the user.
#[derive(Debug)]
pub struct Delivery<'m> {
    /// Its number at the sender, if the recipe carries one.
    pub id: u64,
    /// Contents of the message.
    pub data: &'m [u8],
    /// What becomes of it.
    pub verdict: Verdict,
}

/// A message that waits to be cut into packets.
#[derive(Debug)]
pub struct Outgoing {
    /// Number of the message.
    pub id: u64,
    /// Smaller is sooner.
    pub priority: u8,
    /// It is worth nothing after this time.
    pub deadline: Option<Time>,
    /// Contents of the message.
    pub data: Buffer,
    /// How many of them have left.
    pub sent: usize,
}

/// Where the user's end of a stack takes messages. Called on the data path: it must not block, nor use the connection
/// that calls it, which is locked.
pub trait MessageSink: Send {
    /// A whole message.
    fn message(&mut self, now: Time, id: u64, data: &[u8]);
}

/// Where messages come from without being queued: they are written straight into the packet that carries them.
/// Called on the data path: it must not block, nor use the connection that calls it, which is locked.
pub trait MessageSource: Send {
    /// Writes the next message, of at most `into.len()` bytes, and returns its length; `None` if there is none now.
    fn next(&mut self, now: Time, into: &mut [u8]) -> Option<usize>;

    /// Bytes that every message has, if they are equal: then packets are no larger than need be.
    fn message_len(&self) -> usize;
}

/// Bytes from a [`Pool`].
#[derive(Debug, Default)]
pub struct Buffer(Vec<u8>);

impl std::ops::Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl std::ops::DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Buffer {
    /// Adds bytes at the end.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Makes it so long, with zeros where it grows.
    pub fn resize(&mut self, len: usize) {
        self.0.resize(len, 0);
    }
}

/// Buffers that are used again, as in wu-h-ctp section 3.2 ("memory reuse").
#[derive(Debug)]
#[expect(clippy::box_collection, reason = "the point is the size of a pool that nothing has come back to")]
pub struct Pool {
    /// Made by the first that comes back.
    free: Option<Box<Vec<Buffer>>>,
    keep: usize,
}

impl Pool {
    /// A pool that keeps at most so many free buffers; with 0 every buffer is allocated anew.
    pub fn new(keep: usize) -> Self {
        Self { free: None, keep }
    }

    /// An empty buffer with room for `capacity` bytes.
    pub fn get(&mut self, capacity: usize) -> Buffer {
        let mut buffer = self.free.as_mut().and_then(|free| free.pop()).unwrap_or_default();
        buffer.0.clear();
        buffer.0.reserve_exact(capacity);
        buffer
    }

    /// A buffer of `len` bytes that are to be written over: what they hold is left of earlier ones, or zero.
    pub fn get_used(&mut self, len: usize) -> Buffer {
        let mut buffer = self.free.as_mut().and_then(|free| free.pop()).unwrap_or_default();
        buffer.0.truncate(len);
        buffer.0.resize(len, 0);
        buffer
    }

    /// A buffer with a copy of `bytes`.
    pub fn copy(&mut self, bytes: &[u8]) -> Buffer {
        let mut buffer = self.get(bytes.len());
        buffer.extend(bytes);
        buffer
    }

    /// Lets go of what is kept.
    pub(crate) fn clear(&mut self) {
        self.free = None;
    }

    /// Takes a buffer back.
    pub fn put(&mut self, buffer: Buffer) {
        if self.keep == 0 {
            return;
        }
        let free = self.free.get_or_insert_default();
        if free.len() < self.keep {
            free.push(buffer);
        }
    }
}

/// Messages that wait for the net, by priority and then in order.
#[derive(Debug, Default)]
pub struct SendQueue {
    messages: LazyDeque<Outgoing>,
    bytes: usize,
}

impl SendQueue {
    /// Bytes that have not left yet.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Messages that have not left entirely.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Queues a message behind those of its priority. One that has begun to leave is not overtaken.
    pub fn push(&mut self, message: Outgoing) {
        self.bytes += message.data.len();
        let goes_first = |other: &Outgoing| other.sent > 0 || other.priority <= message.priority;
        let messages = self.messages.get_mut();
        let behind = messages.iter().rposition(goes_first).map_or(0, |at| at + 1);
        messages.insert(behind, message);
    }

    /// The message to be cut next.
    pub fn front(&self) -> Option<&Outgoing> {
        self.messages.front()
    }

    /// Notes that `bytes` of the first message were put into a packet; returns the message when all of it was.
    pub fn sent(&mut self, bytes: usize) -> Option<Outgoing> {
        let front = self.messages.front_mut()?;
        front.sent += bytes;
        self.bytes -= bytes;
        if front.sent < front.data.len() { None } else { self.messages.pop_front() }
    }

    /// Gives memory back if nothing waits.
    pub(crate) fn release_idle(&mut self) {
        self.messages.release_idle();
    }

    /// Takes out the messages that have not begun to leave and are `unwanted`.
    pub fn remove(&mut self, mut unwanted: impl FnMut(&Outgoing) -> bool, mut each: impl FnMut(Outgoing)) {
        if self.is_empty() {
            return;
        }
        let messages = self.messages.get_mut();
        // Each message is moved once, however many go.
        for _ in 0..messages.len() {
            let Some(message) = messages.pop_front() else { return };
            if message.sent > 0 || !unwanted(&message) {
                messages.push_back(message);
            } else {
                self.bytes -= message.data.len();
                each(message);
            }
        }
    }
}

/// Messages that have come and wait to be taken, with their numbers.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    messages: LazyDeque<(u64, Buffer)>,
    bytes: usize,
}

impl Inbox {
    /// Bytes of all messages; it is asked for whenever packets come.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(crate) fn push(&mut self, id: u64, data: Buffer) {
        self.bytes += data.len();
        self.messages.push_back((id, data));
    }

    pub(crate) fn pop(&mut self) -> Option<(u64, Buffer)> {
        let message = self.messages.pop_front()?;
        self.bytes -= message.1.len();
        Some(message)
    }

    /// Gives memory back if nothing waits.
    pub(crate) fn release_idle(&mut self) {
        self.messages.release_idle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(id: u64, priority: u8) -> Outgoing {
        Outgoing { id, priority, deadline: None, data: Buffer(vec![0; 10]), sent: 0 }
    }

    fn order(queue: &SendQueue) -> Vec<u64> {
        queue.messages.iter().map(|m| m.id).collect()
    }

    #[test]
    fn the_urgent_overtake_but_nothing_overtakes_what_has_begun() {
        let mut queue = SendQueue::default();
        for (id, priority) in [(0, 1), (1, 1), (2, 0), (3, 2), (4, 0)] {
            queue.push(message(id, priority));
        }
        assert_eq!(order(&queue), [2, 4, 0, 1, 3]);
        assert!(queue.sent(4).is_none());
        queue.push(message(5, 0));
        assert_eq!(order(&queue), [2, 4, 5, 0, 1, 3]);
        assert_eq!(queue.sent(6).unwrap().id, 2);
        assert_eq!(queue.bytes(), 50);
    }

    #[test]
    fn only_what_has_not_begun_can_be_removed() {
        let mut queue = SendQueue::default();
        (0..3).for_each(|id| queue.push(message(id, 0)));
        queue.sent(1);
        let mut gone = Vec::new();
        queue.remove(|_| true, |m| gone.push(m.id));
        assert_eq!((gone, order(&queue), queue.bytes()), (vec![1, 2], vec![0], 9));
    }

    /// With a move of the queue for each message that goes, this takes minutes.
    #[test]
    fn half_of_a_long_queue_goes_in_one_pass_and_the_rest_keeps_its_order() {
        const MESSAGES: u64 = 1_000_000;
        let mut queue = SendQueue::default();
        let message = |id| Outgoing { data: Buffer::default(), ..message(id, 0) };
        (0..MESSAGES).for_each(|id| queue.push(message(id)));
        let mut gone = 0;
        queue.remove(|message| message.id % 2 == 1, |_| gone += 1);
        assert_eq!((gone, queue.len() as u64), (MESSAGES / 2, MESSAGES / 2));
        assert!(queue.messages.iter().map(|m| m.id).eq((0..MESSAGES).step_by(2)));
    }

    #[test]
    fn an_inbox_knows_its_bytes() {
        let mut inbox = Inbox::default();
        inbox.push(0, Buffer(vec![0; 10]));
        inbox.push(1, Buffer(vec![0; 7]));
        assert_eq!((inbox.bytes(), inbox.len()), (17, 2));
        assert_eq!((inbox.pop().unwrap().0, inbox.bytes()), (0, 7));
        inbox.pop();
        assert_eq!((inbox.pop().is_none(), inbox.bytes()), (true, 0));
    }

    #[test]
    fn a_pool_gives_back_what_it_was_given_unless_it_keeps_nothing() {
        for (keep, reused) in [(4, true), (0, false)] {
            let mut pool = Pool::new(keep);
            let buffer = pool.copy(&[1; 1_000]);
            pool.put(buffer);
            assert_eq!(pool.free.as_ref().is_some_and(|free| free.len() == 1), reused);
            assert!(pool.get(10).is_empty());
            pool.put(Buffer(vec![1; 10]));
            assert_eq!((pool.get_used(20).len(), pool.get_used(5).len()), (20, 5));
        }
    }
}
