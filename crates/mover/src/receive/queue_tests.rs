use haul_base::{Bytes, Rng};

use super::*;

fn queue(budget: u64) -> Arc<Queue> {
    Arc::new(Queue::new(budget, None, WakeSlot::default()))
}

fn push(queue: &Queue, offset: u64, bytes: &[u8]) -> bool {
    queue.push(bytes, &[Piece { offset, range: 0..bytes.len() }])
}

fn take(queue: &Arc<Queue>, known: u64) -> Option<Arc<BufferGuard>> {
    // Otherwise a short run is held back until more bytes arrive.
    queue.complete(0);
    match queue.take(known) {
        Work::Bytes(guard) => Some(guard),
        Work::Recheck | Work::Closed => None,
    }
}

#[test]
fn adjacent_pieces_become_one_run() {
    let queue = queue(1 << 30);
    for offset in [0, 10, 20, 40, 50] {
        push(&queue, offset, &[offset as u8; 10]);
    }
    let guard = take(&queue, 100).unwrap();
    assert_eq!(guard.runs(), [Run { offset: 0, range: 0..30 }, Run { offset: 40, range: 30..50 }]);
}

#[test]
fn bytes_of_unknown_files_wait_and_occupy_memory() {
    let queue = queue(1000);
    push(&queue, 500, &[1; 10]);
    assert!(take(&queue, 100).is_none());
    assert_eq!(queue.limit(), 1000);
    drop(take(&queue, 510).unwrap());
    assert_eq!(queue.limit(), 1010);
}

#[test]
fn a_piece_can_span_two_buffers() {
    let queue = queue(1 << 30);
    let bytes = vec![7; BUFFER + 5];
    push(&queue, 3, &bytes);
    assert_eq!(take(&queue, u64::MAX).unwrap().runs(), [Run { offset: 3, range: 0..BUFFER }]);
    assert_eq!(take(&queue, u64::MAX).unwrap().runs(), [Run { offset: 3 + BUFFER as u64, range: 0..5 }]);
}

#[test]
fn exceeding_the_budget_is_detected() {
    let queue = queue(100);
    assert!(push(&queue, 0, &[0; 100]));
    assert!(!push(&queue, 100, &[0; 1]));
}

#[test]
fn memory_is_freed_when_the_last_guard_is_dropped() {
    let queue = queue(100);
    push(&queue, 0, &[0; 50]);
    let guard = take(&queue, 100).unwrap();
    let held = guard.clone();
    drop(guard);
    assert_eq!(queue.limit(), 100);
    drop(held);
    assert_eq!(queue.limit(), 150);
}

#[test]
fn buffers_in_use_are_counted() {
    let queue = queue(100);
    push(&queue, 0, &[0; 50]);
    let first = take(&queue, 100).unwrap();
    assert!(first.in_use_at_most(1));
    push(&queue, 50, &[0; 50]);
    let second = take(&queue, 100).unwrap();
    assert!(!second.in_use_at_most(1) && second.in_use_at_most(2));
    drop(first);
    assert!(second.in_use_at_most(1));
}

#[test]
fn shuffled_pieces_are_reassembled() {
    let mut rng = Rng::from_seed(3);
    let object: Vec<u8> = (0..300_000u32).map(|i| (i / 7) as u8).collect();
    let mut offsets: Vec<usize> = (0..object.len()).step_by(1400).collect();
    for i in (1..offsets.len()).rev() {
        offsets.swap(i, rng.below(i as u64 + 1) as usize);
    }
    let queue = queue(1 << 30);
    for offset in offsets {
        let end = (offset + 1400).min(object.len());
        push(&queue, offset as u64, &object[offset..end]);
    }
    let mut back = vec![0; object.len()];
    while let Some(guard) = take(&queue, u64::MAX) {
        for run in guard.runs() {
            let at = run.offset as usize;
            back[at..at + run.range.len()].copy_from_slice(guard.bytes(run.range.clone()));
        }
    }
    assert_eq!(back, object);
}

/// The next work of the writer: its runs and their bytes.
fn taken(queue: &Arc<Queue>) -> (Vec<Run>, Vec<u8>) {
    let Work::Bytes(guard) = queue.take(u64::MAX) else { panic!("nothing to write") };
    let bytes = guard.runs().iter().flat_map(|run| guard.bytes(run.range.clone()).to_vec()).collect();
    (guard.runs().to_vec(), bytes)
}

#[test]
fn a_complete_unit_is_taken_as_one_run() {
    let queue = Arc::new(Queue::new(0, Some(Units::new(Bytes(100))), WakeSlot::default()));
    assert_eq!(queue.limit(), 200, "two units");
    for offset in [120, 60, 0, 80, 20, 40] {
        assert!(!queue.has_data());
        push(&queue, offset, &[offset as u8; 20]);
    }
    let (runs, bytes) = taken(&queue);
    assert_eq!(runs, [Run { offset: 0, range: 0..100 }]);
    assert!((0..100).all(|at| bytes[at] == at as u8 / 20 * 20));
    assert_eq!(queue.limit(), 300);
}

#[test]
fn an_incomplete_unit_is_taken_when_idle_and_its_rest_when_complete() {
    let queue = Arc::new(Queue::new(0, Some(Units::new(Bytes(100))), WakeSlot::default()));
    push(&queue, 30, &[1; 10]);
    push(&queue, 0, &[2; 20]);
    let (runs, bytes) = taken(&queue);
    assert_eq!(runs, [Run { offset: 0, range: 0..20 }, Run { offset: 30, range: 30..40 }]);
    assert_eq!(bytes, [[2; 20].as_slice(), &[1; 10]].concat());
    push(&queue, 40, &[3; 60]);
    assert!(!queue.has_data());
    push(&queue, 20, &[4; 10]);
    assert!(queue.has_data());
    assert_eq!(taken(&queue).1, [[4; 10].as_slice(), &[3; 60]].concat());
}
