//! Only selected entries are sent, and names left out are not examined.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use haul_mover::{ControlLink as _, Root, SendLimits, layout_for, receive_files, send_files};
use haul_wire::control::{
    ControlMessage, Destination, Entry, EntryKind, FaultCode, FileSystems, IgnoreFiles, Keep, LinkChoice,
    Preserve, RelPath, Rule, Selection, Verdict,
};
use rustix::fs::{CWD, Mode, OFlags, XattrFlags, mkdirat, openat, setxattr};

use crate::harness::{Pump, all, announced, bytes, link_pair, options};
use crate::trees::{assert_same, set_mode};

/// Parses rules written as `+ pattern` and `- pattern`.
fn rules(list: &[&str]) -> Selection {
    let rule = |text: &&str| {
        let verdict = if text.starts_with('+') { Verdict::Include } else { Verdict::Exclude };
        Rule { verdict, pattern: text.as_bytes()[2..].to_vec() }
    };
    Selection { rules: list.iter().map(rule).collect(), ..Selection::default() }
}

fn only(paths: &[&str]) -> Selection {
    let paths = paths.iter().map(|path| RelPath::new(path.as_bytes()).unwrap()).collect();
    Selection { paths: Some(paths), ..Selection::default() }
}

fn follow() -> Selection {
    Selection { links: LinkChoice::Follow, ..Selection::default() }
}

fn obey() -> Selection {
    Selection { ignore_files: IgnoreFiles::Obey, ..Selection::default() }
}

/// Creates files at these paths, each with its path as contents; paths that end in `/` are directories.
fn tree(paths: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for path in paths {
        let at = dir.path().join(path);
        if path.ends_with('/') {
            fs::create_dir_all(at).unwrap();
        } else {
            fs::create_dir_all(at.parent().unwrap()).unwrap();
            fs::write(at, path).unwrap();
        }
    }
    dir
}

fn entries(source: &Path, root: &Root, selection: &Selection) -> Vec<Entry> {
    announced(vec![bytes(source)], root, selection, |_| {}).unwrap()
}

/// Returns the entries sent of the directory's contents; failures have a `!`.
fn chosen(dir: &Path, selection: &Selection) -> Vec<String> {
    let name = |entry: Entry| match entry.kind {
        EntryKind::Failed(fault) => format!("!{} {}", entry.path, fault.code.as_str()),
        _ => entry.path.to_string(),
    };
    entries(&dir.join("."), &Root::Anywhere, selection).into_iter().map(name).collect()
}

/// Copies `source` to `destination` from below `root`, and returns the failures.
fn copied(
    source: &[u8],
    root: &Root,
    selection: &Selection,
    destination: &Path,
) -> Vec<(Vec<u8>, FaultCode)> {
    let (a, b) = link_pair();
    let layout = layout_for(&[source], &bytes(destination));
    let mut receive = receive_files(&bytes(destination), &Root::Anywhere, layout, b, options()).unwrap();
    let mut send =
        send_files(vec![source.to_vec()], root.clone(), selection, a, SendLimits::default()).unwrap();
    Pump::default().run(&mut *send.source, &mut *receive.sink, &|| send.handle.is_finished());
    let (sent, received) = (send.handle.join().unwrap(), receive.handle.join().unwrap());
    assert_eq!(sent, received);
    received.failures.named().iter().map(|(path, fault)| (path.clone(), fault.code)).collect()
}

#[test]
fn rules_apply_in_order_and_excluded_directories_are_not_entered() {
    let dir = tree(&["a.o", "a.c", "src/b.o", "src/b.c", "build/keep.c", "build/x", "src/build/y.c"]);
    assert_eq!(
        chosen(dir.path(), &rules(&["- *.o", "- /build/"])),
        ["a.c", "src", "src/b.c", "src/build", "src/build/y.c"]
    );
    // An include rule below an excluded directory has no effect.
    assert_eq!(chosen(dir.path(), &rules(&["- build/", "+ keep.c", "- *.o"])), ["a.c", "src", "src/b.c"]);
    assert_eq!(
        chosen(dir.path(), &rules(&["+ */", "+ *.o", "- *"])),
        ["a.o", "build", "src", "src/b.o", "src/build"]
    );
    assert_eq!(chosen(dir.path(), &rules(&["+ /src/***", "- *"])).len(), 5);
}

#[test]
fn rules_match_the_transmitted_path() {
    let dir = tree(&["top/f", "top/in/f"]);
    let of_top = |selection: &Selection| {
        let found = entries(&dir.path().join("top"), &Root::Anywhere, selection);
        found.iter().map(|e| e.path.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(of_top(&rules(&["- /top/f"])), ["top", "top/in", "top/in/f"]);
    assert_eq!(of_top(&rules(&["- /f"])).len(), 4);
    assert!(of_top(&rules(&["- top"])).is_empty());
    let file = entries(&dir.path().join("top/f"), &Root::Anywhere, &rules(&["- f"]));
    assert!(file.is_empty());
}

#[test]
fn excluded_files_are_not_accessed() {
    let dir = tree(&["locked/f", "pipe-holder/", "ok"]);
    set_mode(&dir.path().join("locked"), 0);
    let mode = Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(CWD, dir.path().join("pipe-holder/pipe"), rustix::fs::FileType::Fifo, mode, 0)
        .unwrap();
    symlink("nowhere", dir.path().join("dangling")).unwrap();
    let quiet = rules(&["- locked", "- pipe", "- dangling"]);
    assert_eq!(chosen(dir.path(), &Selection { links: LinkChoice::Follow, ..quiet }), ["ok", "pipe-holder"]);
    set_mode(&dir.path().join("locked"), 0o700);
}

#[test]
fn journals_in_a_source_are_named_and_not_copied() {
    let dir = tree(&["a", "sub/b", ".haul-0000abcd.journal", "sub/.haul-0000abcd.journal", ".haul-readme"]);
    let named = ["!.haul-0000abcd.journal special_file", ".haul-readme", "a", "sub"];
    let below = ["!sub/.haul-0000abcd.journal special_file", "sub/b"];
    assert_eq!(chosen(dir.path(), &Selection::default()), [&named[..], &below].concat());
    assert_eq!(chosen(dir.path(), &rules(&["- .haul-*.journal"])), [".haul-readme", "a", "sub", "sub/b"]);
}

#[test]
fn size_limits_apply_only_to_regular_files() {
    let dir = tree(&["d/"]);
    for size in [0, 9, 10, 20, 21] {
        fs::write(dir.path().join(format!("d/{size:02}")), vec![1; size]).unwrap();
    }
    symlink("x", dir.path().join("d/link")).unwrap();
    let bounded = Selection { min_bytes: Some(10), max_bytes: Some(20), ..Selection::default() };
    assert_eq!(chosen(dir.path(), &bounded), ["d", "d/10", "d/20", "d/link"]);
}

#[test]
fn listed_paths_are_copied_with_their_parents_and_missing_ones_are_reported() {
    let dir = tree(&["a/b/c", "a/b/d", "a/x", "e/f", "plain", "e/g/"]);
    symlink("a", dir.path().join("l")).unwrap();
    let listed = only(&["a/b/c", "e", "none", "a/none/deep", "plain", "plain/below", "l/b/c", "e/g/h/i"]);
    assert_eq!(
        chosen(dir.path(), &listed),
        [
            // Links are not followed, and are not sent unless they were listed.
            "!l/b/c path_escape",
            "!none no_such_path",
            "plain",
            "!plain/below not_a_directory",
            "a",
            "!a/none/deep no_such_path",
            "a/b",
            "a/b/c",
            "e",
            "e/g",
            "!e/g/h/i no_such_path",
        ]
    );
    let through_links = Selection { links: LinkChoice::Follow, ..only(&["l/b/c"]) };
    assert_eq!(chosen(dir.path(), &through_links), ["l", "l/b", "l/b/c"]);
    let ruled = Selection { rules: rules(&["- b"]).rules, ..only(&["a/b/c", "a/x"]) };
    assert_eq!(chosen(dir.path(), &ruled), ["a", "a/x"]);
    assert!(chosen(dir.path(), &only(&[])).is_empty());
}

#[test]
fn a_list_requires_one_source_directory() {
    let dir = tree(&["f"]);
    let found = entries(&dir.path().join("f"), &Root::Anywhere, &only(&["x"]));
    assert!(matches!(&found[0].kind, EntryKind::Failed(fault) if fault.code == FaultCode::NotADirectory));
    let both = vec![b"a".to_vec(), b"b".to_vec()];
    let refused = announced(both, &Root::Anywhere, &only(&["x"]), |_| {}).unwrap_err();
    assert_eq!(refused.code, FaultCode::Usage);
}

#[test]
fn listed_files_arrive_and_nothing_else_does() {
    let dir = tree(&["s/a/b/c", "s/a/x", "s/y"]);
    let dst = dir.path().join("dst");
    let failed = copied(&bytes(&dir.path().join("s")), &Root::Anywhere, &only(&["a/b/c", "gone"]), &dst);
    assert_eq!(failed, [(b"s/gone".to_vec(), FaultCode::NoSuchPath)]);
    assert_same(&dir.path().join("s/a/b"), &dst.join("a/b"));
    assert!(!dst.join("y").exists() && !dst.join("a/x").exists());
}

#[test]
fn ignore_files_apply_to_their_directory_and_below() {
    let dir = tree(&[
        "a.log",
        "keep.log",
        "target/x",
        "src/a.log",
        "src/target",
        "src/deep/b.tmp",
        "src/deep/c",
        "other/b.tmp",
    ]);
    fs::write(dir.path().join(".gitignore"), "*.log\n!keep.log\ntarget/\n").unwrap();
    fs::write(dir.path().join("src/.gitignore"), "!a.log\n*.tmp\n/deep/c\n").unwrap();
    fs::write(dir.path().join("other/.ignore"), ".ignore\n").unwrap();
    assert_eq!(
        chosen(dir.path(), &obey()),
        [
            ".gitignore",
            "keep.log",
            "other",
            "other/b.tmp",
            "src",
            "src/.gitignore",
            "src/a.log",
            "src/target",
            "src/deep",
        ]
    );
    assert!(chosen(dir.path(), &all()).len() > 12, "without the option they are ordinary files");
}

#[test]
fn an_unusable_ignore_file_prevents_sending_its_directory() {
    let dir = tree(&["d/f", "g"]);
    fs::write(dir.path().join("d/.gitignore"), "x\n".repeat(600_000)).unwrap();
    assert_eq!(chosen(dir.path(), &obey()), ["g", "d", "!d/.gitignore unreadable"]);
    fs::remove_file(dir.path().join("d/.gitignore")).unwrap();
    symlink("../g", dir.path().join("d/.gitignore")).unwrap();
    assert_eq!(chosen(dir.path(), &obey()), ["g", "d", "d/.gitignore", "d/f"]);
}

#[test]
fn followed_links_send_their_targets() {
    let dir = tree(&["s/real/f", "outside/g"]);
    let at = |path: &str| dir.path().join(path);
    symlink("real", at("s/to-directory")).unwrap();
    symlink("real/f", at("s/to-file")).unwrap();
    symlink("../outside", at("s/out")).unwrap();
    symlink("nowhere", at("s/dangling")).unwrap();
    let failed = copied(&bytes(&at("s")), &Root::Anywhere, &follow(), &at("dst"));
    assert_eq!(failed, [(b"s/dangling".to_vec(), FaultCode::NoSuchPath)]);
    for (path, contents) in [("to-directory/f", "s/real/f"), ("to-file", "s/real/f"), ("out/g", "outside/g")]
    {
        assert_eq!(fs::read_to_string(at("dst").join(path)).unwrap(), contents);
        assert!(!at("dst").join(path).is_symlink());
    }
    assert!(!at("dst/to-directory").is_symlink() && !at("dst/out").is_symlink());
    // The source itself is a link.
    assert!(copied(&bytes(&at("s/to-directory")), &Root::Anywhere, &follow(), &at("dst2")).is_empty());
    assert_eq!(fs::read_to_string(at("dst2/f")).unwrap(), "s/real/f");
}

#[test]
fn followed_links_send_holes_and_attributes_of_their_targets() {
    let dir = tree(&["s/", "real"]);
    let at = |path: &str| dir.path().join(path);
    symlink("../real", at("s/link")).unwrap();
    fs::File::options().write(true).open(at("real")).unwrap().set_len(10 << 20).unwrap();
    if setxattr(at("real"), "user.note", b"kept", XattrFlags::empty()).is_err() {
        eprintln!("SKIPPED: the file system has no user attributes");
        return;
    }
    let (link, peer) = link_pair();
    let preserve = Preserve { xattrs: Keep::Preserve, ..Preserve::default() };
    let limits = SendLimits { preserve, ..SendLimits::default() };
    let job = send_files(vec![bytes(&at("s/."))], Root::Anywhere, &follow(), link, limits).unwrap();
    peer.send(ControlMessage::Ready(Destination::Occupied)).unwrap();
    let entry = loop {
        if let Some(ControlMessage::Entries(entries)) = peer.recv(Duration::from_secs(60)).unwrap() {
            break entries.into_iter().next().unwrap();
        }
    };
    drop(job);
    let EntryKind::File { holes, .. } = &entry.kind else { panic!("{entry:?}") };
    assert!(!holes.is_empty(), "{entry:?}");
    let xattrs = entry.extras.unwrap().xattrs.unwrap();
    assert!(xattrs.iter().any(|xattr| xattr.name == b"user.note" && xattr.value == b"kept"), "{xattrs:?}");
}

#[test]
fn link_cycles_are_reported_and_the_walk_ends() {
    let dir = tree(&["a/b/f"]);
    symlink("..", dir.path().join("a/b/up")).unwrap();
    symlink(".", dir.path().join("a/self")).unwrap();
    symlink("../b", dir.path().join("a/b/again")).unwrap();
    symlink("loop", dir.path().join("loop")).unwrap();
    symlink("a/b", dir.path().join("twice")).unwrap();
    let found = chosen(dir.path(), &follow());
    let failed: BTreeSet<&str> = found.iter().filter_map(|e| e.strip_prefix('!')).collect();
    let expected = [
        "a/b/again unreadable",
        "a/b/up unreadable",
        "a/self unreadable",
        "loop path_escape",
        "twice/again unreadable",
    ];
    assert!(expected.iter().all(|path| failed.contains(path)), "{failed:?}");
    assert!(found.iter().any(|e| e == "a/b/f") && found.iter().any(|e| e == "twice/f"));
}

#[test]
fn a_server_follows_links_only_below_its_root() {
    let dir = tree(&["root/in/f", "root/other/g", "secret/s"]);
    let at = |path: &str| dir.path().join(path);
    symlink("../other", at("root/in/inside")).unwrap();
    symlink("../other/g", at("root/in/inside-file")).unwrap();
    symlink("../../secret", at("root/in/out")).unwrap();
    symlink("../../secret/s", at("root/in/out-file")).unwrap();
    symlink(at("secret/s"), at("root/in/absolute")).unwrap();
    symlink(at("root/other/g"), at("root/in/absolute-inside")).unwrap();
    let root = Root::beneath(&at("root")).unwrap();
    for (source, below, layout) in
        [(&b"/in"[..], "in/", "dst1"), (b"in/", "in/", "dst2"), (b"in/.", "", "dst3")]
    {
        let failed = copied(source, &root, &follow(), &at(layout));
        assert!(failed.iter().all(|(_, code)| *code == FaultCode::PathEscape), "{failed:?}");
        let paths: BTreeSet<_> = failed.iter().map(|(path, _)| String::from_utf8_lossy(path)).collect();
        let expected: BTreeSet<_> = ["absolute", "absolute-inside", "out", "out-file"]
            .into_iter()
            .map(|name| format!("{below}{name}").into())
            .collect();
        assert_eq!(paths, expected);
        assert_eq!(fs::read_to_string(at(layout).join("inside/g")).unwrap(), "root/other/g");
        assert_eq!(fs::read_to_string(at(layout).join("inside-file")).unwrap(), "root/other/g");
    }
}

#[test]
fn other_file_systems_are_not_entered() {
    // /proc is another file system wherever it exists; a list restricts the walk of / to it.
    if !Path::new("/proc/self").exists() {
        eprintln!("SKIPPED: there is no /proc");
        return;
    }
    let listed = |file_systems| {
        let selection = Selection { file_systems, ..only(&["proc/version"]) };
        let found = entries(Path::new("/"), &Root::Anywhere, &selection);
        found.iter().map(|e| e.path.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(listed(FileSystems::All), ["proc", "proc/version"]);
    assert_eq!(listed(FileSystems::One), ["proc"]);
}

/// Creates `levels` nested directories named `name`, and a file `f` in the innermost.
fn chain(dir: &Path, name: &str, levels: usize) {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let mut at: OwnedFd = openat(CWD, dir, flags, Mode::empty()).unwrap();
    for _ in 0..levels {
        mkdirat(&at, name, Mode::from_raw_mode(0o755)).unwrap();
        at = openat(&at, name, flags, Mode::empty()).unwrap();
    }
    let file = openat(&at, "f", OFlags::CREATE | OFlags::WRONLY, Mode::from_raw_mode(0o644)).unwrap();
    rustix::io::write(&file, b"bottom").unwrap();
}

/// Removes a tree whose paths exceed the length limit.
fn remove_deep(dir: &Path) {
    assert!(std::process::Command::new("rm").arg("-rf").arg(dir).status().unwrap().success());
}

#[test]
fn two_thousand_levels_are_copied() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("s")).unwrap();
    chain(&dir.path().join("s"), "d", 2000);
    let found = entries(&dir.path().join("s/."), &Root::Anywhere, &all());
    assert_eq!(found.len(), 2001);
    assert!(found.iter().all(|entry| !matches!(entry.kind, EntryKind::Failed(_))));
    let source = [&bytes(&dir.path().join("s"))[..], b"/."].concat();
    assert!(copied(&source, &Root::Anywhere, &all(), &dir.path().join("t")).is_empty());
    assert_eq!(entries(&dir.path().join("s/."), &Root::Anywhere, &follow()), found);
    let repeated = entries(&dir.path().join("t/."), &Root::Anywhere, &all());
    assert_eq!(repeated, found);
    for tree in ["s", "t"] {
        remove_deep(&dir.path().join(tree));
    }
}

#[test]
fn paths_longer_than_path_max_arrive() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("s")).unwrap();
    // 15 names of 255 bytes and their slashes are 3,840 bytes; `m/` and a name of 254 make it 4,096, one more
    // than the kernel accepts in one call.
    let name = "n".repeat(255);
    chain(&dir.path().join("s"), &name, 15);
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let mut at = openat(CWD, dir.path().join("s"), flags, Mode::empty()).unwrap();
    for part in std::iter::repeat_n(&name[..], 15).chain(["m"]) {
        let _ = mkdirat(&at, part, Mode::from_raw_mode(0o755));
        at = openat(&at, part, flags, Mode::empty()).unwrap();
    }
    let (create, mode) = (OFlags::CREATE | OFlags::WRONLY, Mode::from_raw_mode(0o644));
    openat(&at, "z".repeat(254), create, mode).unwrap();
    mkdirat(&at, "y".repeat(254), Mode::from_raw_mode(0o755)).unwrap();
    let below = openat(&at, "y".repeat(254), flags, Mode::empty()).unwrap();
    openat(&below, "x", create, mode).unwrap();
    let found = entries(&dir.path().join("s/."), &Root::Anywhere, &all());
    let longest = found.iter().map(|e| e.path.as_bytes().len()).max().unwrap();
    let failed = found.iter().filter(|e| matches!(e.kind, EntryKind::Failed(_))).count();
    assert_eq!((found.len(), longest, failed), (15 + 5, 4098, 0));
    // The file with the longest path is read; whether it can be created depends on the receiver.
    let no_directory = rules(&["- y*"]);
    let source = [&bytes(&dir.path().join("s"))[..], b"/."].concat();
    let failed = copied(&source, &Root::Anywhere, &no_directory, &dir.path().join("t"));
    assert_eq!(failed, []);
    remove_deep(&dir.path().join("t"));
    remove_deep(&dir.path().join("s"));
}

#[test]
fn the_first_entries_are_sent_before_the_walk_ends() {
    let dir = tree(&["a/", "b/2"]);
    for number in 0..3000 {
        fs::write(dir.path().join(format!("a/{number}")), "").unwrap();
    }
    let new = dir.path().join("b/3");
    let seen = move |_: &[Entry]| fs::write(&new, "new").unwrap();
    let found = announced(vec![bytes(dir.path())], &Root::Anywhere, &all(), seen).unwrap();
    // When the first entries are sent, the walk has not reached `b` yet, so it sees this change.
    assert_eq!(found.len(), 1 + 3001 + 3);
    assert!(found[found.len() - 1].path.as_bytes().ends_with(b"b/3"));
}
