//! The facts about a kind of broker that hold for all its clusters.

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
    /// Set if the broker has no transactions: the advice for an exactly-once route.
    pub(crate) without_transactions: Option<&'static str>,
    /// One request lists the partitions of any number of topics. Otherwise each route has a catalog: a
    /// topic that does not answer hides no other one.
    pub(crate) lists_topics_together: bool,
    /// A directive for the log, which the directives of a user may override.
    pub(crate) log_directive: Option<&'static str>,
    pub(crate) init: InitTexts,
    /// The end of the introduction of `postdate demo`.
    pub(crate) demo_note: &'static str,
    /// A command that sends a message to a source at this address, short enough for a narrow terminal.
    pub(crate) send_command: fn(&str, &str) -> String,
}

/// The questions of `postdate init`, their default answers, and the tables that it writes.
pub(crate) struct InitTexts {
    /// The servers are written as URLs.
    pub(crate) has_urls: bool,
    /// How a source is written.
    pub(crate) source: &'static str,
    /// The name of the route replaces `ROUTE`.
    pub(crate) default_source: &'static str,
    pub(crate) default_dead_letter: &'static str,
    /// The table of the cluster `main` with these servers.
    pub(crate) cluster_table: fn(&str) -> String,
    /// The keys of a source on the cluster `main`. `Err`: why the source is refused.
    pub(crate) source_keys: fn(&str) -> Result<String, String>,
    /// Further lines of the table of a route.
    pub(crate) route_lines: &'static str,
}
