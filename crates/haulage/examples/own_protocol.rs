//! A custom micro-protocol in a custom recipe: it drops messages that are not polite. Run it with
//! `cargo run --example own_protocol`.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use haulage::stack::{
    Context, Declaration, Delivery, MicroProtocol, Order, ProtocolStats, Registration, Resolution,
    Submission, Verdict, configuration,
};
use haulage::{Connection, ListenOptions, Listener, Options, Recipe, Registry, preset, registry};

const TIMEOUT: Duration = Duration::from_secs(10);

configuration! {
    /// Parameters, for recipes in TOML and in Rust.
    pub struct PoliteConfig: "polite" {
        word: String = "please", "what messages begin with";
    }
}

/// Drops messages that are not polite, in both directions.
#[derive(Debug)]
struct Polite {
    word: String,
    stats: PoliteStats,
}

/// Counters: programs read the fields, users see the `Debug` output.
#[derive(Clone, Debug, Default)]
struct PoliteStats {
    refused: u64,
}

impl MicroProtocol for Polite {
    fn declare(&mut self, _: &mut Declaration<'_>) {}

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        resolution.on_submit(Order::EARLY);
        resolution.on_delivery(Order::NORMAL);
    }

    fn on_submit(&mut self, submission: &mut Submission<'_>, _: &mut Context<'_>) {
        if !submission.data.starts_with(self.word.as_bytes()) {
            self.stats.refused += 1;
            submission.verdict = Verdict::Drop;
        }
    }

    fn on_delivery(&mut self, delivery: &mut Delivery<'_>, _: &mut Context<'_>) {
        if !delivery.data.starts_with(self.word.as_bytes()) {
            self.stats.refused += 1;
            delivery.verdict = Verdict::Drop;
        }
    }

    fn statistics(&self, report: &mut dyn FnMut(&dyn ProtocolStats)) {
        report(&self.stats);
    }
}

/// Returns the project's micro-protocols and this one. Both peers need it.
fn custom_registry() -> Arc<Registry> {
    let mut registry = registry();
    registry.register(Registration::of::<PoliteConfig>(1, "only polite messages", |parameters, _| {
        let PoliteConfig { word } = parameters.read();
        Ok(Box::new(Polite { word, stats: PoliteStats::default() }))
    }));
    Arc::new(registry)
}

/// Both peers in one program; usually they are two programs.
pub fn main() -> Result<(), Box<dyn Error>> {
    let mut listening = ListenOptions::new("127.0.0.1:0".parse()?);
    listening.registry = custom_registry();
    let listener = Listener::bind_with(listening)?;
    let recipe: Recipe = preset("msg")?.with(PoliteConfig { word: "kindly".to_owned() });
    let options = Options { registry: custom_registry(), ..Options::default() };
    let connection = Connection::open(&listener.url("127.0.0.1"), &recipe, &options).wait()?;
    connection.send(b"give me the salt").wait()?;
    connection.send(b"kindly give me the salt").wait()?;
    let server = listener.accept().wait_for(TIMEOUT)?;
    let received = server.recv().wait_for(TIMEOUT)?;
    println!("heard: {}", String::from_utf8_lossy(&received.data));
    let refused = refused(&connection);
    println!("refused: {refused}");
    if received.data != b"kindly give me the salt" || refused != 1 {
        return Err("manners are not what they were".into());
    }
    connection.close().wait_for(TIMEOUT).map_err(Into::into)
}

fn refused(connection: &Connection) -> u64 {
    connection.statistics().of::<PoliteStats>().map_or(0, |stats| stats.refused)
}
