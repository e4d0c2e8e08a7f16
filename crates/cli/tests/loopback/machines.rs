//! Several servers send to this machine at the same time, on the loopback interface.

use std::fs;
use std::path::PathBuf;

use crate::support::{Server, exits, lossy, run};

/// Two servers, and a place for what they have.
struct Machines {
    roots: [tempfile::TempDir; 2],
    servers: [Server; 2],
    here: tempfile::TempDir,
}

impl Machines {
    fn new() -> Self {
        let roots = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let servers = [0, 1].map(|at: usize| Server::start(roots[at].path(), &[]));
        Self { roots, servers, here: tempfile::tempdir().unwrap() }
    }

    /// Both have a directory `out` with one file in it, called `a` and `b`.
    fn with_files() -> Self {
        let machines = Self::new();
        for (root, name) in machines.roots.iter().zip(["a", "b"]) {
            fs::create_dir(root.path().join("out")).unwrap();
            fs::write(root.path().join("out").join(name), name.repeat(300_000)).unwrap();
        }
        machines
    }

    fn to(&self) -> PathBuf {
        self.here.path().join("all")
    }

    /// `haul cp`, from both, to where it all comes together.
    fn copy(&self, options: &[&str], path: &str) -> std::process::Output {
        let [one, two] = &self.servers;
        let to = self.to();
        run(&[&["cp"], options, &[&one.at(path), &two.at(path), to.to_str().unwrap()]].concat())
    }
}

#[test]
fn nothing_of_one_is_removed_because_another_does_not_have_it() {
    let machines = Machines::with_files();
    exits(&machines.copy(&["-q"], "out"), 0);
    for options in [&["--delete"][..], &["-n", "--delete"], &["--delete", "--max-delete", "1"]] {
        let refused = machines.copy(options, "out");
        exits(&refused, 2);
        assert!(lossy(&refused.stderr).contains("several machines"), "{}", lossy(&refused.stderr));
    }
    assert!(machines.to().join("out/a").exists() && machines.to().join("out/b").exists());
}
