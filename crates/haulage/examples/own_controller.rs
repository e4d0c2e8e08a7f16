//! A custom control law with a parameter, used in a transfer and replaced by a shipped law while it runs. Run
//! it with `cargo run -p haulage --example own_controller`.

use std::error::Error;
use std::io::{Read, Write};
use std::time::Duration;

use haulage::config::{BbrConfig, RateControlConfig};
use haulage::control::{
    ControllerConfig, FeedbackSample, LawRegistration, Limits, Permit, RateController, RateState,
    register_law,
};
use haulage::stack::{Configuration, configuration};
use haulage::{Endpoint, LawChange, Listener, Options, Rate, Time, preset};

const BYTES: usize = 8_000_000;
const MIN_RATE: Rate = Rate::from_mbps(1);

configuration! {
    /// Parameters of the law, as used by recipes, help texts and checks.
    pub struct PoliteConfig: "polite" {
        decrease: f64 in (0.1, 0.99) = "0.5", "what the rate is multiplied by after losses";
    }
}

/// Registration, which makes the law known to recipes, `--controller`, help texts and checks.
static POLITE: LawRegistration = LawRegistration {
    name: PoliteConfig::NAME,
    version: 1,
    summary: "a little faster after each quiet report, less by a share after one with losses",
    source: "this example",
    parameters: PoliteConfig::PARAMETERS,
    build: |parameters, config| Ok(Box::new(Polite::new(&parameters.read(), config))),
};

/// The law: handles feedback and returns limits. It reads no clock.
#[derive(Debug)]
struct Polite {
    rate: Rate,
    decrease: f64,
    ceiling: Option<Rate>,
}

impl Polite {
    fn new(parameters: &PoliteConfig, config: &ControllerConfig) -> Self {
        Self { rate: Rate::from_mbps(50), decrease: parameters.decrease, ceiling: config.ceiling }
    }

    fn set(&mut self, rate: Rate) {
        self.rate = rate.max(MIN_RATE).min(self.ceiling.unwrap_or(Rate::MAX));
    }
}

impl RateController for Polite {
    fn permit(&self) -> Permit {
        Permit::Go(Limits::at_rate(self.rate.min(self.ceiling.unwrap_or(Rate::MAX))))
    }

    fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
        let factor = if sample.lost_packets > 0 { self.decrease } else { 1.02 };
        self.set(self.rate.mul_f64(factor));
    }

    fn on_silence(&mut self, _: Time, _: u32) {
        self.set(self.rate.mul_f64(self.decrease));
    }

    fn ceiling(&self) -> Option<Rate> {
        self.ceiling
    }

    fn state(&self) -> RateState {
        RateState { phase: "polite", rate: self.rate }
    }
}

/// Both peers in one program; usually they are two programs, and each registers the law.
pub fn main() -> Result<(), Box<dyn Error>> {
    register_law(&POLITE)?;
    let listener = Listener::bind("127.0.0.1:0".parse()?)?;
    let url = listener.url("127.0.0.1");
    let writer = std::thread::spawn(move || write(&url).map_err(|error| error.to_string()));
    let mut received = Vec::new();
    listener.accept_reader().wait_for(Duration::from_secs(10))?.read_to_end(&mut received)?;
    writer.join().map_err(|_| "the writer has panicked")??;
    println!("{} bytes with the custom law, then with a shipped one", received.len());
    if received.len() == BYTES { Ok(()) } else { Err("the stream was cut short".into()) }
}

fn write(url: &str) -> Result<(), Box<dyn Error>> {
    let mut recipe = preset("bulk")?;
    let rate_control = recipe.configuration::<RateControlConfig>().unwrap_or_default();
    recipe.put(rate_control.with_law(&PoliteConfig { decrease: 0.7 }));
    let mut writer = Endpoint::client()?.open_writer(url, &recipe, &Options::default()).wait()?;
    writer.write_all(&vec![7; BYTES / 2])?;
    writer.set_law(&LawChange::to(&BbrConfig::default()))?;
    writer.write_all(&vec![7; BYTES / 2])?;
    Ok(writer.finish().wait()?)
}
