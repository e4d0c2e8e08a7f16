//! Numbers, times and changes for users and for scripts.

use std::collections::BTreeMap;
use std::sync::Arc;

use data_encoding::BASE64;
use haul_base::{Bytes, Span};
use haul_wire::control::{Action, Fault, Host, Item};
use indicatif::HumanCount;
use serde_json::{Value, json};

use super::Lines;

/// Formats a fault: `error: …`, with its machine, and on the next line ` hint: …`.
pub(crate) fn error_lines(fault: &Fault) -> Lines {
    let mut lines = Lines::from(format_args!("error: {}{}", machine_prefix(fault), fault.message));
    if !fault.hint.is_empty() {
        lines.push(format_args!(" hint: {}", fault.hint));
    }
    lines
}

/// Returns the machine of a fault as a prefix for its message; empty if the fault has none.
pub(crate) fn machine_prefix(fault: &Fault) -> String {
    match &fault.host {
        None => String::new(),
        Some(Host::Here) => "here: ".to_owned(),
        Some(Host::Named(name)) => format!("on {name}: "),
    }
}

/// Formats a time: `27 ms`, `1.8 s`, `42 s`, `3:07`, `2:03:04`.
pub(crate) fn clock(span: Span) -> String {
    let seconds = span.as_secs_f64();
    let rounded = seconds.round() as u64;
    match rounded {
        _ if seconds < 0.9995 => format!("{:.0} ms", seconds * 1e3),
        0..10 => format!("{seconds:.1} s"),
        10..60 => format!("{rounded} s"),
        60..3600 => format!("{}:{:02}", rounded / 60, rounded % 60),
        _ => format!("{}:{:02}:{:02}", rounded / 3600, rounded / 60 % 60, rounded % 60),
    }
}

/// `1 file`, `2 files`.
pub(crate) fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{} {noun}s", grouped(number)) }
}

/// `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    HumanCount(number).to_string()
}

/// Formats a fraction as a percentage, with enough digits to show that it is not zero.
pub(crate) fn percent(share: f64) -> String {
    match share * 100.0 {
        0.0 => "0 %".to_owned(),
        p if p >= 10.0 => format!("{p:.0} %"),
        p if p >= 0.1 => format!("{p:.1} %"),
        p if p >= 0.01 => format!("{p:.2} %"),
        _ => "<0.01 %".to_owned(),
    }
}

/// Adds a name to a JSON object as text; one that is not UTF-8 also in base64, as `KEY_b64`.
pub(crate) fn put_name(object: &mut Value, key: &str, name: &[u8]) {
    object[key] = Value::from(String::from_utf8_lossy(name));
    if std::str::from_utf8(name).is_err() {
        object[format!("{key}_b64")] = Value::from(BASE64.encode(name));
    }
}

/// Callback for a change of a name. Called from the threads of a job.
pub(crate) type ItemCallback = Arc<dyn Fn(&Item) + Send + Sync>;

/// Reports a line per changed name; unchanged names only with `all`.
pub(crate) fn item_lines(all: bool, print: impl Fn(String) + Send + Sync + 'static) -> ItemCallback {
    Arc::new(move |item| {
        if all || item.action != Action::Keep {
            print(line(item));
        }
    })
}

fn line(Item { path, action }: &Item) -> String {
    let word = action.as_str();
    match *action {
        Action::Send { size } | Action::Replace { size } => format!("{word} {path} ({})", Bytes(size)),
        Action::Resume { have, size } => format!("{word} {path} ({} of {})", Bytes(have), Bytes(size)),
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
    use proptest::prelude::*;

    use super::*;
    use crate::fault::{Fault, FaultCode};
    use crate::output::FileFailure;

    fn item(path: &[u8], action: Action) -> Item {
        Item { path: RelPath::new(path).unwrap(), action }
    }

    #[test]
    fn items_are_shown_as_lines_and_as_json_lists() {
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

    #[test]
    fn a_name_that_is_not_utf8_is_accompanied_by_its_base64() {
        let mut object = serde_json::json!({});
        put_name(&mut object, "path", b"a\xff");
        put_name(&mut object, "other", b"b\n");
        assert_eq!(object, serde_json::json!({ "path": "a\u{fffd}", "path_b64": "Yf8=", "other": "b\n" }));
    }

    proptest! {
        #[test]
        fn any_name_can_be_recovered_from_json(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let mut object = serde_json::json!({});
            put_name(&mut object, "path", &bytes);
            let name = object.get("path_b64").map_or_else(
                || object["path"].as_str().unwrap().as_bytes().to_vec(),
                |base64| BASE64.decode(base64.as_str().unwrap().as_bytes()).unwrap(),
            );
            prop_assert_eq!(&name, &bytes);
            let fault = Fault::new(FaultCode::Io, "no", "");
            let failure = FileFailure { machine: None, path: bytes, fault, below: 0 };
            let json = serde_json::to_string(&failure).unwrap();
            prop_assert_eq!(serde_json::from_str::<FileFailure>(&json).unwrap(), failure);
        }
    }
}
