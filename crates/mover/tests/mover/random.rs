//! Random trees over random transports.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use haul_mover::{ReceiveOptions, SendLimits};
use haul_wire::control::Layout;
use proptest::prelude::*;

use crate::harness::{Pump, assert_no_parts, bytes, name, options, start};
use crate::trees::{assert_same, contents, set_mode, set_mtime};

/// A tree to create.
#[derive(Clone, Debug)]
enum Node {
    File { len: usize, mode: u32, mtime: i64 },
    Link(Vec<u8>),
    Directory(BTreeMap<Vec<u8>, Node>),
}

fn any_name() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>().prop_filter("separators", |b| !matches!(b, 0 | b'/')), 1..20)
        .prop_filter("dots", |name| !matches!(name.as_slice(), b"." | b".."))
}

fn any_node() -> impl Strategy<Value = Node> {
    let len = prop_oneof![Just(0usize), 1..3000usize, 100_000..400_000usize];
    let leaf = prop_oneof![
        4 => (len, 0o400..0o1000u32, any::<i32>())
            .prop_map(|(len, mode, mtime)| Node::File { len, mode: mode | 0o400, mtime: mtime.into() }),
        1 => proptest::collection::vec(1..=255u8, 1..40).prop_map(Node::Link),
    ];
    leaf.prop_recursive(4, 40, 8, |inner| {
        proptest::collection::btree_map(any_name(), inner, 0..8).prop_map(Node::Directory)
    })
}

fn make(path: &Path, node: &Node) {
    match node {
        Node::File { len, mode, mtime } => {
            fs::write(path, contents(*len, *len as u64)).unwrap();
            set_mode(path, *mode);
            set_mtime(path, *mtime, 1);
        }
        Node::Link(target) => std::os::unix::fs::symlink(name(target), path).unwrap(),
        Node::Directory(children) => {
            fs::create_dir(path).unwrap();
            for (child, node) in children {
                make(&path.join(name(child)), node);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn random_trees_arrive(node in any_node(), seed: u64, loss in 0.0..0.5f64, window in 1400..2_000_000u64, memory in 20_000..4_000_000u64) {
        let dir = tempfile::tempdir().unwrap();
        let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
        make(&src, &node);
        let limits = SendLimits { read_ahead: memory, keep: memory, ..SendLimits::default() };
        let options = ReceiveOptions { memory, ..options() };
        let pair = start(vec![bytes(&src)], &dst, Layout::As, limits, options).unwrap();
        pair.run(&Pump { seed, window, loss, ..Pump::default() }).clean();
        assert_same(&src, &dst);
        assert_no_parts(dir.path());
    }
}
