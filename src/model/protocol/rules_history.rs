//! The rules under which each offset of a partition was read first.
//!
//! A pair (C, W) describes messages by their positions, and the rules of the route decide the
//! position of a record. So a record that is read again must be parsed by the rules of its first
//! reading. The history is part of the commit metadata. An ingress commits it before it reads a
//! record under new rules.

use super::format_level::readable_level;
use crate::limit::{RULES_DECODED_BYTES_MAX, RULES_TEXT_BYTES_MAX};
use crate::model::routing::position_rules::PositionRules;
use crate::model::shard::Offset;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// The text of a history without epochs.
const NO_EPOCHS: &str = "-";

/// Effort of the compression. The text is short and rarely written, but copied with every commit.
const ZSTD_LEVEL: i32 = 19;

/// Epochs with rules, ordered by their first offsets. The rules of offsets before the first epoch
/// are unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RulesHistory {
    epochs: Arc<[RulesEpoch]>,
    text: Arc<str>,
}

/// The rules of all offsets from `from` to the next epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RulesEpoch {
    pub(crate) from: u64,
    pub(crate) rules: PositionRules,
}

impl Default for RulesHistory {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

impl RulesHistory {
    /// Drops the oldest epochs until the text fits into the commit metadata. The last epoch stays,
    /// because its rules are used while the process lives.
    fn new(mut epochs: Vec<RulesEpoch>) -> Self {
        loop {
            let text = encode(&epochs);
            if text.is_none() && epochs.len() > 1 {
                epochs.remove(0);
                continue;
            }
            return Self {
                epochs: epochs.into(),
                text: text.unwrap_or_else(|| NO_EPOCHS.to_owned()).into(),
            };
        }
    }

    /// `None` if the text was not written by a known version.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let epochs: Vec<RulesEpoch> = match text {
            NO_EPOCHS => Vec::new(),
            text => decode(text)?,
        };
        let text = text.into();
        let epochs = epochs.into();
        Some(Self { epochs, text })
    }

    pub(crate) fn epochs(&self) -> &[RulesEpoch] {
        &self.epochs
    }

    /// The rules of the newest offsets.
    pub(crate) fn last(&self) -> Option<&PositionRules> {
        self.epochs.last().map(|epoch| &epoch.rules)
    }

    /// The history in which `rules` begin at `from`. It keeps epochs without pending messages,
    /// because a store that rolls back far reads them again.
    pub(crate) fn followed_by(&self, rules: &PositionRules, from: Offset) -> Self {
        let before = self.epochs.iter().filter(|epoch| epoch.from < from.0);
        let mut epochs: Vec<RulesEpoch> = before.cloned().collect();
        if epochs.last().is_none_or(|last| last.rules != *rules) {
            let (from, rules) = (from.0, rules.clone());
            epochs.push(RulesEpoch { from, rules });
        }
        Self::new(epochs)
    }

    /// False if the rules are too long for the commit metadata.
    pub(crate) fn is_kept(&self) -> bool {
        self.epochs.is_empty() || &*self.text != NO_EPOCHS
    }
}

/// `None` if the text would be too long.
fn encode(epochs: &[RulesEpoch]) -> Option<String> {
    if epochs.is_empty() {
        return Some(NO_EPOCHS.to_owned());
    }
    let json = serde_json::to_vec(epochs).ok()?;
    if json.len() > RULES_DECODED_BYTES_MAX {
        return None;
    }
    let packed = zstd::bulk::compress(&json, ZSTD_LEVEL).ok()?;
    let text = STANDARD_NO_PAD.encode(packed);
    (text.len() <= RULES_TEXT_BYTES_MAX).then_some(text)
}

fn decode(text: &str) -> Option<Vec<RulesEpoch>> {
    let packed = STANDARD_NO_PAD.decode(text).ok()?;
    let json = zstd::bulk::decompress(&packed, RULES_DECODED_BYTES_MAX).ok()?;
    let epochs: Vec<RulesEpoch> = serde_json::from_slice(&json).ok()?;
    let is_readable = |epoch: &RulesEpoch| epoch.rules.format_level() <= readable_level();
    epochs.iter().all(is_readable).then_some(epochs)
}

impl fmt::Display for RulesHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::routing::position_rules::tests::routing_rules;
    use crate::model::{Naming, RoutingRules, TargetRules};
    use proptest::prelude::*;

    fn position_rules() -> impl Strategy<Value = PositionRules> {
        routing_rules().prop_map(|rules| PositionRules::of(&rules))
    }

    /// The rules of an offset.
    fn rules_at(history: &RulesHistory, offset: u64) -> Option<&PositionRules> {
        let epochs = history.epochs().iter().rev();
        let mut at = epochs.filter(|epoch| epoch.from <= offset);
        at.next().map(|epoch| &epoch.rules)
    }

    /// Rules with many targets whose names do not compress.
    fn long(rules: &PositionRules, targets: usize, seed: u64) -> PositionRules {
        use rand::{RngExt, SeedableRng};
        let mut random = rand::rngs::StdRng::seed_from_u64(seed);
        let names = (0..targets).map(|_| format!("{:032x}", random.random::<u128>()));
        let targets = TargetRules::new(Naming::Topic, None, names, [""; 0]);
        let today = RoutingRules {
            targets: targets.clone(),
            max_delay: std::time::Duration::ZERO,
            max_retry_wait: std::time::Duration::ZERO,
            on_duplicate: crate::model::OnDuplicate::Replace,
            change_by_origin: false,
            without_delay: crate::model::WithoutDelay::Relay,
            dialects: crate::model::Dialects::default(),
            replies: None,
            is_recurring: false,
            retry_keys: crate::model::RetryKeys::default(),
        };
        PositionRules::of(&RoutingRules {
            targets,
            ..rules.with(&today)
        })
    }

    proptest! {
        #[test]
        fn each_offset_keeps_its_rules_and_the_text_reads_back(
            steps in prop::collection::vec((position_rules(), 0u64..9), 1..8),
        ) {
            let mut history = RulesHistory::default();
            // The rules of each offset, as they were when it was read first.
            let mut expected: Vec<Option<PositionRules>> = Vec::new();
            for (rules, read) in steps {
                let from = expected.len() as u64;
                history = history.followed_by(&rules, Offset(from));
                expected.extend((0..read).map(|_| Some(rules.clone())));
            }
            for (offset, rules) in expected.iter().enumerate() {
                prop_assert_eq!(rules_at(&history, offset as u64), rules.as_ref(), "{}", offset);
            }
            prop_assert_eq!(RulesHistory::parse(&history.to_string()), Some(history));
        }

        #[test]
        fn a_long_history_forgets_its_oldest_epochs(seeds in prop::collection::vec(any::<u64>(), 2..12)) {
            let short = PositionRules::of(&RoutingRules {
                targets: TargetRules::new(Naming::Topic, Some("a"), [""; 0], [""; 0]),
                max_delay: std::time::Duration::from_secs(1),
                max_retry_wait: std::time::Duration::ZERO,
                on_duplicate: crate::model::OnDuplicate::Replace,
                change_by_origin: false,
                without_delay: crate::model::WithoutDelay::Relay,
                dialects: crate::model::Dialects::default(),
                replies: None,
                is_recurring: false,
                retry_keys: crate::model::RetryKeys::default(),
            });
            let mut history = RulesHistory::default();
            for (from, seed) in (0u64..).zip(&seeds) {
                history = history.followed_by(&long(&short, 40, *seed), Offset(10 * from));
                prop_assert!(history.is_kept());
            }
            let text = history.to_string();
            prop_assert!(text.len() <= RULES_TEXT_BYTES_MAX && !text.contains(' '));
            prop_assert_eq!(RulesHistory::parse(&text), Some(history.clone()));
            let newest = 10 * (seeds.len() as u64 - 1);
            prop_assert_eq!(rules_at(&history, newest), Some(&long(&short, 40, seeds[seeds.len() - 1])));
            prop_assert!(seeds.len() < 4 || rules_at(&history, 0).is_none());
            // Rules that do not fit are used, but not kept.
            let too_long = long(&short, 200, 1);
            let unkept = history.followed_by(&too_long, Offset(newest + 10));
            prop_assert!(!unkept.is_kept() && unkept.last() == Some(&too_long));
            prop_assert_eq!(RulesHistory::parse(&unkept.to_string()), Some(RulesHistory::default()));
        }

        #[test]
        fn foreign_text_is_no_history(text in "[A-Za-z0-9+/]{0,60}|\\PC{0,20}") {
            prop_assert_eq!(RulesHistory::parse(&text).filter(|_| text != NO_EPOCHS), None);
        }
    }

    #[test]
    fn rules_that_begin_again_before_a_planned_epoch_replace_it() {
        let rules = |seed| {
            let short = PositionRules::of(&RoutingRules {
                targets: TargetRules::new(Naming::Topic, None, [""; 0], [""; 0]),
                max_delay: std::time::Duration::from_secs(1),
                max_retry_wait: std::time::Duration::ZERO,
                on_duplicate: crate::model::OnDuplicate::Replace,
                change_by_origin: false,
                without_delay: crate::model::WithoutDelay::Relay,
                dialects: crate::model::Dialects::default(),
                replies: None,
                is_recurring: false,
                retry_keys: crate::model::RetryKeys::default(),
            });
            long(&short, 1, seed)
        };
        let first = RulesHistory::default().followed_by(&rules(1), Offset(0));
        let planned = first.followed_by(&rules(2), Offset(20));
        assert_eq!(planned.followed_by(&rules(1), Offset(10)), first);
        let third = planned.followed_by(&rules(3), Offset(10));
        let starts: Vec<_> = third.epochs().iter().map(|epoch| epoch.from).collect();
        assert_eq!(starts, [0, 10]);
        assert_eq!(third.epochs().len(), 2);
    }
}
