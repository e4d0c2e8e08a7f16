//! The options in force, spelled out for another `haul`.

use std::ffi::OsString;

use clap::ArgMatches;

use super::is_typed;
use super::options::{Kind, OptionSpec};

/// Every option that has a value by any place, with its name and as a word, in the order of the command line;
/// `--set` is left out.
pub(super) fn words(options: &[OptionSpec], matches: &ArgMatches) -> Vec<(String, OsString)> {
    let scope = matches.subcommand().map_or(matches, |(_, sub)| sub);
    let given = options.iter().filter(|option| option.kind != Kind::Set && is_typed(matches, option));
    let mut placed: Vec<(usize, (String, OsString))> = given
        .flat_map(|option| {
            let places = scope.indices_of(&option.id).into_iter().flatten();
            let words = spell(option, scope).into_iter().map(|word| (option.long.clone(), word));
            places.chain(std::iter::repeat(usize::MAX)).zip(words)
        })
        .collect();
    placed.sort_by_key(|(place, _)| *place);
    placed.into_iter().map(|(_, word)| word).collect()
}

fn spell(option: &OptionSpec, scope: &ArgMatches) -> Vec<OsString> {
    let name = format!("--{}", option.long);
    if option.kind == Kind::Switch {
        return scope.get_flag(&option.id).then(|| name.into()).into_iter().collect();
    }
    if option.kind == Kind::Count {
        return vec![name.into(); usize::from(scope.get_count(&option.id))];
    }
    let with = |value| [name.as_ref(), "=".as_ref(), value].into_iter().collect();
    scope.get_raw(&option.id).into_iter().flatten().map(with).collect()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    use crate::config::{Sources, resolve};

    #[test]
    fn options_are_spelled_with_their_values_wherever_they_come_from() {
        let mut argv: Vec<OsString> =
            ["haul", "cp", "-vv", "--set", "chunk=1MB", "-o", "A=1", "-oB=2", "--no-resume", "-oC=3"]
                .map(OsString::from)
                .into();
        argv.extend(["--events".into(), OsString::from_vec(b"\xff x".to_vec()), "a".into(), "b".into()]);
        let sources = Sources::new([("HAUL_RATE", "5Mbit"), ("HAUL_CONFIG", "")], None);
        let mut words = resolve(&argv, &sources).unwrap().words;
        let in_order = |word: &str| words.iter().position(|(_, found)| found == word).unwrap();
        assert!(in_order("--ssh-option=B=2") < in_order("--no-resume"));
        assert!(in_order("--no-resume") < in_order("--ssh-option=C=3"));
        words.sort();
        let spelled: Vec<OsString> = words.into_iter().map(|(_, word)| word).collect();
        let events = OsString::from_vec(b"--events=\xff x".to_vec());
        let rest = [
            "--no-resume",
            "--rate=5Mbit",
            "--ssh-option=A=1",
            "--ssh-option=B=2",
            "--ssh-option=C=3",
            "--verbose",
            "--verbose",
        ];
        let wanted: Vec<OsString> = std::iter::once(events).chain(rest.map(OsString::from)).collect();
        assert_eq!(spelled, wanted);
    }
}
