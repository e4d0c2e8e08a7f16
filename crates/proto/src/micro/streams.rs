//! `streams`: a connection's messages carry frames of several byte streams and of the application's messages.
//! Both ends agree on this, and on the limits, through the recipe. The driver writes and reads the frames
//! (`haulage`; docs/wire-format.md), so this micro-protocol has no handlers.

use haul_base::Bytes;
use haul_stack::{Declaration, MicroProtocol, Part, Recipe, Registration, Resolution, configuration};

use super::fixed_size::{FixedSizeConfig, MEMORY};
use super::retransmit::RetransmitConfig;

/// Minimum of `fixed_size.max_message`, in bytes: a frame's header takes up to 13.
const SHORTEST: u64 = 64;

/// Limits that each end grants its peer: a window for each stream, and one for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamLimits {
    /// Maximum unread bytes of one stream, and of all messages together.
    pub window: u64,
    /// Maximum number of streams that the peer may have open.
    pub most: u32,
    /// Maximum length of a frame, in bytes.
    pub frame: usize,
}

impl StreamLimits {
    /// Returns the limits of a checked recipe; `None` if it carries no streams.
    pub fn of(recipe: &Recipe) -> Option<Self> {
        let StreamsConfig { window, most } = recipe.configuration()?;
        let FixedSizeConfig { max_message, .. } = recipe.configuration()?;
        Some(Self { window: window.0, most, frame: max_message.0 as usize })
    }
}

#[derive(Debug)]
struct Streams;

configuration! {
    /// Parameters of `streams`.
    pub struct StreamsConfig: "streams" {
        window: Bytes = "1MiB",
            "receive buffer of a stream, or of all messages; for all streams at most 256MiB";
        most: u32 in (1, 65_536) = "32", "streams that either end may have open at once";
    }
}

pub(super) fn registration() -> Registration {
    Registration {
        needs: &[&["fixed_size"], &["retransmit"]],
        conflicts: &[
            ("negative_ack", "a stream would have a gap where its sender has discarded missing data"),
            ("selective_transfer", "it drops messages, which would leave gaps in streams"),
            ("deadline", "it drops messages, which would leave gaps in streams"),
        ],
        compare,
        ..Registration::of::<StreamsConfig>(
            1,
            "carries several byte streams in addition to messages",
            |_, _| Ok(Box::new(Streams)),
        )
    }
}

fn compare(parameters: &Part, recipe: &Recipe) -> Result<(), (&'static str, String)> {
    let StreamsConfig { window, most } = parameters.read();
    if recipe.configuration::<RetransmitConfig>().is_some_and(|repeats| repeats.attempts != 0) {
        return Err(("window", "streams need `retransmit.attempts` = 0".to_owned()));
    }
    let longest = recipe.configuration::<FixedSizeConfig>().map_or(0, |size| size.max_message.0);
    if longest < SHORTEST {
        return Err((
            "window",
            format!("no frame fits a `fixed_size.max_message` below {}", Bytes(SHORTEST)),
        ));
    }
    let range = Bytes(longest.saturating_mul(2))..=Bytes(MEMORY.0 / u64::from(most.max(1)));
    if range.contains(&window) {
        return Ok(());
    }
    let (least, most) = (range.start(), range.end());
    Err(("window", format!("write {least} (two messages) to {most} ({MEMORY} for all `most` streams)")))
}

impl MicroProtocol for Streams {
    fn declare(&mut self, _: &mut Declaration<'_>) {}

    fn bind(&mut self, _: &mut Resolution<'_>) {}
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::micro::registry;
    use crate::presets::preset;

    #[test]
    fn the_limits_are_those_of_the_recipe_and_streams_without_reliability_are_refused() {
        let compile =
            |recipe: &Recipe| Arc::new(registry()).compile(recipe, 16).map(drop).map_err(|e| e.to_string());
        let mut recipe = preset("streams").unwrap().unwrap();
        assert_eq!(compile(&recipe), Ok(()));
        assert_eq!(StreamLimits::of(&preset("msg").unwrap().unwrap()), None);
        registry().set(&mut recipe, "streams.window", "200KiB").unwrap();
        registry().set(&mut recipe, "streams.most", "7").unwrap();
        let limits = StreamLimits { window: 200 << 10, most: 7, frame: 64 << 10 };
        assert_eq!(StreamLimits::of(&recipe), Some(limits));
        for (changed, expected) in [
            (("streams.window", "100KiB"), "two messages"),
            (("streams.window", "1GiB"), "for all"),
            (("streams.most", "65536"), "for all"),
            (("streams.most", "0"), "most"),
            (("retransmit.attempts", "3"), "attempts"),
            (("fixed_size.max_message", "63B"), "no frame fits"),
        ] {
            let mut wrong = recipe.clone();
            let set = registry().set(&mut wrong, changed.0, changed.1).map_err(|error| error.to_string());
            let error = set.and_then(|()| compile(&wrong)).unwrap_err();
            assert!(error.contains(expected), "{changed:?}: {error}");
        }
        for dropping in ["deadline", "selective_transfer"] {
            assert!(compile(&recipe.clone().with(dropping)).unwrap_err().contains("gap"));
        }
        let forgetful = recipe.without("positive_ack").with("negative_ack");
        assert!(compile(&forgetful).unwrap_err().contains("gap"));
    }
}
