//! Values that vary between runs: `--set`, `--seed` and `[sweep]`.

use toml::{Table, Value};

/// Values of one run, by key.
pub(crate) type Values = Vec<(String, Value)>;

/// A key and its values.
pub(crate) type Axis = (String, Vec<Value>);

/// A key, and the problem with its values.
type BadAxis = (String, String);

/// Maximum runs per sweep.
pub(super) const MAX_RUNS: usize = 10_000;

/// Removes `[sweep]` from a scenario. Returns the keys and their values, in key order. Errors name the key.
pub(crate) fn take_axes(table: &mut Table) -> Result<Vec<Axis>, BadAxis> {
    fn flatten(prefix: &str, table: Table, axes: &mut Vec<Axis>) -> Result<(), BadAxis> {
        for (key, value) in table {
            let full = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
            match value {
                Value::Table(inner) => flatten(&full, inner, axes)?,
                Value::Array(list) if !list.is_empty() => axes.push((full, list)),
                _ => return Err((key, "needs a list of values, at least one".to_owned())),
            }
        }
        Ok(())
    }
    let mut axes = Vec::new();
    match table.remove("sweep") {
        None => {}
        Some(Value::Table(sweep)) => flatten("", sweep, &mut axes)?,
        Some(_) => return Err((String::new(), "is a table of keys and lists of values".to_owned())),
    }
    Ok(axes)
}

/// Returns every combination; the last key changes fastest. `None` if there are too many.
pub(crate) fn combinations(axes: &[Axis]) -> Option<Vec<Values>> {
    let mut runs: Vec<Values> = vec![Vec::new()];
    for (key, values) in axes {
        if runs.len().checked_mul(values.len()).is_none_or(|n| n > MAX_RUNS) {
            return None;
        }
        let extended = runs.iter().flat_map(|run| {
            values.iter().map(move |value| {
                let mut run = run.clone();
                run.push((key.clone(), value.clone()));
                run
            })
        });
        runs = extended.collect();
    }
    Some(runs)
}

/// Sets the value of each of the comma-separated dotted keys. The error lists the existing keys.
pub(crate) fn set(table: &mut Table, keys: &str, value: &Value) -> Result<(), String> {
    for key in keys.split(',').map(str::trim) {
        let segments: Vec<&str> = key.split('.').collect();
        set_in_table(table, &segments, value).map_err(|problem| format!("key `{key}`: {problem}"))?;
    }
    Ok(())
}

/// Whether setting `key` overrides all that a sweep sets at `swept`: the same key, or one below it.
pub(super) fn sets(key: &str, swept: &str) -> bool {
    swept.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn set_in_table(table: &mut Table, segments: &[&str], value: &Value) -> Result<(), String> {
    let Some((first, rest)) = segments.split_first() else { return Ok(()) };
    if rest.is_empty() {
        table.insert((*first).to_owned(), value.clone());
        return Ok(());
    }
    let known = table.keys().cloned().collect::<Vec<_>>().join(", ");
    let inner = table.get_mut(*first).ok_or_else(|| format!("there is no `{first}`; there is: {known}"))?;
    set_in_value(inner, first, rest, value)
}

fn set_in_value(inner: &mut Value, name: &str, rest: &[&str], value: &Value) -> Result<(), String> {
    match inner {
        Value::Table(table) => set_in_table(table, rest, value),
        Value::Array(list) => {
            let Some((entry, nested)) = rest.split_first() else { return Ok(()) };
            let names: Vec<String> = (0..list.len()).map(|index| name_of(list, index)).collect();
            let found = entry.parse::<usize>().ok().filter(|index| *index < list.len());
            let found = found.or_else(|| names.iter().position(|name| name == entry));
            let Some(index) = found else {
                return Err(format!("`{name}` has no entry `{entry}`; it has: {}", names.join(", ")));
            };
            // A stage is named after its kind: `delay-2` is `{ delay = ... }`, and can refer to its whole
            // value.
            let kind = single_key(&list[index]);
            match (kind, &mut list[index]) {
                (Some(kind), Value::Table(stage)) => {
                    let path: Vec<&str> =
                        std::iter::once(kind.as_str()).chain(nested.iter().copied()).collect();
                    set_in_table(stage, &path, value)
                }
                (_, slot) if nested.is_empty() => {
                    *slot = value.clone();
                    Ok(())
                }
                (_, slot) => set_in_value(slot, entry, nested, value),
            }
        }
        _ => Err(format!("`{name}` is a plain value and has no parts")),
    }
}

/// Returns the only key of a table without a name.
fn single_key(value: &Value) -> Option<String> {
    let table = value.as_table().filter(|table| table.len() == 1 && !table.contains_key("name"))?;
    table.keys().next().cloned()
}

/// Returns the name of a list's entry: its `name`, or for a stage its kind.
fn name_of(list: &[Value], index: usize) -> String {
    if let Some(name) = list[index].get("name").and_then(Value::as_str) {
        return name.to_owned();
    }
    let Some(kind) = single_key(&list[index]) else { return index.to_string() };
    match list[..index].iter().filter(|other| single_key(other).as_ref() == Some(&kind)).count() {
        0 => kind,
        n => format!("{kind}-{}", n + 1),
    }
}

/// Parses `KEY=VALUE`; a value that is not valid TOML is text.
pub(super) fn parse_setting(text: &str) -> Result<(String, Value), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE, for example session.bulk.rate=1Gbit")?;
    let (key, value) = (key.trim(), value.trim());
    let parsed = format!("value = {value}").parse::<Table>().ok().and_then(|mut table| table.remove("value"));
    Ok((key.to_owned(), parsed.unwrap_or_else(|| Value::String(value.to_owned()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario() -> Table {
        "seed = 1
        [[path]]
        name = 'wan'
        forward = [{ delay = '1ms' }, { loss = '1%' }, { delay = '2ms' }]"
            .parse()
            .unwrap()
    }

    #[test]
    fn keys_find_entries_by_name_and_stages_by_kind() {
        let mut table = scenario();
        set(&mut table, "path.wan.forward.delay-2, path.0.forward.delay", &Value::from("9ms")).unwrap();
        set(&mut table, "seed", &Value::from(7)).unwrap();
        assert_eq!(table["path"][0]["forward"][2]["delay"].as_str(), Some("9ms"));
        assert_eq!(table["path"][0]["forward"][0]["delay"].as_str(), Some("9ms"));
        assert_eq!(table["seed"].as_integer(), Some(7));
        let error = set(&mut table, "path.lan.forward.delay", &Value::from("1ms")).unwrap_err();
        assert!(error.contains("it has: wan"), "{error}");
    }

    #[test]
    fn combinations_are_ordered_and_bounded() {
        let axis = |key: &str, n: i64| (key.to_owned(), (0..n).map(Value::from).collect::<Vec<_>>());
        let runs = combinations(&[axis("a", 2), axis("b", 3)]).unwrap();
        let numbers: Vec<_> = runs.iter().map(|run| (run[0].1.as_integer(), run[1].1.as_integer())).collect();
        assert_eq!(
            numbers[..4],
            [(Some(0), Some(0)), (Some(0), Some(1)), (Some(0), Some(2)), (Some(1), Some(0))]
        );
        assert!(combinations(&[axis("a", 200), axis("b", 200)]).is_none());
    }

    #[test]
    fn a_setting_replaces_swept_keys_below_it() {
        let key = "host.rx.loads";
        assert!(["host.rx.loads", "host.rx.loads.0.run"].iter().all(|swept| sets(key, swept)));
        assert!(["host.rx.loads2", "host.rx", "host.rx.load"].iter().all(|swept| !sets(key, swept)));
    }

    #[test]
    fn a_setting_is_toml_or_text() {
        assert_eq!(parse_setting("seed=3"), Ok(("seed".to_owned(), Value::from(3))));
        assert_eq!(parse_setting("a.b = 1Gbit"), Ok(("a.b".to_owned(), Value::from("1Gbit"))));
        assert!(parse_setting("seed").is_err());
    }
}
