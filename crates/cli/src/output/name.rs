//! Names of files, which may hold any bytes, in JSON.

use data_encoding::BASE64;
use serde_json::Value;

/// Puts a name into a JSON object as text; one that is not UTF-8 also in base64 (RFC 4648, section 4) as `key_b64`.
pub(crate) fn put_name(object: &mut Value, key: &str, name: &[u8]) {
    object[key] = Value::from(String::from_utf8_lossy(name));
    if std::str::from_utf8(name).is_err() {
        object[format!("{key}_b64")] = Value::from(BASE64.encode(name));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fault::{Fault, FaultCode};
    use crate::output::FileFailure;

    #[test]
    fn a_name_that_is_no_text_has_its_bytes_beside_it() {
        let mut object = serde_json::json!({});
        put_name(&mut object, "path", b"a\xff");
        put_name(&mut object, "other", b"b\n");
        assert_eq!(object, serde_json::json!({ "path": "a\u{fffd}", "path_b64": "Yf8=", "other": "b\n" }));
    }

    proptest! {
        #[test]
        fn any_name_can_be_told_from_json(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let mut object = serde_json::json!({});
            put_name(&mut object, "path", &bytes);
            let told = object.get("path_b64").map_or_else(
                || object["path"].as_str().unwrap().as_bytes().to_vec(),
                |base64| BASE64.decode(base64.as_str().unwrap().as_bytes()).unwrap(),
            );
            prop_assert_eq!(&told, &bytes);
            let fault = Fault::new(FaultCode::Io, "no", "");
            let failure = FileFailure { machine: None, path: bytes, fault, below: 0 };
            let travelled = serde_json::to_string(&failure).unwrap();
            prop_assert_eq!(serde_json::from_str::<FileFailure>(&travelled).unwrap(), failure);
        }
    }
}
