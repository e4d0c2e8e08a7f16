//! Recipes whose parameters contradict each other are refused with both values, wherever they come from.

use std::sync::Arc;

use haul_base::{Span, Time};
use haul_proto::micro;
use haul_proto::presets::preset;
use haul_stack::{Recipe, RecipeError};

use crate::channel::{Impairments, Order, Run, TAG};

fn changed(name: &str, values: &[(&str, &str)]) -> Recipe {
    let mut recipe = preset(name).unwrap().unwrap();
    for (key, value) in values {
        micro::registry().set(&mut recipe, key, value).unwrap();
    }
    recipe
}

fn refusal(recipe: &Recipe) -> String {
    match Arc::new(micro::registry()).compile(recipe, TAG) {
        Ok(_) => format!("accepted: {}", recipe.to_toml()),
        Err(error) => error.to_string(),
    }
}

fn is_accepted(recipe: &Recipe) -> bool {
    Arc::new(micro::registry()).compile(recipe, TAG).is_ok()
}

#[test]
fn a_duplicate_window_narrower_than_the_retransmission_window() {
    for window in ["64", "16383", "16384"] {
        let error = refusal(&changed("msg", &[("sequenced_segment.window", window)]));
        let expected = format!(
            "`sequenced_segment.window = {window}`: must be more than `retransmit.window = 16384`, or \
             retransmissions would be dropped; set it to 16385 or more, or lower retransmit.window"
        );
        assert!(error.ends_with(&expected), "{error}");
    }
    assert!(is_accepted(&changed("msg", &[("sequenced_segment.window", "16385")])));
    // Defaults count as well.
    let text =
        "name = \"x\"\n[fixed_size]\n[positive_ack]\n[retransmit]\n[sequenced_segment]\nwindow = 1024\n";
    let error = refusal(&micro::registry().parse(text).unwrap());
    assert!(
        error.starts_with("`sequenced_segment.window = 1024`: must be more than `retransmit.window = 1024`"),
        "{error}"
    );
    // Without retransmission, and with bitmaps that detect duplicates, there is no contradiction.
    assert!(is_accepted(
        &micro::registry().parse("[fixed_size]\n[sequenced_segment]\nwindow = 64\n").unwrap()
    ));
    assert!(is_accepted(&changed("rbudp", &[("sequenced_segment.window", "64")])));
}

#[test]
fn a_running_stack_refuses_contradictions() {
    let recipe = changed("msg", &[]);
    let compiled = Arc::new(micro::registry()).compile(&recipe, TAG).unwrap();
    let mut run = Run::new(&compiled, Impairments::default(), 1);
    for (key, value) in [("sequenced_segment.window", "64"), ("sequenced_segment.window", "16384")] {
        let refused = run.ends[0].reconfigure(Time::ZERO, &changed("msg", &[(key, value)]));
        assert!(matches!(refused, Err(RecipeError::Value { .. })), "{refused:?}");
    }
    let order = |n: u8| Order { at: Time::ZERO, end: usize::from(n % 2), body: vec![n; 20] };
    run.run((0..40).map(order).collect(), Time::ZERO + Span::from_secs(10));
    assert_eq!((run.got[0].len(), run.got[1].len()), (20, 20));
}

#[test]
fn unused_acknowledgements() {
    for ack in ["positive_ack", "cumulative_ack", "negative_ack"] {
        let recipe = Recipe::new("x").with("fixed_size").with("sequenced_segment").with(ack);
        assert_eq!(refusal(&recipe), format!("{ack} needs retransmit"));
        assert!(is_accepted(&recipe.with("retransmit")));
    }
}

#[test]
fn readings_spaced_beyond_the_silence_timeout() {
    for (given, apart) in [("5s", "5s"), ("5001ms", "5001ms"), ("1h", "3600s")] {
        let error = refusal(&changed("sensor", &[("selective_transfer.max_silence", given)]));
        let expected = format!(
            "`selective_transfer.max_silence = {apart}`: must be less than `negative_ack.silence = 5s`, or the \
             receiver requests suppressed readings; lower it, or raise negative_ack.silence"
        );
        assert!(error.ends_with(&expected), "{error}");
    }
    assert!(is_accepted(&changed("sensor", &[("selective_transfer.max_silence", "4999ms")])));
    let slower = [("selective_transfer.max_silence", "5s"), ("negative_ack.silence", "5001ms")];
    assert!(is_accepted(&changed("sensor", &slower)));
    // 0: no reading is sent because of silence.
    assert!(is_accepted(&changed("sensor", &[("selective_transfer.max_silence", "0s")])));
    assert!(is_accepted(
        &changed("sensor", &[("selective_transfer.max_silence", "1h")])
            .without("negative_ack")
            .with("positive_ack")
    ));
}

#[test]
fn an_object_whose_lost_end_would_go_unnoticed() {
    let error = refusal(&changed("fobs", &[("retransmit.probe", "false")]));
    let expected = "`retransmit.probe = false`: must be true with `bitmap_ack.when` = `interval` or `law`, or losses of the last packets go unnoticed; set it to true, or bitmap_ack.when to segment, chunk or round";
    assert!(error.ends_with(expected), "{error}");
    refusal(&changed("fobs", &[("retransmit.probe", "false"), ("bitmap_ack.when", "law")]));
    for when in ["segment", "chunk", "round"] {
        assert!(is_accepted(&changed("fobs", &[("retransmit.probe", "false"), ("bitmap_ack.when", when)])));
    }
}
