//! The origin of a message, as `postdate-origin` carries it: stable across redelivery and retries, unique until the source is recreated,
//! and so the consumer's idempotency key.

use super::shard::{Identity, Offset, ShardId};
use super::subject::split_topic;
use std::fmt::Write;
use std::sync::Arc;

/// What tells incarnations apart in few bytes: FNV-1a, for an id is part of each message.
fn sum(identity: &str) -> u32 {
    identity.bytes().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// The origins of one shard's records: `<deployment>/<route>/<source topic>/<partition>/<offset>`. None of the parts can hold a `/`:
/// deployments and routes are `[a-z0-9_]+`, Kafka topics know no slash, and of NATS a source's stream and filter
/// may not have one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origins {
    /// All but the offset.
    prefix: String,
    topic: Arc<str>,
    /// Of the source's incarnation; zero: nobody knows it.
    sum: u32,
}

impl Origins {
    pub(crate) fn new(deployment: &str, shard: &ShardId) -> Self {
        Self { prefix: format!("{deployment}/{shard}/"), topic: shard.partition.topic.clone(), sum: 0 }
    }

    /// Those of one incarnation of the source.
    pub(crate) fn of(self, identity: &Identity) -> Self {
        Self { sum: sum(&identity.0), ..self }
    }

    /// An origin along with the incarnation of its source: unlike an origin alone it never comes again when the source is recreated.
    pub(crate) fn unique(&self, origin: &str) -> String {
        format!("{origin}@{:08x}", self.sum)
    }

    /// Whether the messages came by subjects of their own.
    pub(crate) fn is_of_subjects(&self) -> bool {
        split_topic(&self.topic).is_some()
    }

    /// The source topic.
    pub(crate) fn topic(&self) -> &str {
        &self.topic
    }

    /// Appends the origin of the record at `offset`.
    pub(crate) fn write(&self, offset: Offset, text: &mut String) {
        text.push_str(&self.prefix);
        write!(text, "{offset}").expect("writing into a String cannot fail");
    }

    /// The offset in an origin of this very shard, written just as [`Origins::write`] does: another spelling would be another
    /// idempotency key.
    pub(crate) fn offset(&self, text: &str) -> Option<Offset> {
        let digits = text.strip_prefix(self.prefix.as_str())?;
        let offset = Offset(digits.parse().ok()?);
        (offset.to_string() == digits).then_some(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::super::shard::Partition;
    use super::*;
    use proptest::prelude::*;

    fn origins() -> Origins {
        Origins::new("prod", &ShardId::new("orders", Partition::new("orders.delayed", 0)))
    }

    proptest! {
        #[test]
        fn an_origin_reads_back(offset: u64) {
            let mut text = String::new();
            origins().write(Offset(offset), &mut text);
            prop_assert_eq!(origins().offset(&text), Some(Offset(offset)));
        }
    }

    #[test]
    fn an_origin_is_deployment_route_topic_partition_and_offset() {
        let mut text = String::from("kept:");
        origins().write(Offset(42), &mut text);
        assert_eq!(text, "kept:prod/orders/orders.delayed/0/42");
    }

    #[test]
    fn an_origin_is_unique_with_the_incarnation_of_its_source() {
        let [one, other] = ["1795449600123456789", "1795449600123456790"].map(|identity| origins().of(&Identity(identity.into())));
        let unique = |origins: &Origins| origins.unique("prod/orders/orders.delayed/0/42");
        assert_ne!(unique(&one), unique(&other));
        assert_eq!(unique(&one), unique(&one.clone()));
        assert_eq!(origins().of(&Identity("a".into())).unique("o"), "o@e40c292c", "as FNV-1a is published");
        assert!(!one.is_of_subjects() && Origins::new("prod", &ShardId::new("r", Partition::new("S:a.>", 0))).is_of_subjects());
    }

    #[test]
    fn an_origin_of_another_shard_or_spelling_is_refused() {
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
            assert_eq!(origins().offset(text), None, "{text}");
        }
    }
}
