//! Destinations that treat two names as one: case-insensitive or normalising file systems. The second name
//! fails, and the file stored under the first one is kept.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::support::{HAUL, LIMIT, Running, clean, contents, directory, file, skip};

/// Names that differ in case, and `é` composed and decomposed.
const PAIRS: [(&str, &str); 2] = [("README", "readme"), ("caf\u{e9}", "cafe\u{301}")];

/// A mounted file system, unmounted when dropped.
struct Folding {
    place: TempDir,
}

impl Folding {
    /// The first kind that this system can create and mount, or why none can be.
    fn mounted() -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("needs root to mount a file system without case".to_owned());
        }
        let place = directory();
        File::create(place.path().join("image")).unwrap().set_len(16 << 20).unwrap();
        fs::create_dir(place.path().join("mounted")).unwrap();
        let this = Self { place };
        let ext4 = this.try_mount(&["mkfs.ext4", "-q", "-F", "-O", "casefold"], "loop");
        let Err(no_ext4) = ext4.and_then(|()| tried(Command::new("chattr").arg("+F").arg(this.make())))
        else {
            return Ok(this);
        };
        let _ = this.unmount();
        match this.try_mount(&["mkfs.vfat", "-F", "32"], "loop,utf8,quiet") {
            Ok(()) => Ok(this),
            Err(no_vfat) => Err(format!("no file system without case here: {no_ext4}; {no_vfat}")),
        }
    }

    fn try_mount(&self, make: &[&str], options: &str) -> Result<(), String> {
        let (image, mounted) = (self.place.path().join("image"), self.place.path().join("mounted"));
        tried(Command::new(make[0]).args(&make[1..]).arg(&image))?;
        tried(Command::new("mount").args(["-o", options]).args([image, mounted]))
    }

    /// Creates the case-insensitive directory.
    fn make(&self) -> PathBuf {
        let inside = self.place.path().join("mounted/inside");
        fs::create_dir_all(&inside).unwrap();
        inside
    }

    fn unmount(&self) -> Result<(), String> {
        tried(Command::new("umount").arg("-l").arg(self.place.path().join("mounted")))
    }
}

impl Drop for Folding {
    fn drop(&mut self) {
        // Fails if it was never mounted.
        let _ = self.unmount();
    }
}

/// Runs a program; returns its stderr if it fails.
fn tried(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let why = stderr.lines().find(|line| !line.trim().is_empty()).unwrap_or("it failed");
    if output.status.success() { Ok(()) } else { Err(format!("{program}: {}", why.trim())) }
}

/// Runs `haul cp` locally and returns its JSON report.
fn cp(from: &Path, to: &Path, disk: Option<&str>) -> (serde_json::Value, String) {
    let mut command = Command::new(HAUL);
    clean(&mut command);
    command.args(["cp", "--json"]).arg(from.join(".")).arg(to);
    command.envs(disk.map(|disk| (disk, "1")));
    let outcome = Running::start(&mut command).wait(LIMIT).exits(3);
    (serde_json::from_str(&outcome.stdout).unwrap(), outcome.stderr)
}

/// Copies two names that `to` treats as one, twice; the second run finds the first run's file.
fn one_of_a_pair(to: &Path, (one, two): (&str, &str), disk: Option<&str>) {
    let from = directory();
    file(&from.path().join(one), 1, 5_000);
    file(&from.path().join(two), 2, 6_000);
    file(&from.path().join("bystander"), 3, 5_000);
    let mut there = None;
    for run in ["first", "second"] {
        let (json, stderr) = cp(from.path(), to, disk);
        let what = format!("{one}, {run} run: {json}");
        assert_eq!((&json["ok"], &json["failed_files"]), (&false.into(), &1.into()), "{what}");
        let failed = json["failures"][0]["path"].as_str().unwrap();
        let good = if failed == one { two } else { one };
        assert!(failed == one || failed == two, "{what}");
        let expected_line = format!("failed: {failed}: `{failed}` is the same name at the destination");
        assert!(stderr.contains(&expected_line) && stderr.contains("rename one of the two"), "{stderr}");
        let name = fs::read_dir(to).unwrap().map(|item| item.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = name.filter(|name| name != "bystander").collect();
        assert_eq!(names.len(), 1, "{names:?}");
        let name = names.remove(0);
        // Later runs keep the name of the first run.
        assert_eq!(there.get_or_insert_with(|| good.to_owned()), &name, "{what}");
        let right = if good == one { contents(1, 5_000) } else { contents(2, 6_000) };
        assert!(fs::read(to.join(name)).unwrap() == right, "{what}: not the contents of {good}");
        assert!(fs::read(to.join("bystander")).unwrap() == contents(3, 5_000));
    }
}

#[test]
fn names_that_a_mounted_file_system_considers_equal() {
    let folding = match Folding::mounted() {
        Ok(folding) => folding,
        Err(why) => return skip(&why),
    };
    let mut tried = 0;
    for (index, pair) in PAIRS.into_iter().enumerate() {
        let to = folding.make().join(index.to_string());
        fs::create_dir(&to).unwrap();
        fs::write(to.join(pair.0), "probe").unwrap();
        let folds = to.join(pair.1).exists();
        fs::remove_file(to.join(pair.0)).unwrap();
        if folds {
            one_of_a_pair(&to, pair, None);
            tried += 1;
        } else {
            skip(&format!("this file system tells `{}` from `{}`", pair.0, pair.1.escape_unicode()));
        }
    }
    assert!(tried > 0, "no pair was tested: the file system is case-sensitive");
}

#[cfg(feature = "faults")]
#[test]
fn names_that_a_disk_considers_equal() {
    for pair in PAIRS {
        one_of_a_pair(directory().path(), pair, Some("HAUL_DISK_FOLDS"));
    }
}
