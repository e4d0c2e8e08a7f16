use std::path::{Path, PathBuf};

use super::*;
use crate::args::Command;
use crate::fault::FaultCode;

fn argv(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

fn failure(result: Result<Resolved, StartError>) -> Fault {
    match result {
        Err(StartError::Fault(failure)) => failure,
        other => panic!("expected a failure, got {other:?}"),
    }
}

fn row(resolved: &Resolved, key: &str) -> (Option<String>, String) {
    let row = resolved.rows.iter().find(|row| row.key == key).unwrap();
    (row.value.clone(), row.origin.clone())
}

/// Two configuration files in `dir`: the system's and the user's.
fn files(dir: &Path, system: &str, user: &str) -> (PathBuf, String) {
    let (system_path, user_path) = (dir.join("system.toml"), dir.join("user.toml"));
    std::fs::write(&system_path, system).unwrap();
    std::fs::write(&user_path, user).unwrap();
    (system_path, user_path.to_str().unwrap().to_owned())
}

#[test]
fn flags_win_over_environment_then_user_then_system_file() {
    let dir = tempfile::tempdir().unwrap();
    let (system, user) = files(
        dir.path(),
        "rtt = '1ms'\nsize = '1MB'\nseed = 7\nfiles = 3\nloss = '0.5'",
        "size = '2MB'\nseed = 8\n[demo]\nfiles = 4\nrtt = '2ms'",
    );
    let env = [("HAUL_CONFIG", user.as_str()), ("HAUL_SIZE", "3MB"), ("HAUL_RTT", "3ms")];
    let sources = Sources::new(env, Some(system.clone()));
    let resolved = resolve(&argv("haul demo --rtt 4ms"), &sources).unwrap();
    assert_eq!(row(&resolved, "rtt"), (Some("4ms".into()), "flag --rtt".into()));
    assert_eq!(row(&resolved, "size"), (Some("3MB".into()), "environment HAUL_SIZE".into()));
    assert_eq!(row(&resolved, "seed"), (Some("8".into()), user.clone()));
    assert_eq!(row(&resolved, "files"), (Some("4".into()), user));
    assert_eq!(row(&resolved, "loss"), (Some("0.5".into()), system.display().to_string()));
    assert_eq!(row(&resolved, "path_rate"), (Some("1Gbit".into()), "default".into()));
    let Command::Demo(args) = resolved.command else { panic!() };
    assert_eq!((args.emulated.seed, args.files), (8, 4));
}

#[test]
fn settings_are_ordered_from_the_weakest_to_the_strongest_source() {
    let dir = tempfile::tempdir().unwrap();
    let (system, user) =
        files(dir.path(), "rate = '1Mbit'\n[set]\nchunk = '1MB'", "set = ['chunk=2MB', 'offload=off']");
    let env = [("HAUL_CONFIG", user.as_str()), ("HAUL_SET", "chunk=3MB, rate=2Mbit"), ("HAUL_RATE", "3Mbit")];
    let sources = Sources::new(env, Some(system));
    let resolved = resolve(&argv("haul cp --set chunk=4MB --set rate=4Mbit a b"), &sources).unwrap();
    let order: Vec<String> = resolved.settings.iter().map(|s| format!("{}={}", s.key, s.value)).collect();
    assert_eq!(
        order,
        [
            "chunk=1MB",
            "rate=1Mbit",
            "chunk=2MB",
            "offload=off",
            "chunk=3MB",
            "rate=2Mbit",
            "rate=3Mbit",
            "chunk=4MB",
            "rate=4Mbit",
        ]
    );
    let Command::Cp(args) = resolved.command else { panic!() };
    assert_eq!(args.paths, ["a", "b"]);
}

#[test]
fn switches_can_be_turned_off_by_a_stronger_source() {
    let dir = tempfile::tempdir().unwrap();
    let (system, user) = files(dir.path(), "json = true\nquiet = true", "");
    let env = [("HAUL_CONFIG", user.as_str()), ("HAUL_JSON", "off")];
    let resolved = resolve(&argv("haul presets"), &Sources::new(env, Some(system))).unwrap();
    assert!(!resolved.global.json);
    assert!(resolved.global.quiet);
}

#[test]
fn errors_for_unknown_keys_name_file_key_and_the_nearest_match() {
    let dir = tempfile::tempdir().unwrap();
    for (text, needle) in [
        ("raet = '1Mbit'", "unknown key `raet` in"),
        ("raet = '1Mbit'", "did you mean `rate`?"),
        ("[serve]\nrate = '1Mbit'", "unknown key `rate` in"),
        ("[srve]\nonce = true", "did you mean `serve`?"),
        ("rate = ['1Mbit']", "a string, number"),
        ("rate == 1", "user.toml"),
    ] {
        let (_, user) = files(dir.path(), "", text);
        let sources = Sources::new([("HAUL_CONFIG", user.as_str())], None);
        let failure = failure(resolve(&argv("haul cp a b"), &sources));
        assert_eq!(failure.code, FaultCode::Usage);
        assert!(failure.message.contains(needle), "{failure}");
        assert!(failure.message.contains(&user), "{failure}");
    }
}

#[test]
fn errors_for_bad_values_name_their_source() {
    let sources = Sources::new([("HAUL_RATE", "800"), ("HAUL_CONFIG", "")], None);
    let message = failure(resolve(&argv("haul cp a b"), &sources)).message;
    assert!(message.starts_with("environment HAUL_RATE: rate = \"800\": `800` has no unit"), "{message}");
    let sources = Sources::new([("HAUL_DIAGNOSIS", "perhaps")], None);
    let message = failure(resolve(&argv("haul cp a b"), &sources)).message;
    assert!(message.contains("possible values are on, off"), "{message}");
    // Of an empty value, clap names no values that are possible.
    let sources = Sources::new([("HAUL_FILES_FROM", "")], None);
    let message = failure(resolve(&argv("haul cp a b"), &sources)).message;
    assert!(message.ends_with("this value is not accepted"), "{message}");
    let sources = Sources::new([("HAUL_JSON", "perhaps")], None);
    assert!(failure(resolve(&argv("haul cp a b"), &sources)).message.contains("write true or false"));
    let sources = Sources::new([("HAUL_CONFIG", "/nonexistent/x.toml")], None);
    assert!(failure(resolve(&argv("haul cp a b"), &sources)).message.contains("does not exist"));
}

#[test]
fn a_typed_option_hides_a_conflicting_one_from_weaker_sources() {
    let sources = Sources::new([("HAUL_TIME", "3s")], None);
    let resolved = resolve(&argv("haul bench --bytes 1MB url"), &sources).unwrap();
    let Command::Bench(args) = resolved.command else { panic!() };
    assert_eq!(args.time, None);
    assert!(args.bytes.is_some());
}

#[test]
fn configured_options_apply_only_with_the_option_they_need() {
    let dir = tempfile::tempdir().unwrap();
    let (_, user) = files(dir.path(), "", "max_delete = 5\nchecksum = true\ntime = '3s'");
    let copy = |line: &str, env: &[(&str, &str)]| {
        let env = env.iter().copied().chain([("HAUL_CONFIG", user.as_str())]);
        let Command::Cp(args) = resolve(&argv(line), &Sources::new(env, None)).unwrap().command else {
            panic!()
        };
        let sync = args.sync;
        (sync.max_delete, sync.checksum, sync.ignore_times)
    };
    assert_eq!(copy("haul cp a b", &[]), (None, true, false));
    assert_eq!(copy("haul cp --delete a b", &[]), (Some(5), true, false));
    assert_eq!(copy("haul cp a b", &[("HAUL_DELETE", "on")]), (Some(5), true, false));
    assert_eq!(copy("haul cp a b", &[("HAUL_DELETE", "off")]), (None, true, false));
    assert_eq!(copy("haul cp -I a b", &[]), (None, false, true));
    assert_eq!(copy("haul cp a b", &[("HAUL_IGNORE_TIMES", "on")]), (None, false, true));
    assert_eq!(copy("haul cp a b", &[("HAUL_IGNORE_TIMES", "off")]), (None, true, false));
    let sources = Sources::new([("HAUL_CONFIG", user.as_str())], None);
    resolve(&argv("haul demo"), &sources).unwrap();
    match resolve(&argv("haul cp --max-delete 5 a b"), &sources) {
        Err(StartError::Clap(error)) => assert_eq!(error.exit_code(), 2),
        other => panic!("{other:?}"),
    }
}

#[test]
fn unknown_environment_variables_are_noted() {
    let sources =
        Sources::new([("HAUL_RAET", "1Mbit"), ("HAUL_LOG", "debug"), ("HAUL_WAN_A", "10.0.0.1")], None);
    let notes = resolve(&argv("haul cp a b"), &sources).unwrap().notes;
    assert_eq!(notes, ["unknown environment variable HAUL_RAET (did you mean `HAUL_RATE`?)"]);
}

#[test]
fn command_line_usage_errors_come_from_clap_with_exit_code_2() {
    let none = Sources::default();
    for line in ["haul cp --rate 800 a b", "haul frobnicate", "haul -v", "haul cp --set novalue a b"] {
        match resolve(&argv(line), &none) {
            Err(StartError::Clap(error)) => assert_eq!(error.exit_code(), 2, "{line}"),
            other => panic!("{line}: {other:?}"),
        }
    }
}

#[test]
fn show_config_needs_no_command() {
    let sources = Sources::new([("HAUL_RATE", "1Mbit")], None);
    let resolved = resolve(&argv("haul --show-config"), &sources).unwrap();
    assert!(resolved.global.show_config);
    assert_eq!(row(&resolved, "rate"), (Some("1Mbit".into()), "environment HAUL_RATE".into()));
    let text = table(&resolved.rows);
    assert!(
        text.as_str().lines().any(|line| line.starts_with("controller ") && line.ends_with("default")),
        "{text:?}"
    );
}

#[test]
fn rules_of_all_sources_apply_and_typed_ones_come_first() {
    use haul_wire::control::Verdict::{Exclude, Include};

    use crate::args::RuleArg::{self, ExcludeFrom};

    let dir = tempfile::tempdir().unwrap();
    let (system, user) = files(
        dir.path(),
        "exclude = ['system']\ninclude = ['one', 'two']",
        "exclude = ['all']\n[cp]\nexclude = ['*.o', '/tmp']\nexclude_from = 'rules'",
    );
    let rules = |line: &str, env: &[(&str, &str)]| {
        let env = env.iter().copied().chain([("HAUL_CONFIG", user.as_str())]);
        let resolved = resolve(&argv(line), &Sources::new(env, Some(system.clone()))).unwrap();
        let shown = row(&resolved, "exclude");
        let Command::Cp(args) = resolved.command else { panic!() };
        (args.select.rules.0, shown, args.paths)
    };
    let include = |pattern: &str| RuleArg::of(Include, pattern.as_ref());
    let exclude = |pattern: &str| RuleArg::of(Exclude, pattern.as_ref());
    let (found, shown, paths) = rules("haul cp a -- -b", &[]);
    let of_user = [&["all", "*.o", "/tmp"].map(exclude)[..], &[ExcludeFrom("rules".into())]].concat();
    let of_system = [&["one", "two"].map(include)[..], &[exclude("system")]].concat();
    assert_eq!(found, [&of_user[..], &of_system].concat());
    let origins = format!("{user}, {}", system.display());
    assert_eq!(shown, (Some("all *.o /tmp system".into()), origins.clone()));
    assert_eq!(paths, ["a", "-b"]);
    let (found, shown, _) = rules("haul cp --exclude x a b", &[("HAUL_INCLUDE", "three\n\nfour")]);
    let of_environment = ["three", "four"].map(include);
    assert_eq!(found, [&[exclude("x")], &of_environment[..], &of_user, &of_system].concat());
    assert_eq!(shown.1, format!("flag --exclude, {origins}"));
}

#[test]
fn the_error_for_a_bad_pattern_names_its_file() {
    let dir = tempfile::tempdir().unwrap();
    for (of_system, of_user, file) in
        [("", "exclude = ['ok', '[x']", "user.toml"), ("exclude = '[x'", "exclude = 'ok'", "system.toml")]
    {
        let (system, user) = files(dir.path(), of_system, of_user);
        let sources = Sources::new([("HAUL_CONFIG", user.as_str())], Some(system));
        let failure = failure(resolve(&argv("haul cp --exclude x a b"), &sources));
        assert_eq!(failure.code, FaultCode::Usage);
        assert!(failure.message.contains(file) && failure.message.contains("has no ']'"), "{failure}");
    }
}

/// An empty `HOME` must not make the current directory's owner choose options, for example a program for
/// `--ssh`.
#[test]
fn a_relative_home_is_ignored() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(home.path().join(".config/haul")).unwrap();
    std::fs::write(home.path().join(".config/haul/config.toml"), "rate = '1Mbit'").unwrap();
    let to_root = "../".repeat(std::env::current_dir().unwrap().components().count() - 1);
    let absolute = home.path().to_str().unwrap();
    for (home, rate) in [(absolute, Some("1Mbit")), (&*format!("{to_root}{}", &absolute[1..]), None)] {
        let resolved = resolve(&argv("haul cp a b"), &Sources::new([("HOME", home)], None)).unwrap();
        assert_eq!(row(&resolved, "rate").0.as_deref(), rate, "{home}");
    }
}

/// Regression test: `listen` in a server's configuration file made every `haul pipe URL` a usage error.
#[test]
fn typed_options_hide_configured_ones_they_conflict_with() {
    let env =
        [("HAUL_CONFIG", ""), ("HAUL_LISTEN", "127.0.0.1:1"), ("HAUL_SIZE", "1MB"), ("HAUL_NO_TCP", "1")];
    let sources = Sources::new(env, None);
    let command = |line| resolve(&argv(line), &sources).unwrap().command;
    let Command::Pipe(args) = command("haul pipe url") else { panic!() };
    assert!(args.listen.is_none());
    let Command::Pipe(args) = command("haul pipe") else { panic!() };
    assert!(args.listen.is_some());
    let Command::Demo(args) = command("haul demo --busy-receiver") else { panic!() };
    assert!(args.busy_receiver && !args.no_tcp);
    let sources =
        Sources::new([("HAUL_CONFIG", ""), ("HAUL_BUSY_RECEIVER", "on"), ("HAUL_TIME", "1s")], None);
    let Command::Demo(args) = resolve(&argv("haul demo path"), &sources).unwrap().command else { panic!() };
    assert!(!args.busy_receiver && args.time.is_none());
}

/// Regression test: `delete = true` in a configuration file made every `haul cp --files-from` a usage error.
#[test]
fn a_typed_list_of_files_hides_a_configured_delete() {
    let env =
        [("HAUL_CONFIG", ""), ("HAUL_DELETE", "1"), ("HAUL_MAX_DELETE", "9"), ("HAUL_FILES_FROM", "list")];
    let command = |line, env: &[_]| {
        let resolved = resolve(&argv(line), &Sources::new(env.to_vec(), None)).unwrap();
        let Command::Cp(args) = resolved.command else { panic!() };
        (args.sync.delete, args.select.files_from.is_some())
    };
    assert_eq!(command("haul cp --files-from list a b", &env[..3]), (false, true));
    assert_eq!(command("haul cp --delete a b", &env), (true, false));
    assert_eq!(command("haul cp a b", &env[..3]), (true, false));
}

#[test]
fn an_option_that_another_one_needs_may_be_configured() {
    let resolve_with = |line: &str, env: &[(&str, &str)]| {
        let env = env.iter().copied().chain([("HAUL_CONFIG", "")]);
        resolve(&argv(line), &Sources::new(env, None)).unwrap().command
    };
    let Command::Cp(args) = resolve_with("haul cp --max-delete 5 a b", &[("HAUL_DELETE", "true")]) else {
        panic!()
    };
    assert!(args.sync.delete && args.sync.max_delete == Some(5));
    let busy = ("HAUL_BUSY_RECEIVER", "true");
    let Command::Demo(args) = resolve_with("haul demo --time 1s", &[busy]) else { panic!() };
    assert!(args.busy_receiver && args.time.is_some());
    let Command::Cp(args) = resolve_with("haul cp a b", &[("HAUL_SET_MEMORY", "2GiB")]) else { panic!() };
    assert_eq!(args.set_memory.map(|size| size.0), Some(2 << 30));

    let dir = tempfile::tempdir().unwrap();
    let (_, user) = files(dir.path(), "", "[train]\nhost = ['a', 'b']\nnetwork = 'c'\noutput = 'm'");
    let sources = Sources::new([("HAUL_CONFIG", user.as_str())], None);
    let Command::Train(args) = resolve(&argv("haul train"), &sources).unwrap().command else { panic!() };
    assert_eq!((args.host.len(), args.network.len(), args.output), (2, 1, PathBuf::from("m")));
    match resolve(&argv("haul train --host a"), &Sources::default()) {
        Err(StartError::Clap(error)) => assert!(error.to_string().contains("--network"), "{error}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_error_for_conflicting_variables_names_both() {
    let sources = Sources::new([("HAUL_CONFIG", ""), ("HAUL_TIME", "5s"), ("HAUL_BYTES", "1MB")], None);
    let message = failure(resolve(&argv("haul bench"), &sources)).message;
    assert!(message.contains("it conflicts with --") && message.contains("environment HAUL_"), "{message}");
    assert!(message.contains("bytes") && message.contains("time"), "{message}");
}
