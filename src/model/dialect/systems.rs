//! The headers of each system and their meaning. `docs/migrate` has a page about each system.
//!
//! Postdate delivers a message once, to a topic or subject. A header that asks for anything else
//! is rejected, because a delivery without it would hide the fault from the producer.

use super::Meaning::{
    self, Due, EnvelopeType, ExclusiveDue, Key, NatsSchedule, RequiredDue, Target, Unsupported,
};
use crate::model::parsing::time_grammar::{
    MILLIS_AFTER, MILLIS_AT, SECONDS_AFTER, SECONDS_AT, UNITS_AFTER,
};

pub(super) struct System {
    /// The name in the configuration and in `postdate-retry`.
    pub(super) name: &'static str,
    /// All headers of the system, in the order in which they are checked.
    pub(super) headers: &'static [(&'static str, Meaning)],
}

const ONCE: &str = "a message is delivered once; send one message for each time";
const NO_RECALL: &str = "cancel a message with postdate-op: cancel and its postdate-id";
const NO_LEVELS: &str =
    "delay levels are not supported; give the delay in TIMER_DELAY_SEC or TIMER_DELAY_MS";
const NATS_ONLY: &str = "only Nats-Schedule and Nats-Schedule-Target are supported";
const VERSION_1_ONLY: &str = "only version 1.0.0 is supported";
const BY_KEY: &str = "only the key selects the partition of the target";

/// In the order of [`super::Dialect::ALL`].
pub(super) static SYSTEMS: [System; 8] = [
    // The delayed message exchange, a community plugin. It delivers a delay of 2^32 ms or more at
    // once; here `max_delay` decides.
    System {
        name: "rabbitmq",
        headers: &[("x-delay", Due(MILLIS_AFTER))],
    },
    System {
        name: "activemq",
        headers: &[
            ("AMQ_SCHEDULED_CRON", Unsupported(None, ONCE)),
            ("AMQ_SCHEDULED_PERIOD", Unsupported(Some("0"), ONCE)),
            ("AMQ_SCHEDULED_REPEAT", Unsupported(Some("0"), ONCE)),
            ("AMQ_SCHEDULED_DELAY", Due(MILLIS_AFTER)),
        ],
    },
    // The order of the times is that of the broker's `HookUtils.transformTimerMessage`. It does not
    // know `__STARTDELIVERTIME`, a property of cloud offerings. The broker's `messageDelayLevel`,
    // which Postdate does not know, defines the levels of `DELAY`.
    System {
        name: "rocketmq",
        headers: &[
            ("TIMER_DEL_UNIQKEY", Unsupported(None, NO_RECALL)),
            ("DELAY", Unsupported(Some("0"), NO_LEVELS)),
            ("TIMER_DELAY_SEC", Due(SECONDS_AFTER)),
            ("TIMER_DELAY_MS", Due(MILLIS_AFTER)),
            ("TIMER_DELIVER_MS", Due(MILLIS_AT)),
            ("__STARTDELIVERTIME", Due(MILLIS_AT)),
        ],
    },
    // Pulsar's wire format has no header for the due time. The names are those of the methods of
    // its clients, which do not agree on which of the two counts.
    System {
        name: "pulsar",
        headers: &[
            ("deliverAt", ExclusiveDue(MILLIS_AT)),
            ("deliverAfter", ExclusiveDue(MILLIS_AFTER)),
        ],
    },
    // Message schedules of JetStream, ADR-51.
    System {
        name: "nats",
        headers: &[
            ("Nats-Schedule-Source", Unsupported(None, NATS_ONLY)),
            ("Nats-Schedule-TTL", Unsupported(None, NATS_ONLY)),
            ("Nats-Schedule-Rollup", Unsupported(None, NATS_ONLY)),
            ("Nats-Schedule-Time-Zone", Unsupported(None, NATS_ONLY)),
            ("Nats-Schedule", NatsSchedule),
            ("Nats-Schedule-Target", Target),
        ],
    },
    System {
        name: "qstash",
        headers: &[
            ("Upstash-Cron", Unsupported(None, ONCE)),
            ("Upstash-Not-Before", Due(SECONDS_AT)),
            ("Upstash-Delay", Due(UNITS_AFTER)),
        ],
    },
    // Scheduled messages of Karafka Pro.
    System {
        name: "karafka",
        headers: &[
            (
                "schedule_schema_version",
                Unsupported(Some("1.0.0"), VERSION_1_ONLY),
            ),
            ("schedule_source_type", EnvelopeType),
            ("schedule_target_partition", Unsupported(None, BY_KEY)),
            ("schedule_target_partition_key", Unsupported(None, BY_KEY)),
            ("schedule_target_key", Key),
            ("schedule_target_epoch", RequiredDue(SECONDS_AT)),
            ("schedule_target_topic", Target),
        ],
    },
    // The kafka-message-scheduler of etf1.
    System {
        name: "etf1",
        headers: &[
            ("scheduler-target-key", Key),
            ("scheduler-epoch", RequiredDue(SECONDS_AT)),
            ("scheduler-target-topic", Target),
        ],
    },
];
