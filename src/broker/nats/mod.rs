//! NATS JetStream as a broker, with the client library async-nats.
//!
//! A partition is a subject filter on a stream. Its topic is `<stream>:<filter>`, its index is 0,
//! and its offsets are the stream's sequences. NATS has no offset commits. The adapter keeps them in a
//! KV bucket of the deployment.

mod admin;
mod cluster;
mod connection;
#[cfg(feature = "test-support")]
mod contract;
mod demo_stream;
mod facts;
mod header;
mod inbox;
mod kv;
mod limit;
mod rights;
mod source;
mod stored_records;
mod stream_info;
mod target;

use admin::NatsCatalog;
pub(crate) use cluster::{Cluster, Login};
#[cfg(feature = "test-support")]
pub use contract::{nats_contract, nats_outage_contract};
pub(crate) use demo_stream::{create_demo_stream, delete_demo_stream};
pub(crate) use facts::FACTS;
use inbox::Inbox;
use source::NatsSource;
use stored_records::NatsStoredRecords;
use stream_info::StreamInfo;
use target::NatsTarget;
