//! Tests of the headers of each system. Each starts with the examples of the system's documentation.

mod activemq {
    use super::super::tests::{Is, Row, check};
    use crate::model::{DeadLetterReason, Dialect};

    /// The four examples of the page, and the properties one by one.
    #[test]
    #[rustfmt::skip]
    fn the_documented_properties_are_accepted_or_rejected() {
        let (delay, period, repeat) = ("AMQ_SCHEDULED_DELAY: 30000", "AMQ_SCHEDULED_PERIOD: 10000", "AMQ_SCHEDULED_REPEAT: 9");
        let cron = "AMQ_SCHEDULED_CRON: 0 * * * *";
        check(Dialect::ActiveMq, &[
            Row(&["AMQ_SCHEDULED_DELAY: 60000"], Is::After(60_000)),
            Row(&[delay, period, repeat], Is::DeadLetter(DeadLetterReason::DialectUnsupported)),
            Row(&[cron], Is::DeadLetter(DeadLetterReason::DialectUnsupported)),
            Row(&[cron, "AMQ_SCHEDULED_DELAY: 1000", "AMQ_SCHEDULED_PERIOD: 1000", repeat], Is::DeadLetter(DeadLetterReason::DialectUnsupported)),
            Row(&[delay, period], Is::DeadLetter(DeadLetterReason::DialectUnsupported)),
            Row(&[delay, repeat], Is::DeadLetter(DeadLetterReason::DialectUnsupported)),
            Row(&[delay, "AMQ_SCHEDULED_REPEAT: -1"], Is::DeadLetter(DeadLetterReason::DialectUnsupported)),
            Row(&[delay, "AMQ_SCHEDULED_PERIOD: 0", "AMQ_SCHEDULED_REPEAT: 0"], Is::After(30_000)),
            Row(&["AMQ_SCHEDULED_PERIOD: 0", "AMQ_SCHEDULED_REPEAT: 0"], Is::Relayed),
            Row(&[delay, "AMQ_SCHEDULED_REPEAT: abc"], Is::DeadLetter(DeadLetterReason::DialectUnsupported)),
            Row(&[delay, "AMQ_SCHEDULED_CRON: "], Is::DeadLetter(DeadLetterReason::EmptyValue)),
            Row(&["AMQ_SCHEDULED_DELAY: -1"], Is::After(-1)),
            Row(&["AMQ_SCHEDULED_DELAY: 1.5"], Is::DeadLetter(DeadLetterReason::InvalidAfter)),
            Row(&["scheduledJobId: ID:1", delay], Is::After(30_000)),
            Row(&["scheduledJobId: ID:1"], Is::Relayed),
        ]);
    }
}

mod etf1 {
    use super::super::tests::{Is, NOW, Row, check, check_records, delivered_key, record};
    use crate::model::message::Record;
    use crate::model::{DeadLetterReason, Dialect};

    const TOPIC: &str = "scheduler-target-topic: audit";
    const KEY: &str = "scheduler-target-key: vid1";

    /// The README's example first.
    #[test]
    #[rustfmt::skip]
    fn a_schedule_is_in_seconds_and_its_key_is_its_id() {
        let epoch = format!("scheduler-epoch: {}", NOW / 1_000 + 60);
        let (epoch, due) = (epoch.as_str(), NOW + 60_000);
        check(Dialect::Etf1, &[
            Row(&[epoch, TOPIC, KEY, "customer-header: dummy"], Is::Keyed(due, "audit", "key")),
            Row(&["scheduler-epoch: 1600000000", TOPIC, KEY], Is::Keyed(1_600_000_000_000, "audit", "key")),
            Row(&[epoch, TOPIC, "scheduler-target-key"], Is::Keyed(due, "audit", "key")),
            Row(&[epoch, TOPIC, "scheduler-target-key: "], Is::Keyed(due, "audit", "key")),
            Row(&[epoch, TOPIC], Is::Keyed(due, "audit", "key")),
            Row(&["scheduler-epoch: 1893456000", TOPIC, KEY], Is::DeadLetter(DeadLetterReason::DelayAboveMax)),
            Row(&["scheduler-epoch: 1700000060000", TOPIC], Is::DeadLetter(DeadLetterReason::DelayAboveMax)),
            Row(&["scheduler-epoch: soon", TOPIC], Is::DeadLetter(DeadLetterReason::InvalidAt)),
            Row(&["scheduler-epoch: ", TOPIC], Is::DeadLetter(DeadLetterReason::EmptyValue)),
            Row(&[TOPIC, KEY], Is::DeadLetter(DeadLetterReason::MissingDue)),
            Row(&[epoch, "scheduler-target-topic: other"], Is::DeadLetter(DeadLetterReason::TargetNotAllowed)),
            Row(&[epoch, "scheduler-target-topic: ..", KEY], Is::DeadLetter(DeadLetterReason::InvalidTarget)),
            Row(&[epoch, KEY, KEY], Is::DeadLetter(DeadLetterReason::DuplicateHeader)),
            Row(&["scheduler-key: vid1-online", "scheduler-timestamp: 1607918336"], Is::Relayed),
        ]);
    }

    #[test]
    #[rustfmt::skip]
    fn a_tombstone_cancels_the_waiting_message_of_its_key() {
        const EPOCH: &str = "scheduler-epoch: 1893456000";
        let dead = |lines: &'static [&'static str], key: Option<&'static [u8]>| (lines, Record { key, payload: None, ..record(Some(NOW), &[]) });
        check_records(Dialect::Etf1, &[
            (dead(&[], Some(b"vid1-online")), Is::Cancelled("vid1-online")),
            (dead(&["own: 1"], Some(b"vid1-online")), Is::Cancelled("vid1-online")),
            (dead(&[EPOCH, TOPIC, KEY], Some(b"vid1-online")), Is::Cancelled("vid1-online")),
            (dead(&["scheduler-epoch: x"], Some(b"vid1-online")), Is::Cancelled("vid1-online")),
            (dead(&["postdate-id: other", TOPIC], Some(b"vid1-online")), Is::Cancelled("other")),
            (dead(&["postdate-op: schedule", TOPIC], Some(b"vid1-online")), Is::DeadLetter(DeadLetterReason::MissingDue)),
            (dead(&["postdate-after: 5"], Some(b"vid1-online")), Is::After(5)),
            (dead(&["postdate-to: audit"], Some(b"vid1-online")), Is::Relayed),
            (dead(&[], Some(b"a b")), Is::DeadLetter(DeadLetterReason::InvalidId)),
            (dead(&[TOPIC], Some(b"a b")), Is::DeadLetter(DeadLetterReason::InvalidId)),
            (dead(&[TOPIC], None), Is::DeadLetter(DeadLetterReason::CancelWithoutId)),
            (dead(&[TOPIC], Some(b"")), Is::DeadLetter(DeadLetterReason::CancelWithoutId)),
            (dead(&[], None), Is::Relayed),
            (dead(&[], Some(b"")), Is::Relayed),
        ]);
    }

    #[test]
    #[rustfmt::skip]
    fn a_key_that_is_not_a_valid_id_is_rejected() {
        let lines: &[&str] = &["scheduler-epoch: 1700000060", TOPIC];
        let keyed = |key: Option<&'static [u8]>| (lines, Record { key, ..record(Some(NOW), &[]) });
        let other: &[&str] = &["scheduler-epoch: 1700000060", TOPIC, "postdate-id: own"];
        check_records(Dialect::Etf1, &[
            (keyed(None), Is::AtTo(1_700_000_060_000, "audit")),
            (keyed(Some(b"")), Is::AtTo(1_700_000_060_000, "audit")),
            (keyed(Some(b"video 1")), Is::DeadLetter(DeadLetterReason::InvalidId)),
            (keyed(Some(b"\xff")), Is::DeadLetter(DeadLetterReason::InvalidId)),
            (keyed(Some(&[b'x'; 129])), Is::DeadLetter(DeadLetterReason::InvalidId)),
            ((other, Record { key: Some(b"video 1"), ..record(Some(NOW), &[]) }), Is::Keyed(1_700_000_060_000, "audit", "own")),
        ]);
    }

    #[test]
    fn the_delivered_key_is_the_target_key_of_the_schedule() {
        let key = |lines: &[&str]| delivered_key(Dialect::Etf1, lines);
        assert_eq!(key(&[TOPIC, KEY]), Some(b"vid1".to_vec()));
        assert_eq!(key(&["scheduler-target-key: "]), Some(Vec::new()));
        assert_eq!(key(&["scheduler-target-key"]), None);
        assert_eq!(key(&[TOPIC]), Some(b"key".to_vec()));
    }
}

mod karafka {
    use super::super::tests::{Is, NOW, Row, check, delivered_key};
    use crate::model::{DeadLetterReason, Dialect};

    const VERSION: &str = "schedule_schema_version: 1.0.0";
    const SCHEDULE: &str = "schedule_source_type: schedule";
    const TOPIC: &str = "schedule_target_topic: audit";

    #[test]
    #[rustfmt::skip]
    fn an_envelope_is_unpacked_as_karafka_does() {
        let epoch = format!("schedule_target_epoch: {}", NOW / 1_000 + 60);
        let (epoch, due) = (epoch.as_str(), NOW + 60_000);
        check(Dialect::Karafka, &[
            Row(&[VERSION, epoch, SCHEDULE, TOPIC, "schedule_target_key: k"], Is::Keyed(due, "audit", "key")),
            Row(&[VERSION, epoch, SCHEDULE, TOPIC], Is::Keyed(due, "audit", "key")),
            Row(&[epoch, TOPIC], Is::AtTo(due, "audit")),
            Row(&[epoch], Is::At(due)),
            Row(&["schedule_target_epoch: 1600000000", TOPIC], Is::AtTo(1_600_000_000_000, "audit")),
            Row(&[VERSION, "schedule_source_type: cancel"], Is::Cancelled("key")),
            Row(&[VERSION, epoch, "schedule_source_type: tombstone", TOPIC, "schedule_target_partition: 1"], Is::Cancelled("key")),
            Row(&[epoch, "schedule_target_key", TOPIC], Is::AtTo(due, "audit")),
            Row(&[epoch, "schedule_target_key: ", TOPIC], Is::AtTo(due, "audit")),
        ]);
    }

    #[test]
    #[rustfmt::skip]
    fn unsupported_parts_of_an_envelope_are_rejected() {
        let epoch = format!("schedule_target_epoch: {}", NOW / 1_000 + 60);
        let epoch = epoch.as_str();
        check(Dialect::Karafka, &[
            Row(&[epoch, "schedule_schema_version: 1.1.0"], Is::DeadLetter(DeadLetterReason::DialectUnsupported)),
            Row(&[epoch, "schedule_source_type: message"], Is::DeadLetter(DeadLetterReason::DialectUnsupported)),
            Row(&[epoch, "schedule_target_partition: 1"], Is::DeadLetter(DeadLetterReason::DialectUnsupported)),
            Row(&[epoch, "schedule_target_partition_key: k"], Is::DeadLetter(DeadLetterReason::DialectUnsupported)),
            Row(&[VERSION, SCHEDULE, TOPIC], Is::DeadLetter(DeadLetterReason::MissingDue)),
            Row(&[epoch, "schedule_target_topic: other"], Is::DeadLetter(DeadLetterReason::TargetNotAllowed)),
            Row(&[epoch, "schedule_target_topic"], Is::DeadLetter(DeadLetterReason::EmptyValue)),
            Row(&[epoch, "schedule_target_key: a", "schedule_target_key: a"], Is::DeadLetter(DeadLetterReason::DuplicateHeader)),
            Row(&["schedule_target_epoch: 1700000060000"], Is::DeadLetter(DeadLetterReason::DelayAboveMax)),
            Row(&["schedule_target_epoch: 9223372036854776"], Is::DeadLetter(DeadLetterReason::InvalidAt)),
            Row(&["schedule_target_epoch: 1700000060.5"], Is::DeadLetter(DeadLetterReason::InvalidAt)),
        ]);
    }

    #[test]
    fn the_delivered_key_is_that_of_the_message_and_not_of_the_envelope() {
        let key = |lines: &[&str]| delivered_key(Dialect::Karafka, lines);
        assert_eq!(
            key(&[SCHEDULE, "schedule_target_key: k"]),
            Some(b"k".to_vec())
        );
        assert_eq!(key(&[SCHEDULE, "schedule_target_key: "]), Some(Vec::new()));
        assert_eq!(key(&[SCHEDULE, "schedule_target_key"]), None);
        assert_eq!(key(&[SCHEDULE]), None);
        assert_eq!(key(&["schedule_target_key: k"]), Some(b"k".to_vec()));
        assert_eq!(key(&[TOPIC]), Some(b"key".to_vec()));
    }
}

mod nats {
    use super::super::tests::{Is, NOW, Row, check};
    use crate::model::{DeadLetterReason, Dialect};

    const AT: &str = "Nats-Schedule: @at 2023-11-14T23:13:20Z";

    #[test]
    #[rustfmt::skip]
    fn a_single_schedule_is_accepted() {
        check(Dialect::Nats, &[
            Row(&["Nats-Schedule: @at 2009-11-10T23:00:00Z", "Nats-Schedule-Target: audit"], Is::AtTo(1_257_894_000_000, "audit")),
            Row(&[AT, "Nats-Schedule-Target: billing.eu"], Is::AtTo(NOW + 3_600_000, "billing.eu")),
            Row(&[AT], Is::At(NOW + 3_600_000)),
            Row(&["Nats-Schedule: @at 2023-11-15T00:13:20.5+01:00"], Is::At(NOW + 3_600_500)),
            Row(&["Nats-Schedule: @at 2023-11-14T23:13:20"], Is::DeadLetter(DeadLetterReason::InvalidAt)),
            Row(&["Nats-Schedule: @at  2023-11-14T23:13:20Z"], Is::DeadLetter(DeadLetterReason::InvalidAt)),
            Row(&["Nats-Schedule: @at 1700003600000"], Is::DeadLetter(DeadLetterReason::InvalidAt)),
            Row(&["Nats-Schedule: @at"], Is::DeadLetter(DeadLetterReason::InvalidAt)),
            Row(&[AT, "Nats-Schedule-Target: other"], Is::DeadLetter(DeadLetterReason::TargetNotAllowed)),
            Row(&[AT, "Nats-Schedule-Target: orders.delayed"], Is::DeadLetter(DeadLetterReason::TargetIsSource)),
            Row(&[AT, "Nats-Schedule-Target: $SCHED.trigger.update_orders"], Is::DeadLetter(DeadLetterReason::InvalidTarget)),
            Row(&[AT, "Nats-Schedule-Target: "], Is::DeadLetter(DeadLetterReason::EmptyValue)),
            Row(&["Nats-Schedule-Target: audit"], Is::DeadLetter(DeadLetterReason::MissingDue)),
            Row(&["nats-schedule: @at 2023-11-14T23:13:20Z"], Is::Relayed),
        ]);
    }

    /// Every other schedule and header that the ADR lists.
    #[test]
    #[rustfmt::skip]
    fn repeating_schedules_and_other_headers_are_rejected() {
        check(Dialect::Nats, &[
            Row(&["Nats-Schedule: @hourly"], Is::DeadLetter(DeadLetterReason::DialectUnsupported)),
            Row(&["Nats-Schedule: @midnight"], Is::DeadLetter(DeadLetterReason::DialectUnsupported)),
            Row(&["Nats-Schedule: @every 5m", "Nats-Schedule-Target: audit"], Is::DeadLetter(DeadLetterReason::DialectUnsupported)),
            Row(&["Nats-Schedule: 0 0 5 * * *"], Is::DeadLetter(DeadLetterReason::DialectUnsupported)),
            Row(&["Nats-Schedule: 2023-11-14T23:13:20Z"], Is::DeadLetter(DeadLetterReason::DialectUnsupported)),
            Row(&[AT, "Nats-Schedule-Source: sensors.cnc.temperature"], Is::DeadLetter(DeadLetterReason::DialectUnsupported)),
            Row(&[AT, "Nats-Schedule-TTL: 5m"], Is::DeadLetter(DeadLetterReason::DialectUnsupported)),
            Row(&[AT, "Nats-Schedule-Rollup: sub"], Is::DeadLetter(DeadLetterReason::DialectUnsupported)),
            Row(&[AT, "Nats-Schedule-Time-Zone: Europe/Berlin"], Is::DeadLetter(DeadLetterReason::DialectUnsupported)),
        ]);
    }
}

mod pulsar {
    use super::super::tests::{Is, NOW, Row, check};
    use crate::model::{DeadLetterReason, Dialect};

    /// `deliverAfter(3L, TimeUnit.MINUTES)` is the documentation's example.
    #[test]
    #[rustfmt::skip]
    fn both_headers_are_in_milliseconds() {
        let at = format!("deliverAt: {}", NOW + 180_000);
        check(Dialect::Pulsar, &[
            Row(&["deliverAfter: 180000"], Is::After(180_000)),
            Row(&[&at], Is::At(NOW + 180_000)),
            Row(&["deliverAt: 1600000000000"], Is::At(1_600_000_000_000)),
            Row(&["deliverAt: 1700000180"], Is::At(1_700_000_180)),
            Row(&["deliverAfter: -1"], Is::After(-1)),
            Row(&[&at, "deliverAfter: 180000"], Is::DeadLetter(DeadLetterReason::AtAndAfter)),
            Row(&["deliverAfter: 3m"], Is::DeadLetter(DeadLetterReason::InvalidAfter)),
            Row(&["deliverAt: 2027-01-31T09:00:00Z"], Is::DeadLetter(DeadLetterReason::InvalidAt)),
            Row(&["deliverat: 1"], Is::Relayed),
            Row(&["deliverAfterMs: 1"], Is::Relayed),
        ]);
    }
}

mod qstash {
    use super::super::tests::{Is, NOW, Row, check};
    use crate::model::{DeadLetterReason, Dialect};

    /// The examples of the documentation's two pages, and what lies just beside its grammar.
    #[test]
    #[rustfmt::skip]
    fn delays_have_units_and_not_before_is_in_seconds() {
        let later = format!("Upstash-Not-Before: {}", NOW / 1_000 + 60);
        check(Dialect::QStash, &[
            Row(&["Upstash-Delay: 10s"], Is::After(10_000)),
            Row(&["Upstash-Delay: 1m"], Is::After(60_000)),
            Row(&["Upstash-Delay: 30m"], Is::After(1_800_000)),
            Row(&["Upstash-Delay: 2h"], Is::After(7_200_000)),
            Row(&["Upstash-Delay: 7d"], Is::After(604_800_000)),
            Row(&["Upstash-Delay: 50s"], Is::After(50_000)),
            Row(&["Upstash-Delay: 1d10h"], Is::After(122_400_000)),
            Row(&["Upstash-Delay: 1d10h30m"], Is::After(124_200_000)),
            Row(&["Upstash-Delay: 0s"], Is::After(0)),
            Row(&["Upstash-Not-Before: 1657104947"], Is::At(1_657_104_947_000)),
            Row(&[&later], Is::At(NOW + 60_000)),
            Row(&[&later, "Upstash-Delay: 1m"], Is::At(NOW + 60_000)),
            Row(&[&later, "Upstash-Delay: x"], Is::At(NOW + 60_000)),
            Row(&["Upstash-Delay: 60"], Is::DeadLetter(DeadLetterReason::InvalidAfter)),
            Row(&["Upstash-Delay: 250ms"], Is::DeadLetter(DeadLetterReason::InvalidAfter)),
            Row(&["Upstash-Delay: 30m2h"], Is::DeadLetter(DeadLetterReason::InvalidAfter)),
            Row(&["Upstash-Delay: -1m"], Is::DeadLetter(DeadLetterReason::InvalidAfter)),
            Row(&["Upstash-Delay: 1.5h"], Is::DeadLetter(DeadLetterReason::InvalidAfter)),
            Row(&["Upstash-Delay: 106751991168d"], Is::DeadLetter(DeadLetterReason::InvalidAfter)),
            Row(&["Upstash-Not-Before: 1657104947000"], Is::DeadLetter(DeadLetterReason::DelayAboveMax)),
            Row(&["Upstash-Not-Before: 9223372036854776"], Is::DeadLetter(DeadLetterReason::InvalidAt)),
            Row(&["Upstash-Not-Before: 1m"], Is::DeadLetter(DeadLetterReason::InvalidAt)),
            Row(&["Upstash-Cron: * * * * *", "Upstash-Delay: 1m"], Is::DeadLetter(DeadLetterReason::DialectUnsupported)),
            Row(&["upstash-delay: 1m"], Is::Relayed),
            Row(&["Upstash-Retries: 3"], Is::Relayed),
        ]);
    }
}

mod rabbitmq {
    use super::super::tests::{Is, Row, check};
    use crate::model::{DeadLetterReason, Dialect};

    /// The values of the README's examples, the ends of the plugin's range, and what its code makes
    /// of texts that are no integers.
    #[test]
    #[rustfmt::skip]
    fn the_values_mean_the_same_as_in_the_plugin_except_above_its_maximum() {
        check(Dialect::RabbitMq, &[
            Row(&["x-delay: 5000"], Is::After(5_000)),
            Row(&["x-delay: 1000"], Is::After(1_000)),
            Row(&["x-delay: 1"], Is::After(1)),
            Row(&["x-delay: 0"], Is::After(0)),
            Row(&["x-delay: -5000"], Is::After(-5_000)),
            Row(&["x-delay: 2592000000"], Is::After(2_592_000_000)),
            Row(&["x-delay: 4294967295"], Is::DeadLetter(DeadLetterReason::DelayAboveMax)),
            Row(&["x-delay: 4294967296"], Is::DeadLetter(DeadLetterReason::DelayAboveMax)),
            Row(&["x-delay: 5000.0"], Is::DeadLetter(DeadLetterReason::InvalidAfter)),
            Row(&["x-delay: 5s"], Is::DeadLetter(DeadLetterReason::InvalidAfter)),
            Row(&["x-delay: +5"], Is::DeadLetter(DeadLetterReason::InvalidAfter)),
            Row(&["X-Delay: 5000"], Is::Relayed),
            Row(&["x-delayed-type: direct"], Is::Relayed),
        ]);
    }
}

mod rocketmq {
    use super::super::tests::{Is, NOW, Row, check};
    use crate::model::{DeadLetterReason, Dialect};

    const HOUR: i64 = 3_600_000;

    #[test]
    #[rustfmt::skip]
    fn the_timer_properties_are_read_in_the_order_of_the_broker() {
        let at = |name: &str, due: i64| format!("{name}: {due}");
        let (deliver, start) = (at("TIMER_DELIVER_MS", NOW + HOUR), at("__STARTDELIVERTIME", NOW + 2 * HOUR));
        let (deliver, start) = (deliver.as_str(), start.as_str());
        check(Dialect::RocketMq, &[
            Row(&[deliver], Is::At(NOW + HOUR)),
            Row(&[start], Is::At(NOW + 2 * HOUR)),
            Row(&["TIMER_DELAY_MS: 10"], Is::After(10)),
            Row(&["TIMER_DELAY_SEC: 10"], Is::After(10_000)),
            Row(&["TIMER_DELAY_SEC: 259200"], Is::After(259_200_000)),
            Row(&["TIMER_DELAY_SEC: 259201"], Is::After(259_201_000)),
            Row(&["TIMER_DELIVER_MS: 1600000000000"], Is::At(1_600_000_000_000)),
            Row(&["TIMER_DELAY_MS: -1"], Is::After(-1)),
            Row(&[start, deliver], Is::At(NOW + HOUR)),
            Row(&[start, deliver, "TIMER_DELAY_MS: 10"], Is::After(10)),
            Row(&[start, deliver, "TIMER_DELAY_MS: 10", "TIMER_DELAY_SEC: 10"], Is::After(10_000)),
            Row(&[deliver, "__STARTDELIVERTIME: x"], Is::At(NOW + HOUR)),
            Row(&[deliver, "TIMER_DELAY_SEC: x"], Is::DeadLetter(DeadLetterReason::InvalidAfter)),
            Row(&["TIMER_DELAY_SEC: 9223372036854776"], Is::DeadLetter(DeadLetterReason::InvalidAfter)),
            Row(&["TIMER_DELIVER_MS: 2027-01-31T09:00:00Z"], Is::DeadLetter(DeadLetterReason::InvalidAt)),
            Row(&["TIMER_DELAY_MS: 1h"], Is::DeadLetter(DeadLetterReason::InvalidAfter)),
        ]);
    }

    #[test]
    #[rustfmt::skip]
    fn levels_and_cancels_are_rejected_and_never_delivered_at_once() {
        check(Dialect::RocketMq, &[
            Row(&["DELAY: 3"], Is::DeadLetter(DeadLetterReason::DialectUnsupported)),
            Row(&["DELAY: 3", "TIMER_DELAY_MS: 10"], Is::DeadLetter(DeadLetterReason::DialectUnsupported)),
            Row(&["DELAY: 0", "TIMER_DELAY_MS: 10"], Is::After(10)),
            Row(&["DELAY: 0"], Is::Relayed),
            Row(&["TIMER_DELAY_MS: 10", "TIMER_DEL_UNIQKEY: 7F0000"], Is::DeadLetter(DeadLetterReason::DialectUnsupported)),
        ]);
    }
}
