//! Positions in the text of a recipe.

/// Byte offset of `[table]`, or of `key =` within it; 0 if it is not found.
pub(super) fn find(text: &str, table: &str, key: Option<&str>) -> usize {
    let mut offset = 0;
    let mut inside = table.is_empty();
    for line in text.split_inclusive('\n') {
        let trimmed = line.trim_start();
        let indent = line.len() - trimmed.len();
        if let Some(header) = trimmed.strip_prefix('[') {
            inside = header.split(']').next().is_some_and(|name| name.trim() == table);
            if inside && key.is_none() {
                return offset + indent;
            }
        } else if inside && key.is_some_and(|key| trimmed.split('=').next().is_some_and(|k| k.trim() == key))
        {
            return offset + indent;
        }
        offset += line.len();
    }
    0
}

pub(crate) fn place(source: &str, table: &str, key: Option<&str>) -> String {
    if source.is_empty() {
        return String::new();
    }
    let offset = find(source, table, key);
    format!("line {}: ", source[..offset].matches('\n').count() + 1)
}
