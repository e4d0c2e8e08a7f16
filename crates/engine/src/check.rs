//! The rules of URLs as a function, for fuzz targets and tests, as in `haul_wire::check`.

use crate::HaulUrl;

/// Checks [`HaulUrl`]: what is read is written back to an equal URL, of one form, and without its key it does not show it.
/// True if the bytes are a URL.
///
/// # Panics
/// If a rule is broken.
pub fn url(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(url) = text.parse::<HaulUrl>() else { return false };
    let written = url.to_string();
    let again: HaulUrl = written.parse().expect("what was written can be read");
    assert!(again == url, "the URL changed: {text:?}, {written:?}");
    assert_eq!(again.to_string(), written, "the URL has two forms");
    assert!(url.port != 0 && !url.host.is_empty());
    assert!(written.bytes().all(|byte| byte.is_ascii_graphic()), "{written:?}");
    let (shown, _) = written.split_once("?k=").expect("it has a key");
    assert_eq!(url.without_key(), shown);
    // A path may hold the key's text: then that shows, as any path does.
    assert_eq!(format!("{url:?}"), format!("{shown}?k=(secret)"));
    true
}
