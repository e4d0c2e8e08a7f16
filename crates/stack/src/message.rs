//! Messages sent and received by a stack, and the pool that their buffers come from.

use haul_base::{Span, Time};

use crate::lazy_deque::LazyDeque;

/// A handler's decision about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Verdict {
    /// The message is passed on.
    #[default]
    Pass,
    /// The message is dropped on purpose (suppressed, too late).
    Drop,
    /// The handler has copied the message and will deliver it later.
    Held,
}

/// A message submitted by the user.
#[derive(Debug)]
pub struct Submission<'m> {
    /// Message ID, counted from 0 in each direction.
    pub id: u64,
    /// Contents of the message.
    pub data: &'m [u8],
    /// Priority: lower values first; messages of one priority stay in order.
    pub priority: u8,
    /// Time after which the message is useless.
    pub deadline: Option<Time>,
    /// Decision of the handlers.
    pub verdict: Verdict,
}

/// Options for sending a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendOptions {
    /// Priority: lower values first (with `priority` in the recipe).
    pub priority: u8,
    /// Time after which the message is useless, from now on (with `deadline` in the recipe).
    pub lifetime: Option<Span>,
}

/// A message to be delivered to the user.
#[derive(Debug)]
pub struct Delivery<'m> {
    /// ID at the sender, if the recipe carries one.
    pub id: u64,
    /// Contents of the message.
    pub data: &'m [u8],
    /// Decision of the handlers.
    pub verdict: Verdict,
}

/// A queued message, to be segmented into packets.
#[derive(Debug)]
pub struct Outgoing {
    /// Message ID.
    pub id: u64,
    /// Priority: lower values first.
    pub priority: u8,
    /// Time after which the message is useless.
    pub deadline: Option<Time>,
    /// Contents of the message.
    pub data: Buffer,
    /// Bytes already put into packets.
    pub sent: usize,
}

/// Destination of received messages. Called on the data path: it must not block, nor use the connection that
/// calls it, which is locked.
pub trait MessageSink: Send {
    /// Accepts a whole message.
    fn message(&mut self, now: Time, id: u64, data: &[u8]);
}

/// Source of messages that are not queued: they are written directly into the packet that carries them.
/// Called on the data path: it must not block, nor use the connection that calls it, which is locked.
pub trait MessageSource: Send {
    /// Writes the next message, of at most `into.len()` bytes, and returns its length; `None` if there is
    /// none now.
    fn next(&mut self, now: Time, into: &mut [u8]) -> Option<usize>;

    /// Length of every message in bytes, so that packets are no larger than necessary; 0 if lengths vary.
    fn message_len(&self) -> usize;
}

/// A byte buffer from a [`Pool`].
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
    /// Appends bytes.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Resizes the buffer to `len` bytes; new ones are zero.
    pub fn resize(&mut self, len: usize) {
        self.0.resize(len, 0);
    }
}

/// A pool of reusable buffers (wu-h-ctp section 3.2, "memory reuse").
#[derive(Debug)]
#[expect(clippy::box_collection, reason = "an unused pool must be small")]
pub struct Pool {
    /// Allocated when the first buffer is returned.
    free: Option<Box<Vec<Buffer>>>,
    keep: usize,
}

impl Pool {
    /// Creates a pool that keeps at most `keep` free buffers; with 0, every buffer is newly allocated.
    pub fn new(keep: usize) -> Self {
        Self { free: None, keep }
    }

    /// Returns an empty buffer with a capacity of at least `capacity` bytes.
    pub fn get(&mut self, capacity: usize) -> Buffer {
        let mut buffer = self.free.as_mut().and_then(|free| free.pop()).unwrap_or_default();
        buffer.0.clear();
        buffer.0.reserve_exact(capacity);
        buffer
    }

    /// Returns a buffer of `len` bytes to be overwritten: they hold earlier contents or zeros.
    pub fn get_used(&mut self, len: usize) -> Buffer {
        let mut buffer = self.free.as_mut().and_then(|free| free.pop()).unwrap_or_default();
        buffer.0.truncate(len);
        buffer.0.resize(len, 0);
        buffer
    }

    /// Returns a buffer with a copy of `bytes`.
    pub fn copy(&mut self, bytes: &[u8]) -> Buffer {
        let mut buffer = self.get(bytes.len());
        buffer.extend(bytes);
        buffer
    }

    /// Frees the kept buffers.
    pub(crate) fn clear(&mut self) {
        self.free = None;
    }

    /// Returns a buffer to the pool.
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

/// Queue of messages to be sent, ordered by priority, then by submission.
#[derive(Debug, Default)]
pub struct SendQueue {
    messages: LazyDeque<Outgoing>,
    bytes: usize,
}

impl SendQueue {
    /// Bytes not yet put into packets.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Messages not yet put into packets entirely.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Queues a message after those of its priority. A message that is partly sent is not overtaken.
    pub fn push(&mut self, message: Outgoing) {
        self.bytes += message.data.len();
        let goes_first = |other: &Outgoing| other.sent > 0 || other.priority <= message.priority;
        let messages = self.messages.get_mut();
        let behind = messages.iter().rposition(goes_first).map_or(0, |at| at + 1);
        messages.insert(behind, message);
    }

    /// The message to be segmented next.
    pub fn front(&self) -> Option<&Outgoing> {
        self.messages.front()
    }

    /// Records that `bytes` of the first message were put into a packet; returns the message if that was all
    /// of it.
    pub fn sent(&mut self, bytes: usize) -> Option<Outgoing> {
        let front = self.messages.front_mut()?;
        front.sent += bytes;
        self.bytes -= bytes;
        if front.sent < front.data.len() { None } else { self.messages.pop_front() }
    }

    /// Frees the memory if the queue is empty.
    pub(crate) fn release_idle(&mut self) {
        self.messages.release_idle();
    }

    /// Removes the messages that are `unwanted` and of which nothing was sent, and calls `each` with them.
    pub fn remove(&mut self, mut unwanted: impl FnMut(&Outgoing) -> bool, mut each: impl FnMut(Outgoing)) {
        if self.is_empty() {
            return;
        }
        let messages = self.messages.get_mut();
        // Moves each message once, however many are removed.
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

/// Received messages that wait to be read, with their IDs.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    messages: LazyDeque<(u64, Buffer)>,
    bytes: usize,
}

impl Inbox {
    /// Bytes of all messages. Kept as a counter because it is read whenever packets arrive.
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

    /// Frees the memory if the inbox is empty.
    pub(crate) fn release_idle(&mut self) {
        self.messages.release_idle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counted_deque::moves;

    fn message(id: u64, priority: u8) -> Outgoing {
        Outgoing { id, priority, deadline: None, data: Buffer(vec![0; 10]), sent: 0 }
    }

    fn order(queue: &SendQueue) -> Vec<u64> {
        queue.messages.iter().map(|m| m.id).collect()
    }

    #[test]
    fn urgent_messages_overtake_only_unstarted_ones() {
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
    fn only_unstarted_messages_can_be_removed() {
        let mut queue = SendQueue::default();
        (0..3).for_each(|id| queue.push(message(id, 0)));
        queue.sent(1);
        let mut gone = Vec::new();
        queue.remove(|_| true, |m| gone.push(m.id));
        assert_eq!((gone, order(&queue), queue.bytes()), (vec![1, 2], vec![0], 9));
    }

    /// With one move of the queue per removed message, this takes minutes.
    #[test]
    fn removing_half_of_a_long_queue_takes_one_pass_and_keeps_the_order() {
        const MESSAGES: u64 = 1_000_000;
        let mut queue = SendQueue::default();
        let message = |id| Outgoing { data: Buffer::default(), ..message(id, 0) };
        (0..MESSAGES).for_each(|id| queue.push(message(id)));
        let mut gone = 0;
        queue.remove(|message| message.id % 2 == 1, |_| gone += 1);
        assert_eq!((gone, queue.len() as u64), (MESSAGES / 2, MESSAGES / 2));
        assert!(queue.messages.iter().map(|m| m.id).eq((0..MESSAGES).step_by(2)));
    }

    /// Removes every second one of this many messages; returns how often messages were moved.
    fn moves_of_a_removal(messages: u64) -> usize {
        let mut queue = SendQueue::default();
        (0..messages).for_each(|id| queue.push(message(id, 0)));
        let before = moves();
        queue.remove(|message| message.id % 2 == 1, drop);
        moves() - before
    }

    #[test]
    fn removing_half_of_a_tenfold_queue_moves_ten_times_as_many_messages() {
        let [few, many] = [1_000, 10_000].map(moves_of_a_removal);
        assert!(few >= 1_000, "the queue does not count its work: {few} moves");
        assert!(many <= 10 * few, "{few} moves of 1,000 messages, {many} of 10,000");
    }

    #[test]
    fn an_inbox_counts_its_bytes() {
        let mut inbox = Inbox::default();
        inbox.push(0, Buffer(vec![0; 10]));
        inbox.push(1, Buffer(vec![0; 7]));
        assert_eq!((inbox.bytes(), inbox.len()), (17, 2));
        assert_eq!((inbox.pop().unwrap().0, inbox.bytes()), (0, 7));
        inbox.pop();
        assert_eq!((inbox.pop().is_none(), inbox.bytes()), (true, 0));
    }

    #[test]
    fn a_pool_reuses_buffers_unless_its_capacity_is_zero() {
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
