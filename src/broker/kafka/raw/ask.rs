//! Asking: topics with their ids, offsets of many partitions in one call, and what a group committed, metadata as bytes. Each call blocks
//! until it is answered or its patience ends.

use super::{Event, Native, Queue, bytes, millis, slice, text};
use rdkafka::TopicPartitionList;
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr};
use rdkafka_sys as sys;
use std::ffi::{CString, c_char};
use std::time::Duration;

/// Why a call, or one part of it, was not answered.
pub(in super::super) type Failed = (RDKafkaErrorCode, String);

/// A topic as the cluster knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct TopicFacts {
    pub(in super::super) name: String,
    /// The topic id in base64, as Kafka's own tools print it; `None`: the brokers have none.
    pub(in super::super) id: Option<String>,
    pub(in super::super) partitions: Vec<i32>,
}

/// Which offset of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Spec {
    First,
    End,
}

/// The topics, in no order; one that the cluster refuses to describe has an error in its place.
pub(in super::super) fn describe_topics(
    native: &Native,
    topics: &[&str],
    patience: Duration,
) -> Result<Vec<Result<TopicFacts, Failed>>, Failed> {
    let names: Vec<CString> = topics.iter().filter_map(|topic| CString::new(*topic).ok()).collect();
    let mut pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
    let ask = Ask::new(native, sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS, patience);
    // SAFETY: all handles are alive; the collection copies the names, and the call copies the collection.
    unsafe {
        let collection = sys::rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), pointers.len());
        sys::rd_kafka_DescribeTopics(native.ptr(), collection, ask.options, ask.queue.0.as_ptr());
        sys::rd_kafka_TopicCollection_destroy(collection);
    }
    let event = ask.answer()?;
    // SAFETY: the event is alive and, since it is this queue's only question, of the kind that was asked for.
    unsafe {
        let mut count = 0;
        let result = sys::rd_kafka_event_DescribeTopics_result(event.0.as_ptr());
        let topics = sys::rd_kafka_DescribeTopics_result_topics(result, &mut count);
        Ok(slice(topics, count).iter().map(|topic| topic_facts(*topic)).collect())
    }
}

/// SAFETY: `topic` is alive.
unsafe fn topic_facts(topic: *const sys::rd_kafka_TopicDescription_t) -> Result<TopicFacts, Failed> {
    // SAFETY: as the function's own; all that is read belongs to the topic.
    unsafe {
        failure(sys::rd_kafka_TopicDescription_error(topic))?;
        let mut count = 0;
        let partitions = sys::rd_kafka_TopicDescription_partitions(topic, &mut count);
        let partitions = slice(partitions, count).iter().map(|partition| sys::rd_kafka_TopicPartitionInfo_partition(*partition));
        Ok(TopicFacts {
            name: text(sys::rd_kafka_TopicDescription_name(topic)),
            id: id(sys::rd_kafka_TopicDescription_topic_id(topic)),
            partitions: partitions.collect(),
        })
    }
}

/// SAFETY: `uuid` is null or alive.
unsafe fn id(uuid: *const sys::rd_kafka_Uuid_t) -> Option<String> {
    // SAFETY: as the function's own.
    unsafe {
        let zero =
            uuid.is_null() || (sys::rd_kafka_Uuid_most_significant_bits(uuid) == 0 && sys::rd_kafka_Uuid_least_significant_bits(uuid) == 0);
        (!zero).then(|| text(sys::rd_kafka_Uuid_base64str(uuid)))
    }
}

/// One offset of each partition of the list, in its order.
pub(in super::super) fn list_offsets(
    native: &Native,
    partitions: &[(String, i32)],
    spec: Spec,
    patience: Duration,
) -> Result<Vec<Result<i64, Failed>>, Failed> {
    let mut list = list(partitions);
    // The call's own names of the two have these values.
    let all = list.set_all_offsets(match spec {
        Spec::First => rdkafka::Offset::Beginning,
        Spec::End => rdkafka::Offset::End,
    });
    all.expect("offsets that every list takes");
    let ask = Ask::new(native, sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_LISTOFFSETS, patience);
    // SAFETY: all handles are alive; the call copies the list.
    unsafe { sys::rd_kafka_ListOffsets(native.ptr(), list.ptr(), ask.options, ask.queue.0.as_ptr()) };
    let event = ask.answer()?;
    // SAFETY: as in `describe_topics`.
    unsafe {
        let mut count = 0;
        let result = sys::rd_kafka_event_ListOffsets_result(event.0.as_ptr());
        let infos = sys::rd_kafka_ListOffsets_result_infos(result, &mut count);
        let found = slice(infos, count).iter().map(|info| &*sys::rd_kafka_ListOffsetsResultInfo_topic_partition(*info));
        Ok(in_order(partitions, found, |element| Ok(element.offset)))
    }
}

/// What `group` committed for each partition of the list, in its order: offset and metadata, or nothing. Waits for transactions that are
/// about to commit something else.
pub(in super::super) fn committed(
    native: &Native,
    group: &str,
    partitions: &[(String, i32)],
    patience: Duration,
) -> Result<Vec<Result<Option<String>, Failed>>, Failed> {
    let Ok(group) = CString::new(group) else { return Err((RDKafkaErrorCode::InvalidGroupId, "a zero byte in the name".into())) };
    let list = list(partitions);
    let ask = Ask::new(native, sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_LISTCONSUMERGROUPOFFSETS, patience);
    // SAFETY: all handles are alive; the question copies group and list, and the call copies the question.
    let event = unsafe {
        let error = sys::rd_kafka_AdminOptions_set_require_stable_offsets(ask.options, 1);
        assert!(error.is_null(), "the option belongs to this call");
        let mut question = sys::rd_kafka_ListConsumerGroupOffsets_new(group.as_ptr(), list.ptr());
        sys::rd_kafka_ListConsumerGroupOffsets(native.ptr(), &mut question, 1, ask.options, ask.queue.0.as_ptr());
        sys::rd_kafka_ListConsumerGroupOffsets_destroy(question);
        ask.answer()?
    };
    // SAFETY: as in `describe_topics`; one group was asked for, so one is answered.
    unsafe {
        let mut count = 0;
        let result = sys::rd_kafka_event_ListConsumerGroupOffsets_result(event.0.as_ptr());
        let groups = sys::rd_kafka_ListConsumerGroupOffsets_result_groups(result, &mut count);
        let group = *slice(groups, count).first().ok_or((RDKafkaErrorCode::Fail, "an answer without its group".into()))?;
        failure(sys::rd_kafka_group_result_error(group))?;
        let found = sys::rd_kafka_group_result_partitions(group);
        let found = slice((*found).elems.cast_const(), usize::try_from((*found).cnt).unwrap_or(0)).iter();
        Ok(in_order(partitions, found, |element| Ok((element.offset >= 0).then(|| metadata(element)))))
    }
}

fn metadata(element: &sys::rd_kafka_topic_partition_t) -> String {
    // SAFETY: an element owns its metadata.
    let found = unsafe { bytes(element.metadata, element.metadata_size) };
    String::from_utf8_lossy(found.unwrap_or_default()).into_owned()
}

/// What was found for each partition, in the order asked for; brokers answer in their own.
fn in_order<'a, T>(
    partitions: &[(String, i32)],
    found: impl Iterator<Item = &'a sys::rd_kafka_topic_partition_t>,
    value: impl Fn(&sys::rd_kafka_topic_partition_t) -> Result<T, Failed>,
) -> Vec<Result<T, Failed>> {
    let found: std::collections::BTreeMap<(String, i32), _> = found
        // SAFETY: an element owns its topic's name.
        .map(|element| ((unsafe { text(element.topic) }, element.partition), element))
        .collect();
    let one = |partition| {
        let element = found.get(partition).ok_or((RDKafkaErrorCode::Fail, "the broker left it out of its answer".to_owned()))?;
        match element.err {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => value(element),
            code => Err((code.into(), RDKafkaErrorCode::from(code).to_string())),
        }
    };
    partitions.iter().map(one).collect()
}

fn list(partitions: &[(String, i32)]) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(partitions.len());
    for (topic, partition) in partitions {
        list.add_partition(topic, *partition);
    }
    list
}

/// SAFETY: `error` is null or alive.
unsafe fn failure(error: *const sys::rd_kafka_error_t) -> Result<(), Failed> {
    // SAFETY: as the function's own.
    unsafe {
        if error.is_null() || sys::rd_kafka_error_code(error) == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
            return Ok(());
        }
        Err((sys::rd_kafka_error_code(error).into(), text(sys::rd_kafka_error_string(error))))
    }
}

/// One question: its options, and the queue of its answer alone.
struct Ask {
    queue: Queue,
    options: *mut sys::rd_kafka_AdminOptions_t,
    patience: Duration,
}

impl Ask {
    fn new(native: &Native, call: sys::rd_kafka_admin_op_t, patience: Duration) -> Self {
        // SAFETY: the client is alive and outlives the question; both allocations are ours.
        unsafe {
            let queue = Queue::own(sys::rd_kafka_queue_new(native.ptr())).expect("librdkafka aborts when memory is out");
            let options = sys::rd_kafka_AdminOptions_new(native.ptr(), call);
            let mut reason: [c_char; 128] = [0; 128];
            sys::rd_kafka_AdminOptions_set_request_timeout(options, millis(patience), reason.as_mut_ptr(), reason.len());
            Self { queue, options, patience }
        }
    }

    /// librdkafka ends the question itself; the second over its time is for its threads to say so.
    fn answer(&self) -> Result<Event, Failed> {
        let event = self.queue.poll(self.patience + Duration::from_secs(1));
        let event = event.ok_or((RDKafkaErrorCode::OperationTimedOut, "no answer".to_owned()))?;
        event.error().map_or(Ok(event), Err)
    }
}

impl Drop for Ask {
    fn drop(&mut self) {
        // SAFETY: the options are ours, and no call keeps them.
        unsafe { sys::rd_kafka_AdminOptions_destroy(self.options) }
    }
}
