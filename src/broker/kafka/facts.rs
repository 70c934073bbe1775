//! What is true of all Kafka clusters.

use crate::broker::facts::BrokerFacts;
use crate::model::Naming;

pub(crate) const FACTS: BrokerFacts = BrokerFacts {
    title: "Kafka",
    key: "kafka",
    // Its secrets are in `properties`.
    secret_keys: &[],
    naming: Naming::Topic,
    cloud_events_prefix: "ce_",
    without_transactions: None,
    log_directive: None,
};
