//! Cost of a sample, from which the sampling interval was chosen (0.1 % of a core is 50 us per 50 ms).

#![expect(clippy::unwrap_used, reason = "a panic fails the benchmark")]

use std::hint::black_box;
use std::net::Ipv4Addr;

use criterion::{Criterion, criterion_group, criterion_main};
use haul_base::{Span, Time};
use haul_host::Sensors;

fn samples(criterion: &mut Criterion) {
    // Pressure and steal time are read once a second, the rest with each sample.
    for (name, gap) in
        [("frequent", Span::from_millis(1)), ("with pressures and steal", Span::from_secs(3_600))]
    {
        let mut sensors = Sensors::of_this_thread(Some(Ipv4Addr::LOCALHOST.into())).unwrap();
        let mut now = Time::ZERO;
        criterion.bench_function(&format!("sample/{name}"), |bencher| {
            bencher.iter(|| {
                now += gap;
                black_box(sensors.sample(now))
            });
        });
    }
}

criterion_group!(benches, samples);
criterion_main!(benches);
