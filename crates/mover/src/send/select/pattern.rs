//! One pattern of a rule, with rsync's meaning.
//!
//! A pattern becomes an automaton whose states are bits, one for each place in the pattern, as in Shift-And
//! (R. Baeza-Yates, G. Gonnet: A new approach to text searching, CACM 35(10), 1992, section 4): wildcards of any
//! length are states that stay. A step takes one operation per 64 places, so no pattern makes matching take
//! longer than its length times that of the path.

use crate::root::split;

/// Why a pattern cannot be used, and what to write instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "their messages say it")]
pub enum BadPattern {
    #[error("the pattern is empty; write for example '*.tmp' or /build/")]
    Empty,
    #[error("the pattern has a NUL byte, which no name has")]
    Nul,
    #[error("the pattern is longer than any path; a shorter one with * will do")]
    TooLong,
    #[error("no path has an empty component, '.' or '..'; write a/b, or /a/b for the top")]
    Component,
    #[error("'[' has no ']'; write '\\[' for the character itself")]
    Unclosed,
    /// Also of a range that ends before it begins.
    #[error("between '[' and ']' stand characters, ranges like a-z, or classes like [:digit:]")]
    Class,
    #[error("a backslash has nothing behind it; write '\\\\' for the character itself")]
    Escape,
}

/// What a pattern is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Scope {
    Name,
    /// The path from any component on to its end.
    Tail,
    Path,
}

/// A pattern without wildcards, which a table can find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fixed<'a> {
    Name(&'a [u8]),
    Path(&'a [u8]),
}

/// What a backslash in a pattern is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Backslash {
    /// Itself, because there is nothing to escape.
    Literal,
    /// It takes the meaning from the byte behind it.
    Escapes,
}

impl Backslash {
    fn of(pattern: &[u8]) -> Self {
        if pattern.iter().any(|b| b"*?[".contains(b)) { Self::Escapes } else { Self::Literal }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    scope: Scope,
    pub(crate) only_directories: bool,
    body: Body,
}

#[derive(Clone, Debug)]
enum Body {
    Literal(Vec<u8>),
    Wild(Automaton),
}

/// Whether the pattern can be compiled.
///
/// # Errors
/// What is wrong with it.
pub fn check_pattern(pattern: &[u8]) -> Result<(), BadPattern> {
    Pattern::compile(pattern).map(|_| ())
}

impl Pattern {
    /// Compiles a pattern; `dir/***` makes two: the directory, and everything in it.
    pub(crate) fn compile(pattern: &[u8]) -> Result<Vec<Self>, BadPattern> {
        let (body, end) = pattern.strip_suffix(b"/").map_or((pattern, &b""[..]), |body| (body, b"/"));
        let stars = body.iter().rev().take_while(|&&b| b == b'*').count();
        match body[..body.len() - stars].strip_suffix(b"/") {
            // Both escape as the pattern does, also the directory's, in which no wildcard may be left.
            Some(directory) if stars >= 3 && !directory.is_empty() => {
                let itself = Self::one(&[directory, b"/"].concat(), Backslash::Escapes)?;
                let contents = Self::one(&[directory, b"/**", end].concat(), Backslash::Escapes)?;
                Ok(vec![itself, contents])
            }
            _ => Ok(vec![Self::one(pattern, Backslash::of(pattern))?]),
        }
    }

    fn one(pattern: &[u8], backslash: Backslash) -> Result<Self, BadPattern> {
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
        let crosses = rest.contains(&b'/') || rest.windows(2).any(|pair| pair == b"**");
        let scope = match (anchored, crosses) {
            (true, _) => Scope::Path,
            (false, true) => Scope::Tail,
            (false, false) => Scope::Name,
        };
        let is_wild = Backslash::of(rest) == Backslash::Escapes;
        let escapes = backslash == Backslash::Escapes && rest.contains(&b'\\');
        let body = if is_wild || escapes {
            Body::Wild(Automaton::new(rest, scope)?)
        } else {
            Body::Literal(rest.to_vec())
        };
        Ok(Self { scope, only_directories, body })
    }

    /// Whether the entry with this path is matched. The path begins with no `/` and has none at its end.
    pub(crate) fn matches(&self, path: &[u8], is_directory: bool) -> bool {
        if self.only_directories && !is_directory {
            return false;
        }
        let subject = if self.scope == Scope::Name { split(path).1 } else { path };
        match &self.body {
            Body::Literal(text) if self.scope == Scope::Tail => {
                subject.strip_suffix(&text[..]).is_some_and(|head| head.is_empty() || head.ends_with(b"/"))
            }
            Body::Literal(text) => subject == &text[..],
            Body::Wild(automaton) => automaton.matches(subject, self.scope == Scope::Tail),
        }
    }

    /// What a table can find it by, if there is such a thing.
    pub(crate) fn fixed(&self) -> Option<Fixed<'_>> {
        match (&self.body, self.scope) {
            (Body::Literal(text), Scope::Name) => Some(Fixed::Name(text)),
            (Body::Literal(text), Scope::Path) => Some(Fixed::Path(text)),
            _ => None,
        }
    }
}

/// Bits in a word of states.
const WORD: usize = u64::BITS as usize;

/// State `i` is "the first `i` places are matched".
#[derive(Clone, Debug)]
struct Automaton {
    /// Places that take one byte each.
    places: usize,
    /// For each byte the row of `rows` that says which places take it.
    row_of: Box<[u16; 256]>,
    /// Bit `i` of a row: place `i` takes the byte. `words` words each; row 0 is empty.
    rows: Vec<u64>,
    words: usize,
    /// States that stay on any byte but `/`: here stands `*`.
    stay: Vec<u64>,
    /// States that stay on any byte: here stands `**`.
    stay_across: Vec<u64>,
    /// What the subject ends with in any case.
    ending: Vec<u8>,
    /// What stands in front of every subject: `/` if the pattern begins with `**` and is not anchored, so that `**/a`
    /// is also an `a` at the top (rsync(1), on patterns with `**`).
    lead: &'static [u8],
}

enum Part {
    Byte(u8),
    /// Which bytes it takes; never `/`.
    Class(Box<[bool; 256]>),
    Star,
    StarStar,
}

/// Takes the first part off.
fn next_part(rest: &mut &[u8]) -> Result<Part, BadPattern> {
    let (&first, behind) = rest.split_first().ok_or(BadPattern::Empty)?;
    *rest = behind;
    match first {
        b'*' => {
            let more = rest.iter().take_while(|&&b| b == b'*').count();
            *rest = &rest[more..];
            Ok(if more == 0 { Part::Star } else { Part::StarStar })
        }
        b'?' => {
            let mut any = Box::new([true; 256]);
            any[usize::from(b'/')] = false;
            Ok(Part::Class(any))
        }
        b'[' => class(rest).map(Part::Class),
        b'\\' => {
            let (&escaped, behind) = rest.split_first().ok_or(BadPattern::Escape)?;
            *rest = behind;
            Ok(Part::Byte(escaped))
        }
        byte => Ok(Part::Byte(byte)),
    }
}

impl Automaton {
    fn new(mut rest: &[u8], scope: Scope) -> Result<Self, BadPattern> {
        let lead: &[u8] = if scope == Scope::Tail && rest.starts_with(b"**") { b"/" } else { b"" };
        let mut takers: Vec<Part> = Vec::new();
        let (mut stars, mut crossings) = (Vec::new(), Vec::new());
        let mut ending = Vec::new();
        while !rest.is_empty() {
            let part = next_part(&mut rest)?;
            match &part {
                Part::Byte(byte) => ending.push(*byte),
                _ => ending.clear(),
            }
            match part {
                Part::Star => stars.push(takers.len()),
                Part::StarStar => crossings.push(takers.len()),
                taker => takers.push(taker),
            }
        }
        let places = takers.len();
        let words = places / WORD + 1;
        let bits = |states: &[usize]| {
            let mut bits = vec![0; words];
            for state in states {
                bits[state / WORD] |= 1 << (state % WORD);
            }
            bits
        };
        let (row_of, rows) = rows(&takers, words);
        Ok(Self {
            places,
            row_of,
            rows,
            words,
            stay: bits(&stars),
            stay_across: bits(&crossings),
            ending,
            lead,
        })
    }

    /// Whether it takes all of `subject`, or with `any_component` what is left of it from some component on.
    fn matches(&self, subject: &[u8], any_component: bool) -> bool {
        let is_whole = |ending: &[u8]| !self.lead.is_empty() && subject == ending;
        if !subject.ends_with(&self.ending) && !self.ending.strip_prefix(self.lead).is_some_and(is_whole) {
            return false;
        }
        if self.words == 1 {
            return self.matches_short(subject, any_component);
        }
        let mut states = vec![0; self.words];
        states[0] = 1;
        for &byte in self.lead.iter().chain(subject) {
            self.step(&mut states, byte);
            states[0] |= u64::from(any_component && byte == b'/');
        }
        states[self.places / WORD] >> (self.places % WORD) & 1 == 1
    }

    /// The same with all states in one word.
    fn matches_short(&self, subject: &[u8], any_component: bool) -> bool {
        let (stay, across) = (self.stay[0], self.stay_across[0]);
        let mut states = 1;
        for &byte in self.lead.iter().chain(subject) {
            let takes = self.rows[usize::from(self.row_of[usize::from(byte)])];
            let held = if byte == b'/' { across } else { stay | across };
            states = (states & takes) << 1 | states & held | u64::from(any_component && byte == b'/');
            if states == 0 && !any_component {
                return false;
            }
        }
        states >> self.places & 1 == 1
    }

    fn step(&self, states: &mut [u64], byte: u8) {
        let row = usize::from(self.row_of[usize::from(byte)]) * self.words;
        let takes = &self.rows[row..row + self.words];
        let mut carry = 0;
        for (i, word) in states.iter_mut().enumerate() {
            let stay = if byte == b'/' { 0 } else { self.stay[i] };
            let taken = *word & takes[i];
            *word = taken << 1 | carry | *word & (stay | self.stay_across[i]);
            carry = taken >> (WORD - 1);
        }
    }
}

/// Which places take which byte: bytes that all places treat alike share a row.
fn rows(takers: &[Part], words: usize) -> (Box<[u16; 256]>, Vec<u64>) {
    let mut row_of = Box::new([0; 256]);
    let mut rows = vec![0; words];
    for byte in 0..=255u8 {
        let takes = |taker: &Part| match taker {
            Part::Byte(own) => *own == byte,
            Part::Class(class) => class[usize::from(byte)],
            Part::Star | Part::StarStar => false,
        };
        let mut row = vec![0; words];
        for (place, _) in takers.iter().enumerate().filter(|(_, taker)| takes(taker)) {
            row[place / WORD] |= 1 << (place % WORD);
        }
        let known = rows.chunks_exact(words).position(|other| other == row);
        let index = known.unwrap_or(rows.len() / words);
        if known.is_none() {
            rows.extend_from_slice(&row);
        }
        row_of[usize::from(byte)] = index as u16;
    }
    (row_of, rows)
}

#[cfg(test)]
#[path = "pattern_tests.rs"]
mod tests;

/// Reads a class (`[abc]`, `[a-z]`, `[!0-9]`, `[[:digit:]]`, over bytes) whose `[` is taken already, up to and with its `]`.
fn class(rest: &mut &[u8]) -> Result<Box<[bool; 256]>, BadPattern> {
    let negated = matches!(rest.first(), Some(b'!' | b'^'));
    if negated {
        *rest = &rest[1..];
    }
    let mut set = Box::new([false; 256]);
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
        set.iter_mut().for_each(|member| *member = !*member);
    }
    set[usize::from(b'/')] = false;
    if set.contains(&true) { Ok(set) } else { Err(BadPattern::Class) }
}

/// One byte, or two with `-` between them.
fn range(rest: &mut &[u8], set: &mut [bool; 256]) -> Result<(), BadPattern> {
    let low = byte(rest)?;
    let is_range = rest.first() == Some(&b'-') && !matches!(rest.get(1), None | Some(b']'));
    let high = if is_range {
        *rest = &rest[1..];
        byte(rest)?
    } else {
        low
    };
    if high < low {
        return Err(BadPattern::Class);
    }
    set[usize::from(low)..=usize::from(high)].fill(true);
    Ok(())
}

fn byte(rest: &mut &[u8]) -> Result<u8, BadPattern> {
    let (&first, mut behind) = rest.split_first().ok_or(BadPattern::Unclosed)?;
    let mut found = first;
    if first == b'\\' {
        (found, behind) = behind.split_first().map(|(&b, r)| (b, r)).ok_or(BadPattern::Unclosed)?;
    }
    *rest = behind;
    Ok(found)
}

/// `[:name:]`; ASCII only, since names are bytes.
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
