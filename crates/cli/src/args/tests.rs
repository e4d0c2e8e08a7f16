use clap::CommandFactory;

use super::*;

fn help(command: Option<&str>) -> String {
    let mut root = Cli::command().term_width(100);
    root.build();
    match command {
        None => root.render_help().to_string(),
        Some(name) => root.find_subcommand_mut(name).unwrap().render_help().to_string(),
    }
}

#[test]
fn the_definition_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn help_of_the_program() {
    insta::assert_snapshot!(help(None));
}

#[test]
fn help_of_cp() {
    insta::assert_snapshot!(help(Some("cp")));
}

#[test]
fn help_of_serve() {
    insta::assert_snapshot!(help(Some("serve")));
}

#[test]
fn help_of_bench() {
    insta::assert_snapshot!(help(Some("bench")));
}

#[test]
fn help_of_pipe() {
    insta::assert_snapshot!(help(Some("pipe")));
}

#[test]
fn help_of_status() {
    insta::assert_snapshot!(help(Some("status")));
}

#[test]
fn help_of_clean() {
    insta::assert_snapshot!(help(Some("clean")));
}

#[test]
fn help_of_diagnose() {
    insta::assert_snapshot!(help(Some("diagnose")));
}

#[test]
fn help_of_train() {
    insta::assert_snapshot!(help(Some("train")));
}

#[test]
fn help_of_doctor() {
    insta::assert_snapshot!(help(Some("doctor")));
}

#[test]
fn help_of_presets() {
    insta::assert_snapshot!(help(Some("presets")));
}

#[test]
fn help_of_demo() {
    insta::assert_snapshot!(help(Some("demo")));
}

#[test]
fn a_bare_number_is_refused_with_a_hint() {
    for line in [
        "haul cp --rate 800 a b",
        "haul bench --time 10 url",
        "haul bench --bytes 1000 url",
        "haul demo --rtt 65",
        "haul demo --size 256",
        "haul serve --expires 12",
    ] {
        let error = Cli::try_parse_from(line.split(' ')).unwrap_err();
        assert!(error.to_string().contains("has no unit; write for example"), "{error}");
        assert_eq!(error.exit_code(), 2);
    }
}

#[test]
fn a_time_or_frame_of_zero_is_refused_with_a_hint() {
    let (times, sizes) = (["0s", "0h", "0.0ms"], ["0B", "0kB", "0.0MiB"]);
    for (line, zeros, positive) in [
        ("haul serve --expires", times, "1ms"),
        ("haul bench @url --time", times, "1ms"),
        ("haul doctor --time", times, "1ms"),
        ("haul demo --busy-receiver --time", times, "1ms"),
        ("haul pipe @url --frame", sizes, "1B"),
    ] {
        let parse = |value| Cli::try_parse_from(line.split(' ').chain([value]));
        for zero in zeros {
            let error = parse(zero).unwrap_err();
            assert!(error.to_string().contains("must not be zero; give more"), "{line} {error}");
            assert_eq!(error.exit_code(), 2);
        }
        assert!(parse(positive).is_ok(), "{line}");
    }
}

#[test]
fn global_options_may_precede_or_follow_the_command() {
    for line in ["haul --json -v cp a b", "haul cp --json a b -v"] {
        let cli = Cli::try_parse_from(line.split(' ')).unwrap();
        assert!(cli.global.json);
        assert_eq!(cli.global.verbose, 1);
    }
}

#[test]
fn time_and_bytes_exclude_each_other() {
    let words = ["haul", "bench", "u", "--time", "1s", "--bytes", "1MB"];
    assert!(Cli::try_parse_from(words).is_err());
}

#[test]
fn the_session_limits_of_a_server_match_the_documentation() {
    let Some(Command::Serve(args)) = Cli::try_parse_from(["haul", "serve"]).unwrap().command else {
        panic!()
    };
    let limits = (args.max_sessions, args.max_per_address, args.idle_timeout);
    assert_eq!(limits, (64, 48, Span::from_secs(60)), "docs/security.md");
}
