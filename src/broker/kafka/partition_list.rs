//! Builds the partition lists with offsets that librdkafka reads and commits by.

use crate::model::{Offset, Partition};
use rdkafka::TopicPartitionList;

/// Adds a partition with the offset to read from or to commit. Only a commit has metadata.
pub(super) fn add(
    list: &mut TopicPartitionList,
    partition: &Partition,
    offset: Offset,
    metadata: Option<&str>,
) {
    let offset = rdkafka::Offset::Offset(i64::try_from(offset.0).unwrap_or(i64::MAX));
    let mut element = list.add_partition(&partition.topic, partition.index);
    element
        .set_offset(offset)
        .expect("the offset is not negative");
    if let Some(metadata) = metadata {
        element.set_metadata(metadata);
    }
}
