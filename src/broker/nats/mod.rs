//! NATS JetStream as a broker, with the client library async-nats.
//!
//! A partition is a subject filter on a stream. Its topic is `<stream>:<filter>`, its index is 0,
//! and its offsets are the stream's sequences. NATS has no offset commits. The adapter keeps them in a
//! KV bucket of the deployment.

mod admin;
mod connection;
#[cfg(feature = "test-support")]
mod contract;
mod demo_stream;
mod facts;
mod header;
mod inbox;
mod kv;
mod limit;
mod source;
mod stored_records;
mod stream_info;
mod target;

pub(crate) use admin::{NatsCatalog, stream_name};
#[cfg(feature = "test-support")]
pub use contract::{nats_contract, nats_outage_contract};
pub(crate) use demo_stream::{create_demo_stream, delete_demo_stream};
pub(crate) use facts::FACTS;
pub(crate) use inbox::Inbox;
pub(crate) use source::{NatsSource, SourceOptions};
pub(crate) use stored_records::NatsStoredRecords;
use stream_info::StreamInfo;
pub(crate) use target::NatsTarget;

use std::path::PathBuf;
use std::sync::Arc;

/// A NATS cluster of the configuration. It contains secrets: never print it.
#[derive(Clone)]
pub(crate) struct Cluster {
    /// The name in the configuration, for logs.
    pub(crate) name: Arc<str>,
    /// Part of the KV bucket's name.
    pub(crate) deployment: Arc<str>,
    /// Without logins.
    pub(crate) urls: Vec<String>,
    /// The JetStream domain. `None`: the domain of the server that the client connects to.
    pub(crate) domain: Option<String>,
    pub(crate) login: Login,
    /// A file of certificate authorities to trust besides those of the system.
    pub(crate) ca: Option<PathBuf>,
    /// The files of the client's certificate and key.
    pub(crate) client_certificate: Option<(PathBuf, PathBuf)>,
}

/// How a client authenticates.
#[derive(Clone)]
pub(crate) enum Login {
    Anonymous,
    User {
        name: String,
        password: String,
    },
    Token(String),
    /// The seed of a key pair.
    Nkey(String),
    /// The content of a credentials file.
    Credentials(String),
}
