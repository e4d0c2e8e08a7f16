//! Settings as they travel.

use haul_engine::Session;
use haul_wire::control::{BenchLimit, Cipher, Request, Settings as WireSettings};

use crate::settings::{Crypto, Settings};

/// The settings that a client asks for.
pub(crate) fn settings(settings: &Settings, bench_limit: BenchLimit) -> WireSettings {
    WireSettings {
        chunk_bytes: settings.chunk.0,
        controller: settings.controller.to_owned(),
        rate_bps: settings.rate.map(haul_base::Rate::as_bps),
        offload: settings.offload,
        feedback_interval_us: settings.feedback_interval.as_micros() as u32,
        bench_limit,
        recipe: settings.stack.as_ref().map(haul_engine::offer),
        extra: vec![
            ("preset".to_owned(), settings.preset.clone()),
            ("socket_buffer".to_owned(), settings.socket_buffer.0.to_string()),
        ],
    }
}

/// What the recipe is called that a session runs, if one was negotiated.
pub(crate) fn recipe_name(session: &Session) -> Option<String> {
    session.settings().recipe.as_ref().map(|_| session.recipe().name.clone())
}

/// The name of a request for people and scripts.
pub(crate) fn request_name(request: &Request) -> &'static str {
    match request {
        Request::Put { .. } => "put",
        Request::Get { .. } => "get",
        Request::BenchSend => "bench",
        Request::BenchReceive => "bench-reverse",
        Request::Check => "check",
        Request::Connect { .. } => "connect",
        Request::StreamSend => "stream",
        Request::StreamReceive => "stream-reverse",
        Request::PutStream { .. } => "put-stream",
    }
}

/// The ciphers that a client offers, most wanted first.
pub(crate) fn ciphers(crypto: Crypto) -> Vec<Cipher> {
    use Cipher::{Aes128Gcm, Aes256Gcm, ChaCha20Poly1305};
    match crypto {
        Crypto::Auto if has_aes() => vec![Aes128Gcm, Aes256Gcm, ChaCha20Poly1305],
        Crypto::Auto => vec![ChaCha20Poly1305, Aes128Gcm, Aes256Gcm],
        Crypto::Only(cipher) => vec![cipher],
    }
}

/// Whether the processor has instructions for AES and its mode, without which `ChaCha20` is faster.
fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    false
}

#[cfg(test)]
mod tests {
    use haul_base::{Rate, Span};

    use super::*;
    use crate::settings::{Preset, Recipe};

    #[test]
    fn settings_travel_unchanged() {
        let mut ours = Recipe::build(&Preset::default_preset(), &[]).unwrap().settings;
        ours.rate = Some(Rate::from_mbps(5));
        ours.feedback_interval = Span::from_millis(3);
        let theirs = settings(&ours, BenchLimit::Unlimited);
        assert_eq!((theirs.rate_bps, theirs.feedback_interval_us), (Some(5_000_000), 3_000));
        assert_eq!((theirs.chunk_bytes, theirs.controller.as_str()), (100_000_000, "bbr"));
    }

    #[test]
    fn what_a_preset_says_of_the_transport_is_offered() {
        let ours = Recipe::build(&Preset::find("rbudp").unwrap(), &[]).unwrap().settings;
        let theirs = settings(&ours, BenchLimit::Unlimited);
        let offered = haulage::Recipe::parse(&theirs.recipe.unwrap().text).unwrap();
        assert_eq!(offered.name, "rbudp");
        assert_eq!((theirs.controller.as_str(), theirs.rate_bps), ("fixed", Some(900_000_000)));
        let ours = Recipe::build(&Preset::default_preset(), &[]).unwrap().settings;
        assert_eq!(settings(&ours, BenchLimit::Unlimited).recipe, None);
    }

    #[test]
    fn no_encryption_is_offered_only_when_asked_for() {
        assert!(!ciphers(Crypto::Auto).contains(&Cipher::None));
        assert_eq!(ciphers(Crypto::Only(Cipher::None)), [Cipher::None]);
        assert_eq!(ciphers(Crypto::Auto).len(), 3);
    }
}
