//! What this side tells another machine to copy. It travels through ssh to the other side's stdin, because it
//! holds a server's secret and any process there can read command lines.

use haul_wire::control::{Action, Item, PathError, RelPath};
use serde::{Deserialize, Serialize};

use crate::output::Name;

/// The longest line that is read as a job, in bytes.
pub(crate) const MAX_JOB: u64 = 64 << 20;

/// What is or would be done to one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ItemThere {
    path: Name,
    action: Action,
}

impl From<&Item> for ItemThere {
    fn from(item: &Item) -> Self {
        Self { path: Name(item.path.as_bytes().to_vec()), action: item.action }
    }
}

impl TryFrom<ItemThere> for Item {
    type Error = PathError;

    fn try_from(there: ItemThere) -> Result<Self, PathError> {
        let path = RelPath::new(there.path.0)?;
        Ok(Self { path, action: there.action })
    }
}

/// One copy between that machine and a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The words of `haul cp`: options, `--`, sources, destination.
    pub words: Vec<Name>,
    /// Where the server may be found; empty: where its URL says.
    pub hosts: Vec<String>,
    pub dry_run: bool,
    /// Say what is done to each name.
    pub names: bool,
    /// Go on when nobody listens any more.
    pub detach: bool,
    /// What it amounts to, for people.
    pub actions: Vec<String>,
    /// The ports that the server was told to use, for the words of a failure.
    pub ports: Option<String>,
    /// What the transport is made of, TOML, if a preset says so.
    pub recipe: Option<String>,
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn items_arrive_as_they_were_and_never_lead_out() {
        for (path, action) in [(&b"a/b"[..], Action::Send { size: 5 }), (b"a\xff", Action::Delete)] {
            let item = Item { path: RelPath::new(path).unwrap(), action };
            let line = serde_json::to_string(&ItemThere::from(&item)).unwrap();
            assert_eq!(Item::try_from(serde_json::from_str::<ItemThere>(&line).unwrap()), Ok(item));
        }
        let odd: ItemThere = serde_json::from_str(r#"{"path":"../x","action":"Keep"}"#).unwrap();
        assert!(Item::try_from(odd).is_err());
    }

    proptest! {
        #[test]
        fn any_words_make_the_round_trip(
            words in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..5),
            text in ".{0,20}",
        ) {
            let mut words: Vec<OsString> = words.into_iter().map(OsString::from_vec).collect();
            words.push(text.into());
            let job = Job {
                words: words.iter().map(|word| word.as_os_str().into()).collect(),
                hosts: vec!["far".to_owned()],
                dry_run: false,
                names: true,
                detach: true,
                actions: vec!["copy a:x to b:y".to_owned()],
                ports: None,
                recipe: None,
            };
            let line = serde_json::to_string(&job).unwrap();
            prop_assert!(!line.contains('\n'));
            let read: Job = serde_json::from_str(&line).unwrap();
            prop_assert_eq!(&read, &job);
            let read: Vec<OsString> = read.words.into_iter().map(OsString::from).collect();
            prop_assert_eq!(read, words);
        }
    }
}
