//! Requests for topics with their ids, offsets of many partitions, and commit metadata as bytes.
//!
//! Each call blocks until it is answered, times out, or the caller stops waiting.

use super::client::NativeClient;
use super::queue::{Event, Queue};
use super::{CallError, bytes, check_call, check_error, list_elements, millis, slice, text};
use crate::limit::{
    KAFKA_ABANDON_CHECK_INTERVAL, KAFKA_COMMITTED_REQUEST_TIMEOUT, KAFKA_PROBE_TIMEOUT,
    KAFKA_REQUEST_TIMEOUT,
};
use rdkafka::TopicPartitionList;
use rdkafka::types::RDKafkaErrorCode;
use rdkafka_sys as sys;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char};
use std::time::Duration;
use tokio::time::Instant;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopicDescription {
    pub(crate) name: String,
    /// The topic id in base64, as Kafka's tools print it; `None`: the brokers have no topic ids.
    pub(crate) id: Option<String>,
    pub(crate) partitions: Vec<i32>,
}

/// The client of a call, and a callback that runs regularly while the call waits. The call is
/// cancelled when `keep_waiting` returns `false`.
pub(crate) struct CallContext<'a> {
    pub(crate) native: &'a NativeClient,
    pub(crate) keep_waiting: &'a mut dyn FnMut() -> bool,
}

/// Describes topics, in any order. A topic that the cluster refuses to describe has an error
/// instead.
pub(crate) fn describe_topics(
    context: &mut CallContext<'_>,
    topics: &[&str],
) -> Result<Vec<Result<TopicDescription, CallError>>, CallError> {
    let call = AdminCall::new(
        context.native,
        sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS,
        KAFKA_REQUEST_TIMEOUT,
    );
    // SAFETY: `describe_topics` passes topics that are alive.
    call.describe_topics(context, topics, |topic| unsafe { topic_description(topic) })
}

/// SAFETY: `topic` is alive.
unsafe fn topic_description(
    topic: *const sys::rd_kafka_TopicDescription_t,
) -> Result<TopicDescription, CallError> {
    // SAFETY: as the function's own; the topic owns all that is read.
    unsafe {
        check_error(sys::rd_kafka_TopicDescription_error(topic))?;
        let mut count = 0;
        let partitions = sys::rd_kafka_TopicDescription_partitions(topic, &mut count);
        let partitions = slice(partitions, count)
            .iter()
            .map(|partition| sys::rd_kafka_TopicPartitionInfo_partition(*partition));
        Ok(TopicDescription {
            name: text(sys::rd_kafka_TopicDescription_name(topic)),
            id: topic_id(sys::rd_kafka_TopicDescription_topic_id(topic)),
            partitions: partitions.collect(),
        })
    }
}

/// SAFETY: `uuid` is null or alive.
unsafe fn topic_id(uuid: *const sys::rd_kafka_Uuid_t) -> Option<String> {
    // SAFETY: as the function's own.
    unsafe {
        let is_zero = uuid.is_null()
            || (sys::rd_kafka_Uuid_most_significant_bits(uuid) == 0
                && sys::rd_kafka_Uuid_least_significant_bits(uuid) == 0);
        (!is_zero).then(|| text(sys::rd_kafka_Uuid_base64str(uuid)))
    }
}

/// Returns whether the controller responds. The request names a topic, because librdkafka 2.12
/// aborts the process if a request for the cluster alone is answered with "no broker available".
pub(super) fn controller_responds(native: &NativeClient, topic: &CStr) -> bool {
    let call = AdminCall::new(
        native,
        sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS,
        KAFKA_PROBE_TIMEOUT,
    );
    call.send_describe_topics(&[topic]);
    call.queue
        .poll(KAFKA_PROBE_TIMEOUT)
        .is_some_and(|event| event.check().is_ok())
}

/// Lists one offset per partition, in the order of `partitions`: `Offset::Beginning` or
/// `Offset::End`, which have the values of the admin call's own offset specs.
pub(crate) fn list_offsets(
    context: &mut CallContext<'_>,
    partitions: &[(String, i32)],
    offset: rdkafka::Offset,
) -> Result<Vec<Result<i64, CallError>>, CallError> {
    let mut list = partition_list(partitions);
    list.set_all_offsets(offset)
        .expect("every list accepts these offsets");
    let call = AdminCall::new(
        context.native,
        sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_LISTOFFSETS,
        KAFKA_REQUEST_TIMEOUT,
    );
    // SAFETY: all handles are alive; librdkafka copies the list.
    unsafe { sys::rd_kafka_ListOffsets(call.client, list.ptr(), call.options, call.queue.ptr()) };
    let event = call.wait(context)?;
    // SAFETY: the event is alive and answers the only call of its queue; it owns all that is read.
    unsafe {
        let mut count = 0;
        let result = sys::rd_kafka_event_ListOffsets_result(event.ptr());
        let infos = sys::rd_kafka_ListOffsets_result_infos(result, &mut count);
        let found = slice(infos, count)
            .iter()
            .map(|info| &*sys::rd_kafka_ListOffsetsResultInfo_topic_partition(*info));
        Ok(in_order(partitions, found, |element| element.offset))
    }
}

/// The metadata that the client's group committed for each partition, in the order of `partitions`.
/// With `read_committed`, it waits for open transactions that commit offsets of the group.
///
/// Does not use the admin call for this: after a timeout, that call aborts the process when the
/// coordinator comes back.
pub(crate) fn committed_metadata(
    context: &mut CallContext<'_>,
    partitions: &[(String, i32)],
    timeout: Duration,
) -> Result<Vec<Result<Option<String>, CallError>>, CallError> {
    let list = partition_list(partitions);
    let deadline = Instant::now() + timeout;
    loop {
        // SAFETY: client and list are alive; librdkafka writes to the list only during the call.
        let code = unsafe {
            sys::rd_kafka_committed(
                context.native.ptr(),
                list.ptr(),
                millis(KAFKA_COMMITTED_REQUEST_TIMEOUT),
            )
        };
        match check_call(code) {
            Ok(()) => break,
            Err((RDKafkaErrorCode::OperationTimedOut, _))
                if (context.keep_waiting)() && Instant::now() < deadline => {}
            Err(error) => return Err(error),
        }
    }
    // SAFETY: the list is alive.
    let found = unsafe { list_elements(list.ptr()) };
    Ok(in_order(partitions, found.iter(), |element| {
        (element.offset >= 0).then(|| metadata(element))
    }))
}

fn metadata(element: &sys::rd_kafka_topic_partition_t) -> String {
    // SAFETY: an element owns its metadata.
    let found = unsafe { bytes(element.metadata, element.metadata_size) };
    String::from_utf8_lossy(found.unwrap_or_default()).into_owned()
}

/// Sorts the results, which brokers return in any order, in the order of `partitions`.
fn in_order<'a, T>(
    partitions: &[(String, i32)],
    found: impl Iterator<Item = &'a sys::rd_kafka_topic_partition_t>,
    value: impl Fn(&sys::rd_kafka_topic_partition_t) -> T,
) -> Vec<Result<T, CallError>> {
    let found: BTreeMap<(String, i32), _> = found
        // SAFETY: an element owns its topic name.
        .map(|element| ((unsafe { text(element.topic) }, element.partition), element))
        .collect();
    let result_of = |partition| match found.get(partition) {
        Some(element) => check_call(element.err).map(|()| value(element)),
        None => Err((
            RDKafkaErrorCode::Fail,
            "the broker's answer lacks the partition".to_owned(),
        )),
    };
    partitions.iter().map(result_of).collect()
}

fn partition_list(partitions: &[(String, i32)]) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(partitions.len());
    for (topic, partition) in partitions {
        list.add_partition(topic, *partition);
    }
    list
}

/// One admin call: its options, and a queue for its answer alone.
pub(super) struct AdminCall {
    pub(super) queue: Queue,
    pub(super) options: *mut sys::rd_kafka_AdminOptions_t,
    pub(super) client: *mut sys::rd_kafka_t,
}

impl AdminCall {
    pub(super) fn new(
        native: &NativeClient,
        operation: sys::rd_kafka_admin_op_t,
        timeout: Duration,
    ) -> Self {
        let client = native.ptr();
        // SAFETY: the client is alive and outlives the call; this owns the queue and the options.
        unsafe {
            let queue = Queue::create(client);
            let options = sys::rd_kafka_AdminOptions_new(client, operation);
            let mut error: [c_char; 128] = [0; 128];
            sys::rd_kafka_AdminOptions_set_request_timeout(
                options,
                millis(timeout),
                error.as_mut_ptr(),
                error.len(),
            );
            Self {
                queue,
                options,
                client,
            }
        }
    }

    /// Describes topics with the current options. `read` gets each description while it is alive.
    pub(super) fn describe_topics<T>(
        &self,
        context: &mut CallContext<'_>,
        topics: &[&str],
        read: impl Fn(*const sys::rd_kafka_TopicDescription_t) -> T,
    ) -> Result<Vec<T>, CallError> {
        let names: Vec<CString> = topics
            .iter()
            .filter_map(|topic| CString::new(*topic).ok())
            .collect();
        if let Some(name) = names.first() {
            context.native.remember_topic(name);
        }
        self.send_describe_topics(&names.iter().map(CString::as_c_str).collect::<Vec<_>>());
        let event = self.wait(context)?;
        // SAFETY: the event is alive and answers the only call of its queue.
        unsafe {
            let mut count = 0;
            let result = sys::rd_kafka_event_DescribeTopics_result(event.ptr());
            let topics = sys::rd_kafka_DescribeTopics_result_topics(result, &mut count);
            Ok(slice(topics, count)
                .iter()
                .map(|topic| read(*topic))
                .collect())
        }
    }

    fn send_describe_topics(&self, topics: &[&CStr]) {
        let mut names: Vec<*const c_char> = topics.iter().map(|name| name.as_ptr()).collect();
        // SAFETY: all handles are alive; the collection copies the names, and librdkafka copies the
        // collection.
        unsafe {
            let collection =
                sys::rd_kafka_TopicCollection_of_topic_names(names.as_mut_ptr(), names.len());
            sys::rd_kafka_DescribeTopics(self.client, collection, self.options, self.queue.ptr());
            sys::rd_kafka_TopicCollection_destroy(collection);
        }
    }

    /// Waits for the answer. librdkafka ends the call at its timeout, and gets a second more to
    /// report that. It drops an answer that arrives after the queue is gone.
    pub(super) fn wait(&self, context: &mut CallContext<'_>) -> Result<Event, CallError> {
        let deadline = Instant::now() + KAFKA_REQUEST_TIMEOUT + Duration::from_secs(1);
        loop {
            if let Some(event) = self.queue.poll(KAFKA_ABANDON_CHECK_INTERVAL) {
                return event.check().map(|()| event);
            }
            if !(context.keep_waiting)() || Instant::now() >= deadline {
                return Err((RDKafkaErrorCode::OperationTimedOut, "no answer".to_owned()));
            }
        }
    }
}

impl Drop for AdminCall {
    fn drop(&mut self) {
        // SAFETY: this owns the options, and no call keeps them.
        unsafe { sys::rd_kafka_AdminOptions_destroy(self.options) }
    }
}
