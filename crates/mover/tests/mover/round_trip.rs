//! Received files equal the sources.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use haul_mover::{ReceiveOptions, Root, SendLimits, layout_for, receive_files, send_files};
use haul_wire::control::{FaultCode, Layout, ReceivePolicy};

use crate::harness::{
    Pump, all, announced, assert_no_parts, bytes, copy, link_pair, names_below, options, start,
};
use crate::trees::{assert_same, contents, odd_tree, set_mode};

#[test]
fn a_tree_of_unusual_files_arrives_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    fs::create_dir(&src).unwrap();
    odd_tree(&src);
    let ends = copy(&[&src], &dst, Layout::As);
    let report = ends.clean();
    assert_same(&src, &dst);
    assert_no_parts(&dst);
    assert_eq!(report.exit_code(), 0);
    assert_eq!(report.files, 21);
}

#[test]
fn an_unusual_tree_with_synced_files_arrives_in_an_existing_tree() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    fs::create_dir(&src).unwrap();
    odd_tree(&src);
    for _ in 0..2 {
        let options = ReceiveOptions::with_policy(7, ReceivePolicy::default());
        let pair = start(vec![bytes(&src)], &dst, Layout::Into, SendLimits::default(), options).unwrap();
        pair.run(&Pump::default()).clean();
        assert_same(&src, &dst.join("src"));
    }
}

#[test]
fn layouts_follow_cp() {
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &str| dir.path().join(path);
    fs::create_dir_all(at("d/sub")).unwrap();
    fs::write(at("f"), "1").unwrap();
    fs::write(at("d/g"), "2").unwrap();
    let run = |sources: &[&str], destination: &str| {
        let sources: Vec<_> = sources.iter().map(|s| bytes(&at(s))).collect();
        let layout = layout_for(&sources, destination.as_bytes());
        let pair = start(sources, &at(destination), layout, SendLimits::default(), options()).unwrap();
        pair.run(&Pump::default()).clean();
    };
    run(&["f"], "f2");
    assert_eq!(fs::read(at("f2")).unwrap(), b"1");
    run(&["f"], "existing2/");
    assert_eq!(fs::read(at("existing2/f")).unwrap(), b"1");
    run(&["f"], "existing2");
    run(&["d"], "d2");
    assert_same(&at("d"), &at("d2"));
    run(&["d"], "d2");
    assert_same(&at("d"), &at("d2/d"));
    run(&["d/."], "content");
    assert_same(&at("d/g"), &at("content/g"));
    assert_same(&at("d/sub"), &at("content/sub"));
    run(&["f", "d/"], "both");
    assert_same(&at("d"), &at("both/d"));
    assert_same(&at("f"), &at("both/f"));
}

#[test]
fn two_sources_can_share_a_directory_but_not_a_file() {
    let dir = tempfile::tempdir().unwrap();
    for (side, file) in [("a", "one"), ("b", "two")] {
        fs::create_dir_all(dir.path().join(side).join("d")).unwrap();
        fs::write(dir.path().join(side).join("d").join(file), file).unwrap();
        fs::write(dir.path().join(side).join("d/same"), side).unwrap();
    }
    let dst = dir.path().join("dst");
    let ends = copy(&[&dir.path().join("a/d"), &dir.path().join("b/d")], &dst, Layout::Into);
    let (path, fault) = ends.one_failure();
    assert_eq!((path, fault.code), (&b"d/same"[..], FaultCode::Usage));
    assert_eq!(fs::read(dst.join("d/same")).unwrap(), b"a");
    assert!(dst.join("d/one").exists() && dst.join("d/two").exists());
}

#[test]
fn links_named_as_sources_stay_links_unless_they_end_in_a_slash() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("real/in")).unwrap();
    fs::write(dir.path().join("real/in/f"), "x").unwrap();
    symlink("real", dir.path().join("link")).unwrap();
    let dst = dir.path().join("dst");
    copy(&[&dir.path().join("link")], &dst.join(""), Layout::Into).clean();
    assert!(dst.join("link").is_symlink());
    let dst = dir.path().join("dst2");
    copy(&[&dir.path().join("link/")], &dst, Layout::Into).clean();
    assert!(!dst.join("link").is_symlink());
    assert_eq!(fs::read(dst.join("link/in/f")).unwrap(), b"x");
}

#[test]
fn setuid_bits_of_files_do_not_arrive() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("f"), "x").unwrap();
    set_mode(&dir.path().join("f"), 0o6755);
    copy(&[&dir.path().join("f")], &dir.path().join("g"), Layout::As).clean();
    assert_eq!(dir.path().join("g").metadata().unwrap().mode() & 0o7777, 0o755);
}

#[test]
fn existing_files_are_replaced_as_a_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("f"), dir.path().join("g"));
    fs::write(&src, contents(100_000, 1)).unwrap();
    fs::write(&dst, "old").unwrap();
    let old = fs::File::open(&dst).unwrap();
    fs::set_permissions(&dst, fs::Permissions::from_mode(0o444)).unwrap();
    copy(&[&src], &dst, Layout::As).clean();
    assert_same(&src, &dst);
    assert_eq!(old.metadata().unwrap().nlink(), 0, "an open old file keeps its contents");
}

#[test]
fn twenty_thousand_small_files() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    for d in 0..40 {
        fs::create_dir_all(src.join(format!("d{d}"))).unwrap();
        for f in 0..500usize {
            fs::write(src.join(format!("d{d}/f{f}")), contents(f % 37, f as u64)).unwrap();
        }
    }
    let dst = dir.path().join("dst");
    let ends = copy(&[&src], &dst, Layout::As);
    assert_eq!(ends.clean().files, 20_000);
    assert_same(&src, &dst);
}

#[test]
fn little_memory_only_slows_a_transfer_down() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("f");
    fs::write(&src, contents(20 << 20, 5)).unwrap();
    let limits = SendLimits { read_ahead: 1 << 20, keep: 2 << 20, ..SendLimits::default() };
    let options = ReceiveOptions { memory: 1 << 20, ..options() };
    let dst = dir.path().join("g");
    let pair = start(vec![bytes(&src)], &dst, Layout::As, limits, options).unwrap();
    // The window is larger than the sender's buffer, so lost data is read from the file again.
    let pump = Pump { window: 8 << 20, loss: 0.2, ..Pump::default() };
    pair.run(&pump).clean();
    assert_same(&src, &dst);
}

#[test]
fn an_unlinked_large_file_can_be_sent_again_completely() {
    let dir = tempfile::tempdir().unwrap();
    let (src, other, dst) = (dir.path().join("f"), dir.path().join("other"), dir.path().join("g"));
    fs::write(&src, contents(16 << 20, 6)).unwrap();
    let is_moved = Cell::new(false);
    let move_away = |_, _: &mut [u8]| {
        if !is_moved.replace(true) {
            fs::rename(&src, &other).unwrap();
        }
    };
    let pair = start(vec![bytes(&src)], &dst, Layout::As, SendLimits::default(), options()).unwrap();
    // Losses are detected long after the memory was reused.
    pair.run(&Pump { window: 8 << 20, loss: 0.2, tamper: &move_away, ..Pump::default() }).clean();
    assert_same(&other, &dst);
}

#[test]
fn a_server_keeps_both_directions_below_its_root() {
    let dir = tempfile::tempdir().unwrap();
    let root_path = dir.path().join("root");
    fs::create_dir_all(root_path.join("in")).unwrap();
    fs::write(root_path.join("in/f"), "inside").unwrap();
    fs::write(dir.path().join("secret"), "s").unwrap();
    symlink("../secret", root_path.join("out")).unwrap();
    symlink("..", root_path.join("up")).unwrap();
    let root = Root::beneath(&root_path).unwrap();
    let get = |source: &str, into: &str| {
        let (a, b) = link_pair();
        let to = bytes(&dir.path().join(into));
        let mut receive = receive_files(&to, &Root::Anywhere, Layout::Into, b, options()).unwrap();
        let mut send =
            send_files(vec![source.into()], root.clone(), &all(), a, SendLimits::default()).unwrap();
        Pump::default().run(&mut *send.source, &mut *receive.sink, &|| send.handle.is_finished());
        send.handle.join().unwrap();
        receive.handle.join().unwrap()
    };
    assert_eq!(get("/in", "got").failures.count(), 0);
    assert_eq!(fs::read(dir.path().join("got/in/f")).unwrap(), b"inside");
    // A link is sent as a link, and its target is not sent.
    assert_eq!(get("out", "got").failures.count(), 0);
    assert!(dir.path().join("got/out").is_symlink());
    for source in ["up/secret", "../secret", "/../secret", "up/"] {
        let report = get(source, "got");
        assert_eq!(report.failures.named()[0].1.code, FaultCode::PathEscape, "{source}");
    }
    let copy_to = |destination: &[u8]| {
        receive_files(destination, &root, Layout::Into, link_pair().1, options()).err().map(|f| f.code)
    };
    assert_eq!(copy_to(b"../evil"), Some(FaultCode::PathEscape));
    assert_eq!(copy_to(b"up/evil"), Some(FaultCode::PathEscape));
    assert!(!dir.path().join("evil").exists());
}

#[test]
fn names_of_temporary_files_are_refused_and_all_else_is_copied() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    fs::create_dir(&src).unwrap();
    fs::write(src.join(".haul-00000001-0.part"), "a later job would go on with it").unwrap();
    fs::write(src.join("f"), "x").unwrap();
    let ends = copy(&[&src], &dir.path().join("dst"), Layout::As);
    let (path, fault) = ends.one_failure();
    assert_eq!((path, fault.code), (&b"src/.haul-00000001-0.part"[..], FaultCode::SpecialFile));
    assert_same(&src.join("f"), &dir.path().join("dst/f"));
    assert_eq!(names_below(&dir.path().join("dst")).len(), 1);
}

#[test]
fn an_empty_set_is_valid() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    fs::create_dir(&src).unwrap();
    let ends = copy(&[&src.join(".")], &dir.path().join("dst"), Layout::Into);
    assert_eq!(ends.clean().entries, 0);
    assert!(Path::new(&dir.path().join("dst")).is_dir());
}

#[test]
fn a_listing_has_directories_before_their_entries() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("s/b/deep")).unwrap();
    fs::create_dir(dir.path().join("s/a")).unwrap();
    for file in ["s/z", "s/a/1", "s/b/deep/2"] {
        fs::write(dir.path().join(file), "x").unwrap();
    }
    let entries = announced(vec![bytes(&dir.path().join("s"))], &Root::Anywhere, &all(), |_| {}).unwrap();
    let paths: Vec<_> = entries.iter().map(|entry| entry.path.to_string()).collect();
    assert_eq!(paths, ["s", "s/z", "s/a", "s/a/1", "s/b", "s/b/deep", "s/b/deep/2"]);
}

#[test]
fn progress_ends_at_the_size_of_the_set() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("f");
    fs::write(&src, contents(300_000, 9)).unwrap();
    let pair = start(vec![bytes(&src)], &dir.path().join("g"), Layout::As, SendLimits::default(), options());
    let pair = pair.unwrap();
    let both = [pair.send.handle.progress(), pair.receive.handle.progress()];
    pair.run(&Pump::default()).clean();
    for progress in both {
        assert!(progress.all_known());
        assert_eq!((progress.entries.get(), progress.files_done.get(), progress.failed.get()), (1, 1, 0));
        assert_eq!((progress.bytes_known.get(), progress.bytes_done.get()), (300_000, 300_000));
    }
}
