use haul_wire::control::{MAX_PATH, MAX_PATTERN};
use proptest::prelude::*;

use super::*;

fn compiled(pattern: &[u8]) -> Vec<Pattern> {
    Pattern::compile(pattern).unwrap_or_else(|e| panic!("{}: {e}", pattern.escape_ascii()))
}

/// Whether one of the patterns matches the path, which has no slash in front.
fn one_matches(patterns: &[Pattern], path: &[u8], is_directory: bool) -> bool {
    patterns.iter().any(|p| p.matches(&[b"/", path].concat(), is_directory))
}

fn hits(pattern: &str, path: &str) -> bool {
    one_matches(&compiled(pattern.as_bytes()), path.as_bytes(), false)
}

fn hits_directory(pattern: &str, path: &str) -> bool {
    one_matches(&compiled(pattern.as_bytes()), path.as_bytes(), true)
}

#[test]
fn a_pattern_without_slash_matches_the_last_component() {
    assert!(hits("*.o", "a.o") && hits("*.o", "x/y/a.o") && hits("a", "x/a"));
    assert!(!hits("*.o", "a.o/b") && !hits("a", "ab") && !hits("a", "a/b"));
    assert!(hits("a?c", "abc") && !hits("a?c", "ac") && !hits("a?c", "a/c"));
    assert!(hits("*", "x/y") && hits("a*b*c", "x/aXbYc") && !hits("a*b*c", "x/acb"));
}

#[test]
fn a_leading_slash_anchors_and_an_inner_slash_does_not() {
    assert!(hits("/a", "a") && !hits("/a", "x/a"));
    assert!(hits("/x/*.o", "x/a.o") && !hits("/x/*.o", "x/y/a.o"));
    assert!(hits("x/a", "x/a") && hits("x/a", "w/x/a") && !hits("x/a", "wx/a"));
    assert!(hits("x/*", "w/x/a") && !hits("x/*", "w/x/a/b") && !hits("x/*", "wx/a"));
}

#[test]
fn two_stars_match_across_slashes() {
    assert!(hits("/a/**", "a/b") && hits("/a/**", "a/b/c") && !hits("/a/**", "a"));
    assert!(hits("a**z", "a/b/z") && hits("a**z", "x/az") && !hits("a**z", "xa/z"));
    assert!(hits("**/z", "a/b/z") && hits("/a/**/z", "a/b/c/z") && !hits("/a/**/z", "a/z"));
    assert!(hits("/**", "a") && hits("**", "a/b"));
}

#[test]
fn two_leading_stars_also_match_at_the_top() {
    assert!(hits("**/z", "z") && hits("***/z", "z") && hits("**/y/z", "y/z") && !hits("**/z", "yz"));
    assert!(hits_directory("**/z/", "z") && !hits("**/z/", "z"));
    assert!(
        hits("**/z*", "z1")
            && hits("**/[yz]", "z")
            && hits("**/z/***", "z/x")
            && hits_directory("**/z/***", "z")
    );
    // As with rsync, an anchored one does not.
    assert!(!hits("/**/z", "z") && hits("/**/z", "y/z"));
    let long = "z".repeat(100);
    assert!(hits(&format!("**/{long}"), &long) && !hits(&format!("**/{long}"), &format!("a{long}")));
}

#[test]
fn three_stars_make_backslashes_escapes_as_other_wildcards_do() {
    assert!(
        hits_directory("/a\\ b/***", "a b") && hits("/a\\ b/***", "a b/c") && !hits("/a\\ b/***", "a\\ b/c")
    );
    assert!(hits_directory("a/****/", "a") && hits_directory("a/***/", "a/b") && !hits("a/***/", "a/b"));
    assert!(hits_directory("\\*/***", "*") && !hits_directory("\\*/***", "x") && hits("\\*/***", "y/*/x"));
}

#[test]
fn a_trailing_slash_matches_directories_only() {
    assert!(hits_directory("b/", "a/b") && !hits("b/", "a/b"));
    assert!(hits_directory("/a/*/", "a/b") && !hits("/a/*/", "a/b"));
    assert!(hits_directory("b/***", "a/b") && !hits("b/***", "a/b") && hits("b/***", "a/b/c/d"));
}

#[test]
fn classes_match_one_byte_other_than_a_slash() {
    assert!(hits("[abc]", "b") && !hits("[abc]", "d") && hits("[!abc]", "d") && hits("[^abc]", "d"));
    assert!(hits("[a-c]x", "bx") && hits("[]a]", "]") && hits("[a-]", "-") && hits("[\\]]", "]"));
    assert!(hits("[[:digit:]_]", "7") && hits("[[:digit:]_]", "_") && !hits("[[:digit:]_]", "a"));
    assert!(!hits("/a[!b]c", "a/c") && !hits("/a[+-0]c", "a/c"));
    assert!(hits("[[:space:][:upper:]]", "Q") && !hits("[![:upper:]]", "Q"));
}

#[test]
fn a_backslash_escapes_only_in_patterns_with_wildcards() {
    assert!(hits("\\*?", "*x") && !hits("\\*?", "ax"));
    assert!(hits("a\\b", "a\\b") && hits("\\[x*", "[xy"));
}

#[test]
fn the_escaped_form_of_the_longest_path_is_a_pattern() {
    let path = [&b"*/".repeat(MAX_PATH / 2 - 1)[..], b"**"].concat();
    let escaped: Vec<u8> = path.iter().flat_map(|&byte| [b'\\', byte]).collect();
    let patterns = compiled(&[b"/", &escaped[..], b"/"].concat());
    assert!(
        one_matches(&patterns, &path, true) && !one_matches(&patterns, &[&path[1..], b"x"].concat(), true)
    );
}

#[test]
fn bytes_that_are_not_utf8_match_themselves() {
    let one = |pattern: &[u8], path: &[u8]| one_matches(&compiled(pattern), path, false);
    assert!(one(b"\xff*", b"a/\xffx") && one(b"?", b"\xfe") && one(b"[\xf0-\xff]", b"\xfa"));
    assert!(one(b"\xff", b"\xff") && !one(b"\xff", b"\xfe"));
}

#[test]
fn invalid_patterns_are_refused_with_the_reason() {
    let why = |pattern: &[u8]| check_pattern(pattern).unwrap_err();
    assert_eq!(why(b""), BadPattern::Empty);
    assert_eq!(why(b"/"), BadPattern::Empty);
    assert_eq!(why(b"//"), BadPattern::Empty);
    assert_eq!(why(b"a\0"), BadPattern::Nul);
    for pattern in [&b"a//b"[..], b"./a", b"a/..", b"a//", b"a/./b*"] {
        assert_eq!(why(pattern), BadPattern::Component, "{}", pattern.escape_ascii());
    }
    for pattern in [&b"[a"[..], b"[", b"[]", b"x[!]", b"[a\\"] {
        assert_eq!(why(pattern), BadPattern::Unclosed, "{}", pattern.escape_ascii());
    }
    for pattern in [&b"[z-a]"[..], b"[[:nothing:]]", b"[[:digit]", b"[/]"] {
        assert_eq!(why(pattern), BadPattern::Class, "{}", pattern.escape_ascii());
    }
    assert_eq!(why(b"*\\"), BadPattern::Escape);
    assert_eq!(why(&vec![b'a'; MAX_PATTERN + 1]), BadPattern::TooLong);
}

#[test]
fn a_hostile_pattern_takes_at_most_pattern_times_path_length() {
    // A matcher that tries one wildcard after the other takes some 4000^20 steps for this.
    let pattern = [&b"/"[..], &b"**a*".repeat(20), b"b"].concat();
    let path = b"a".repeat(4000);
    assert!(!one_matches(&compiled(&pattern), &[&path[..], b"c"].concat(), false));
    assert!(one_matches(&compiled(&pattern), &[&path[..], b"b"].concat(), false));
    let long = [&b"/"[..], &b"*a".repeat(2000), b"*?"].concat();
    assert!(one_matches(&compiled(&long), &path, false));
    assert!(!one_matches(&compiled(&long), &path[..2000], false));
}

/// Matches by exhaustive search, as the reference.
fn naive(pattern: &[u8], path: &[u8]) -> bool {
    match pattern {
        [] => path.is_empty(),
        [b'*', b'*', rest @ ..] => (0..=path.len()).any(|i| naive(rest, &path[i..])),
        [b'*', rest @ ..] => {
            let end = path.iter().position(|&b| b == b'/').unwrap_or(path.len());
            (0..=end).any(|i| naive(rest, &path[i..]))
        }
        [b'?', rest @ ..] => path.first().is_some_and(|&b| b != b'/') && naive(rest, &path[1..]),
        [byte, rest @ ..] => path.first() == Some(byte) && naive(rest, &path[1..]),
    }
}

fn naive_rule(pattern: &[u8], path: &[u8], is_directory: bool) -> bool {
    let (body, only_directories) = pattern.strip_suffix(b"/").map_or((pattern, false), |p| (p, true));
    let starts = (0..path.len()).filter(|&i| i == 0 || path[i - 1] == b'/');
    let matched = match body.strip_prefix(b"/") {
        Some(anchored) => naive(anchored, path),
        None if body.starts_with(b"**") => naive(body, &[b"/", path].concat()),
        None => starts.into_iter().any(|i| naive(body, &path[i..])),
    };
    matched && (is_directory || !only_directories)
}

/// Whether a pattern compiles to two.
fn ends_in_three_stars(pattern: &[u8]) -> bool {
    pattern.strip_suffix(b"/").unwrap_or(pattern).ends_with(b"***")
}

/// Joins small pieces, so that patterns often match.
fn text(pieces: &'static [&'static str], most: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(pieces), 1..most).prop_map(|p| p.concat().into_bytes())
}

fn path() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(text(&["a", "b", "\u{fc}"], 4), 1..5).prop_map(|c| c.join(&b'/'))
}

proptest! {
    #[test]
    fn compiled_patterns_agree_with_naive_matching(
        pattern in text(&["a", "b", "/", "*", "**", "?", "\u{fc}"], 9), path in path(), is_directory: bool,
    ) {
        if let Ok(compiled) = Pattern::compile(&pattern) && !ends_in_three_stars(&pattern) {
            let found = one_matches(&compiled, &path, is_directory);
            prop_assert_eq!(found, naive_rule(&pattern, &path, is_directory));
        }
    }

    #[test]
    fn long_patterns_agree_with_naive_matching(
        pattern in text(&["a", "b", "/", "*", "**", "?"], 9), path in path(), pad in 60usize..140,
    ) {
        // The same after a run of other bytes, to have many states.
        let head = vec![b'x'; pad];
        let (long, subject) = ([b"/", &head[..], b"a", &pattern].concat(), [&head[..], b"a", &path].concat());
        if let Ok(compiled) = Pattern::compile(&long) && !ends_in_three_stars(&pattern) {
            prop_assert_eq!(one_matches(&compiled, &subject, true), naive_rule(&long, &subject, true));
        }
    }

    #[test]
    fn arbitrary_pattern_bytes_do_not_panic(pattern in prop::collection::vec(any::<u8>(), 0..40), path in path()) {
        if let Ok(compiled) = Pattern::compile(&pattern) {
            one_matches(&compiled, &path, false);
        }
    }

    #[test]
    fn an_escaped_name_matches_only_itself(name in "[a-z*?\\[\\]\\\\]{1,8}", other in "[a-z*?]{1,8}") {
        let escaped: String = name.chars().flat_map(|c| ['\\', c]).collect();
        // The star makes backslashes escapes, whatever the name is.
        let pattern = format!("{escaped}*");
        prop_assert!(hits(&pattern, &name));
        prop_assert_eq!(hits(&pattern, &other), other.starts_with(&name));
    }
}
