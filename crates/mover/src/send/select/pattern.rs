//! A pattern of a rule, with rsync's semantics.
//!
//! Matching simulates an NFA (K. Thompson: Regular expression search algorithm, CACM 11(6), 1968), so its
//! time is bounded by the product of the lengths of pattern and path.

/// Why a pattern is invalid, and what to write instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "their messages say it")]
pub enum BadPattern {
    #[error("the pattern is empty; write for example '*.tmp' or /build/")]
    Empty,
    #[error("the pattern has a NUL byte, which no name has")]
    Nul,
    #[error("the pattern is longer than any path; use a shorter one with *")]
    TooLong,
    #[error("no path has an empty component, '.' or '..'; write a/b, or /a/b for the top")]
    Component,
    #[error("'[' has no ']'; write '\\[' for a literal bracket")]
    Unclosed,
    /// Also a range whose end is below its start.
    #[error("between '[' and ']' write characters, ranges like a-z or classes like [:digit:]")]
    Class,
    #[error("a backslash is followed by nothing; write '\\\\' for a literal backslash")]
    Escape,
}

/// Whether a pattern has wildcards. Only then is a backslash an escape character.
fn is_wild(pattern: &[u8]) -> bool {
    pattern.iter().any(|b| b"*?[".contains(b))
}

/// A compiled pattern, which is compared with paths that have a slash in front of each component.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    /// Whether the whole path has to match. Otherwise a match may start at any component.
    anchored: bool,
    /// Whether only the last component can match.
    is_name: bool,
    only_directories: bool,
    parts: Vec<Part>,
    /// Literal suffix of the pattern.
    ending: Vec<u8>,
}

/// Checks that a pattern can be compiled.
///
/// # Errors
/// The reason why the pattern is invalid.
pub fn check_pattern(pattern: &[u8]) -> Result<(), BadPattern> {
    Pattern::compile(pattern).map(|_| ())
}

impl Pattern {
    /// Compiles a pattern; `dir/***` becomes two: the directory, and everything in it.
    pub(crate) fn compile(pattern: &[u8]) -> Result<Vec<Self>, BadPattern> {
        let (body, end) = pattern.strip_suffix(b"/").map_or((pattern, &b""[..]), |body| (body, b"/"));
        let stars = body.iter().rev().take_while(|&&b| b == b'*').count();
        match body[..body.len() - stars].strip_suffix(b"/") {
            // Backslashes are escapes in both, as in the pattern, even if the directory has no wildcard.
            Some(directory) if stars >= 3 && !directory.is_empty() => {
                let itself = Self::one(&[directory, b"/"].concat(), true)?;
                let contents = Self::one(&[directory, b"/**", end].concat(), true)?;
                Ok(vec![itself, contents])
            }
            _ => Ok(vec![Self::one(pattern, is_wild(pattern))?]),
        }
    }

    /// Compiles a pattern. Unless it `has_wildcards`, all of its bytes stand for themselves.
    fn one(pattern: &[u8], has_wildcards: bool) -> Result<Self, BadPattern> {
        if pattern.contains(&0) {
            return Err(BadPattern::Nul);
        }
        if pattern.len() > haul_wire::control::MAX_PATTERN {
            return Err(BadPattern::TooLong);
        }
        let (rest, anchored) = pattern.strip_prefix(b"/").map_or((pattern, false), |rest| (rest, true));
        let (rest, only_directories) = rest.strip_suffix(b"/").map_or((rest, false), |rest| (rest, true));
        if rest.is_empty() {
            return Err(BadPattern::Empty);
        }
        if rest.split(|&b| b == b'/').any(|c| matches!(c, b"" | b"." | b"..")) {
            return Err(BadPattern::Component);
        }
        // `**/a` also matches `a` at the top, unless it is anchored (rsync(1), on patterns with `**`).
        let from_slash = [b"/", rest].concat();
        let body = if !anchored && rest.starts_with(b"**") { rest } else { &from_slash };
        let (parts, ending) = parts(body, has_wildcards)?;
        let is_name = !anchored && !rest.contains(&b'/') && !rest.windows(2).any(|pair| pair == b"**");
        Ok(Self { anchored, is_name, only_directories, parts, ending })
    }

    /// Returns the only path (with a slash in front) or last component that matches, if there is only one.
    pub(crate) fn literal(&self) -> Option<&[u8]> {
        let literal = Some(&self.ending[..]).filter(|ending| ending.len() == self.parts.len())?;
        if self.anchored { Some(literal) } else { Some(&literal[1..]).filter(|name| !name.contains(&b'/')) }
    }

    /// Whether the pattern can match an entry of this type.
    pub(crate) fn applies_to(&self, is_directory: bool) -> bool {
        is_directory || !self.only_directories
    }

    /// Whether the entry with this path, which has a slash in front and none at its end, matches.
    pub(crate) fn matches(&self, path: &[u8], is_directory: bool) -> bool {
        if !self.applies_to(is_directory) || !path.ends_with(&self.ending) {
            return false;
        }
        // State `i`: the first `i` parts match the bytes so far.
        let mut states = vec![false; self.parts.len() + 1];
        let mut next = states.clone();
        self.enter_state(&mut states, 0);
        let start = path.iter().rposition(|&byte| self.is_name && byte == b'/').unwrap_or(0);
        for &byte in &path[start..] {
            next.fill(false);
            for (at, part) in self.parts.iter().enumerate() {
                if states[at] && part.matches_byte(byte) {
                    self.enter_state(&mut next, if part.is_star() { at } else { at + 1 });
                }
            }
            if !self.anchored {
                self.enter_state(&mut next, 0);
            }
            std::mem::swap(&mut states, &mut next);
        }
        states[self.parts.len()]
    }

    /// Enters a state, and those after stars, which may match nothing.
    fn enter_state(&self, states: &mut [bool], mut at: usize) {
        while !std::mem::replace(&mut states[at], true) && self.parts.get(at).is_some_and(Part::is_star) {
            at += 1;
        }
    }
}

#[derive(Clone, Debug)]
enum Part {
    Byte(u8),
    /// Any byte but `/`.
    Any,
    /// Bytes whose bits are set; never `/`.
    Class(Box<[u64; 4]>),
    /// Any bytes but `/`.
    Star,
    /// Any bytes.
    StarStar,
}

impl Part {
    fn matches_byte(&self, byte: u8) -> bool {
        match self {
            Self::Byte(literal) => *literal == byte,
            Self::Class(class) => class[usize::from(byte / 64)] >> (byte % 64) & 1 == 1,
            Self::Any | Self::Star => byte != b'/',
            Self::StarStar => true,
        }
    }

    fn is_star(&self) -> bool {
        matches!(self, Self::Star | Self::StarStar)
    }
}

/// Parses a pattern, as literal bytes unless it `has_wildcards`. Returns its parts and its literal suffix.
fn parts(mut rest: &[u8], has_wildcards: bool) -> Result<(Vec<Part>, Vec<u8>), BadPattern> {
    let (mut parts, mut ending) = (Vec::new(), Vec::new());
    while let Some(&first) = rest.split_off_first() {
        let part = match first {
            b'*' if has_wildcards => {
                let more = rest.iter().take_while(|&&b| b == b'*').count();
                rest = &rest[more..];
                if more == 0 { Part::Star } else { Part::StarStar }
            }
            b'?' if has_wildcards => Part::Any,
            b'[' if has_wildcards => Part::Class(class(&mut rest)?),
            b'\\' if has_wildcards => Part::Byte(*rest.split_off_first().ok_or(BadPattern::Escape)?),
            byte => Part::Byte(byte),
        };
        match &part {
            Part::Byte(byte) => ending.push(*byte),
            _ => ending.clear(),
        }
        parts.push(part);
    }
    Ok((parts, ending))
}

/// Parses a class (`[abc]`, `[a-z]`, `[!0-9]`, `[[:digit:]]`, over bytes) up to and including its `]`; its
/// `[` is already consumed.
fn class(rest: &mut &[u8]) -> Result<Box<[u64; 4]>, BadPattern> {
    let negated = matches!(rest.first(), Some(b'!' | b'^'));
    if negated {
        *rest = &rest[1..];
    }
    let mut set = [false; 256];
    let mut first = true;
    loop {
        match rest.first().ok_or(BadPattern::Unclosed)? {
            b']' if !first => break,
            b'[' if rest.get(1) == Some(&b':') => named(rest, &mut set)?,
            _ => range(rest, &mut set)?,
        }
        first = false;
    }
    *rest = &rest[1..];
    if negated {
        set = set.map(|member| !member);
    }
    set[usize::from(b'/')] = false;
    let mut bits = [0; 4];
    (0..256).filter(|&byte| set[byte]).for_each(|byte| bits[byte / 64] |= 1 << (byte % 64));
    if bits == [0; 4] { Err(BadPattern::Class) } else { Ok(Box::new(bits)) }
}

/// Parses one byte, or a range of two with `-` between them.
fn range(rest: &mut &[u8], set: &mut [bool; 256]) -> Result<(), BadPattern> {
    let low = byte(rest)?;
    let mut high = low;
    if rest.first() == Some(&b'-') && !matches!(rest.get(1), None | Some(b']')) {
        *rest = &rest[1..];
        high = byte(rest)?;
    }
    if high < low {
        return Err(BadPattern::Class);
    }
    set[usize::from(low)..=usize::from(high)].fill(true);
    Ok(())
}

fn byte(rest: &mut &[u8]) -> Result<u8, BadPattern> {
    let first = *rest.split_off_first().ok_or(BadPattern::Unclosed)?;
    if first == b'\\' { rest.split_off_first().copied().ok_or(BadPattern::Unclosed) } else { Ok(first) }
}

/// Parses `[:name:]`; ASCII only, since names are bytes.
fn named(rest: &mut &[u8], set: &mut [bool; 256]) -> Result<(), BadPattern> {
    let end = rest.windows(2).skip(2).position(|pair| pair == b":]").ok_or(BadPattern::Class)? + 2;
    let member: fn(&u8) -> bool = match &rest[2..end] {
        b"alnum" => u8::is_ascii_alphanumeric,
        b"alpha" => u8::is_ascii_alphabetic,
        b"blank" => |b| matches!(b, b' ' | b'\t'),
        b"cntrl" => u8::is_ascii_control,
        b"digit" => u8::is_ascii_digit,
        b"graph" => u8::is_ascii_graphic,
        b"lower" => u8::is_ascii_lowercase,
        b"print" => |b| b.is_ascii_graphic() || *b == b' ',
        b"punct" => u8::is_ascii_punctuation,
        b"space" => |b| b.is_ascii_whitespace() || *b == 0x0b,
        b"upper" => u8::is_ascii_uppercase,
        b"xdigit" => u8::is_ascii_hexdigit,
        _ => return Err(BadPattern::Class),
    };
    (0..=255u8).filter(member).for_each(|b| set[usize::from(b)] = true);
    *rest = &rest[end + 2..];
    Ok(())
}

#[cfg(test)]
#[path = "pattern_tests.rs"]
mod tests;
