//! The part of a route's rules that decides the position (due, offset) of a record: which records
//! are accepted, and when they are due. Also which messages a record cancels.
//!
//! A rejected record is due at once, so a changed rule would give the same record another position.
//! [`RulesHistory`](crate::model::RulesHistory) keeps the rules under which each offset was read.

use super::routing_rules::{Naming, OnDuplicate, RoutingRules, TargetRules};
use crate::model::dialect::{Dialect, Dialects};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// `without_delay` is not part of it: both of its values make a record due at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PositionRules {
    #[serde(rename = "max")]
    max_delay_ms: u64,
    /// The longest time to a retry.
    #[serde(rename = "retry")]
    retry_ms: u64,
    dialects: Vec<u8>,
    by_subject: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    recurring: bool,
    #[serde(rename = "target")]
    default: Option<String>,
    #[serde(rename = "allow")]
    allowed: Vec<String>,
    /// The sources that a message could be sent to. Any other source is refused in any case.
    sources: Vec<String>,
    /// Absent in the text of earlier versions, which always replace.
    #[serde(rename = "dup", default, skip_serializing_if = "OnDuplicate::replaces")]
    on_duplicate: OnDuplicate,
    #[serde(rename = "of", default, skip_serializing_if = "std::ops::Not::not")]
    change_by_origin: bool,
}

impl PositionRules {
    pub(crate) fn of(rules: &RoutingRules) -> Self {
        let targets = &rules.targets;
        Self {
            max_delay_ms: millis(rules.max_delay),
            retry_ms: millis(rules.max_delay.max(rules.max_retry_wait)),
            dialects: rules.dialects.iter().map(Dialect::code).collect(),
            by_subject: targets.naming() == Naming::Subject,
            recurring: rules.is_recurring,
            default: targets.default_name().map(str::to_owned),
            allowed: targets.allowed().to_vec(),
            sources: targets.reachable_sources().map(str::to_owned).collect(),
            on_duplicate: rules.on_duplicate,
            change_by_origin: rules.change_by_origin,
        }
    }

    /// The level of the formats that records get under these rules, and that these rules themselves have.
    pub(crate) fn format_level(&self) -> u32 {
        let keeps_first = self.on_duplicate == OnDuplicate::KeepFirst;
        u32::from(self.recurring || keeps_first || self.change_by_origin)
    }

    /// Rules that give every record this position. `today` decides what does not change it.
    pub(crate) fn with(&self, today: &RoutingRules) -> RoutingRules {
        let naming = if self.by_subject {
            Naming::Subject
        } else {
            Naming::Topic
        };
        let dialects = self.dialects.iter();
        RoutingRules {
            targets: TargetRules::new(
                naming,
                self.default.as_deref(),
                self.allowed.iter().cloned(),
                self.sources.iter().cloned(),
            ),
            replies: today.replies.clone(),
            max_delay: Duration::from_millis(self.max_delay_ms),
            max_retry_wait: Duration::from_millis(self.retry_ms),
            is_recurring: self.recurring,
            without_delay: today.without_delay,
            on_duplicate: self.on_duplicate,
            change_by_origin: self.change_by_origin,
            dialects: Dialects::from_iter(dialects.filter_map(|code| Dialect::from_code(*code))),
            retry_keys: today.retry_keys.clone(),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(in crate::model) mod tests {
    use super::*;
    use crate::model::header::push_header;
    use crate::model::{
        Headers, Offset, OriginFormat, ParsedRecord, Partition, Record, RetryKeys, ShardId,
        Timestamp, WithoutDelay, parse_record,
    };
    use proptest::prelude::*;

    pub(in crate::model) fn routing_rules() -> impl Strategy<Value = RoutingRules> {
        let targets = (
            prop::option::of("[ab]"),
            prop::collection::vec("[abc*]{1,2}", 0..3),
            prop::collection::vec("[abc]{1,2}", 0..3),
        );
        let dialects = prop::sample::subsequence(Dialect::ALL.to_vec(), 0..3);
        (targets, 1u64..100, 1u64..200, any::<bool>(), dialects).prop_map(
            |((default, allowed, sources), max, retry, relays, dialects)| RoutingRules {
                targets: TargetRules::new(Naming::Topic, default.as_deref(), allowed, sources),
                replies: None,
                max_delay: Duration::from_secs(max),
                max_retry_wait: Duration::from_secs(retry),
                without_delay: if relays {
                    WithoutDelay::Relay
                } else {
                    WithoutDelay::DeadLetter
                },
                on_duplicate: OnDuplicate::Replace,
                change_by_origin: false,
                dialects: dialects.into_iter().collect(),
                is_recurring: false,
                retry_keys: RetryKeys::default(),
            },
        )
    }

    fn header() -> impl Strategy<Value = (&'static str, String)> {
        let millis = (0i64..120).prop_map(|after| format!("{}s", after));
        prop_oneof![
            millis.prop_map(|after| ("postdate-after", after)),
            "[abc]{1,2}".prop_map(|target| ("postdate-to", target)),
            (0u64..200_000).prop_map(|after| ("x-delay", after.to_string())),
            (0u64..200).prop_map(|after| ("AMQ_SCHEDULED_DELAY", (1_000 * after).to_string())),
            (0i64..300).prop_map(|at| {
                let at = Timestamp::YEAR_2000.as_millis() + 1_000 * at;
                let line = "attempt=1 origin=d/r/in/0/3 due=5 target= error=timed_out at=";
                ("postdate-retry", format!("{line}{at}"))
            }),
        ]
    }

    /// The due time that decides the position of a record.
    fn due(rules: &RoutingRules, headers: &[(&str, String)]) -> Option<Timestamp> {
        let mut block = Vec::new();
        for (name, value) in headers {
            push_header(&mut block, name.as_bytes(), Some(value.as_bytes()));
        }
        let record = Record {
            offset: Offset(9),
            timestamp: Some(Timestamp::YEAR_2000),
            key: Some(b"k"),
            payload: Some(b"p"),
            headers: Headers::from_block(&block),
        };
        let shard = ShardId::new("r", Partition::new("in", 0));
        match parse_record(&record, &OriginFormat::new("d", &shard), rules) {
            ParsedRecord::Message { due, .. } => Some(due),
            ParsedRecord::Rejected(_) => Some(Timestamp::AT_ONCE),
            ParsedRecord::Definition
            | ParsedRecord::Cancel { .. }
            | ParsedRecord::Reschedule { .. }
            | ParsedRecord::Control(_)
            | ParsedRecord::Newer(_) => None,
        }
    }

    proptest! {
        #[test]
        fn position_rules_give_every_record_the_position_that_its_whole_rules_gave(
            (then, today) in (routing_rules(), routing_rules()),
            headers in prop::collection::vec(header(), 0..3),
        ) {
            let same = PositionRules::of(&then).with(&today);
            prop_assert_eq!(due(&then, &headers), due(&same, &headers));
            prop_assert_eq!(PositionRules::of(&same), PositionRules::of(&then));
        }
    }

    #[test]
    fn a_change_that_moves_no_position_gives_equal_rules() {
        let rules = |max_retry_wait, without_delay, source: &str| {
            PositionRules::of(&RoutingRules {
                targets: TargetRules::new(Naming::Topic, Some("orders"), ["mail.*"], [source]),
                replies: None,
                max_delay: Duration::from_secs(60),
                max_retry_wait: Duration::from_secs(max_retry_wait),
                without_delay,
                on_duplicate: OnDuplicate::Replace,
                change_by_origin: false,
                dialects: Dialects::default(),
                is_recurring: false,
                retry_keys: RetryKeys::default(),
            })
        };
        let known = rules(1, WithoutDelay::Relay, "orders.delayed");
        assert_eq!(known, rules(60, WithoutDelay::DeadLetter, "other"));
        assert_ne!(known, rules(61, WithoutDelay::Relay, "orders.delayed"));
        assert_ne!(known, rules(1, WithoutDelay::Relay, "orders"));
        assert_ne!(known, rules(1, WithoutDelay::Relay, "mail.later"));
    }

    #[test]
    fn the_text_of_rules_that_replace_is_that_of_earlier_versions() {
        let rules = |on_duplicate| {
            let today = RoutingRules {
                targets: TargetRules::new(Naming::Topic, None, [""; 0], [""; 0]),
                replies: None,
                max_delay: Duration::from_secs(60),
                max_retry_wait: Duration::from_secs(1),
                without_delay: WithoutDelay::Relay,
                on_duplicate,
                change_by_origin: false,
                is_recurring: false,
                dialects: Dialects::default(),
                retry_keys: RetryKeys::default(),
            };
            let same = PositionRules::of(&today).with(&RoutingRules {
                on_duplicate: OnDuplicate::default(),
                ..today
            });
            assert_eq!(same.on_duplicate, on_duplicate);
            serde_json::to_string(&PositionRules::of(&same)).unwrap()
        };
        assert!(!rules(OnDuplicate::Replace).contains("dup"));
        assert!(rules(OnDuplicate::KeepFirst).ends_with(r#","dup":"k"}"#));
    }
}
