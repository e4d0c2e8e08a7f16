//! Options that select what is sent.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};
use haul_base::Bytes;
use haul_mover::check_pattern;
use haul_wire::control::{Rule, Verdict};

/// A value of `--exclude`, `--include` or `--exclude-from`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RuleArg {
    Rule(Rule),
    /// A file of rules, one per line.
    ExcludeFrom(PathBuf),
}

impl RuleArg {
    pub(crate) fn of(verdict: Verdict, pattern: &OsStr) -> Self {
        Self::Rule(Rule { verdict, pattern: pattern.as_bytes().to_vec() })
    }
}

/// `--exclude`, `--include` and `--exclude-from` in command-line order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RuleArgs(pub Vec<RuleArg>);

#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Selecting files")]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(crate) struct SelectArgs {
    #[command(flatten)]
    pub rules: RuleArgs,
    /// Send only the paths listed in this file, one per line, relative to the source
    #[arg(long, value_name = "FILE|-")]
    pub files_from: Option<PathBuf>,
    /// Entries of --files-from and --exclude-from end with NUL instead of newline
    #[arg(short = '0', long)]
    pub from0: bool,
    /// Skip what .gitignore and .ignore files in the tree exclude
    #[arg(long)]
    pub gitignore: bool,
    /// Skip larger files
    #[arg(long, value_name = "SIZE")]
    pub max_size: Option<Bytes>,
    /// Skip smaller files
    #[arg(long, value_name = "SIZE")]
    pub min_size: Option<Bytes>,
    /// Do not cross file system boundaries
    #[arg(short = 'x', long)]
    pub one_file_system: bool,
    /// Follow symbolic links and send what they point to
    #[arg(short = 'L', long)]
    pub copy_links: bool,
}

fn rule_options() -> [Arg; 3] {
    // Rejects patterns that do not compile.
    let pattern = |verdict| {
        OsStringValueParser::new().try_map(move |word: OsString| {
            check_pattern(word.as_bytes()).map(|()| RuleArg::of(verdict, &word))
        })
    };
    let file = OsStringValueParser::new().map(|word| RuleArg::ExcludeFrom(PathBuf::from(word)));
    let option = |name: &'static str| Arg::new(name).long(name).action(clap::ArgAction::Append);
    [
        option("exclude")
            .value_name("PATTERN")
            .value_parser(pattern(Verdict::Exclude))
            .help("Skip matching entries, for example '*.tmp' or /build/; repeatable"),
        option("include")
            .value_name("PATTERN")
            .value_parser(pattern(Verdict::Include))
            .help("Send matching entries despite later rules; the first match counts"),
        option("exclude-from")
            .value_name("FILE")
            .value_parser(file)
            .help("Read exclude patterns from a file, one per line (a leading + includes)"),
    ]
}

impl Args for RuleArgs {
    fn augment_args(command: Command) -> Command {
        command.args(rule_options())
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for RuleArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut found: Vec<(usize, RuleArg)> = Vec::new();
        for name in ["exclude", "include", "exclude-from"] {
            let indices = matches.indices_of(name).into_iter().flatten();
            found.extend(indices.zip(matches.get_many(name).into_iter().flatten().cloned()));
        }
        found.sort_by_key(|(index, _)| *index);
        Ok(Self(found.into_iter().map(|(_, rule)| rule).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command, CpArgs};

    fn parse(words: impl IntoIterator<Item = OsString>) -> Result<CpArgs, Error> {
        let words = ["haul".into(), "cp".into()].into_iter().chain(words);
        match Cli::try_parse_from(words)?.command {
            Some(Command::Cp(args)) => Ok(*args),
            other => panic!("{other:?}"),
        }
    }

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn rules_keep_the_order_of_the_command_line() {
        let line = "--exclude *.o a --include /x/ --exclude-from f --exclude=-b --include=c d";
        let args = parse(words(line)).unwrap();
        let expected = [
            RuleArg::of(Verdict::Exclude, "*.o".as_ref()),
            RuleArg::of(Verdict::Include, "/x/".as_ref()),
            RuleArg::ExcludeFrom("f".into()),
            RuleArg::of(Verdict::Exclude, "-b".as_ref()),
            RuleArg::of(Verdict::Include, "c".as_ref()),
        ];
        assert_eq!(args.select.rules.0, expected);
        assert_eq!(args.paths, ["a", "d"]);
    }

    #[test]
    fn patterns_may_be_any_bytes_and_bad_ones_are_named_with_their_option() {
        let odd = OsString::from_vec(b"*\xff".to_vec());
        let args = parse(["--exclude".into(), odd.clone()]).unwrap();
        assert_eq!(args.select.rules.0, [RuleArg::of(Verdict::Exclude, &odd)]);
        for (option, bad, why) in [("--exclude", "[a", "has no ']'"), ("--include", "a/../b", "'..'")] {
            let error = parse([option.into(), bad.into()]).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(option) && text.contains(bad) && text.contains(why), "{text}");
            assert_eq!(error.exit_code(), 2);
        }
        assert!(parse(words("--max-size 10 a b")).unwrap_err().to_string().contains("has no unit"));
    }
}
