//! Cost of file copies in the kernel if the buffer starts a few bytes after a page boundary.
//!
//! `cargo run --release -p haul-mover --example aligned_copies [DIRECTORY]` reads 1 GB from a file on a tmpfs
//! (`/dev/shm`) and writes as much to another, in blocks of 256 KiB, with buffers at several offsets from a
//! page boundary; prints GB/s, medians of 11 rounds.

use std::error::Error;
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::Instant;

const PIECE: usize = 256 << 10;
const PAGE: usize = 4_096;
const PIECES: u64 = 4_000;
const ROUNDS: usize = 11;
/// Offsets from a page boundary in bytes; large allocations of the system's allocator have 16.
const OFFSETS: [usize; 6] = [0, 1, 8, 16, 40, 64];

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("/dev/shm"), PathBuf::from);
    let place = tempfile::tempdir_in(directory)?;
    let mut memory = vec![0; PIECE + 2 * PAGE];
    let page = memory.as_ptr().align_offset(PAGE).min(PAGE);
    memory.iter_mut().zip(0u8..251).for_each(|(byte, value)| *byte = value);
    let source = File::options().read(true).write(true).create_new(true).open(place.path().join("source"))?;
    write(&source, &memory[page..page + PIECE])?;
    let mut rates = vec![(Vec::new(), Vec::new()); OFFSETS.len()];
    for _ in 0..ROUNDS {
        for (&offset, rates) in OFFSETS.iter().zip(&mut rates) {
            let piece = &mut memory[page + offset..page + offset + PIECE];
            rates.0.push(gigabytes_per_second(|| read(&source, piece))?);
            let target = tempfile::tempfile_in(place.path())?;
            rates.1.push(gigabytes_per_second(|| write(&target, piece))?);
        }
    }
    println!("| bytes behind a page | read, GB/s | write, GB/s |\n|---|---|---|");
    for (offset, (reads, writes)) in OFFSETS.iter().zip(rates) {
        println!("| {offset} | {:.1} | {:.1} |", median(reads), median(writes));
    }
    Ok(())
}

fn read(file: &File, piece: &mut [u8]) -> std::io::Result<()> {
    (0..PIECES).try_for_each(|n| file.read_exact_at(black_box(&mut *piece), n * PIECE as u64))
}

fn write(file: &File, piece: &[u8]) -> std::io::Result<()> {
    (0..PIECES).try_for_each(|n| file.write_all_at(black_box(piece), n * PIECE as u64))
}

fn gigabytes_per_second(work: impl FnOnce() -> std::io::Result<()>) -> std::io::Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(PIECES as f64 * PIECE as f64 / 1e9 / start.elapsed().as_secs_f64())
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
