//! Paths that lead out of the server's root, in every form that a URL or a symbolic link allows.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use tempfile::TempDir;

use crate::support::{Mtu, Net, Outcome, Server, assert_same_file, contents, directory, file, names, run};

/// A server root inside a directory with other files.
struct World {
    outer: TempDir,
    here: TempDir,
    net: Net,
    server: Server,
}

impl World {
    fn new() -> Option<Self> {
        let net = Net::new(Mtu::Ethernet)?;
        let outer = directory();
        let root = outer.path().join("root");
        file(&outer.path().join("secret"), 1, 1_000);
        file(&outer.path().join("beside/secret"), 2, 1_000);
        file(&root.join("inside/allowed"), 3, 1_000);
        symlink(outer.path(), root.join("absolute")).unwrap();
        symlink("../..", root.join("inside/relative")).unwrap();
        symlink(outer.path().join("secret"), root.join("file-link")).unwrap();
        symlink("inside", root.join("harmless")).unwrap();
        let server = Server::start(&net, &root, &[]);
        Some(Self { outer, here: directory(), net, server })
    }

    fn get(&self, path: &str) -> Outcome {
        let (url, target) = (self.server.at(path), self.here.path().join("got"));
        run(&self.net.client, [Path::new("cp"), Path::new(&url), &target])
    }

    fn upload(&self, path: &str) -> Outcome {
        let source = self.here.path().join("source");
        file(&source, 9, 500);
        let url = self.server.at(path);
        run(&self.net.client, [Path::new("cp"), &source, Path::new(&url)])
    }

    /// Names in the directory that contains the root.
    fn outside(&self) -> Vec<String> {
        let mut all = names(self.outer.path());
        all.retain(|name| !name.starts_with("root"));
        all
    }
}

/// Paths that lead out: with dots, percent-encoded, absolute, and through links.
const OUT: [&str; 9] = [
    "../secret",
    "inside/../../secret",
    "%2e%2e/secret",
    "..%2fsecret",
    "inside/%2e%2e/%2e%2e/beside/secret",
    "absolute/secret",
    "absolute/beside/secret",
    "inside/relative/secret",
    "../root/../secret",
];

#[test]
fn nothing_outside_of_the_root_can_be_read() {
    let Some(world) = World::new() else { return };
    for path in OUT {
        world.get(path).exits(6).assert_shows(&[]);
        assert!(names(world.here.path()).is_empty(), "{path}: {:?}", names(world.here.path()));
    }
    // An absolute path is relative to the root.
    world.get("/etc/passwd").exits(7).assert_shows(&["passwd"]);
    assert!(names(world.here.path()).is_empty());
    world.get("inside/allowed").exits(0);
}

#[test]
fn nothing_outside_of_the_root_can_be_written() {
    let Some(world) = World::new() else { return };
    let before = world.outside();
    for path in OUT {
        world.upload(&path.replace("secret", "planted")).exits(6).assert_shows(&[]);
        world.upload(path).exits(6).assert_shows(&[]);
    }
    // The copy may replace the link, but must not follow it.
    world.upload("absolute");
    assert_eq!(world.outside(), before);
    let secret = fs::read(world.outer.path().join("secret")).unwrap();
    assert_eq!(secret, contents(1, 1_000), "the file outside has changed");
}

#[test]
fn a_link_is_copied_as_a_link_and_replaced_not_followed() {
    let Some(world) = World::new() else { return };
    world.get("file-link").exits(0);
    let got = fs::read_link(world.here.path().join("got")).expect("it is a link here too");
    assert_eq!(got, world.outer.path().join("secret"));
    // Refused as a destination, because the link leads out of the root.
    world.upload("file-link").exits(6).assert_shows(&["link"]);
    // A source file with the link's name replaces the link; the link's target is unchanged.
    let source = world.here.path().join("new/file-link");
    file(&source, 9, 500);
    let root = world.server.at("");
    run(&world.net.client, [Path::new("cp"), &source, Path::new(&root)]).exits(0);
    assert_same_file(&source, &world.outer.path().join("root/file-link"));
    assert_eq!(fs::read(world.outer.path().join("secret")).unwrap(), contents(1, 1_000));
}

#[test]
fn an_uploaded_link_does_not_lead_out_of_the_root() {
    let Some(world) = World::new() else { return };
    let tree = world.here.path().join("tree");
    fs::create_dir(&tree).unwrap();
    symlink(world.outer.path(), tree.join("way")).unwrap();
    let url = world.server.at("tree");
    run(&world.net.client, [Path::new("cp"), &tree, Path::new(&url)]).exits(0);
    let before = world.outside();
    world.upload("tree/way/planted").exits(6).assert_shows(&[]);
    // The same with a tree in which a directory has the link's name.
    let second = world.here.path().join("second/tree");
    file(&second.join("way/planted"), 5, 10);
    let root = world.server.at("");
    run(&world.net.client, [Path::new("cp"), &second, Path::new(&root)]);
    assert_eq!(world.outside(), before);
}
