//! Measures of a signature.

use crate::{CompleteBursts, Signature, Words};

/// Measures of one transmission window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Packets sent.
    pub packets: u64,
    /// Packets lost.
    pub lost: u64,
    /// First-order complexity; `None` if the window is shorter than a word.
    pub complexity: Option<f64>,
    /// Success proportion; `None` without losses.
    pub success_proportion: Option<f64>,
    /// Burst density; `None` if no burst has two losses.
    pub burst_density: Option<f64>,
    /// The bursts, if each was lost completely; see [`Signature::complete_bursts`].
    pub complete_bursts: Option<CompleteBursts>,
}

impl Sample {
    /// Measures a signature.
    pub fn of(signature: &Signature, words: &mut Words) -> Self {
        Self {
            packets: signature.packets(),
            lost: signature.lost_packets(),
            complexity: words.complexity(signature),
            success_proportion: signature.success_proportion(),
            burst_density: signature.burst_density(),
            complete_bursts: signature.complete_bursts(),
        }
    }

    /// Returns the share of lost packets, 0 to 1.
    pub fn loss_rate(&self) -> f64 {
        self.lost as f64 / self.packets.max(1) as f64
    }
}
