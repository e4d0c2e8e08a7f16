//! Suggestions for misspelt words.

/// Returns the candidate nearest to `word` if it is close enough to suggest: at most a third of the letters
/// differ.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (word.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|&(d, _)| d <= limit)
        .min_by_key(|&(d, _)| d)
        .map(|(_, candidate)| candidate)
}

/// Returns ` (did you mean ...?)` for an error message, or an empty string.
pub fn suggestion<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, candidates).map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default()
}

/// Returns the number of insertions, deletions, substitutions and transpositions between two words (optimal
/// string alignment distance).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replace = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replace.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before_last[j - 2] + 1);
            }
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typos_are_found_and_unrelated_words_are_not() {
        let known = ["rate", "chunk", "controller", "offload"];
        assert_eq!(nearest("raet", known), Some("rate"));
        assert_eq!(nearest("contoller", known), Some("controller"));
        assert_eq!(nearest("banana", known), None);
        assert_eq!(suggestion("chnuk", known), " (did you mean `chunk`?)");
    }
}
