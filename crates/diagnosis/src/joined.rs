//! Joins windows with too few packets or losses for a diagnosis with the following ones.

use crate::{Diagnosis, Model, Sample, Signature, Words};

/// Windows with too few losses are joined until this many packets are lost: as many as a window of the paper
/// (100 MB, 71,000 packets) has at the lowest loss rate covered, 0.00008.
const MIN_LOST: u64 = 6;
/// Windows of fewer packets are joined as well: the shorter a window, the fewer words it has at a given loss
/// rate. Half of the paper's window is still diagnosed like a whole one (2.7 % of the network's are
/// inconclusive instead of 0.7 %), a quarter is not (10 %).
const MIN_PACKETS: u64 = 35_500;

/// Consecutive windows without a diagnosis yet. Used for a running transfer as well as for a file.
#[derive(Clone, Debug, Default)]
pub struct Joined(Signature);

impl Joined {
    /// Number of packets after which windows without a diagnosis are dropped, as old losses say nothing about
    /// the present. Ten of the paper's windows.
    pub const MAX_PACKETS: u64 = 710_000;

    /// Diagnoses a window by its signature, of which `sample` are the measures; if it has too few packets or
    /// losses, diagnoses it together with the previous ones.
    pub fn classify(
        &mut self,
        model: &Model,
        sample: &Sample,
        signature: &Signature,
        words: &mut Words,
    ) -> Diagnosis {
        if sample.packets >= MIN_PACKETS && sample.lost >= MIN_LOST {
            let alone = model.classify(sample);
            if alone.metric.is_some() {
                self.0.clear();
            }
            if alone.metric.is_some() || sample.loss_rate() >= model.success_range.from {
                return alone;
            }
        }
        if self.0.packets() > Self::MAX_PACKETS {
            self.0.clear();
        }
        self.0.append(signature);
        if self.0.packets() < MIN_PACKETS || self.0.lost_packets() < MIN_LOST {
            return Diagnosis::NOTHING;
        }
        let together = self.classify_all(model, words);
        self.0.clear();
        together
    }

    fn classify_all(&self, model: &Model, words: &mut Words) -> Diagnosis {
        let sample = Sample::of(&self.0, words);
        if sample.loss_rate() < model.success_range.from {
            model.by_success_proportion(&sample)
        } else {
            model.classify(&sample)
        }
    }
}
