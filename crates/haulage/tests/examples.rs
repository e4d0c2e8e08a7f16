//! Every example runs to its end.

#![expect(unreachable_pub, reason = "examples are programs, and modules here")]

#[path = "../examples/group.rs"]
mod group;
#[path = "../examples/msg.rs"]
mod msg;
#[path = "../examples/own_controller.rs"]
mod own_controller;
#[path = "../examples/own_protocol.rs"]
mod own_protocol;
#[path = "../examples/sensor.rs"]
mod sensor;
#[path = "../examples/stream.rs"]
mod stream;
#[path = "../examples/streams.rs"]
mod streams;
#[path = "../examples/viz.rs"]
mod viz;

type Main = fn() -> Result<(), Box<dyn std::error::Error>>;

#[test]
fn every_example_runs() {
    let examples: [(&str, Main); 8] = [
        ("group", group::main),
        ("msg", msg::main),
        ("own_controller", own_controller::main),
        ("own_protocol", own_protocol::main),
        ("sensor", sensor::main),
        ("stream", stream::main),
        ("streams", streams::main),
        ("viz", viz::main),
    ];
    for (name, run) in examples {
        println!("--- {name}");
        run().unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let files =
        std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/examples")).expect("there are examples");
    assert_eq!(files.count(), examples.len(), "an example is not run");
}
