//! Requests for topics with their ids, offsets of many partitions, commit metadata as bytes, and
//! single settings.
//!
//! A call blocks until it is answered, times out, or the caller stops waiting. Some can be polled instead.

use super::client::NativeClient;
use super::queue::{Event, Queue};
use super::text;
use super::{
    CallError, bytes, check, check_call, check_error, list_elements, millis, slice, take_error,
};
use crate::broker::kafka::limit::{KAFKA_PROBE_TIMEOUT, KAFKA_REQUEST_TIMEOUT};
use crate::model::{Offset, Partition};
use rdkafka::TopicPartitionList;
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka_sys as sys;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char};
use std::time::Duration;
use sys::rd_kafka_AclOperation_t as Operation;
use sys::rd_kafka_admin_op_t as AdminOperation;
use tokio::time::Instant;

/// Interval at which a waiting call serves its client and checks whether its caller has gone.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A request for committed offsets is sent again after this time.
const COMMITTED_TIMEOUT: Duration = Duration::from_secs(1);

/// The client of a call, and a callback that runs regularly while the call waits. The call is
/// cancelled when `keep_waiting` returns `false`.
pub(crate) struct CallContext<'a> {
    pub(crate) native: &'a NativeClient,
    pub(crate) keep_waiting: &'a mut dyn FnMut() -> bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopicDescription {
    pub(crate) name: String,
    /// The topic id in base64, as Kafka's tools print it; `None`: the brokers have no topic ids.
    pub(crate) id: Option<String>,
    pub(crate) partitions: Vec<i32>,
    /// The client's permissions to read and to write; `None`: not requested, or not known.
    pub(crate) permissions: Option<(bool, bool)>,
}

pub(crate) type DescribedTopics = Vec<(String, Result<TopicDescription, CallError>)>;

/// A request for the descriptions of topics, in any order. Each name has its own outcome: the cluster may
/// refuse to describe some of the topics.
pub(crate) struct TopicsCall(AdminCall);

impl TopicsCall {
    /// `broker`: `None` asks the controller.
    pub(crate) fn start(
        native: &NativeClient,
        topics: &[&str],
        with_permissions: bool,
        broker: Option<i32>,
        timeout: Duration,
    ) -> Result<Self, CallError> {
        let names = topics.iter().map(|topic| CString::new(*topic));
        let names: Vec<CString> = names.filter_map(Result::ok).collect();
        if let Some(name) = names.first() {
            native.probe_topic.get_or_init(|| name.clone());
        }
        let operation = AdminOperation::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS;
        let call = AdminCall::new(native, operation, timeout);
        if let Some(broker) = broker {
            call.set_broker(broker)?;
        }
        if with_permissions {
            let options = call.options;
            // SAFETY: the options are alive; this owns the error.
            unsafe {
                take_error(
                    sys::rd_kafka_AdminOptions_set_include_authorized_operations(options, 1),
                )?;
            }
        }
        call.send_describe_topics(names.iter().map(CString::as_c_str));
        Ok(Self(call))
    }

    pub(crate) fn wait(&self, context: &mut CallContext<'_>) -> Result<DescribedTopics, CallError> {
        self.0.wait(context).map(|event| described_topics(&event))
    }

    /// The answer, once it has arrived. It unparks the thread that has started the call.
    pub(crate) fn try_take(&self) -> Option<Result<DescribedTopics, CallError>> {
        let answer = self.0.try_take(Duration::ZERO)?;
        Some(answer.map(|event| described_topics(&event)))
    }
}

fn described_topics(event: &Event) -> DescribedTopics {
    // SAFETY: the event is alive and answers the only call of its queue; it owns all that is read.
    unsafe {
        let mut count = 0;
        let result = sys::rd_kafka_event_DescribeTopics_result(event.ptr());
        let topics = sys::rd_kafka_DescribeTopics_result_topics(result, &mut count);
        let topics = slice(topics, count).iter();
        let described = topics.map(|topic| {
            let name = text(sys::rd_kafka_TopicDescription_name(*topic));
            (name, topic_description(*topic))
        });
        described.collect()
    }
}

/// SAFETY: `topic` is alive.
unsafe fn topic_description(
    topic: *const sys::rd_kafka_TopicDescription_t,
) -> Result<TopicDescription, CallError> {
    check_error(sys::rd_kafka_TopicDescription_error(topic))?;
    let mut count = 0;
    let partitions = sys::rd_kafka_TopicDescription_partitions(topic, &mut count);
    let partitions = slice(partitions, count).iter();
    let operations = sys::rd_kafka_TopicDescription_authorized_operations(topic, &mut count);
    let operations = slice(operations, count);
    let is_allowed = |operation| {
        operations.contains(&operation)
            || operations.contains(&Operation::RD_KAFKA_ACL_OPERATION_ALL)
    };
    Ok(TopicDescription {
        name: text(sys::rd_kafka_TopicDescription_name(topic)),
        id: topic_id(sys::rd_kafka_TopicDescription_topic_id(topic)),
        partitions: partitions
            .map(|partition| sys::rd_kafka_TopicPartitionInfo_partition(*partition))
            .collect(),
        permissions: (!operations.is_empty()).then(|| {
            (
                is_allowed(Operation::RD_KAFKA_ACL_OPERATION_READ),
                is_allowed(Operation::RD_KAFKA_ACL_OPERATION_WRITE),
            )
        }),
    })
}

/// SAFETY: `uuid` is null or alive.
unsafe fn topic_id(uuid: *const sys::rd_kafka_Uuid_t) -> Option<String> {
    let is_zero = uuid.is_null()
        || (sys::rd_kafka_Uuid_most_significant_bits(uuid) == 0
            && sys::rd_kafka_Uuid_least_significant_bits(uuid) == 0);
    (!is_zero).then(|| text(sys::rd_kafka_Uuid_base64str(uuid)))
}

/// Returns whether the controller responds. The request names a topic, because librdkafka 2.12
/// aborts the process if a request for the cluster alone is answered with "no broker available".
pub(super) fn controller_responds(native: &NativeClient, topic: &CStr) -> bool {
    let operation = AdminOperation::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS;
    let call = AdminCall::new(native, operation, KAFKA_PROBE_TIMEOUT);
    call.send_describe_topics(std::iter::once(topic));
    let answer = call.queue.poll(KAFKA_PROBE_TIMEOUT);
    answer.is_some_and(|event| event.check().is_ok())
}

/// A broker's answer if no record has the asked time or a later one.
const NO_RECORD: i64 = -1;

/// The end of a partition is past its last record, or at the start of its first open transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isolation {
    Uncommitted,
    Committed,
}

/// A request for one offset of each partition. Several may run at the same time.
pub(crate) struct OffsetsCall(AdminCall);

/// The offset of each partition. `None`: no record has that time or a later one.
pub(crate) type ListedOffsets = BTreeMap<Partition, Result<Option<Offset>, CallError>>;

impl OffsetsCall {
    /// Asks for `Offset::Beginning`, `Offset::End`, or a time as `Offset::Offset`: the values of the
    /// admin call's own offset specs. No partition may repeat.
    pub(crate) fn start<'a>(
        native: &NativeClient,
        offsets: impl Iterator<Item = (&'a Partition, rdkafka::Offset)>,
        isolation: Isolation,
        timeout: Duration,
    ) -> Result<Self, CallError> {
        let mut list = TopicPartitionList::new();
        for (partition, offset) in offsets {
            list.add_partition_offset(&partition.topic, partition.index, offset)
                .expect("every list accepts these offsets");
        }
        let operation = AdminOperation::RD_KAFKA_ADMIN_OP_LISTOFFSETS;
        let call = AdminCall::new(native, operation, timeout);
        let level = match isolation {
            Isolation::Uncommitted => {
                sys::rd_kafka_IsolationLevel_t::RD_KAFKA_ISOLATION_LEVEL_READ_UNCOMMITTED
            }
            Isolation::Committed => {
                sys::rd_kafka_IsolationLevel_t::RD_KAFKA_ISOLATION_LEVEL_READ_COMMITTED
            }
        };
        // SAFETY: all handles are alive; librdkafka copies the list; this owns the error.
        unsafe {
            take_error(sys::rd_kafka_AdminOptions_set_isolation_level(
                call.options,
                level,
            ))?;
            sys::rd_kafka_ListOffsets(call.client, list.ptr(), call.options, call.queue.ptr());
        }
        Ok(Self(call))
    }

    pub(crate) fn wait(&self, context: &mut CallContext<'_>) -> Result<ListedOffsets, CallError> {
        self.0.wait(context).map(|event| listed_offsets(&event))
    }

    /// The answer, once it has arrived. It unparks the thread that has started the call.
    pub(crate) fn try_take(&self) -> Option<Result<ListedOffsets, CallError>> {
        let answer = self.0.try_take(Duration::ZERO)?;
        Some(answer.map(|event| listed_offsets(&event)))
    }
}

fn listed_offsets(event: &Event) -> ListedOffsets {
    // SAFETY: the event is alive and answers the only call of its queue; it owns all that is read.
    unsafe {
        let mut count = 0;
        let result = sys::rd_kafka_event_ListOffsets_result(event.ptr());
        let infos = sys::rd_kafka_ListOffsets_result_infos(result, &mut count);
        let found = slice(infos, count).iter().map(|info| {
            let element = &*sys::rd_kafka_ListOffsetsResultInfo_topic_partition(*info);
            let partition = Partition::new(text(element.topic), element.partition);
            let offset = check_call(element.err);
            let offset = offset.and_then(|()| listed_offset(element.offset, &partition));
            (partition, offset)
        });
        found.collect()
    }
}

/// The client leaves `RD_KAFKA_OFFSET_INVALID`, and no error, at a partition whose broker has not answered.
fn listed_offset(offset: i64, partition: &Partition) -> Result<Option<Offset>, CallError> {
    match u64::try_from(offset) {
        Ok(offset) => Ok(Some(Offset(offset))),
        Err(_) if offset == NO_RECORD => Ok(None),
        Err(_) => {
            let text = format!("no answer from the leader of {partition}");
            Err((Code::OperationTimedOut, text))
        }
    }
}

/// The metadata that the client's group committed for each partition, in the order of `partitions`.
/// With `read_committed`, it waits for open transactions that commit offsets of the group.
///
/// Looks for the coordinator by itself, unlike [`GroupCall`](super::GroupCall), and blocks.
pub(crate) fn committed_metadata(
    context: &mut CallContext<'_>,
    partitions: &[Partition],
    timeout: Duration,
) -> Result<Vec<Option<String>>, CallError> {
    let list = partition_list(partitions);
    let (client, timeout_ms) = (context.native.ptr(), millis(COMMITTED_TIMEOUT));
    let deadline = Instant::now() + timeout;
    loop {
        // SAFETY: client and list are alive; librdkafka writes to the list only during the call.
        match check_call(unsafe { sys::rd_kafka_committed(client, list.ptr(), timeout_ms) }) {
            Ok(()) => break,
            Err((Code::OperationTimedOut, _))
                if (context.keep_waiting)() && Instant::now() < deadline => {}
            Err(error) => return Err(error),
        }
    }
    // SAFETY: the list is alive.
    let elements = unsafe { list_elements(list.ptr()) };
    let metadata = |element: &sys::rd_kafka_topic_partition_t| {
        check_call(element.err)?;
        // SAFETY: an element owns its metadata.
        let metadata = unsafe { bytes(element.metadata, element.metadata_size) };
        let text = || String::from_utf8_lossy(metadata.unwrap_or_default()).into_owned();
        Ok((element.offset >= 0).then(text))
    };
    elements.iter().map(metadata).collect()
}

/// Sets one setting of a topic and keeps the others. Brokers before 2.3 do not support it.
pub(crate) fn set_topic_config(
    context: &mut CallContext<'_>,
    topic: &str,
    name: &str,
    value: &str,
) -> Result<(), CallError> {
    let operation = AdminOperation::RD_KAFKA_ADMIN_OP_INCREMENTALALTERCONFIGS;
    let call = AdminCall::new(context.native, operation, KAFKA_REQUEST_TIMEOUT);
    let kind = sys::rd_kafka_ResourceType_t::RD_KAFKA_RESOURCE_TOPIC;
    let set = sys::rd_kafka_AlterConfigOpType_t::RD_KAFKA_ALTER_CONFIG_OP_TYPE_SET;
    let [topic, name, value] = [topic, name, value]
        .map(|text| CString::new(text).expect("names and settings contain no zero byte"));
    // SAFETY: all handles are alive; librdkafka copies the texts and the resource; this owns the
    // resource and the error.
    unsafe {
        let mut resource = sys::rd_kafka_ConfigResource_new(kind, topic.as_ptr());
        let (name, value) = (name.as_ptr(), value.as_ptr());
        let added = sys::rd_kafka_ConfigResource_add_incremental_config(resource, name, set, value);
        let added = take_error(added);
        if added.is_ok() {
            let (options, queue) = (call.options, call.queue.ptr());
            sys::rd_kafka_IncrementalAlterConfigs(call.client, &mut resource, 1, options, queue);
        }
        sys::rd_kafka_ConfigResource_destroy(resource);
        added?;
    }
    let event = call.wait(context)?;
    // SAFETY: the event is alive and answers the only call of its queue; it owns all that is read.
    unsafe {
        let mut count = 0;
        let result = sys::rd_kafka_event_IncrementalAlterConfigs_result(event.ptr());
        let resources = sys::rd_kafka_IncrementalAlterConfigs_result_resources(result, &mut count);
        let mut resources = slice(resources, count).iter();
        resources.try_for_each(|resource| {
            check(sys::rd_kafka_ConfigResource_error(*resource)).map_err(|code| {
                let text = text(sys::rd_kafka_ConfigResource_error_string(*resource));
                (
                    code,
                    if text.is_empty() {
                        code.to_string()
                    } else {
                        text
                    },
                )
            })
        })
    }
}

pub(super) fn partition_list(partitions: &[Partition]) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(partitions.len());
    for partition in partitions {
        list.add_partition(&partition.topic, partition.index);
    }
    list
}

/// One admin call: its options, and a queue for its answer alone. The answer unparks the thread that has
/// made the call.
pub(super) struct AdminCall {
    pub(super) queue: Queue,
    /// librdkafka ends the call at its timeout, and gets a second more to report that.
    ends_at: Instant,
    pub(super) options: *mut sys::rd_kafka_AdminOptions_t,
    pub(super) client: *mut sys::rd_kafka_t,
}

impl AdminCall {
    pub(super) fn new(native: &NativeClient, operation: AdminOperation, timeout: Duration) -> Self {
        let client = native.ptr();
        let ends_at = Instant::now() + timeout + Duration::from_secs(1);
        let (timeout, no_text) = (millis(timeout), std::ptr::null_mut());
        // SAFETY: the client is alive and outlives the call; this owns the queue and the options.
        unsafe {
            let options = sys::rd_kafka_AdminOptions_new(client, operation);
            sys::rd_kafka_AdminOptions_set_request_timeout(options, timeout, no_text, 0);
            let mut queue = Queue::create(client);
            queue.set_waker(std::thread::current(), None);
            Self {
                queue,
                ends_at,
                options,
                client,
            }
        }
    }

    pub(super) fn set_broker(&self, broker: i32) -> Result<(), CallError> {
        let mut reason: [c_char; 256] = [0; 256];
        let (start, size) = (reason.as_mut_ptr(), reason.len());
        // SAFETY: the options are alive, and librdkafka ends the reason with a zero within its size.
        unsafe {
            let set = sys::rd_kafka_AdminOptions_set_broker(self.options, broker, start, size);
            check(set).map_err(|code| (code, text(start)))
        }
    }

    fn send_describe_topics<'a>(&self, topics: impl Iterator<Item = &'a CStr>) {
        let mut names: Vec<*const c_char> = topics.map(CStr::as_ptr).collect();
        // SAFETY: all handles are alive; the collection copies the names, and librdkafka copies the
        // collection.
        unsafe {
            let topics =
                sys::rd_kafka_TopicCollection_of_topic_names(names.as_mut_ptr(), names.len());
            sys::rd_kafka_DescribeTopics(self.client, topics, self.options, self.queue.ptr());
            sys::rd_kafka_TopicCollection_destroy(topics);
        }
    }

    /// Waits for the answer. librdkafka drops an answer that arrives after the queue is gone.
    fn wait(&self, context: &mut CallContext<'_>) -> Result<Event, CallError> {
        loop {
            if let Some(answer) = self.try_take(POLL_INTERVAL) {
                return answer;
            }
            if !(context.keep_waiting)() {
                return Err(no_answer());
            }
        }
    }

    /// `None`: no answer within this time.
    pub(super) fn try_take(&self, within: Duration) -> Option<Result<Event, CallError>> {
        match self.queue.poll(within) {
            Some(event) => Some(event.check().map(|()| event)),
            None => (Instant::now() >= self.ends_at).then(|| Err(no_answer())),
        }
    }
}

fn no_answer() -> CallError {
    (Code::OperationTimedOut, "no answer".to_owned())
}

impl Drop for AdminCall {
    fn drop(&mut self) {
        // SAFETY: this owns the options, and no call keeps them.
        unsafe { sys::rd_kafka_AdminOptions_destroy(self.options) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_without_an_answer_is_not_one_without_records() {
        let listed = |offset| listed_offset(offset, &Partition::new("in", 0));
        assert_eq!(listed(7), Ok(Some(Offset(7))));
        assert_eq!(listed(-1), Ok(None));
        assert!(listed(i64::from(sys::RD_KAFKA_OFFSET_INVALID)).is_err());
        assert!(listed(-2).is_err());
    }
}
