//! Cost of diagnosing one transmission window of the paper's size: 71,000 packets, with different numbers of
//! single losses, which is the most expensive pattern.

#![expect(clippy::unwrap_used, reason = "a panic fails the benchmark")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use haul_base::Rng;
use haul_diagnosis::{Model, Sample, Signature, Words};

const PACKETS: u64 = 71_000;

fn windows(criterion: &mut Criterion) {
    let model = Model::shipped();
    let mut words = Words::of_length(model.word_length).unwrap();
    for loss in [0.0005, 0.005, 0.05] {
        let mut rng = Rng::from_seed(1);
        let lost: Vec<u64> = (0..PACKETS).filter(|_| rng.chance(loss)).collect();
        let (mut signature, mut positions) = (Signature::new(), Vec::new());
        criterion.bench_function(&format!("window/loss {loss}"), |bencher| {
            bencher.iter(|| {
                positions.clone_from(&lost);
                signature.set_lost(PACKETS, &mut positions);
                black_box(model.classify(&Sample::of(&signature, &mut words)))
            });
        });
    }
}

criterion_group!(benches, windows);
criterion_main!(benches);
