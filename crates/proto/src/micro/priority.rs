//! `priority`: urgent messages overtake queued ones, but never one that is partly sent. Strict: while urgent
//! messages arrive faster than they can be sent, the others wait.

use super::stats::PriorityStats;
use haul_stack::{
    Context, Declaration, MicroProtocol, Order, Part, ProtocolStats, Registration, Resolution, Submission,
    configuration,
};

#[derive(Debug)]
struct Priority {
    levels: u8,
    urgent: u64,
}

configuration! {
    /// Parameters of `priority`.
    pub struct PriorityConfig: "priority" {
        levels: u8 in (2, 255) = "4", "number of levels; 0 is the most urgent";
    }
}

pub(super) fn registration() -> Registration {
    Registration {
        needs: &[&["fixed_size"]],
        conflicts: &[("in_order", "urgent messages overtake others")],
        ..Registration::of::<PriorityConfig>(1, "urgent messages overtake others", |parameters, _| {
            Ok(Box::new(Priority { levels: parameters.read::<PriorityConfig>().levels, urgent: 0 }))
        })
    }
}

impl MicroProtocol for Priority {
    fn declare(&mut self, _: &mut Declaration<'_>) {}

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        resolution.on_submit(Order::NORMAL);
    }

    fn on_submit(&mut self, submission: &mut Submission<'_>, _: &mut Context<'_>) {
        submission.priority = submission.priority.min(self.levels - 1);
        self.urgent += u64::from(submission.priority == 0);
    }

    fn on_parameters(&mut self, parameters: &Part, _: &mut Context<'_>) -> Result<(), String> {
        self.levels = parameters.read::<PriorityConfig>().levels;
        Ok(())
    }

    fn statistics(&self, report: &mut dyn FnMut(&dyn ProtocolStats)) {
        report(&PriorityStats { most_urgent: self.urgent });
    }
}

#[cfg(test)]
mod tests {
    use haul_stack::{Recipe, SendOptions};

    use crate::micro::testing::{Pair, Path, T0};

    /// Order in which messages of these priorities arrive.
    fn order(recipe: &Recipe, priorities: &[u8]) -> Vec<u64> {
        let mut pair = Pair::new(recipe);
        for &priority in priorities {
            pair.a.send(T0, b"x", SendOptions { priority, ..SendOptions::default() }).unwrap();
        }
        pair.exchange(T0, &mut Path::default());
        pair.received_by_b().into_iter().map(|(id, _)| id).collect()
    }

    #[test]
    fn urgent_messages_are_sent_first_if_the_recipe_permits() {
        let plain = Recipe::new("x").with("fixed_size");
        assert_eq!(order(&plain, &[2, 9, 0, 200, 3]), [0, 1, 2, 3, 4]);
        assert_eq!(order(&plain.with("priority"), &[2, 9, 0, 200, 3]), [2, 0, 1, 3, 4]);
    }
}
