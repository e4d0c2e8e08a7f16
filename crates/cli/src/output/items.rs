//! What is done to names, for people and for scripts.

use std::collections::BTreeMap;
use std::sync::Arc;

use haul_mover::Tell;
use haul_wire::control::{Action, Item, ReceivePolicy, RunMode};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{Name, Progress, out, size};
use crate::args::{Command, Global};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ItemStyle {
    Hidden,
    /// A line on stderr for each name that was made, changed or removed.
    Changes,
    Lines,
    /// Likewise, also for what stays as it is.
    AllLines,
    /// They are kept for the JSON object.
    Collect,
}

impl ItemStyle {
    pub(crate) fn choose(global: &Global, command: &Command) -> Self {
        let dry = matches!(command, Command::Cp(args) if args.transfer.dry_run);
        match (dry, global.json) {
            (true, true) => Self::Collect,
            (true, false) if global.verbose > 0 => Self::AllLines,
            (true, false) => Self::Lines,
            (false, false) if global.verbose > 0 && !global.quiet => Self::Changes,
            (false, _) => Self::Hidden,
        }
    }

    /// The same policy, where the receiver says what is wanted here.
    pub(crate) fn receive_policy(self, receive_policy: ReceivePolicy) -> ReceivePolicy {
        match self {
            Self::Changes => ReceivePolicy { run: RunMode::Verbose, ..receive_policy },
            _ => receive_policy,
        }
    }
}

#[derive(Clone)]
pub(crate) struct Items {
    style: ItemStyle,
    collected: Arc<Mutex<Vec<Item>>>,
    elsewhere: Option<Tell>,
}

impl Items {
    pub(crate) fn new(style: ItemStyle) -> Self {
        Self { style, collected: Arc::default(), elsewhere: None }
    }

    /// To somebody else.
    pub(crate) fn to(elsewhere: Tell) -> Self {
        Self { elsewhere: Some(elsewhere), ..Self::new(ItemStyle::Hidden) }
    }

    /// For the job; `None` if nobody is interested. Lines for people stand beside its `progress`.
    pub(crate) fn tell(&self, progress: &Progress) -> Option<Tell> {
        let Self { style, collected, elsewhere } = self.clone();
        if elsewhere.is_some() {
            return elsewhere;
        }
        let progress = progress.clone();
        (style != ItemStyle::Hidden)
            .then(|| -> Tell { Arc::new(move |item| show(style, &collected, &progress, item)) })
    }

    pub(crate) fn collected(&self) -> Vec<Item> {
        self.collected.lock().clone()
    }
}

fn show(style: ItemStyle, collected: &Mutex<Vec<Item>>, progress: &Progress, item: &Item) {
    match style {
        ItemStyle::Collect => collected.lock().push(item.clone()),
        ItemStyle::Lines if item.action == Action::Keep => {}
        ItemStyle::Lines | ItemStyle::AllLines => out(line(item)),
        ItemStyle::Changes if item.action != Action::Keep => progress.say(&line(item)),
        ItemStyle::Changes | ItemStyle::Hidden => {}
    }
}

pub(crate) fn line(item: &Item) -> String {
    let Item { path, action } = item;
    let word = action.as_str();
    match *action {
        Action::Send { size: bytes } | Action::Replace { size: bytes } => {
            format!("{word} {path} ({})", size(bytes))
        }
        Action::Resume { have, size: bytes } => format!("{word} {path} ({} of {})", size(have), size(bytes)),
        Action::Keep | Action::Adjust | Action::Link | Action::MakeDirectory | Action::Delete => {
            format!("{word} {path}")
        }
    }
}

/// A list for each action, with all that is known of each name.
pub(crate) fn item_lists(items: &[Item]) -> BTreeMap<&'static str, Vec<Value>> {
    let words = ["send", "replace", "resume", "keep", "adjust", "link", "mkdir", "delete"];
    let mut lists: BTreeMap<_, Vec<Value>> = words.into_iter().map(|word| (word, Vec::new())).collect();
    for item in items {
        let mut value = match item.action {
            Action::Send { size } | Action::Replace { size } => json!({ "size": size }),
            Action::Resume { have, size } => json!({ "have": have, "size": size }),
            Action::Keep | Action::Adjust | Action::Link | Action::MakeDirectory | Action::Delete => {
                json!({})
            }
        };
        Name(item.path.as_bytes().to_vec()).put(&mut value, "path");
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
