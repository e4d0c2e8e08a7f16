//! `rate_control.switch`: rules by which a running session switches its control law.
//!
//! ```text
//! switch = "after 30s -> cubic; loss > 5% -> tfrc intervals=16; receiver_loss > 50% -> asynch; rtt > 200ms -> fast"
//! ```
//!
//! The first rule whose condition holds decides; if there is none, the law stays. Values are measured over at
//! least a second. `after` applies once. There are at least `switch_wait` between two switches.

use haul_base::{Bytes, Span, Time};

use super::law::{Law, RateControlConfig};
use crate::control::{ControllerError, law as registered};
use crate::diagnosis::Evidence;

/// Minimum time of a measurement; `JUDGED_PACKETS`: minimum number of packets.
const JUDGED: Span = Span::from_secs(1);
const JUDGED_PACKETS: u64 = 100;
/// Fraction of an upper limit that a rule for low values must not exceed, so that two rules do not alternate.
const APART: f64 = 0.5;
/// Recipes come from peers, and each rule stores a law with its parameters.
const MAX_RULES: usize = 32;

/// A measured value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measure {
    /// Lost packets as a fraction of those with a known outcome.
    Loss,
    /// Fraction of the lost packets that the diagnosis attributes to the receiving host.
    ReceiverLoss,
    /// Smoothed round-trip time in seconds.
    Rtt,
}

impl Measure {
    const ALL: [(&'static str, Self); 3] =
        [("loss", Self::Loss), ("receiver_loss", Self::ReceiverLoss), ("rtt", Self::Rtt)];

    fn limit(self, text: &str) -> Option<f64> {
        match (self, text.strip_suffix('%')) {
            (Self::Rtt, _) => text.parse::<Span>().ok().map(Span::as_secs_f64),
            (_, Some(percent)) => percent.parse::<f64>().ok().map(|percent| percent / 100.0),
            (_, None) => text.parse().ok(),
        }
        .filter(|&limit| limit >= 0.0 && (self == Self::Rtt || limit <= 1.0))
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Condition {
    /// This long after the start of the session.
    After(Span),
    /// After this many UDP payload bytes of data.
    Sent(Bytes),
    Above(Measure, f64),
    Below(Measure, f64),
}

impl Condition {
    fn read(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let wrong = || {
            let measures = Measure::ALL.map(|(name, _)| name).join(", ");
            format!(
                "`{text}` is not a condition; write `after 30s`, `after 10GB` or one of {measures} with > or <, as in `loss > 5%`"
            )
        };
        if let ["after", when] = words[..] {
            let time = when.parse().map(Self::After);
            return time.or_else(|_| when.parse().map(Self::Sent)).map_err(|_| wrong());
        }
        let [name, side, limit] = words[..] else { return Err(wrong()) };
        let measure = Measure::ALL.iter().find(|(known, _)| *known == name).map(|(_, measure)| *measure);
        match (measure.and_then(|measure| Some((measure, measure.limit(limit)?))), side) {
            (Some((measure, limit)), ">") => Ok(Self::Above(measure, limit)),
            (Some((measure, limit)), "<") => Ok(Self::Below(measure, limit)),
            _ => Err(wrong()),
        }
    }

    fn is_of(self, measure: Measure) -> bool {
        matches!(self, Self::Above(of, _) | Self::Below(of, _) if of == measure)
    }

    /// Whether it holds whenever `other` does.
    fn covers(self, other: Self) -> bool {
        match (self, other) {
            (Self::Above(a, low), Self::Above(b, high)) | (Self::Below(a, high), Self::Below(b, low)) => {
                a == b && low <= high
            }
            _ => false,
        }
    }

    /// Whether a value may alternate between both.
    fn is_near(self, other: Self) -> bool {
        match (self, other) {
            (Self::Above(a, high), Self::Below(b, low)) | (Self::Below(a, low), Self::Above(b, high)) => {
                a == b && low > high * APART
            }
            _ => false,
        }
    }
}

/// Totals since the start of the session, from which rules are evaluated.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) acked: u64,
    pub(super) lost: u64,
    /// Lost packets with a known cause.
    pub(super) explained: u64,
    pub(super) receiver_lost: u64,
    pub(super) sent_bytes: u64,
}

/// Values measured over an interval.
#[derive(Clone, Copy, Debug)]
struct Measured {
    since_start: Span,
    sent: Bytes,
    loss: f64,
    /// `None` if no loss has a known cause.
    receiver_loss: Option<f64>,
    rtt: f64,
}

impl Measured {
    fn of(&self, measure: Measure) -> Option<f64> {
        match measure {
            Measure::Loss => Some(self.loss),
            Measure::ReceiverLoss => self.receiver_loss,
            Measure::Rtt => Some(self.rtt),
        }
    }

    fn holds(&self, condition: Condition) -> bool {
        match condition {
            Condition::After(span) => self.since_start >= span,
            Condition::Sent(bytes) => self.sent >= bytes,
            Condition::Above(measure, limit) => self.of(measure).is_some_and(|value| value > limit),
            Condition::Below(measure, limit) => self.of(measure).is_some_and(|value| value < limit),
        }
    }
}

#[derive(Clone, Debug)]
struct Rule {
    condition: Condition,
    law: Law,
    /// Whether it is a rule of time or bytes that has applied.
    is_spent: bool,
}

/// State of the rules.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    list: Vec<Rule>,
    wait: Span,
    began: Option<Time>,
    /// Start of the current measurement, and the totals then.
    from: Option<(Time, Totals)>,
    switched: Option<Time>,
}

impl Rules {
    /// Parses the rules of a recipe. A rule that names the recipe's law without parameters means that law.
    ///
    /// # Errors
    /// A description of what cannot be parsed, which law does not exist or cannot be built, or which rules
    /// conflict.
    pub(super) fn of(config: &RateControlConfig, recipe: &Law) -> Result<Self, String> {
        let rules = config.switch.split(';').map(str::trim);
        let written: Vec<&str> = rules.filter(|rule| !rule.is_empty()).collect();
        if written.len() > MAX_RULES {
            return Err(format!("{} rules are too many: the maximum is {MAX_RULES}", written.len()));
        }
        let list = written.iter().map(|rule| read_rule(rule, recipe)).collect::<Result<Vec<_>, _>>()?;
        for (n, later) in list.iter().enumerate() {
            let mut earlier = list[..n].iter().zip(&written);
            earlier.try_for_each(|(rule, text)| compare((rule, text), (later, written[n])))?;
        }
        if config.diagnosis == Evidence::None
            && list.iter().any(|rule| rule.condition.is_of(Measure::ReceiverLoss))
        {
            return Err("`receiver_loss` needs the diagnosis, which is off".to_owned());
        }
        Ok(Self { list, wait: config.switch_wait, ..Self::default() })
    }

    /// Records the start of the session.
    pub(super) fn start(&mut self, now: Time) {
        self.began = Some(now);
    }

    pub(super) fn are_none(&self) -> bool {
        self.list.is_empty()
    }

    /// Continues after the user chose a law with these rules: conditions that were already met do not apply.
    pub(super) fn take_over(&mut self, before: &Self, now: Time, sent_bytes: u64) {
        (self.began, self.switched) = (before.began, Some(now));
        let since_start = now.since(self.began.unwrap_or(now));
        for rule in &mut self.list {
            rule.is_spent = match rule.condition {
                Condition::After(span) => since_start >= span,
                Condition::Sent(bytes) => sent_bytes >= bytes.0,
                _ => false,
            };
        }
    }

    /// Returns the law to switch to, if it is another than `present`.
    pub(super) fn on_feedback(&mut self, now: Time, totals: Totals, rtt: Span, present: &Law) -> Option<Law> {
        let measured = self.measure(now, totals, rtt)?;
        if self.switched.is_some_and(|at| now < at + self.wait) {
            return None;
        }
        let rule = self.list.iter_mut().find(|rule| !rule.is_spent && measured.holds(rule.condition))?;
        rule.is_spent = matches!(rule.condition, Condition::After(_) | Condition::Sent(_));
        let law = (rule.law != *present).then(|| rule.law.clone())?;
        self.switched = Some(now);
        Some(law)
    }

    /// Returns the measured values once there are enough, and starts the next measurement.
    fn measure(&mut self, now: Time, totals: Totals, rtt: Span) -> Option<Measured> {
        let (since, before) = *self.from.get_or_insert((now, totals));
        let (acked, lost) = (totals.acked - before.acked, totals.lost - before.lost);
        let packets = acked + lost;
        if now < since + JUDGED || packets < JUDGED_PACKETS {
            return None;
        }
        self.from = Some((now, totals));
        // A packet's cause may be revised later.
        let explained = totals.explained.saturating_sub(before.explained);
        let by_receiver = totals.receiver_lost.saturating_sub(before.receiver_lost).min(explained) as f64;
        Some(Measured {
            since_start: now.since(self.began.unwrap_or(now)),
            sent: Bytes(totals.sent_bytes),
            loss: lost as f64 / packets as f64,
            receiver_loss: (explained > 0).then(|| by_receiver / explained as f64),
            rtt: rtt.as_secs_f64(),
        })
    }
}

/// Checks that a rule can follow another.
fn compare(earlier: (&Rule, &str), later: (&Rule, &str)) -> Result<(), String> {
    let (Rule { condition: first, law, .. }, Rule { condition: second, law: other, .. }) =
        (earlier.0, later.0);
    if first.covers(*second) {
        return Err(format!("`{}` has no effect, as `{}` precedes it", later.1, earlier.1));
    }
    if first.is_near(*second) && law != other {
        return Err(format!(
            "`{}` and `{}` could switch back and forth forever; the lower limit must be at most half of the upper one",
            earlier.1, later.1
        ));
    }
    Ok(())
}

fn read_rule(text: &str, recipe: &Law) -> Result<Rule, String> {
    let wanted = || format!("`{text}` is not a rule; write `CONDITION -> LAW`, as in `loss > 5% -> tfrc`");
    let (condition, law) = text.split_once("->").ok_or_else(wanted)?;
    let mut words = law.split_whitespace();
    let name = words.next().ok_or_else(wanted)?;
    let given: Vec<(&str, &str)> =
        words.map(|word| word.split_once('=').ok_or_else(wanted)).collect::<Result<_, _>>()?;
    let in_rule = |error: ControllerError| format!("`{text}`: {error}");
    let condition = Condition::read(condition.trim())?;
    let parameters = registered(name).and_then(|law| law.parameters(&given)).map_err(in_rule)?;
    let law = if given.is_empty() && name == recipe.name {
        recipe.clone()
    } else {
        recipe.of_name(name, parameters)
    };
    law.check().map_err(in_rule)?;
    Ok(Rule { condition, law, is_spent: false })
}

#[cfg(test)]
mod tests {
    use haul_base::Rate;
    use haul_stack::Part;

    use super::super::ChosenLaw;
    use super::*;
    use crate::micro::testing;

    fn part(given: &[(&str, &str)]) -> Part {
        testing::part("rate_control", given)
    }

    /// Returns the rules of a recipe, and its law.
    fn rules(switch: &str) -> (Rules, Law) {
        let chosen = ChosenLaw::check(&part(&[("switch", switch), ("rate", "50Mbit")])).unwrap();
        let law = Law::read(&chosen.parameters, Span::from_millis(20));
        (Rules::of(&chosen.config, &law).unwrap(), law)
    }

    /// Runs seconds with 1,000 packets each, of which `lost` returns how many are lost, in total and at the
    /// receiver. Returns the names of the laws that are switched to, with the second.
    fn switches(
        switch: &str,
        lost: impl Fn(u64) -> (u64, u64),
        rtt: impl Fn(u64) -> Span,
    ) -> Vec<(u64, String)> {
        let (mut rules, mut present) = rules(switch);
        rules.start(Time::ZERO);
        let (mut totals, mut found) = (Totals::default(), Vec::new());
        for second in 0..120 {
            let (all, by_receiver) = lost(second);
            totals.acked += 1_000 - all;
            totals.lost += all;
            totals.explained += all;
            totals.receiver_lost += by_receiver;
            totals.sent_bytes += 1_000_000;
            let now = Time::ZERO + Span::from_secs(second);
            if let Some(law) = rules.on_feedback(now, totals, rtt(second), &present) {
                found.push((second, law.name.clone()));
                present = law;
            }
        }
        found
    }

    fn nothing_lost(_: u64) -> (u64, u64) {
        (0, 0)
    }

    fn short(_: u64) -> Span {
        Span::from_millis(20)
    }

    fn owned(switches: &[(u64, &str)]) -> Vec<(u64, String)> {
        switches.iter().map(|(at, name)| (*at, (*name).to_owned())).collect()
    }

    #[test]
    fn each_condition_holds_as_specified() {
        let high_loss = |from: u64| move |second: u64| if second >= from { (80, 0) } else { (0, 0) };
        assert_eq!(switches("after 30s -> cubic", nothing_lost, short), owned(&[(30, "cubic")]));
        assert_eq!(switches("after 50MB -> cubic", nothing_lost, short), owned(&[(49, "cubic")]));
        assert_eq!(switches("loss > 5% -> tfrc", high_loss(12), short), owned(&[(12, "tfrc")]));
        assert_eq!(switches("loss > 0.1 -> tfrc", high_loss(12), short), []);
        let at_receiver = |second: u64| if second >= 40 { (10, 8) } else { (10, 2) };
        assert_eq!(switches("receiver_loss > 50% -> asynch", at_receiver, short), owned(&[(40, "asynch")]));
        assert_eq!(switches("receiver_loss < 1 -> asynch", nothing_lost, short), [], "nothing is told");
        let longer = |second: u64| Span::from_millis(if second >= 20 { 300 } else { 20 });
        assert_eq!(switches("rtt > 200ms -> fast alpha=50", nothing_lost, longer), owned(&[(20, "fast")]));
    }

    #[test]
    fn the_first_matching_rule_decides_and_switches_are_spaced() {
        // The two rules hold in alternate seconds.
        let lost = |second: u64| if second.is_multiple_of(2) { (100, 0) } else { (0, 0) };
        let found = switches("loss > 5% -> tfrc; loss < 1% -> bbr", lost, short);
        assert!(found.len() >= 8, "{found:?}");
        for pair in found.windows(2) {
            assert!(pair[1].0 - pair[0].0 >= 10 && pair[0].1 != pair[1].1, "{found:?}");
        }
        let both = switches("loss > 5% -> tfrc; rtt > 1ms -> fast", |_| (100, 0), short);
        assert_eq!(both, owned(&[(1, "tfrc")]));
    }

    #[test]
    fn switching_back_restores_the_recipes_own_law() {
        let switch = "loss > 5% -> tfrc; loss < 1% -> bbr";
        let (rules, law) = rules(switch);
        assert_eq!(rules.list[1].law, law);
        assert_eq!(law.check(), Ok(()));
        assert_eq!(rules.list[0].law.ceiling, Some(Rate::from_mbps(50)));
    }

    /// Regression test: the next rule to match restarted the law that was already running.
    #[test]
    fn a_change_of_the_ceiling_leaves_the_laws_of_rules_equal() {
        let read = |rate: &str| {
            let switch = "loss < 1% -> bbr; loss > 5% -> tfrc";
            let chosen = ChosenLaw::check(&part(&[("switch", switch), ("rate", rate)])).unwrap();
            let law = Law::read(&chosen.parameters, Span::from_millis(20));
            (Rules::of(&chosen.config, &law).unwrap(), law)
        };
        let ((_, before), (rules, after)) = (read("50Mbit"), read("20Mbit"));
        let running = after.clone().keeping(&before);
        assert_eq!(running, rules.list[0].law);
        assert_eq!(running.ceiling, Some(Rate::from_mbps(20)));
    }

    #[test]
    fn conditions_before_an_external_law_change_do_not_count() {
        let (mut rules, law) = rules("after 30s -> cubic; after 90s -> reno");
        let totals = |second: u64| Totals { acked: second * 1_000, ..Totals::default() };
        let at = |second| Time::ZERO + Span::from_secs(second);
        rules.start(at(0));
        for second in 0..40 {
            rules.on_feedback(at(second), totals(second), Span::from_millis(20), &law);
        }
        let mut brought = rules.clone();
        brought.list.iter_mut().for_each(|rule| rule.is_spent = false);
        brought.take_over(&rules, at(40), 0);
        let switched = (40..120).find_map(|second| {
            let law = brought.on_feedback(at(second), totals(second), Span::from_millis(20), &law)?;
            Some((second, law.name))
        });
        assert_eq!(switched, Some((90, "reno".to_owned())));
    }

    #[test]
    fn impossible_rules_are_refused_with_a_message() {
        for (switch, words) in [
            ("loss > 5%", "CONDITION -> LAW"),
            ("loss > 5% ->", "CONDITION -> LAW"),
            ("loss > 5% -> warp", "switch: `loss > 5% -> warp`: there is no controller `warp`"),
            ("loss > 5% -> tfrc speed=3", "speed"),
            ("loss > 5% -> tfrc intervals=0", "intervals"),
            ("loss > 5% -> tfrc fast", "CONDITION -> LAW"),
            ("loss > 500% -> tfrc", "not a condition"),
            ("loss = 5% -> tfrc", "not a condition"),
            ("delay > 5ms -> tfrc", "receiver_loss"),
            ("after never -> tfrc", "not a condition"),
            ("loss > 5% -> tfrc; loss > 6% -> reno", "has no effect"),
            ("loss < 5% -> tfrc; loss < 4% -> reno", "has no effect"),
            ("loss > 5% -> tfrc; loss < 4% -> reno", "back and forth forever"),
            ("rtt < 100ms -> tfrc; rtt > 90ms -> reno", "back and forth forever"),
        ] {
            let error = ChosenLaw::check(&part(&[("switch", switch)])).unwrap_err().to_string();
            assert!(error.contains(words), "{switch}: {error}");
        }
        // `fixed` has no rate here.
        let error = ChosenLaw::check(&part(&[("switch", "after 1s -> fixed")])).unwrap_err().to_string();
        assert!(error.contains("needs a rate"), "{error}");
        let off = [("switch", "receiver_loss > 50% -> asynch"), ("diagnosis", "off"), ("rate", "1Gbit")];
        let error = ChosenLaw::check(&part(&off)).unwrap_err().to_string();
        assert!(error.contains("diagnosis"), "{error}");
        let short =
            Part::from(RateControlConfig { switch_wait: Span::from_millis(10), ..Default::default() });
        let error = ChosenLaw::check(&short).unwrap_err().to_string();
        assert!(error.contains("switch_wait"), "{error}");
        assert!(ChosenLaw::check(&part(&[("switch", " ; ")])).is_ok());
    }

    #[test]
    fn the_number_of_rules_is_limited_to_a_peers_recipe() {
        let many = vec!["rtt > 1s -> bbr"; MAX_RULES + 1].join(";");
        let error = ChosenLaw::check(&part(&[("switch", &many), ("rate", "50Mbit")])).unwrap_err();
        assert!(error.to_string().contains("too many"), "{error}");
    }
}
