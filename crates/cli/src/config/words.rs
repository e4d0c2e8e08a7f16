//! The options in force, spelled out for another `haul`.

use std::ffi::OsString;

use clap::ArgMatches;

use super::is_typed;
use super::options::{Kind, OptionSpec};

/// Every option that has a value by any place, with its name and as a word; `--set` is left out.
pub(super) fn words(options: &[OptionSpec], matches: &ArgMatches) -> Vec<(String, OsString)> {
    let given = options.iter().filter(|option| is_typed(matches, option));
    let spelled =
        given.flat_map(|option| spell(option, matches).into_iter().map(|word| (option.long.clone(), word)));
    spelled.collect()
}

fn spell(option: &OptionSpec, matches: &ArgMatches) -> Vec<OsString> {
    let scope = matches.subcommand().map_or(matches, |(_, sub)| sub);
    let name = format!("--{}", option.long);
    match option.kind {
        Kind::Switch if scope.get_flag(&option.id) => vec![name.into()],
        Kind::Count => vec![name.into(); usize::from(scope.get_count(&option.id))],
        Kind::Value => {
            let with = |value| [name.as_ref(), "=".as_ref(), value].into_iter().collect();
            scope.get_raw(&option.id).into_iter().flatten().map(with).collect()
        }
        Kind::Switch | Kind::Set => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    use crate::config::{Sources, resolve};

    #[test]
    fn options_are_spelled_with_their_values_wherever_they_come_from() {
        let mut argv: Vec<OsString> =
            ["haul", "cp", "-vv", "--set", "chunk=1MB", "-o", "A=1", "-oB=2", "--no-resume"]
                .map(OsString::from)
                .into();
        argv.extend(["--events".into(), OsString::from_vec(b"\xff x".to_vec()), "a".into(), "b".into()]);
        let sources = Sources::new([("HAUL_RATE", "5Mbit"), ("HAUL_CONFIG", "")], None);
        let mut words = resolve(&argv, &sources).unwrap().words;
        words.sort();
        let spelled: Vec<OsString> = words.into_iter().map(|(_, word)| word).collect();
        let events = OsString::from_vec(b"--events=\xff x".to_vec());
        let rest =
            ["--no-resume", "--rate=5Mbit", "--ssh-option=A=1", "--ssh-option=B=2", "--verbose", "--verbose"];
        let wanted: Vec<OsString> = std::iter::once(events).chain(rest.map(OsString::from)).collect();
        assert_eq!(spelled, wanted);
    }
}
