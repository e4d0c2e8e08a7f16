//! `selective_transfer`: suppresses a reading that differs too little from the last one sent (wu-h-ctp
//! section 4, "Sensor"). A reading is a message of consecutive numbers. Messages of another length are sent
//! unchanged, and compared with nothing.

use std::any::Any;

use super::ack::NegativeAckConfig;
use super::stats::SelectiveTransferStats;
use haul_base::{Span, Time};
use haul_stack::{
    Buffer, Context, EventId, MESSAGE_SETTLED, MicroProtocol, Order, Part, ProtocolStats, Recipe,
    Registration, Resolution, Submission, Verdict, choice, configuration,
};

/// Type of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Unsigned(u8),
    Signed(u8),
    Float(u8),
}

impl Shape {
    const NAMES: [(&'static str, Self); 10] = [
        ("u8", Self::Unsigned(1)),
        ("u16", Self::Unsigned(2)),
        ("u32", Self::Unsigned(4)),
        ("u64", Self::Unsigned(8)),
        ("i8", Self::Signed(1)),
        ("i16", Self::Signed(2)),
        ("i32", Self::Signed(4)),
        ("i64", Self::Signed(8)),
        ("f32", Self::Float(4)),
        ("f64", Self::Float(8)),
    ];

    fn of(name: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(known, _)| *known == name);
        let known = || Self::NAMES.map(|(known, _)| known).join(", ");
        found.map(|(_, shape)| *shape).ok_or_else(|| format!("`{name}` is not a number type: {}", known()))
    }

    fn len(self) -> usize {
        match self {
            Self::Unsigned(len) | Self::Signed(len) | Self::Float(len) => usize::from(len),
        }
    }

    fn read(self, bytes: &[u8], order: ByteOrder) -> Number {
        let mut word = [0; 8];
        word[8 - bytes.len()..].copy_from_slice(bytes);
        if order == ByteOrder::Little {
            word[8 - bytes.len()..].reverse();
        }
        let bits = u64::from_be_bytes(word);
        match self {
            Self::Unsigned(_) => Number::Integer(bits.into()),
            Self::Signed(len) => {
                let shift = 64 - 8 * u32::from(len);
                Number::Integer(((bits << shift).cast_signed() >> shift).into())
            }
            Self::Float(4) => Number::Float(f32::from_bits(bits as u32).into()),
            Self::Float(_) => Number::Float(f64::from_bits(bits)),
        }
    }
}

/// A number of a reading. Integers are exact: `f64` has 53 bits.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Number {
    Integer(i128),
    Float(f64),
}

impl Number {
    fn as_f64(self) -> f64 {
        match self {
            Self::Integer(value) => value as f64,
            Self::Float(value) => value,
        }
    }

    /// Returns how much two numbers of one type differ.
    fn distance(self, other: Self) -> f64 {
        match (self, other) {
            (Self::Integer(a), Self::Integer(b)) => a.abs_diff(b) as f64,
            _ => (self.as_f64() - other.as_f64()).abs(),
        }
    }
}

choice! {
    /// Byte order of numbers.
    pub enum ByteOrder { Big = "big", Little = "little" }
}

/// How much a number may differ from the last one sent without being sent.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Criterion {
    /// Difference.
    Absolute(f64),
    /// Fraction of the last value sent.
    Relative(f64),
}

impl Criterion {
    fn is_near(self, last: Number, new: Number) -> bool {
        let limit = match self {
            Self::Absolute(threshold) => threshold,
            Self::Relative(threshold) => threshold * last.as_f64().abs(),
        };
        // A change from or to a value that is not finite is always sent.
        let distance = new.distance(last);
        distance.is_finite() && distance <= limit
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Field {
    shape: Shape,
    criterion: Criterion,
}

#[derive(Clone, Debug, PartialEq)]
struct Rule {
    fields: Vec<Field>,
    order: ByteOrder,
    max_silence: Span,
}

fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|word| !word.is_empty())
}

/// Returns the words for each of `count` fields, from a list with one for each or one for all.
fn each<'t>(text: &'t str, what: &str, count: usize) -> Result<Vec<&'t str>, String> {
    let words: Vec<_> = list(text).collect();
    match words.len() {
        1 => Ok(vec![words[0]; count]),
        len if len == count => Ok(words),
        len => Err(format!("{what} has {len} entries for {count} fields; write one for all or one for each")),
    }
}

impl Rule {
    fn read(parameters: &SelectiveTransferConfig) -> Result<Self, String> {
        let shapes: Vec<_> = list(&parameters.fields).map(Shape::of).collect::<Result<_, _>>()?;
        let criteria = each(&parameters.criterion, "criterion", shapes.len())?;
        let thresholds = each(&parameters.threshold, "threshold", shapes.len())?;
        let mut fields = Vec::with_capacity(shapes.len());
        for ((shape, criterion), threshold) in shapes.into_iter().zip(criteria).zip(thresholds) {
            let number = threshold.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
            let number =
                number.ok_or_else(|| format!("threshold `{threshold}` is not a number of at least 0"))?;
            let criterion = match criterion {
                "absolute" => Criterion::Absolute(number),
                "relative" => Criterion::Relative(number),
                other => return Err(format!("criterion `{other}`: write absolute or relative")),
            };
            fields.push(Field { shape, criterion });
        }
        Ok(Self { fields, order: parameters.order, max_silence: parameters.max_silence })
    }

    fn len(&self) -> usize {
        self.fields.iter().map(|field| field.shape.len()).sum()
    }

    /// Whether `data` is a reading. Without fields every message is one.
    fn applies(&self, data: &[u8]) -> bool {
        self.fields.is_empty() || data.len() == self.len()
    }

    fn is_near(&self, last: &[u8], new: &[u8]) -> bool {
        if last == new {
            return true;
        }
        let mut at = 0;
        let near = |field: &Field| {
            let range = at..at + field.shape.len();
            at = range.end;
            let read = |bytes: &[u8]| field.shape.read(&bytes[range.clone()], self.order);
            last[range.clone()] == new[range.clone()] || field.criterion.is_near(read(last), read(new))
        };
        !self.fields.is_empty() && self.fields.iter().all(near)
    }
}

/// Last reading sent.
#[derive(Debug)]
struct Last {
    message: u64,
    at: Time,
    data: Buffer,
}

#[derive(Debug)]
struct SelectiveTransfer {
    rule: Rule,
    last: Option<Last>,
    suppressed: u64,
}

configuration! {
    /// Parameters of `selective_transfer`.
    pub struct SelectiveTransferConfig: "selective_transfer" {
        fields: String = "",
            "number types of a reading, as in `f32, u16`; empty: only equal readings are suppressed";
        order: ByteOrder = "big", "byte order";
        criterion: String = "absolute",
            "absolute, or relative to the last sent; one for all fields, or one for each";
        threshold: String = "0", "differences suppressed; one for all fields, or one for each";
        max_silence: Span = "0s", "longest time without a reading; 0: none; less than negative_ack.silence";
    }
}

pub(super) fn registration() -> Registration {
    Registration {
        needs: &[&["fixed_size"]],
        compare,
        ..Registration::of::<SelectiveTransferConfig>(
            1,
            "suppresses readings that differ little from the last one sent",
            |parameters, _| {
                Ok(Box::new(SelectiveTransfer {
                    rule: Rule::read(&parameters.read())?,
                    last: None,
                    suppressed: 0,
                }))
            },
        )
    }
}

/// A receiver that requests what is missing after a silence must not wait for suppressed readings.
fn compare(parameters: &Part, recipe: &Recipe) -> Result<(), (&'static str, String)> {
    let max_silence = parameters.read::<SelectiveTransferConfig>().max_silence;
    match recipe.configuration::<NegativeAckConfig>() {
        Some(negative_ack) if max_silence > Span::ZERO && max_silence >= negative_ack.silence => {
            let problem = format!(
                "must be less than `negative_ack.silence = {}`, or the receiver requests suppressed readings; lower it, or raise negative_ack.silence",
                negative_ack.silence.exact()
            );
            Err(("max_silence", problem))
        }
        _ => Ok(()),
    }
}

impl SelectiveTransfer {
    fn is_suppressed(&self, data: &[u8], now: Time) -> bool {
        let Some(last) = &self.last else { return false };
        let silence = self.rule.max_silence;
        let is_due = silence > Span::ZERO && now.since(last.at) >= silence;
        !is_due && self.rule.applies(&last.data) && self.rule.is_near(&last.data, data)
    }
}

impl MicroProtocol for SelectiveTransfer {
    fn declare(&mut self, _: &mut haul_stack::Declaration<'_>) {}

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        resolution.on_submit(Order::NORMAL);
        resolution.on_event(MESSAGE_SETTLED, Order::NORMAL);
    }

    fn on_submit(&mut self, submission: &mut Submission<'_>, context: &mut Context<'_>) {
        if !self.rule.applies(submission.data) {
            return;
        }
        if self.is_suppressed(submission.data, context.now()) {
            submission.verdict = Verdict::Drop;
            self.suppressed += 1;
            return;
        }
        let data = context.pool().copy(submission.data);
        let last = Last { message: submission.id, at: context.now(), data };
        if let Some(old) = self.last.replace(last) {
            context.pool().put(old.data);
        }
    }

    /// A reading was given up: the peer does not have what later ones are compared with, so the next one is
    /// sent.
    fn on_event(&mut self, event: EventId, argument: &mut dyn Any, context: &mut Context<'_>) {
        let settled = MESSAGE_SETTLED.of(event, argument).filter(|settled| !settled.arrived);
        let is_last = |last: &mut Last| settled.is_some_and(|settled| settled.message == last.message);
        if let Some(last) = self.last.take_if(is_last) {
            context.pool().put(last.data);
        }
    }

    fn on_parameters(&mut self, parameters: &Part, _: &mut Context<'_>) -> Result<(), String> {
        self.rule = Rule::read(&parameters.read())?;
        Ok(())
    }

    fn statistics(&self, report: &mut dyn FnMut(&dyn ProtocolStats)) {
        report(&SelectiveTransferStats { suppressed: self.suppressed });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use haul_base::{Machine, Span};
    use haul_stack::{Recipe, SendOptions};
    use proptest::prelude::*;

    use super::{ByteOrder, Number, Shape};
    use crate::config::RetransmitConfig;
    use crate::micro::testing::{Pair, Path, T0, part};

    fn recipe(parameters: &[(&str, &str)]) -> Recipe {
        Recipe::new("test").with("fixed_size").with(part("selective_transfer", parameters))
    }

    /// Numbers of the readings, one per second, that arrive.
    fn sent(parameters: &[(&str, &str)], readings: &[Vec<u8>]) -> Vec<u64> {
        let mut pair = Pair::new(&recipe(parameters));
        for (second, reading) in (0..).zip(readings) {
            let now = T0 + Span::from_secs(second);
            pair.a.send(now, reading, SendOptions::default()).unwrap();
            pair.exchange(now, &mut Path::default());
        }
        pair.received_by_b().into_iter().map(|(id, _)| id).collect()
    }

    fn f32s(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_be_bytes()).collect()
    }

    #[test]
    fn without_parameters_only_equal_readings_are_suppressed() {
        let readings = [vec![1], vec![1], vec![2], vec![2, 0], vec![2, 0], vec![1]];
        assert_eq!(sent(&[], &readings), [0, 2, 3, 5]);
    }

    #[test]
    fn differences_refer_to_the_last_reading_sent() {
        let readings: Vec<_> = [20.0, 20.3, 20.6, 20.9, 20.4, 19.0].iter().map(|&t| f32s(&[t])).collect();
        let parameters = [("fields", "f32"), ("threshold", "0.5")];
        assert_eq!(sent(&parameters, &readings), [0, 2, 5]);
    }

    #[test]
    fn relative_and_absolute_fields_can_be_mixed() {
        let parameters =
            [("fields", "f32, f32"), ("criterion", "relative, absolute"), ("threshold", "0.1, 1")];
        let readings: Vec<_> =
            [[100.0, 5.0], [109.0, 5.5], [111.0, 5.5], [111.0, 6.4], [111.0, 6.6], [0.0, 6.6]]
                .iter()
                .map(|r| f32s(r))
                .collect();
        assert_eq!(sent(&parameters, &readings), [0, 2, 4, 5]);
    }

    #[test]
    fn non_numeric_readings_are_sent_and_silence_is_limited() {
        let parameters = [("fields", "f32"), ("threshold", "1"), ("max_silence", "3s")];
        let readings: Vec<_> =
            [1.0, f32::NAN, f32::NAN, 1.0, 1.0, 1.0, 1.0, 1.0].iter().map(|&t| f32s(&[t])).collect();
        assert_eq!(sent(&parameters, &readings), [0, 1, 3, 6]);
    }

    #[test]
    fn an_infinite_reading_does_not_suppress_later_ones() {
        let readings = [1.0, f32::INFINITY, 5.0, 7.0, 100.0, 2.0];
        let f64s: Vec<_> = readings.iter().map(|&r| f64::from(r).to_be_bytes().to_vec()).collect();
        let f32s: Vec<_> = readings.iter().map(|&r| f32s(&[r])).collect();
        for (fields, readings) in [("f32", f32s), ("f64", f64s)] {
            for criterion in ["relative", "absolute"] {
                let parameters = [("fields", fields), ("criterion", criterion), ("threshold", "0.1")];
                assert_eq!(sent(&parameters, &readings), [0, 1, 2, 3, 4, 5], "{fields}, {criterion}");
            }
        }
    }

    #[test]
    fn differences_of_large_integers_are_exact() {
        let steps = [0, 1, 50, 60, 1_000];
        let unsigned: Vec<_> =
            steps.map(|step| (1_000_000_000_000_000_000 + step as u64).to_be_bytes().to_vec()).into();
        let signed: Vec<_> = steps.map(|step| (i64::MIN + step).to_be_bytes().to_vec()).into();
        for (fields, readings) in [("u64", unsigned), ("i64", signed)] {
            let with = |threshold| sent(&[("fields", fields), ("threshold", threshold)], &readings);
            assert_eq!(with("0"), [0, 1, 2, 3, 4], "{fields}");
            assert_eq!(with("20"), [0, 2, 4], "{fields}");
        }
        let ends = [i64::MIN, i64::MAX, i64::MIN].map(|end| end.to_be_bytes().to_vec());
        assert_eq!(sent(&[("fields", "i64"), ("threshold", "1e18")], &ends), [0, 1, 2]);
    }

    #[test]
    fn other_messages_pass_unchanged() {
        let parameters = [("fields", "u16"), ("order", "little"), ("threshold", "2")];
        let readings = [vec![10, 0], b"calibrated".to_vec(), vec![12, 0], vec![13, 0], vec![13, 1]];
        assert_eq!(sent(&parameters, &readings), [0, 1, 3, 4]);
    }

    #[test]
    fn an_abandoned_reading_is_no_reference() {
        let recipe = recipe(&[("fields", "u8"), ("threshold", "5")])
            .with("sequenced_segment")
            .with(RetransmitConfig { attempts: 1, ..RetransmitConfig::default() })
            .with("positive_ack");
        let mut pair = Pair::new(&recipe);
        let mut lose = |_| true;
        pair.a.send(T0, &[1], SendOptions::default()).unwrap();
        pair.exchange(T0, &mut Path { lose: Some(&mut lose), ..Path::default() });
        pair.run_until(T0 + Span::from_secs(5), &mut Path::default());
        assert_eq!(pair.a.deadline(), None);
        pair.a.send(T0 + Span::from_secs(5), &[2], SendOptions::default()).unwrap();
        pair.exchange(T0 + Span::from_secs(5), &mut Path::default());
        assert_eq!(pair.received_by_b(), [(1, vec![2])]);
    }

    #[test]
    fn invalid_parameters_are_refused_with_a_message() {
        let registry = Arc::new(crate::micro::registry());
        for (parameters, words) in [
            (&[("fields", "f16")][..], "`f16` is not a number type"),
            (&[("fields", "f32"), ("threshold", "-1")][..], "threshold `-1`"),
            (&[("fields", "f32"), ("criterion", "both")][..], "criterion `both`"),
            (&[("fields", "f32,f32,f32"), ("threshold", "1,2")][..], "threshold has 2 entries for 3 fields"),
        ] {
            let error = registry.compile(&recipe(parameters), 0).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    proptest! {
        #[test]
        fn numbers_in_every_notation_are_read(value: i32, float: f32, little: bool) {
            let order = if little { ByteOrder::Little } else { ByteOrder::Big };
            let turn = |mut bytes: Vec<u8>| {
                if little {
                    bytes.reverse();
                }
                bytes
            };
            let read = |name: &str, bytes: Vec<u8>| Shape::of(name).unwrap().read(&turn(bytes), order);
            let integer = |value: i64| Number::Integer(value.into());
            prop_assert_eq!(read("i32", value.to_be_bytes().to_vec()), integer(value.into()));
            prop_assert_eq!(read("i64", i64::from(value).to_be_bytes().to_vec()), integer(value.into()));
            prop_assert_eq!(read("i16", (value as i16).to_be_bytes().to_vec()), integer((value as i16).into()));
            prop_assert_eq!(read("u8", vec![value as u8]), integer((value as u8).into()));
            prop_assert_eq!(read("u32", value.to_be_bytes().to_vec()), integer(value.cast_unsigned().into()));
            let float = if float.is_nan() { 0.0 } else { float };
            let bits = |name, bytes| read(name, bytes).as_f64().to_bits();
            prop_assert_eq!(bits("f32", float.to_be_bytes().to_vec()), f64::from(float).to_bits());
            prop_assert_eq!(bits("f64", f64::from(float).to_be_bytes().to_vec()), f64::from(float).to_bits());
        }
    }
}
