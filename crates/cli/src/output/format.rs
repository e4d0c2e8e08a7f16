//! Numbers and times for users, and names for scripts.

use data_encoding::BASE64;
use haul_base::Span;
use indicatif::HumanCount;
use serde_json::Value;

/// Formats a time: `27 ms`, `1.8 s`, `42 s`, `3:07`, `2:03:04`.
pub(crate) fn clock(span: Span) -> String {
    let seconds = span.as_secs_f64();
    let whole = seconds.round() as u64;
    match whole {
        _ if seconds < 0.9995 => format!("{:.0} ms", seconds * 1e3),
        0..10 => format!("{seconds:.1} s"),
        10..60 => format!("{whole} s"),
        60..3600 => format!("{}:{:02}", whole / 60, whole % 60),
        _ => format!("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60),
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

/// Puts a name into a JSON object as text; one that is not UTF-8 also in base64 (RFC 4648, section 4) as
/// `key_b64`.
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
