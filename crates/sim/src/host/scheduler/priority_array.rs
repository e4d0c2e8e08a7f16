//! One queue per priority level and a bitmap of the levels that have tasks.

use std::collections::VecDeque;

use super::TaskId;

/// Priority levels: 0 to 99 for real time, 100 to 139 for other tasks (`MAX_PRIO` of `linux/sched.h`).
pub(super) const LEVELS: usize = 140;

/// Tasks by priority: lower numbers first, FIFO within a level.
#[derive(Clone, Debug)]
pub(super) struct PriorityArray {
    queues: Vec<VecDeque<TaskId>>,
    occupied: [u64; 3],
    tasks: usize,
}

impl PriorityArray {
    pub(super) fn new() -> Self {
        Self { queues: vec![VecDeque::new(); LEVELS], occupied: [0; 3], tasks: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tasks == 0
    }

    pub(super) fn push_back(&mut self, level: u8, task: TaskId) {
        self.queues[usize::from(level)].push_back(task);
        self.occupied[usize::from(level) / 64] |= 1 << (level % 64);
        self.tasks += 1;
    }

    /// Removes `task` from `level`, where it must be.
    pub(super) fn remove(&mut self, level: u8, task: TaskId) {
        let queue = &mut self.queues[usize::from(level)];
        let Some(place) = queue.iter().position(|&queued| queued == task) else {
            debug_assert!(false, "{task:?} is not queued at level {level}");
            return;
        };
        queue.remove(place);
        self.tasks -= 1;
        if queue.is_empty() {
            self.occupied[usize::from(level) / 64] &= !(1 << (level % 64));
        }
    }

    /// Returns the first task of the best level.
    pub(super) fn first(&self) -> Option<TaskId> {
        let word = self.occupied.iter().position(|&word| word != 0)?;
        let level = word * 64 + self.occupied[word].trailing_zeros() as usize;
        self.queues[level].front().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_level_comes_first_and_levels_are_queues() {
        let mut array = PriorityArray::new();
        for (level, task) in [(139, 1), (120, 2), (120, 3), (63, 4), (64, 5)] {
            array.push_back(level, TaskId(task));
        }
        let mut order = Vec::new();
        for level in [63, 64, 120, 120, 139] {
            let task = array.first().unwrap();
            array.remove(level, task);
            order.push(task.0);
        }
        assert_eq!(order, [4, 5, 2, 3, 1]);
        assert!(array.is_empty() && array.first().is_none());
    }
}
