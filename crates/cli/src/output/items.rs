//! Lists of changes to names, for users and for scripts.

use std::collections::BTreeMap;
use std::sync::Arc;

use haul_base::Bytes;
use haul_mover::Tell;
use haul_wire::control::{Action, Item};
use serde_json::{Value, json};

use super::put_name;

/// Reports a line per item; unchanged items only with `all`.
pub(crate) fn item_lines(all: bool, say: impl Fn(String) + Send + Sync + 'static) -> Tell {
    Arc::new(move |item| {
        if all || item.action != Action::Keep {
            say(line(item));
        }
    })
}

fn line(item: &Item) -> String {
    let Item { path, action } = item;
    let word = action.as_str();
    match *action {
        Action::Send { size: bytes } | Action::Replace { size: bytes } => {
            format!("{word} {path} ({})", Bytes(bytes))
        }
        Action::Resume { have, size: bytes } => {
            format!("{word} {path} ({} of {})", Bytes(have), Bytes(bytes))
        }
        Action::Keep | Action::Adjust | Action::Link | Action::MakeDirectory | Action::Delete => {
            format!("{word} {path}")
        }
    }
}

/// Returns a list per action, with all details of each name.
pub(crate) fn item_lists(items: &[Item]) -> BTreeMap<&'static str, Vec<Value>> {
    let words = ["send", "replace", "resume", "keep", "adjust", "link", "mkdir", "delete"];
    let mut lists: BTreeMap<_, Vec<Value>> = words.into_iter().map(|word| (word, Vec::new())).collect();
    for item in items {
        // serde puts the fields of a variant under its name.
        let fields = json!(item.action).as_object().and_then(|variant| variant.values().next().cloned());
        let mut value = fields.unwrap_or_else(|| json!({}));
        put_name(&mut value, "path", item.path.as_bytes());
        lists.entry(item.action.as_str()).or_default().push(value);
    }
    lists
}

#[cfg(test)]
mod tests {
    use haul_wire::control::RelPath;

    use super::*;

    fn item(path: &[u8], action: Action) -> Item {
        Item { path: RelPath::new(path).unwrap(), action }
    }

    #[test]
    fn lines_are_for_people_and_lists_for_scripts() {
        let items = [
            item(b"a", Action::Send { size: 1500 }),
            item(b"b\x1b", Action::Resume { have: 1000, size: 2000 }),
            item(b"c", Action::Delete),
        ];
        assert_eq!(line(&items[0]), "send a (1.5 kB)");
        assert_eq!(line(&items[1]), "resume b\\x1b (1.0 kB of 2.0 kB)");
        assert_eq!(line(&items[2]), "delete c");
        let lists = item_lists(&items);
        assert_eq!(lists["resume"], [json!({ "path": "b\u{1b}", "have": 1000, "size": 2000 })]);
        assert_eq!((lists["keep"].len(), lists["delete"].len()), (0, 1));
    }
}
