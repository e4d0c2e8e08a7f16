use clap::Parser;
use haul_wan::{rate_of, rtt_of};

use super::*;

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    path: PathArgs,
}

fn plan(words: &str) -> Result<Plan, Problem> {
    let words = std::iter::once("test").chain(words.split_whitespace());
    Plan::from_args(&Cli::try_parse_from(words).unwrap().path, 1_500)
}

#[test]
fn an_empty_path_can_still_be_changed_and_carries_batches() {
    let plan = plan("").unwrap();
    let kinds: Vec<&str> = plan.forth.stages.iter().map(StageSpec::kind).collect();
    assert_eq!(kinds, ["outages", "loss", "delay"]);
    assert!(haul_sim::Path::new(&plan.forth, 1).unwrap().carries_batches());
}

#[test]
fn the_round_trip_is_split_and_the_queue_is_one_bandwidth_delay_product() {
    let plan = plan("--rtt 25ms --rate 1Gbit").unwrap();
    assert_eq!(rtt_of(&plan.forth, &plan.back), Span::from_millis(25));
    let queue = plan.forth.stages.iter().find_map(|stage| match stage {
        StageSpec::Bottleneck(spec) => Some(spec.queue),
        _ => None,
    });
    assert_eq!(queue, Some(QueueSpec::TailDrop(Limit::Bytes(Bytes(3_125_000)))));
}

#[test]
fn the_way_back_differs_only_in_its_own_options() {
    let plan = plan("--rate 1Gbit --loss 1% --rate-back 20Mbit --loss-back 0 --jitter-back 2ms").unwrap();
    assert_eq!(rate_of(&plan.forth), Rate::from_mbps(1_000));
    assert_eq!(rate_of(&plan.back), Rate::from_mbps(20));
    assert!(plan.forth.stages.contains(&StageSpec::Loss(Probability::new(0.01).unwrap())));
    assert!(plan.back.stages.contains(&StageSpec::Loss(Probability::ZERO)));
    assert_eq!(plan.back.stages.len(), plan.forth.stages.len() + 1);
}

#[test]
fn a_policer_precedes_the_bottleneck() {
    let plan = plan("--rate 100Mbit --policer 50Mbit:64KiB --policer-back 1Mbit:3kB").unwrap();
    let kinds: Vec<&str> = plan.forth.stages.iter().map(StageSpec::kind).collect();
    assert_eq!(kinds, ["outages", "policer", "bottleneck", "loss", "delay"]);
    assert!(
        plan.back
            .stages
            .iter()
            .any(|stage| matches!(stage, StageSpec::Policer(spec) if spec.burst.0 == 3_000))
    );
    assert!(self::plan("--policer 1Mbit:100B").unwrap_err().to_string().contains("1500"));
}

#[test]
fn contradictions_are_refused_with_a_hint() {
    for (words, hint) in
        [("--aqm red", "--rate"), ("--burst-loss 4", "--loss 1%"), ("--loss 99% --burst-loss 4", "4")]
    {
        let problem = plan(words).unwrap_err();
        assert_eq!(problem.exit_code(), 2, "{words}");
        assert!(problem.to_string().contains(hint), "{words}: {problem}");
    }
}

#[test]
fn every_option_builds_a_path() {
    let words = "--rtt 20ms --rate 100Mbit --aqm red --loss 1% --burst-loss 3 --jitter 1ms --reorder 1% \
                 --duplicate 0.1% --corrupt 0.01% --outage 1s+1s --path-mtu 1400 --policer 50Mbit:64KiB";
    let plan = plan(words).unwrap();
    assert!(haul_sim::Path::new(&plan.forth, 1).is_ok());
    for aqm in ["codel", "red"] {
        for queue in ["1bdp", "64KiB", "10ms", "100p"] {
            let words = format!("--rtt 20ms --rate 10Mbit --aqm {aqm} --queue {queue}");
            assert!(tests::plan(&words).is_ok(), "{words}");
        }
    }
}

#[test]
fn files_have_both_directions_and_errors_have_positions() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("path.toml");
    fs::write(&file, "[forth]\nstages = [{ delay = \"5ms\" }, { loss = \"1%\" }]\n").unwrap();
    let plan = Plan::from_file(&file).unwrap();
    assert_eq!(rtt_of(&plan.forth, &plan.back), Span::from_millis(10));
    for (text, expected) in [
        ("[forth]\nstages = [\n  { delay = \"5\" },\n]\n", "3"),
        ("[forth]\nstages = []\nspeed = 3\n", "speed"),
        ("[forth]\nstages = [{ mtu = 12 }]\n", "68"),
        ("[back]\nstages = []\n", "forth"),
    ] {
        fs::write(&file, text).unwrap();
        let problem = Plan::from_file(&file).unwrap_err().to_string();
        assert!(problem.contains("path.toml") && problem.contains(expected), "{problem}");
    }
}
