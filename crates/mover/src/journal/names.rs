//! Names of journals and of temporary files. One id, eight hexadecimal digits, ties them together.

const PREFIX: &[u8] = b".haul-";
const JOURNAL: &[u8] = b".journal";
const PART: &[u8] = b".part";
const ID_DIGITS: usize = 8;

/// The journal of a job.
pub(crate) fn journal_name(id: u32) -> String {
    format!(".haul-{id:08x}.journal")
}

/// The temporary file of an entry.
pub(crate) fn part_name(id: u32, number: u32) -> String {
    format!(".haul-{id:08x}-{number}.part")
}

/// The id in the name of a journal; `None` for every other name.
pub(crate) fn parse_journal(name: &[u8]) -> Option<u32> {
    let id = parse_id(name.strip_prefix(PREFIX)?.strip_suffix(JOURNAL)?)?;
    (journal_name(id).as_bytes() == name).then_some(id)
}

/// Id and number in the name of a temporary file, written as [`part_name`] writes it; `None` for every other.
pub(crate) fn parse_part(name: &[u8]) -> Option<(u32, u32)> {
    let between = name.strip_prefix(PREFIX)?.strip_suffix(PART)?;
    let (id, number) = between.split_at_checked(ID_DIGITS)?;
    let id = parse_id(id)?;
    let number = std::str::from_utf8(number.strip_prefix(b"-")?).ok()?.parse().ok()?;
    (part_name(id, number).as_bytes() == name).then_some((id, number))
}

fn parse_id(digits: &[u8]) -> Option<u32> {
    if digits.len() != ID_DIGITS {
        return None;
    }
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_no_other_name_does() {
        assert_eq!(parse_journal(journal_name(0x00ab_cdef).as_bytes()), Some(0x00ab_cdef));
        assert_eq!(parse_part(part_name(7, u32::MAX).as_bytes()), Some((7, u32::MAX)));
        for name in [
            ".haul-00000001.journa",
            ".haul-0000001.journal",
            ".haul-0000000A.journal",
            ".haul-+0000001.journal",
        ] {
            assert_eq!(parse_journal(name.as_bytes()), None, "{name}");
        }
        for name in [
            ".haul-00000001-.part",
            ".haul-00000001-01.part",
            ".haul-00000001-+1.part",
            ".haul-00000001-1.part~",
            ".haul-00000001-4294967296.part",
            ".haul-00000001-1",
            ".haul-0000000é-1.part",
            ".haul-.part",
        ] {
            assert_eq!(parse_part(name.as_bytes()), None, "{name}");
        }
    }
}
