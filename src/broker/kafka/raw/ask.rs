//! Asking: topics with their ids, offsets of many partitions in one call, and what a group committed, metadata as bytes. Each call blocks
//! until it is answered, its patience ends, or nobody wants the answer any more.

use super::{Event, NativeClient, Queue, bytes, millis, slice, text};
use crate::limit::{
    KAFKA_ABANDON_CHECK_INTERVAL, KAFKA_COMMITTED_REQUEST_TIMEOUT, KAFKA_PROBE_TIMEOUT,
    KAFKA_REQUEST_TIMEOUT,
};
use rdkafka::TopicPartitionList;
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr};
use rdkafka_sys as sys;
use std::ffi::{CStr, CString, c_char};
use std::time::Duration;
use tokio::time::Instant;

/// Why a call, or one part of it, was not answered.
pub(in super::super) type CallError = (RDKafkaErrorCode, String);

/// A topic as the cluster knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct TopicDescription {
    pub(in super::super) name: String,
    /// The topic id in base64, as Kafka's own tools print it; `None`: the brokers have none.
    pub(in super::super) id: Option<String>,
    pub(in super::super) partitions: Vec<i32>,
}

/// Which offset of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum OffsetSpec {
    Earliest,
    Latest,
}

/// Who is asked, and what is done while the answer is awaited: called every moment, `false` gives the question up.
pub(in super::super) struct CallContext<'a> {
    pub(in super::super) native: &'a NativeClient,
    pub(in super::super) meanwhile: &'a mut dyn FnMut() -> bool,
}

/// The topics, in no order; one that the cluster refuses to describe has an error in its place.
pub(in super::super) fn describe_topics(
    asking: &mut CallContext<'_>,
    topics: &[&str],
) -> Result<Vec<Result<TopicDescription, CallError>>, CallError> {
    let ask = AdminCall::new(
        asking.native,
        sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS,
        KAFKA_REQUEST_TIMEOUT,
    );
    // SAFETY: what is handed in is alive.
    ask.about_topics(asking, topics, |topic| unsafe { topic_facts(topic) })
}

/// SAFETY: `topic` is alive.
unsafe fn topic_facts(
    topic: *const sys::rd_kafka_TopicDescription_t,
) -> Result<TopicDescription, CallError> {
    // SAFETY: as the function's own; all that is read belongs to the topic.
    unsafe {
        failure(sys::rd_kafka_TopicDescription_error(topic))?;
        let mut count = 0;
        let partitions = sys::rd_kafka_TopicDescription_partitions(topic, &mut count);
        let partitions = slice(partitions, count)
            .iter()
            .map(|partition| sys::rd_kafka_TopicPartitionInfo_partition(*partition));
        Ok(TopicDescription {
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
        let zero = uuid.is_null()
            || (sys::rd_kafka_Uuid_most_significant_bits(uuid) == 0
                && sys::rd_kafka_Uuid_least_significant_bits(uuid) == 0);
        (!zero).then(|| text(sys::rd_kafka_Uuid_base64str(uuid)))
    }
}

/// Whether the broker that the cluster calls its controller answers. It is asked about one topic, for librdkafka (2.12) aborts the process when
/// it asks about the cluster alone and hears that no broker is fit for service, as a broker says of itself after a pause.
pub(super) fn is_there(native: &NativeClient, topic: &CStr) -> bool {
    let ask = AdminCall::new(
        native,
        sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS,
        KAFKA_PROBE_TIMEOUT,
    );
    ask.describe(&[topic]);
    ask.queue
        .poll(KAFKA_PROBE_TIMEOUT)
        .is_some_and(|event| event.error().is_none())
}

/// One offset of each partition of the list, in its order.
pub(in super::super) fn list_offsets(
    asking: &mut CallContext<'_>,
    partitions: &[(String, i32)],
    spec: OffsetSpec,
) -> Result<Vec<Result<i64, CallError>>, CallError> {
    let mut list = list(partitions);
    // The call's own names of the two have these values.
    let all = list.set_all_offsets(match spec {
        OffsetSpec::Earliest => rdkafka::Offset::Beginning,
        OffsetSpec::Latest => rdkafka::Offset::End,
    });
    all.expect("offsets that every list takes");
    let ask = AdminCall::new(
        asking.native,
        sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_LISTOFFSETS,
        KAFKA_REQUEST_TIMEOUT,
    );
    // SAFETY: all handles are alive; the call copies the list.
    unsafe { sys::rd_kafka_ListOffsets(ask.client, list.ptr(), ask.options, ask.queue()) };
    let event = ask.answer(asking)?;
    // SAFETY: as in `describe_topics`.
    unsafe {
        let mut count = 0;
        let result = sys::rd_kafka_event_ListOffsets_result(event.0.as_ptr());
        let infos = sys::rd_kafka_ListOffsets_result_infos(result, &mut count);
        let found = slice(infos, count)
            .iter()
            .map(|info| &*sys::rd_kafka_ListOffsetsResultInfo_topic_partition(*info));
        Ok(in_order(partitions, found, |element| Ok(element.offset)))
    }
}

/// What the client's group committed for each partition of the list, in its order: offset and metadata, or nothing. Waits for transactions
/// that are about to commit something else, if the client reads what is committed only. Not by the admin call of that purpose: one that has
/// timed out aborts the process when its coordinator comes back.
pub(in super::super) fn committed(
    asking: &mut CallContext<'_>,
    partitions: &[(String, i32)],
    patience: Duration,
) -> Result<Vec<Result<Option<String>, CallError>>, CallError> {
    let (list, until) = (list(partitions), Instant::now() + patience);
    loop {
        // SAFETY: client and list are alive; the list is written to by this thread only, before the call returns.
        let code = unsafe {
            sys::rd_kafka_committed(
                asking.native.ptr(),
                list.ptr(),
                millis(KAFKA_COMMITTED_REQUEST_TIMEOUT),
            )
        };
        match code {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => break,
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__TIMED_OUT
                if (asking.meanwhile)() && Instant::now() < until => {}
            code => return Err((code.into(), RDKafkaErrorCode::from(code).to_string())),
        }
    }
    // SAFETY: the list is alive.
    let found = unsafe {
        let list = &*list.ptr();
        slice(
            list.elems.cast_const(),
            usize::try_from(list.cnt).unwrap_or(0),
        )
        .iter()
    };
    Ok(in_order(partitions, found, |element| {
        Ok((element.offset >= 0).then(|| metadata(element)))
    }))
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
    value: impl Fn(&sys::rd_kafka_topic_partition_t) -> Result<T, CallError>,
) -> Vec<Result<T, CallError>> {
    let found: std::collections::BTreeMap<(String, i32), _> = found
        // SAFETY: an element owns its topic's name.
        .map(|element| ((unsafe { text(element.topic) }, element.partition), element))
        .collect();
    let one = |partition| {
        let element = found.get(partition).ok_or((
            RDKafkaErrorCode::Fail,
            "the broker left it out of its answer".to_owned(),
        ))?;
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
pub(super) unsafe fn failure(error: *const sys::rd_kafka_error_t) -> Result<(), CallError> {
    // SAFETY: as the function's own.
    unsafe {
        if error.is_null()
            || sys::rd_kafka_error_code(error) == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR
        {
            return Ok(());
        }
        Err((
            sys::rd_kafka_error_code(error).into(),
            text(sys::rd_kafka_error_string(error)),
        ))
    }
}

/// One question: its options, and the queue of its answer alone.
pub(super) struct AdminCall {
    queue: Queue,
    pub(super) options: *mut sys::rd_kafka_AdminOptions_t,
    pub(super) client: *mut sys::rd_kafka_t,
}

impl AdminCall {
    pub(super) fn new(
        native: &NativeClient,
        call: sys::rd_kafka_admin_op_t,
        patience: Duration,
    ) -> Self {
        let client = native.ptr();
        // SAFETY: the client is alive and outlives the question; both allocations are ours.
        unsafe {
            let queue = Queue::own(sys::rd_kafka_queue_new(client))
                .expect("librdkafka aborts when memory is out");
            let options = sys::rd_kafka_AdminOptions_new(client, call);
            let mut reason: [c_char; 128] = [0; 128];
            sys::rd_kafka_AdminOptions_set_request_timeout(
                options,
                millis(patience),
                reason.as_mut_ptr(),
                reason.len(),
            );
            Self {
                queue,
                options,
                client,
            }
        }
    }

    /// Where the answer is to come.
    pub(super) fn queue(&self) -> *mut sys::rd_kafka_queue_t {
        self.queue.0.as_ptr()
    }

    /// Asks for descriptions, with the options as they are; `read` is given each while it is alive.
    pub(super) fn about_topics<T>(
        &self,
        asking: &mut CallContext<'_>,
        topics: &[&str],
        read: impl Fn(*const sys::rd_kafka_TopicDescription_t) -> T,
    ) -> Result<Vec<T>, CallError> {
        let names: Vec<CString> = topics
            .iter()
            .filter_map(|topic| CString::new(*topic).ok())
            .collect();
        if let Some(name) = names.first() {
            asking.native.knows(name);
        }
        self.describe(&names.iter().map(CString::as_c_str).collect::<Vec<_>>());
        let event = self.answer(asking)?;
        // SAFETY: the event is alive and, since it is this queue's only question, of the kind that was asked for.
        unsafe {
            let mut count = 0;
            let result = sys::rd_kafka_event_DescribeTopics_result(event.0.as_ptr());
            let topics = sys::rd_kafka_DescribeTopics_result_topics(result, &mut count);
            Ok(slice(topics, count)
                .iter()
                .map(|topic| read(*topic))
                .collect())
        }
    }

    fn describe(&self, topics: &[&CStr]) {
        let mut names: Vec<*const c_char> = topics.iter().map(|name| name.as_ptr()).collect();
        // SAFETY: all handles are alive; the collection copies the names, and the call copies the collection.
        unsafe {
            let collection =
                sys::rd_kafka_TopicCollection_of_topic_names(names.as_mut_ptr(), names.len());
            sys::rd_kafka_DescribeTopics(self.client, collection, self.options, self.queue());
            sys::rd_kafka_TopicCollection_destroy(collection);
        }
    }

    /// librdkafka ends the question itself; the second over its time is for its threads to say so. What comes to a queue that is gone is
    /// dropped by it.
    pub(super) fn answer(&self, asking: &mut CallContext<'_>) -> Result<Event, CallError> {
        let until = Instant::now() + KAFKA_REQUEST_TIMEOUT + Duration::from_secs(1);
        loop {
            if let Some(event) = self.queue.poll(KAFKA_ABANDON_CHECK_INTERVAL) {
                return event.error().map_or(Ok(event), Err);
            }
            if !(asking.meanwhile)() || Instant::now() >= until {
                return Err((RDKafkaErrorCode::OperationTimedOut, "no answer".to_owned()));
            }
        }
    }
}

impl Drop for AdminCall {
    fn drop(&mut self) {
        // SAFETY: the options are ours, and no call keeps them.
        unsafe { sys::rd_kafka_AdminOptions_destroy(self.options) }
    }
}
