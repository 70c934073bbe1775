//! What is true of all NATS clusters.

use crate::broker::facts::BrokerFacts;
use crate::model::Naming;

pub(crate) const FACTS: BrokerFacts = BrokerFacts {
    title: "NATS",
    key: "nats",
    secret_keys: &["url", "password", "token", "nkey", "credentials"],
    naming: Naming::Subject,
    cloud_events_prefix: "ce-",
    without_transactions: Some(
        "write \"at-least-once\": a NATS stream drops repeated messages within its duplicate window",
    ),
    // The library logs every connection attempt. `health` logs each outage once.
    log_directive: Some("async_nats=off"),
};
