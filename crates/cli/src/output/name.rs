//! Names of files, which may hold any bytes, in JSON.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use data_encoding::BASE64;
use haul_base::printable_bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Debug, Clone, Default, PartialEq, Eq, derive_more::Display, Serialize, Deserialize)]
#[display("{}", printable_bytes(_0))]
pub(crate) struct Name(pub Vec<u8>);

impl Name {
    /// Puts the name into a JSON object as text; one that is not UTF-8 also in base64 (RFC 4648, section 4) as `key_b64`.
    pub(crate) fn put(&self, object: &mut Value, key: &str) {
        object[key] = Value::from(String::from_utf8_lossy(&self.0));
        if std::str::from_utf8(&self.0).is_err() {
            object[format!("{key}_b64")] = Value::from(BASE64.encode(&self.0));
        }
    }
}

impl From<&OsStr> for Name {
    fn from(word: &OsStr) -> Self {
        Self(word.as_bytes().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_that_is_no_text_has_its_bytes_beside_it() {
        let mut object = serde_json::json!({});
        Name(b"a\xff".to_vec()).put(&mut object, "path");
        Name(b"b\n".to_vec()).put(&mut object, "other");
        assert_eq!(object, serde_json::json!({ "path": "a\u{fffd}", "path_b64": "Yf8=", "other": "b\n" }));
    }

    proptest! {
        #[test]
        fn any_name_can_be_told_from_json(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let name = Name(bytes.clone());
            let mut object = serde_json::json!({});
            name.put(&mut object, "path");
            let told = object.get("path_b64").map_or_else(
                || object["path"].as_str().unwrap().as_bytes().to_vec(),
                |base64| BASE64.decode(base64.as_str().unwrap().as_bytes()).unwrap(),
            );
            prop_assert_eq!(told, bytes);
            let travelled = serde_json::to_string(&name).unwrap();
            prop_assert_eq!(serde_json::from_str::<Name>(&travelled).unwrap(), name);
        }
    }
}
