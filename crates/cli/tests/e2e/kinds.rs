//! Hard links, owners and attributes, uploaded and downloaded.

use std::fs;
use std::os::unix::fs::{MetadataExt, lchown};
use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, setxattr};

use crate::support::{
    Mtu, Net, Server, assert_holes, assert_same, assert_same_to_rsync, can_be_particular, directory, file,
    many, odd, particular, run, skip,
};

fn attribute(path: &Path) -> Option<Vec<u8>> {
    let mut value = [0; 100];
    let len = getxattr(path, "user.haul", &mut value[..]).ok()?;
    Some(value[..len].to_vec())
}

#[test]
fn links_owners_and_attributes_up_and_down() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    let (here, root, back) = (directory(), directory(), directory());
    let tree = here.path().join("tree");
    file(&tree.join("a"), 1, 100_000);
    fs::hard_link(tree.join("a"), tree.join("b")).unwrap();
    lchown(tree.join("a"), Some(54_321), Some(54_322)).unwrap();
    if setxattr(tree.join("a"), "user.haul", b"value", XattrFlags::empty()).is_err() {
        skip("the directory for temporary files has no extended attributes");
        return;
    }
    let server = Server::start(&net, root.path(), &[]);
    let cp = |options: &[&str], from: &Path, to: &Path| {
        let words = [Path::new("cp"), Path::new("--json")];
        let options = options.iter().map(Path::new);
        let outcome = run(&net.client, words.into_iter().chain(options).chain([from, to])).exits(0);
        serde_json::from_str::<serde_json::Value>(&outcome.stdout).unwrap()
    };
    // By default a server permits attributes but not owners.
    let remote = server.at("tree");
    let json = cp(&["-a"], &tree, Path::new(&remote));
    assert_eq!((&json["files"], &json["hard_links"]), (&1.into(), &1.into()));
    let at_root = root.path().join("tree");
    let meta = fs::metadata(at_root.join("b")).unwrap();
    assert_eq!((meta.nlink(), meta.uid()), (2, 0));
    assert_eq!(attribute(&at_root.join("a")), Some(b"value".to_vec()));
    // The download applies only what its options request.
    let plain = back.path().join("plain");
    cp(&["--no-hard-links"], Path::new(&remote), &plain);
    assert_eq!((fs::metadata(plain.join("a")).unwrap().nlink(), attribute(&plain.join("a"))), (1, None));
    let complete_copy = back.path().join("whole");
    lchown(at_root.join("a"), Some(54_321), Some(54_322)).unwrap();
    cp(&["-X", "--owner", "--numeric-ids"], Path::new(&remote), &complete_copy);
    let meta = fs::metadata(complete_copy.join("b")).unwrap();
    assert_eq!((meta.nlink(), meta.uid(), meta.gid()), (2, 54_321, 54_322));
    assert_eq!(attribute(&complete_copy.join("b")), Some(b"value".to_vec()));
    assert_same_to_rsync(&at_root, &complete_copy);
    drop(server);
    // A server configured to permit owners sets them.
    let server = Server::start(&net, root.path(), &["--preserve", "owner"]);
    cp(&["-a"], &tree, Path::new(&server.at("given")));
    let given = root.path().join("given/a");
    assert_eq!((fs::metadata(&given).unwrap().uid(), attribute(&given)), (54_321, None));
}

#[test]
fn rsync_finds_nothing_to_do_after_an_archive_up_and_down() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    if !can_be_particular() {
        return;
    }
    let (here, root, back) = (directory(), directory(), directory());
    let tree = here.path().join("tree");
    particular(&tree);
    odd(&tree.join("odd"));
    many(&tree.join("many"), 50, 1 << 20);
    let server = Server::start(&net, root.path(), &["--preserve", "owner,xattrs,acls"]);
    let cp = |from: &Path, to: &Path| {
        let words = ["cp", "-a", "--numeric-ids", "--json"].map(Path::new);
        let outcome = run(&net.client, words.into_iter().chain([from, to])).exits(0);
        serde_json::from_str::<serde_json::Value>(&outcome.stdout).unwrap()
    };
    let remote = server.at("tree");
    let (up, down) = (root.path().join("tree"), back.path().join("tree"));
    for (from, to, copy) in [(&*tree, Path::new(&remote), &up), (Path::new(&remote), &*down, &down)] {
        let json = cp(from, to);
        assert_eq!((&json["hard_links"], &json["noted"]), (&2.into(), &0.into()), "{}", json["notes"]);
        assert_same_to_rsync(&tree, copy);
        assert_same(&tree, copy);
        assert_holes(copy);
    }
}
