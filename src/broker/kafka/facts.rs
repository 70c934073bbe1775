//! The facts about Kafka that hold for all its clusters.

use crate::broker::facts::{BrokerFacts, InitTexts};
use crate::model::Naming;
use serde_json::json;

pub(crate) const FACTS: BrokerFacts = BrokerFacts {
    title: "Kafka",
    key: "kafka",
    // Its secrets are in `properties`.
    secret_keys: &[],
    naming: Naming::Topic,
    cloud_events_prefix: "ce_",
    without_transactions: None,
    lists_topics_together: true,
    log_directive: None,
    init: InitTexts {
        has_urls: false,
        source: "topic",
        default_source: "ROUTE.delayed",
        default_dead_letter: "ROUTE.dead",
        cluster_table,
        source_keys: |topic| Ok(format!("kafka = \"main\", topics = [{}]", json!(topic))),
        route_lines: "\
# For consumers with isolation.level=read_committed that must see each message once:
#delivery = \"exactly-once\"
",
    },
    demo_note: "Clients of librdkafka can use this Kafka. The Java client cannot.",
    send_command: |address, topic| {
        format!("echo hi|kcat -Pb {address} -t {topic} -H postdate-after=5s")
    },
};

fn cluster_table(servers: &str) -> String {
    let brokers: Vec<&str> = servers.split(',').map(str::trim).collect();
    let brokers = json!(brokers);
    format!(
        "\
[kafka.main]
brokers = {brokers}
# TLS and a login, with the names of librdkafka:
#[kafka.main.properties]
#\"security.protocol\" = \"SASL_SSL\"
#\"sasl.mechanisms\" = \"SCRAM-SHA-512\"
#\"sasl.username\" = \"postdate\"
#\"sasl.password_file\" = \"/run/secrets/kafka-password\"
"
    )
}
