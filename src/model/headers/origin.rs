//! The origin of a message, as `postdate-origin` carries it. It is the same for all redeliveries
//! and retries, and unique until the source is recreated, so consumers can use it as an idempotency
//! key.

use crate::model::routing::subject::split_source_topic;
use crate::model::shard::{Offset, ShardId};
use crate::model::time::Timestamp;
use std::sync::Arc;

/// Writes and parses the origins of one shard's records:
/// `<deployment>/<route>/<source topic>/<partition>/<offset>`. Only the `/` between parts occurs:
/// neither deployments, routes, Kafka topics nor accepted NATS sources contain one. The origin of an
/// occurrence ends with `<schedule>@<planned time in ms>` instead of the offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OriginFormat {
    /// Everything before the offset.
    prefix: String,
    topic: Arc<str>,
}

impl OriginFormat {
    pub(crate) fn new(deployment: &str, shard: &ShardId) -> Self {
        Self {
            prefix: format!("{deployment}/{shard}/"),
            topic: shard.partition.topic.clone(),
        }
    }

    /// The source topic.
    pub(crate) fn topic(&self) -> &str {
        &self.topic
    }

    /// Appends the origin of the record at `offset` to `text`.
    pub(crate) fn append_origin(&self, offset: Offset, text: &mut String) {
        text.push_str(&self.prefix);
        text.push_str(itoa::Buffer::new().format(offset.0));
    }

    /// Appends the origin of an occurrence. It stays the same after an update of the definition.
    pub(crate) fn append_occurrence(&self, schedule: &str, planned: Timestamp, text: &mut String) {
        text.push_str(&self.prefix);
        text.push_str(schedule);
        text.push('@');
        text.push_str(itoa::Buffer::new().format(planned.as_millis()));
    }

    /// The offset in an origin of this shard. Accepts only the exact spelling that
    /// [`OriginFormat::append_origin`] writes: another spelling would be another idempotency key.
    pub(in crate::model) fn parse_offset(&self, text: &str) -> Option<Offset> {
        let digits = text.strip_prefix(self.prefix.as_str())?;
        let offset = Offset(digits.parse().ok()?);
        (offset.to_string() == digits).then_some(offset)
    }
}

/// The id of a message that its producer gave none: `/` and its offset. No producer can give such an id.
pub(crate) fn id_of_offset(offset: Offset) -> String {
    format!("/{offset}")
}

/// The offset in an id that [`id_of_offset`] writes.
pub(crate) fn offset_of_id(id: &str) -> Option<Offset> {
    let offset = Offset(id.strip_prefix('/')?.parse().ok()?);
    (id_of_offset(offset) == id).then_some(offset)
}

/// Returns `true` for an id that [`id_of_offset`] writes.
pub(crate) fn is_id_of_offset(id: &str) -> bool {
    offset_of_id(id).is_some()
}

/// The partition in an origin, if it is one.
pub(crate) fn partition_of_origin(origin: &str) -> Option<i32> {
    origin.rsplit('/').nth(1)?.parse().ok()
}

/// Returns `true` for a NATS source: its topic has a colon, which Kafka topics cannot have.
pub(crate) fn is_from_subject(origin: &str) -> bool {
    let topic = origin.split('/').nth(2);
    topic.is_some_and(|topic| split_source_topic(topic).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::shard::Partition;
    use proptest::prelude::*;

    fn origins() -> OriginFormat {
        OriginFormat::new(
            "prod",
            &ShardId::new("orders", Partition::new("orders.delayed", 0)),
        )
    }

    proptest! {
        #[test]
        fn an_origin_reads_back(offset: u64) {
            let mut text = String::new();
            origins().append_origin(Offset(offset), &mut text);
            prop_assert_eq!(origins().parse_offset(&text), Some(Offset(offset)));
        }
    }

    #[test]
    fn an_origin_is_deployment_route_topic_partition_and_offset() {
        let mut text = String::from("kept:");
        origins().append_origin(Offset(42), &mut text);
        assert_eq!(text, "kept:prod/orders/orders.delayed/0/42");
    }

    #[test]
    fn the_origin_of_an_occurrence_has_no_offset() {
        let mut text = String::new();
        origins().append_occurrence("invoices", Timestamp::from_millis(7), &mut text);
        assert_eq!(text, "prod/orders/orders.delayed/0/invoices@7");
        assert_eq!(origins().parse_offset(&text), None);
    }

    #[test]
    fn the_id_of_an_offset_has_one_spelling() {
        assert_eq!(id_of_offset(Offset(42)), "/42");
        assert_eq!(partition_of_origin("prod/r/orders.delayed/3/42"), Some(3));
        assert_eq!(partition_of_origin("42"), None);
        assert!(is_id_of_offset("/42") && is_id_of_offset("/0"));
        for id in ["", "/", "42", "/042", "/-1", "/4 ", "a/4"] {
            assert!(!is_id_of_offset(id), "{id}");
        }
    }

    #[test]
    fn an_origin_of_a_nats_source_is_recognised_by_its_topic() {
        for (topic, is) in [
            ("orders.delayed", false),
            ("ORDERS:delayed.orders.*", true),
            ("ORDERS:delayed.>", true),
        ] {
            let mut text = String::new();
            OriginFormat::new("prod", &ShardId::new("orders", Partition::new(topic, 0)))
                .append_origin(Offset(42), &mut text);
            assert_eq!(is_from_subject(&text), is, "{text}");
        }
        assert!(!is_from_subject("prod/orders"));
    }

    #[test]
    fn an_origin_of_another_shard_or_spelling_is_rejected() {
        for text in [
            "",
            "42",
            "prod/orders/orders.delayed/0/",
            "prod/orders/orders.delayed/0/+42",
            "prod/orders/orders.delayed/0/042",
            "prod/orders/orders.delayed/0/-1",
            "prod/orders/orders.delayed/0/42 ",
            "prod/orders/orders.delayed/0/42/7",
            "prod/orders/orders.delayed/0/18446744073709551616",
            "prod/orders/orders.delayed/1/42",
            "prod/orders/orders.delayed/00/42",
            "prod/other/orders.delayed/0/42",
            "test/orders/orders.delayed/0/42",
            "PROD/orders/orders.delayed/0/42",
        ] {
            assert_eq!(origins().parse_offset(text), None, "{text}");
        }
    }
}
