//! Selection of source files.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use haul_base::printable_bytes;
use haul_mover::{check_pattern, has_unknown_exclusions, leaves_out_unseen, open_named};
use haul_wire::control::{
    ExcludedNames, FileSystems, IgnoreFiles, LinkChoice, MAX_RULES, MAX_SELECTION_BYTES, RelPath, Rule,
    Selection, Verdict,
};

use crate::args::{CpArgs, RuleArg, SelectArgs};
use crate::fault::{self, Fault};
use crate::signals::ended_by_signals;
use crate::standard_streams::check_stdin;

/// Maximum length of a list's entry, bytes. What has no separators is not a list, and may not end.
const LONGEST_ENTRY: u64 = 1 << 20;

const STDIN: &str = "-";

/// Builds a selection from the options and the files that they name.
pub(crate) fn selection(args: &SelectArgs, sources: usize) -> Result<Selection, Fault> {
    if args.files_from.is_some() && sources != 1 {
        let message = format!("--files-from needs one source that its paths are relative to, not {sources}");
        return Err(fault::usage(message, "name the directory that holds the files as the only source"));
    }
    let from_stdin = RuleArg::ExcludeFrom(STDIN.into());
    let rule_files = args.rules.0.iter().filter(|rule| **rule == from_stdin).count();
    if rule_files + usize::from(args.files_from.as_deref() == Some(Path::new(STDIN))) > 1 {
        return Err(fault::usage("only one list can come from stdin", "write the other to a file"));
    }
    let separator = if args.from0 { 0 } else { b'\n' };
    let paths = |file| entries(file, "--files-from", separator, path);
    if let (Some(min), Some(max)) = (args.min_size, args.max_size)
        && min > max
    {
        let message = format!("--min-size {min} is larger than --max-size {max}: no file matches");
        return Err(fault::usage(message, "swap them"));
    }
    Ok(Selection {
        rules: rules(&args.rules.0, separator)?,
        paths: args.files_from.as_deref().map(paths).transpose()?,
        ignore_files: if args.gitignore { IgnoreFiles::Obey } else { IgnoreFiles::Disregard },
        links: if args.copy_links { LinkChoice::Follow } else { LinkChoice::Keep },
        file_systems: if args.one_file_system { FileSystems::One } else { FileSystems::All },
        min_bytes: args.min_size.map(|size| size.0),
        max_bytes: args.max_size.map(|size| size.0),
        left_out: ExcludedNames::NotSent,
    })
}

/// Builds the selection of `haul cp`; with `--delete`, the receiver is told which names are left out.
pub(crate) fn chosen(args: &CpArgs, sources: usize) -> Result<Selection, Fault> {
    let mut selection = selection(&args.select, sources)?;
    if args.sync.delete && leaves_out_unseen(&selection) {
        selection.left_out = ExcludedNames::Sent;
    }
    if args.sync.delete && has_unknown_exclusions(&selection) {
        return Err(fault::usage(
            "--delete does not go together with --files-from: a list says of no directory that it has nothing else \
             (rsync, too, deletes only in directories that are sent whole)",
            "choose with --exclude and --include, whose patterns the receiver is told; or leave out --delete",
        ));
    }
    Ok(selection)
}

fn rules(args: &[RuleArg], separator: u8) -> Result<Vec<Rule>, Fault> {
    let mut rules = Vec::new();
    for arg in args {
        match arg {
            RuleArg::Rule(rule) => rules.push(rule.clone()),
            RuleArg::ExcludeFrom(file) => {
                rules.extend(entries(file, "--exclude-from", separator, |line| rule(line, separator))?);
            }
        }
    }
    let bytes: usize = rules.iter().map(|rule| rule.pattern.len()).sum();
    if rules.len() > MAX_RULES || bytes > MAX_SELECTION_BYTES {
        let limit = format!("the limit of {MAX_RULES} rules and {MAX_SELECTION_BYTES} bytes");
        let message = format!("{} rules of {bytes} bytes exceed {limit}", rules.len());
        let hint = "use fewer patterns, with wildcards, or list the files with --files-from";
        return Err(fault::usage(message, hint));
    }
    Ok(rules)
}

fn rule(line: &[u8], separator: u8) -> Result<Option<Rule>, String> {
    if separator == b'\n' && matches!(line[0], b'#' | b';') {
        return Ok(None);
    }
    let (verdict, pattern) = match line {
        [b'+', b' ', pattern @ ..] => (Verdict::Include, pattern),
        [b'-', b' ', pattern @ ..] | pattern => (Verdict::Exclude, pattern),
    };
    check_pattern(pattern).map_err(|why| why.to_string())?;
    Ok(Some(Rule { verdict, pattern: pattern.to_vec() }))
}

fn path(line: &[u8]) -> Result<Option<RelPath>, String> {
    if line.starts_with(b"/") {
        return Err("the path is absolute; write it relative to the source".to_owned());
    }
    // `./a//b/` is a/b, and `.` the source, which is sent anyway.
    let parts: Vec<&[u8]> = line.split(|&b| b == b'/').filter(|c| !matches!(*c, b"" | b".")).collect();
    let path = Some(parts.join(&b'/')).filter(|path| !path.is_empty());
    path.map(RelPath::new).transpose().map_err(|why| why.to_string())
}

/// Reads the non-empty entries of a list. Errors name the entry's number, counted from 1.
fn entries<T>(
    file: &Path,
    option: &str,
    separator: u8,
    parse: impl Fn(&[u8]) -> Result<Option<T>, String>,
) -> Result<Vec<T>, Fault> {
    let unreadable = |error: io::Error| {
        fault::usage(format!("cannot read {} of {option}: {error}", file.display()), "check the name")
    };
    let mut from: Box<dyn BufRead> = if file.as_os_str() == STDIN {
        check_stdin()?;
        Box::new(io::stdin().lock())
    } else {
        Box::new(BufReader::new(ended_by_signals(|| open_named(file)).map_err(unreadable)?))
    };
    let (mut parsed, mut entry) = (Vec::new(), Vec::new());
    for number in 1_usize.. {
        entry.clear();
        let read = || from.by_ref().take(LONGEST_ENTRY).read_until(separator, &mut entry);
        let len = ended_by_signals(read).map_err(unreadable)?;
        if len == 0 {
            break;
        }
        if entry.pop_if(|last| *last == separator).is_none() && len as u64 == LONGEST_ENTRY {
            let why = format!("entry {number} has more than {LONGEST_ENTRY} bytes");
            return Err(unreadable(io::Error::other(why)));
        }
        entry.pop_if(|last| separator == b'\n' && *last == b'\r');
        if !entry.is_empty() {
            parsed.extend(parse(&entry).map_err(|why| {
                let (file, line) = (file.display(), printable_bytes(&entry));
                let message = format!("{option} {file}, entry {number} (`{line}`): {why}");
                fault::usage(message, "correct the file")
            })?);
        }
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::RuleArgs;

    fn file(text: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    fn listed(text: &[u8], from0: bool) -> Result<Vec<String>, Fault> {
        let file = file(text);
        let args = SelectArgs { files_from: Some(file.path().into()), from0, ..SelectArgs::default() };
        let paths = selection(&args, 1)?.paths.unwrap();
        Ok(paths.iter().map(|path| String::from_utf8_lossy(path.as_bytes()).into_owned()).collect())
    }

    fn from_file(text: &[u8]) -> Result<Vec<(Verdict, Vec<u8>)>, Fault> {
        let file = file(text);
        let first = RuleArg::of(Verdict::Include, "first".as_ref());
        let rules = RuleArgs(vec![first, RuleArg::ExcludeFrom(file.path().into())]);
        let selection = selection(&SelectArgs { rules, ..SelectArgs::default() }, 2)?;
        Ok(selection.rules.into_iter().map(|rule| (rule.verdict, rule.pattern)).collect())
    }

    #[test]
    fn no_options_select_everything() {
        assert!(selection(&SelectArgs::default(), 3).unwrap().is_everything());
    }

    #[test]
    fn list_entries_end_with_a_newline_or_nul() {
        assert_eq!(listed(b"a\n\n./b//c/\r\n.\n# d\n e", false).unwrap(), ["a", "b/c", "# d", " e"]);
        assert_eq!(listed(b"a\nb\0c\0\0", true).unwrap(), ["a\nb", "c"]);
        assert!(listed(b"", false).unwrap().is_empty());
        for (text, why) in [(&b"ok\n/etc/x"[..], "absolute"), (b"ok\na/../b", "'..'"), (b"ok\na\0", "NUL")] {
            let fault = listed(text, false).unwrap_err();
            assert!(fault.message.contains("entry 2") && fault.message.contains(why), "{fault}");
        }
    }

    #[test]
    fn endless_lists_are_refused() {
        let endless = std::path::PathBuf::from("/dev/zero");
        let of = |rules, files_from| selection(&SelectArgs { rules, files_from, ..SelectArgs::default() }, 1);
        let rules = RuleArgs(vec![RuleArg::ExcludeFrom(endless.clone())]);
        for fault in [of(RuleArgs::default(), Some(endless)), of(rules, None)].map(Result::unwrap_err) {
            assert!(fault.message.contains("entry 1 has more than"), "{fault}");
        }
    }

    #[test]
    fn rule_files_may_have_comments_and_signs() {
        use Verdict::{Exclude, Include};
        let found = from_file(b"# c\n; d\n\n*.o\n+ /keep\n- \xff*\n-x\n").unwrap();
        let expected: [(Verdict, &[u8]); 5] = [
            (Include, b"first"),
            (Exclude, b"*.o"),
            (Include, b"/keep"),
            (Exclude, b"\xff*"),
            (Exclude, b"-x"),
        ];
        assert_eq!(found, expected.map(|(verdict, pattern)| (verdict, pattern.to_vec())));
        let fault = from_file(b"ok\n[x\n").unwrap_err();
        assert!(fault.message.contains("--exclude-from") && fault.message.contains("entry 2"), "{fault}");
        assert!(
            from_file(&b"x\n".repeat(MAX_RULES)).unwrap_err().message.contains("exceed the limit of 10000")
        );
    }

    #[test]
    fn impossible_selections_are_refused() {
        let args = SelectArgs { files_from: Some("/nonexistent".into()), ..SelectArgs::default() };
        assert!(selection(&args, 1).unwrap_err().message.contains("cannot read /nonexistent"));
        assert!(selection(&args, 2).unwrap_err().message.contains("one source"));
        let size = |text: &str| Some(text.parse().unwrap());
        let args = SelectArgs { min_size: size("2MB"), max_size: size("1MB"), ..SelectArgs::default() };
        assert!(selection(&args, 1).unwrap_err().message.contains("no file matches"));
    }
}
