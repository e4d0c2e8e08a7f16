//! Lists the entries that would be sent of a directory and measures the time of the walk.
use std::os::unix::ffi::OsStringExt as _;
use std::time::Instant;

use haul_mover::{Root, list_entries};
use haul_wire::control::Selection;

fn main() {
    let source = std::env::args_os().nth(1).expect("a directory").into_vec();
    for _ in 0..5 {
        let started = Instant::now();
        let entries = list_entries(vec![source.clone()], Root::Anywhere, &Selection::default());
        let entries = entries.expect("everything can be chosen").count();
        println!("{entries} entries in {:?}", started.elapsed());
    }
}
