//! Tips for options that clap does not know.

use std::borrow::Cow;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, CommandFactory};

use super::Cli;

/// Replaces clap's tip where an option's value begins with `-`: clap suggests `--`, which would end the
/// options.
pub(crate) fn with_tip(mut error: clap::Error, argv: &[OsString]) -> clap::Error {
    let unknown = match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(word))) => word.clone(),
        _ => return error,
    };
    let words: Vec<_> = argv.iter().map(|word| word.to_string_lossy()).collect();
    let is_meant = |pair: &&[Cow<'_, str>]| pair[1].starts_with(&unknown) && takes_value(&pair[0]);
    let value = words.windows(2).find(is_meant).map(|pair| (&pair[0], &pair[1]));
    let tip =
        value.map(|(option, value)| format!("write a value that begins with '-' as '{option}={value}'"));
    if let Some(tip) = tip.or_else(|| of_other_programs(&unknown).map(str::to_owned)) {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// Returns a tip for an option of cp, scp or rsync.
fn of_other_programs(option: &str) -> Option<&'static str> {
    Some(match option {
        "-r" | "-R" | "--recursive" => "leave it out: directories are always copied recursively",
        "-p" | "-t" | "--times" | "--perms" => "leave it out: permissions and times are always preserved",
        "-l" | "--bwlimit" => "--rate 8Mbit limits the rate",
        "-z" | "-C" | "--compress" => "leave it out: haul does not compress",
        "-u" => "write --update",
        _ => return None,
    })
}

/// Whether `word` is an option of any command that takes the next word as its value.
fn takes_value(word: &str) -> bool {
    let is_it = |arg: &Arg| {
        let is_long = arg.get_long().is_some_and(|long| word.strip_prefix("--") == Some(long));
        let is_short =
            arg.get_short().is_some_and(|short| word.strip_prefix('-') == Some(&*short.to_string()));
        (is_long || is_short) && arg.get_action().takes_values()
    };
    Cli::command().get_subcommands().any(|command| command.get_arguments().any(is_it))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_gives_an_option_a_value_with_a_dash_is_told_how() {
        let said = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            with_tip(Cli::command().try_get_matches_from(&words).unwrap_err(), &words).to_string()
        };
        for (line, written) in [
            ("haul cp --exclude -d a b", "--exclude=-d"),
            ("haul cp --exclude -dx a b", "--exclude=-dx"),
            ("haul cp -v --exclude --foo a b", "--exclude=--foo"),
            ("haul cp -o -5 a b", "-o=-5"),
        ] {
            let said = said(line);
            assert!(
                said.contains(&format!("value that begins with '-' as '{written}'"))
                    && !said.contains("'-- "),
                "{said}"
            );
            let accepted = line.replace(written.replace('=', " ").as_str(), written);
            assert!(Cli::command().try_get_matches_from(accepted.split(' ')).is_ok(), "{accepted}");
        }
        for (option, tip) in
            [("-r", "leave it out"), ("-av -z", "does not compress"), ("-l 100", "--rate 8Mbit")]
        {
            let said = said(&format!("haul cp {option} a b"));
            assert!(said.contains(tip) && !said.contains("'-- "), "{said}");
        }
        for line in ["haul cp -Z a b", "haul cp --update -d a b", "haul cp --exclude=x -d a b"] {
            assert!(said(line).contains("use '-- -"), "{line}");
        }
    }
}
