//! The classes of patterns: `[abc]`, `[a-z]`, `[!0-9]`, `[[:digit:]]`, over bytes.

use super::pattern::BadPattern;

/// Reads a class whose `[` is taken already, up to and with its `]`.
pub(super) fn parse(rest: &mut &[u8]) -> Result<Box<[bool; 256]>, BadPattern> {
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
