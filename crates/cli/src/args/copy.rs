//! Options of `haul cp`: what is sent, existing files, the receiver's disk, attributes of files, and ssh.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, PathBufValueParser, TypedValueParser};
use clap::{ArgMatches, Args, Command, Error, FromArgMatches, ValueEnum};
use haul_base::Bytes;
use haul_mover::check_pattern;
use haul_wire::control::{Durability, HardLinks, Keep, Ownership, Preserve, Rule, Verdict};

use super::values::{self, PortRange};

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

/// Declares the options of [`RuleArgs`], which keeps their order.
#[derive(Debug, Args)]
struct RuleOptions {
    /// Skip matching entries, for example '*.tmp' or /build/; repeatable
    #[arg(long, value_name = "PATTERN", value_parser = pattern(Verdict::Exclude))]
    exclude: Vec<RuleArg>,
    /// Send matching entries despite later rules; the first match counts
    #[arg(long, value_name = "PATTERN", value_parser = pattern(Verdict::Include))]
    include: Vec<RuleArg>,
    /// Read exclude patterns from a file, one per line (a leading + includes)
    #[arg(long, value_name = "FILE", value_parser = PathBufValueParser::new().map(RuleArg::ExcludeFrom))]
    exclude_from: Vec<RuleArg>,
}

/// Returns a parser of patterns that rejects those that do not compile.
fn pattern(verdict: Verdict) -> impl TypedValueParser<Value = RuleArg> {
    OsStringValueParser::new()
        .try_map(move |word| check_pattern(word.as_bytes()).map(|()| RuleArg::of(verdict, &word)))
}

impl Args for RuleArgs {
    fn augment_args(command: Command) -> Command {
        RuleOptions::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        RuleOptions::augment_args_for_update(command)
    }
}

impl FromArgMatches for RuleArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let RuleOptions { exclude, include, exclude_from } = RuleOptions::from_arg_matches(matches)?;
        let mut found = Vec::new();
        for (id, rules) in [("exclude", exclude), ("include", include), ("exclude_from", exclude_from)] {
            found.extend(matches.indices_of(id).into_iter().flatten().zip(rules));
        }
        found.sort_by_key(|(index, _)| *index);
        Ok(Self(found.into_iter().map(|(_, rule)| rule).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[derive(Debug, Clone, Default, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
#[command(next_help_heading = "Existing files")]
pub(crate) struct SyncArgs {
    /// Compare files of equal size by contents instead of modification time
    #[arg(short = 'c', long, conflicts_with = "ignore_times")]
    pub checksum: bool,
    /// Send files even if size and modification time are equal
    #[arg(short = 'I', long)]
    pub ignore_times: bool,
    /// Skip files that are newer at the destination
    #[arg(short, long)]
    pub update: bool,
    /// Delete entries that the sources lack from the copied directories, once all else has succeeded
    #[arg(long)]
    pub delete: bool,
    /// With --delete: delete nothing if more than N entries would be deleted
    #[arg(long, value_name = "N", requires = "delete")]
    pub max_delete: Option<u64>,
    /// Send growing files up to the size found; of files grown since the last copy, send only the new part
    #[arg(long)]
    pub growing: bool,
}

#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Disk")]
pub(crate) struct StorageArgs {
    /// When received files are synced to disk
    #[arg(long, value_name = "WHEN", value_parser = values::durability(), default_value = "files")]
    pub sync: Durability,
    /// Read every received file back from disk and compare it
    #[arg(long)]
    pub verify: bool,
}

/// Attribute in the list of `--preserve`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Preserved {
    /// Owner and group
    Owner,
    /// Extended attributes
    Xattrs,
    /// Access control lists
    Acls,
    /// All of these
    All,
    /// None of these
    None,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Preserved attributes")]
pub(crate) struct PreserveArgs {
    /// Preserve these besides contents, permissions and times: owner, xattrs, acls, all
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',')]
    pub preserve: Vec<Preserved>,
    /// Preserve everything possible; the same as --preserve all
    #[arg(short, long)]
    pub archive: bool,
    /// Preserve owner and group where the receiver is permitted to set them
    #[arg(long)]
    pub owner: bool,
    /// Preserve extended attributes
    #[arg(short = 'X', long)]
    pub xattrs: bool,
    /// Preserve access control lists
    #[arg(short = 'A', long)]
    pub acls: bool,
    /// Map owners and groups by number instead of by name
    #[arg(long)]
    pub numeric_ids: bool,
    /// Copy a file once per name instead of recreating hard links
    #[arg(long)]
    pub no_hard_links: bool,
}

impl PreserveArgs {
    pub(crate) fn preserve(&self) -> Preserve {
        let flags = [
            (self.archive, Preserved::All),
            (self.owner, Preserved::Owner),
            (self.xattrs, Preserved::Xattrs),
            (self.acls, Preserved::Acls),
        ];
        let given = flags.into_iter().filter(|(is_given, _)| *is_given).map(|(_, what)| what);
        let mut preserve = preserve_from(&self.preserve.iter().copied().chain(given).collect::<Vec<_>>());
        if self.numeric_ids && preserve.owner == Ownership::Names {
            preserve.owner = Ownership::Numbers;
        }
        if self.no_hard_links {
            preserve.hard_links = HardLinks::Copy;
        }
        preserve
    }
}

pub(super) fn preserve_from(list: &[Preserved]) -> Preserve {
    let has = |one| list.contains(&one) || list.contains(&Preserved::All);
    let keep = |one| if has(one) { Keep::Preserve } else { Keep::Drop };
    Preserve {
        hard_links: HardLinks::Keep,
        owner: if has(Preserved::Owner) { Ownership::Names } else { Ownership::Receiver },
        xattrs: keep(Preserved::Xattrs),
        acls: keep(Preserved::Acls),
    }
}

#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Over ssh (HOST:PATH)")]
pub(crate) struct SshArgs {
    /// Command to run as ssh, including any options [default: ssh]
    #[arg(long, value_name = "COMMAND")]
    pub ssh: Option<String>,
    /// Path of haul on the remote machine, if not in PATH [default: haul]
    #[arg(long, value_name = "PATH")]
    pub remote_binary: Option<String>,
    /// Ports that the remote machine may listen on, TCP and UDP [default: any free port]
    #[arg(long, value_name = "A-B")]
    pub port_range: Option<PortRange>,
    /// Port of the ssh server
    #[arg(short = 'P', long, value_name = "PORT")]
    pub ssh_port: Option<u16>,
    /// Private key file for ssh
    #[arg(short = 'i', long, value_name = "FILE")]
    pub ssh_identity: Option<PathBuf>,
    /// Jump host, as with ssh -J
    #[arg(short = 'J', long, value_name = "HOST")]
    pub ssh_jump: Option<String>,
    /// ssh configuration file
    #[arg(short = 'F', long, value_name = "FILE")]
    pub ssh_config: Option<PathBuf>,
    /// ssh option in configuration file syntax, for example ConnectTimeout=5; repeatable
    #[arg(short = 'o', long, value_name = "OPTION")]
    pub ssh_option: Vec<String>,
    /// Between two remote machines: continue if this machine disconnects
    #[arg(long)]
    pub detach: bool,
    /// Read the request from stdin; used for copies between two remote machines
    #[arg(long, hide = true)]
    pub for_ssh: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equivalent_preserve_options_have_the_same_effect() {
        let args = |set: fn(&mut PreserveArgs)| {
            let mut args = PreserveArgs::default();
            set(&mut args);
            args.preserve()
        };
        assert_eq!(args(|_| {}), Preserve::default());
        assert_eq!(args(|a| a.archive = true), Preserve::ALL);
        assert_eq!(args(|a| a.preserve = vec![Preserved::All]), Preserve::ALL);
        let three = vec![Preserved::Owner, Preserved::Xattrs, Preserved::Acls];
        assert_eq!(preserve_from(&three), Preserve::ALL);
        assert_eq!(preserve_from(&[Preserved::None]), Preserve::default());
        assert_eq!(args(|a| (a.owner, a.numeric_ids) = (true, true)).owner, Ownership::Numbers);
        assert_eq!(args(|a| a.numeric_ids = true).owner, Ownership::Receiver);
        assert_eq!(args(|a| a.no_hard_links = true).hard_links, HardLinks::Copy);
    }
}

#[cfg(test)]
mod select_tests {
    use std::ffi::OsString;
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
        for option in ["--exclude-from", "--files-from"] {
            let error = parse([option.into(), "".into()]).unwrap_err().to_string();
            assert!(error.contains(&format!("a value is required for '{option}")), "{error}");
        }
        assert!(parse(words("--max-size 10 a b")).unwrap_err().to_string().contains("has no unit"));
    }
}
