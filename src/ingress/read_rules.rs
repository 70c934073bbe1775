//! The rules by which the records of one partition are parsed. A record that is read again is
//! parsed by the rules of its first reading, so that it gets the same position.

use crate::model::{
    Offset, OriginFormat, ParsedRecord, PositionRules, Record, RoutingRules, RulesHistory,
    Timestamp, parse_record,
};

/// Without epochs, the current rules of the route apply to all offsets.
#[derive(Default)]
pub(super) struct ReadRules {
    pub(super) history: RulesHistory,
    /// The rules of each epoch, with its first offset.
    epochs: Vec<(u64, EpochRules)>,
}

enum EpochRules {
    /// The current rules of the route.
    Today,
    Earlier(Box<RoutingRules>),
    /// The rules of the first reading are unknown. These are the current rules, without limits.
    Unknown(Box<RoutingRules>),
}

impl ReadRules {
    pub(super) fn new(history: RulesHistory, today: &RoutingRules) -> Self {
        let own = PositionRules::of(today);
        let mut epochs = Vec::new();
        if history.epochs().first().is_some_and(|first| first.from > 0) {
            let rules = Box::new(today.without_limits());
            epochs.push((0, EpochRules::Unknown(rules)));
        }
        epochs.extend(history.epochs().iter().map(|epoch| {
            let rules = match &epoch.rules {
                rules if *rules == own => EpochRules::Today,
                rules => EpochRules::Earlier(Box::new(rules.with(today))),
            };
            (epoch.from, rules)
        }));
        Self { history, epochs }
    }

    /// The meaning of a record, and the due time of its dead letter if it is rejected: at once, if
    /// the rules of its first reading rejected it.
    pub(super) fn parse<'a>(
        &self,
        record: &Record<'a>,
        origins: &OriginFormat,
        today: &RoutingRules,
    ) -> (ParsedRecord<'a>, Timestamp) {
        let parse = |rules| parse_record(record, origins, rules);
        match self.epoch(record.offset) {
            _ if fault!(IgnoreRulesHistory) => (parse(today), Timestamp::AT_ONCE),
            None | Some(EpochRules::Today) => (parse(today), Timestamp::AT_ONCE),
            Some(EpochRules::Earlier(rules)) => (parse(rules), Timestamp::AT_ONCE),
            Some(EpochRules::Unknown(unlimited)) => match parse(today) {
                // It may have waited until its due time. A later position never loses it.
                ParsedRecord::Rejected(rejection) => match parse(unlimited) {
                    ParsedRecord::Message { due, .. } => (ParsedRecord::Rejected(rejection), due),
                    _ => (ParsedRecord::Rejected(rejection), Timestamp::AT_ONCE),
                },
                parsed => (parsed, Timestamp::AT_ONCE),
            },
        }
    }

    /// The rules that decide about the id of a message at this offset: `on_duplicate` and
    /// `change_by_origin`.
    pub(super) fn id_rules<'a>(
        &'a self,
        offset: Offset,
        today: &'a RoutingRules,
    ) -> &'a RoutingRules {
        match self.epoch(offset) {
            Some(EpochRules::Earlier(rules)) => rules,
            _ => today,
        }
    }

    fn epoch(&self, offset: Offset) -> Option<&EpochRules> {
        let mut epochs = self.epochs.iter().rev();
        let epoch = epochs.find(|(from, _)| *from <= offset.0);
        epoch.map(|(_, rules)| rules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::header::push_header;
    use crate::model::{
        Dialects, Headers, Naming, OnDuplicate, Partition, RetryKeys, ShardId, TargetRules,
        WithoutDelay,
    };
    use std::time::Duration;

    fn rules(max_delay: u64, default: Option<&str>) -> RoutingRules {
        RoutingRules {
            targets: TargetRules::new(Naming::Topic, default, [""; 0], ["in"]),
            replies: None,
            max_delay: Duration::from_secs(max_delay),
            max_retry_wait: Duration::from_secs(1),
            without_delay: WithoutDelay::Relay,
            on_duplicate: OnDuplicate::Replace,
            change_by_origin: false,
            dialects: Dialects::default(),
            is_recurring: false,
            retry_keys: RetryKeys::default(),
        }
    }

    /// The rules `known`, with their first offsets, and then `today`.
    fn read_rules(known: &[(u64, &RoutingRules)], today: (u64, &RoutingRules)) -> ReadRules {
        let mut history = RulesHistory::default();
        for (from, rules) in known.iter().chain([&today]) {
            let rules = PositionRules::of(rules);
            history = history.followed_by(&rules, Offset(*from));
        }
        ReadRules::new(history, today.1)
    }

    /// The due time in seconds after the record, and whether it is rejected. `None`: at once.
    fn parse(
        read: &ReadRules,
        today: &RoutingRules,
        offset: u64,
        after: &str,
    ) -> (Option<u64>, bool) {
        let mut block = Vec::new();
        push_header(&mut block, b"postdate-after", Some(after.as_bytes()));
        let record = Record {
            offset: Offset(offset),
            timestamp: Some(Timestamp::YEAR_2000),
            key: None,
            payload: Some(b"p"),
            headers: Headers::from_block(&block),
        };
        let shard = ShardId::new("r", Partition::new("in", 0));
        let (parsed, due_if_rejected) = read.parse(&record, &OriginFormat::new("d", &shard), today);
        let (due, is_rejected) = match parsed {
            ParsedRecord::Message { due, .. } => (due, false),
            ParsedRecord::Rejected(_) => (due_if_rejected, true),
            ParsedRecord::Definition
            | ParsedRecord::Cancel { .. }
            | ParsedRecord::Reschedule { .. }
            | ParsedRecord::Control(_)
            | ParsedRecord::Newer(_) => panic!("no message"),
        };
        let seconds = || due.since(Timestamp::YEAR_2000).as_secs();
        ((!due.is_at_once()).then(seconds), is_rejected)
    }

    #[test]
    fn a_record_keeps_the_position_of_its_first_reading() {
        let (long, short) = (rules(100, Some("out")), rules(10, Some("out")));
        let read = read_rules(&[(0, &long), (5, &short)], (9, &long));
        for (offset, expected) in [
            (4, (Some(50), false)),
            (5, (None, true)),
            (8, (None, true)),
            (9, (Some(50), false)),
        ] {
            assert_eq!(parse(&read, &long, offset, "50s"), expected, "{offset}");
        }
        let first = RoutingRules {
            on_duplicate: OnDuplicate::KeepFirst,
            change_by_origin: true,
            ..short.clone()
        };
        let kept = read_rules(&[(0, &long), (5, &first)], (9, &long));
        let id_rules = [4, 8, 9].map(|offset| {
            let rules = kept.id_rules(Offset(offset), &long);
            (rules.on_duplicate, rules.change_by_origin)
        });
        let replace = (OnDuplicate::Replace, false);
        assert_eq!(id_rules, [replace, (OnDuplicate::KeepFirst, true), replace]);
        let read = read_rules(&[(0, &long)], (5, &short));
        assert_eq!(parse(&read, &short, 4, "50s"), (Some(50), false));
        assert_eq!(parse(&read, &short, 5, "50s"), (None, true));
    }

    #[test]
    fn under_unknown_rules_a_rejected_record_becomes_a_dead_letter_at_its_due_time() {
        for (today, expected) in [
            (rules(100, Some("out")), (Some(50), false)),
            (rules(10, Some("out")), (Some(50), true)),
            (rules(100, None), (Some(50), true)),
            (rules(100, Some("in")), (Some(50), true)),
        ] {
            let read = read_rules(&[], (5, &today));
            assert_eq!(parse(&read, &today, 4, "50s"), expected, "{today:?}");
            assert_eq!(parse(&read, &today, 4, "never"), (None, true));
            let (due, is_rejected) = expected;
            let due = due.filter(|_| !is_rejected);
            assert_eq!(parse(&read, &today, 5, "50s"), (due, is_rejected));
        }
    }
}
