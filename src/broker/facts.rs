//! What is true of all clusters of one kind of broker.

use crate::model::Naming;

/// Each adapter has one, as a constant.
pub(crate) struct BrokerFacts {
    /// The name of the broker in texts.
    pub(crate) title: &'static str,
    /// The key of its clusters in the configuration.
    pub(crate) key: &'static str,
    /// The keys in the table of a cluster whose values are secrets.
    pub(crate) secret_keys: &'static [&'static str],
    pub(crate) naming: Naming,
    /// The start of the headers of a CloudEvent's attributes.
    pub(crate) cloud_events_prefix: &'static str,
    /// What to write for an exactly-once route, if the broker has no transactions.
    pub(crate) without_transactions: Option<&'static str>,
    /// A directive for the log, which the directives of a user may override.
    pub(crate) log_directive: Option<&'static str>,
}
