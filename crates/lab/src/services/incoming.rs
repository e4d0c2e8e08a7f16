//! Connections opened by side A.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use haul_engine::{Channel, ConnectionOptions, Listener, Terms, block_until};
use haul_proto::micro;
use haul_stack::Recipe;

use super::connect::engine;
use crate::problem::Problem;

/// Maximum time that one call waits for a client or a connection.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Accepted connections not yet assigned to a stream.
pub(super) struct IncomingChannels {
    listener: Listener,
    terms: Terms,
    accepted_channels: Mutex<Vec<Channel>>,
}

impl IncomingChannels {
    pub(super) fn new(listener: Listener) -> Self {
        Self { listener, terms: Terms::new(Arc::new(micro::registry())), accepted_channels: Mutex::default() }
    }

    /// Sets the options of later connections.
    pub(super) fn set_options(&self, options: ConnectionOptions) {
        self.listener.endpoint().set_options(options);
    }

    /// Returns the next connection.
    pub(super) fn next(&self) -> Result<Channel, Problem> {
        self.take(|_| true)
    }

    /// Returns the next connection with this recipe: streams that start at the same time arrive in any order.
    pub(super) fn next_of(&self, recipe: &Recipe) -> Result<Channel, Problem> {
        self.take(|channel| channel.recipe().same_stack(recipe))
    }

    fn take(&self, matches: impl Fn(&Channel) -> bool) -> Result<Channel, Problem> {
        loop {
            let mut accepted_channels = self.accepted_channels.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(found) = accepted_channels.iter().position(&matches) {
                return Ok(accepted_channels.swap_remove(found));
            }
            drop(accepted_channels);
            let accepted = self.accept()?;
            self.accepted_channels.lock().unwrap_or_else(PoisonError::into_inner).extend(accepted);
        }
    }

    /// Completes a client's handshake and accepts a connection, if either is pending.
    fn accept(&self) -> Result<Option<Channel>, Problem> {
        let endpoint = self.listener.endpoint();
        if let Some(incoming) = self.listener.accept(POLL_INTERVAL) {
            incoming.agree(&self.terms).map_err(|e| engine("cannot connect", &e))?;
        }
        let accepted =
            block_until(Some(Instant::now() + POLL_INTERVAL), |context| endpoint.poll_accept(context));
        accepted.transpose().map_err(|e| engine("no connection", &e))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use haul_engine::{Endpoint, HaulUrl, ListenOptions, OpenOptions, block_on};
    use haul_proto::presets;
    use haul_stack::Ends;

    use super::super::connect::{next_message, submit};
    use super::*;

    fn viz(rate: &str) -> Recipe {
        let mut recipe = presets::preset("viz").unwrap().unwrap();
        micro::registry().set(&mut recipe, "fixed_rate.rate", rate).unwrap();
        recipe
    }

    fn client(url: &HaulUrl, rate: &str) -> Channel {
        let options = OpenOptions::default();
        let endpoint = Endpoint::client().unwrap();
        let recipe = viz(rate);
        let channel = block_on(endpoint.connect(url, &recipe, &options, Ends::default())).unwrap();
        submit(&channel, rate.as_bytes()).unwrap();
        channel
    }

    #[test]
    fn a_stream_gets_the_connection_with_its_recipe_in_any_order() {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = Listener::bind(ListenOptions::new(address)).unwrap();
        let url: HaulUrl = listener.url("127.0.0.1", b"").to_string().parse().unwrap();
        let incoming = IncomingChannels::new(listener);
        for order in [["9Mbit", "8Mbit"], ["8Mbit", "9Mbit"]] {
            std::thread::scope(|scope| {
                let first = scope.spawn(|| client(&url, "9Mbit"));
                let channels: Vec<_> = if order[0] == "9Mbit" {
                    let one = incoming.next_of(&viz("9Mbit")).unwrap();
                    let second = scope.spawn(|| client(&url, "8Mbit"));
                    let other = incoming.next_of(&viz("8Mbit")).unwrap();
                    vec![(one, first), (other, second)]
                } else {
                    let second = scope.spawn(|| client(&url, "8Mbit"));
                    let one = incoming.next_of(&viz("8Mbit")).unwrap();
                    vec![(one, second), (incoming.next_of(&viz("9Mbit")).unwrap(), first)]
                };
                for ((channel, client), rate) in channels.into_iter().zip(order) {
                    let message = next_message(&channel, Duration::from_secs(60)).unwrap();
                    assert_eq!(message.data, rate.as_bytes());
                    drop(client.join().unwrap());
                }
            });
        }
    }
}
