//! The facts about NATS that hold for all its clusters.

use crate::broker::facts::{BrokerFacts, InitTexts};
use crate::model::Naming;
use serde_json::json;

pub(crate) const FACTS: BrokerFacts = BrokerFacts {
    title: "NATS",
    key: "nats",
    secret_keys: &["url", "password", "token", "nkey", "credentials"],
    naming: Naming::Subject,
    cloud_events_prefix: "ce-",
    without_transactions: Some(
        "write \"at-least-once\": a NATS stream drops repeated messages within its duplicate window",
    ),
    lists_topics_together: false,
    // The library logs every connection attempt. `health` logs each outage once.
    log_directive: Some("async_nats=off"),
    init: InitTexts {
        has_urls: true,
        source: "stream:subject",
        default_source: "DELAYED:delayed.ROUTE",
        default_dead_letter: "dead.ROUTE",
        cluster_table,
        source_keys,
        route_lines: "",
    },
    demo_note: "At the end the demo deletes the stream with the messages.",
    send_command: |address, subject| {
        let address = address.trim_start_matches("nats://");
        format!("nats pub -J -H postdate-after:5s -s {address} {subject} hi")
    },
};

fn cluster_table(servers: &str) -> String {
    let servers = json!(servers);
    format!(
        "\
[nats.main]
url = {servers}
# A login, and an authority for TLS:
#credentials_file = \"/run/secrets/nats.creds\"
#ca = \"/etc/ssl/nats-ca.pem\"
"
    )
}

fn source_keys(source: &str) -> Result<String, String> {
    let parts = source.split_once(':');
    let missing = || format!("the source {source:?} needs a stream: DELAYED:{source}");
    let (stream, subject) = parts.ok_or_else(missing)?;
    let (stream, subject) = (json!(stream), json!(subject));
    Ok(format!(
        "nats = \"main\", stream = {stream}, subjects = [{subject}]"
    ))
}
