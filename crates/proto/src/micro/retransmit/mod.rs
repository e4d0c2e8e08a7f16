//! `retransmit`: stores outstanding segments and retransmits lost ones (wu-h-ctp section 4).
//! [`ACKNOWLEDGED`](super::events::ACKNOWLEDGED) and `RETRANSMIT_TIMEOUT` from other micro-protocols decide
//! *when*; the parameter `keep` decides *from what*.

mod copies;
mod keep;
mod messages;
mod object;
mod sent_packets;
#[cfg(test)]
mod tests;

use haul_stack::{MicroProtocol, Part, Recipe, Registration, Setup};

use super::bitmap_ack::{BitmapAckConfig, When};
pub use keep::{Keep, RetransmitConfig};

pub(super) fn registration() -> Registration {
    Registration {
        needs: &[&["positive_ack", "cumulative_ack", "negative_ack", "bitmap_ack"], &["sequenced_segment"]],
        compare,
        ..Registration::of::<RetransmitConfig>(1, "keeps outstanding packets and retransmits them", build)
    }
}

/// The loss of an object's last packets is detected at the end of a round, or by retransmitting them after a
/// silence.
fn compare(parameters: &Part, recipe: &Recipe) -> Result<(), (&'static str, String)> {
    let RetransmitConfig { keep, probe, .. } = parameters.read();
    match recipe.configuration::<BitmapAckConfig>().map(|reports| reports.when) {
        Some(When::Interval | When::Law) if keep == Keep::Object && !probe => {
            let problem = "must be true with `bitmap_ack.when` = `interval` or `law`, or losses of the last packets go unnoticed; set it to true, or bitmap_ack.when to segment, chunk or round";
            Err(("probe", problem.to_owned()))
        }
        _ => Ok(()),
    }
}

fn build(parameters: &Part, setup: &mut Setup) -> Result<Box<dyn MicroProtocol>, String> {
    let parameters: RetransmitConfig = parameters.read();
    match parameters.keep {
        Keep::Copies => Ok(Box::new(copies::KeepCopies::new(&parameters)?)),
        Keep::Object => Ok(object::build(&parameters, setup)),
    }
}
