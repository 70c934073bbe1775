//! NATS JetStream, on async-nats: what source, target and catalog share of a cluster. It neither reads nor sends.
//!
//! A partition is what one filter subject lets through of one stream: its topic is `<stream>:<filter subject>`, its index 0, its offsets
//! are the stream's sequences. NATS has no consumer groups and no commits: both live in a key-value bucket of the deployment.
//!
//! | file | duty |
//! |---|---|
//! | `source` | the [`Source`](super::Source) port: what the group gives, and the readers of it |
//! | `group` | how the processes of a route share its partitions |
//! | `reader` | one partition, read in order |
//! | `catalog` | the [`Catalog`](super::Catalog) port |
//! | `bucket` | the deployment's bucket: commits, groups |
//! | `stream` | what a stream says of itself, and single messages of it |
//! | `target` | the [`Target`](super::Target) port: records on their way out |
//! | `window` | what is under way, and its order over an outage |
//! | `doubt` | records that no stream took |
//! | `wire` | one connection that publishes and hears of what became of it |
//! | `failure` | what each of the server's errors means to the port's callers |
//! | `header` | keys, null payloads and headers as NATS carries them, and back |
//! | `link` | one connection, its options and its health |
//! | `stage` | a stream for a while, for a demo |

mod catalog;
mod connection;
#[cfg(feature = "test-support")]
mod contract;
mod demo_stream;
mod doubt;
mod failure;
mod group;
mod header;
mod kv;
mod reader;
mod source;
mod stream_info;
mod target;
mod window;
mod wire;

pub(crate) use catalog::NatsCatalog;
#[cfg(feature = "test-support")]
pub use contract::{nats_contract, nats_outage_contract};
pub(crate) use demo_stream::DemoStream;
pub(crate) use source::{NatsSource, SourceOptions};
pub(crate) use stream_info::StreamInfo;
pub(crate) use target::NatsTarget;

use std::path::PathBuf;
use std::sync::Arc;

/// A NATS cluster as the configuration names it. Some of it is secret: never print it.
#[derive(Clone)]
pub(crate) struct Cluster {
    /// The name in the configuration, for logs.
    pub(crate) name: Arc<str>,
    /// Names the bucket.
    pub(crate) deployment: Arc<str>,
    pub(crate) urls: Vec<String>,
    /// The JetStream domain, where it is another than that of the servers connected to.
    pub(crate) domain: Option<String>,
    pub(crate) login: Login,
    pub(crate) tls: Tls,
}

impl Cluster {
    /// Where a question to JetStream goes that the client library has no form of.
    fn api_subject(&self, question: &str) -> String {
        match &self.domain {
            Some(domain) => format!("$JS.{domain}.API.{question}"),
            None => format!("$JS.API.{question}"),
        }
    }
}

/// How a client says who it is.
#[derive(Clone)]
pub(crate) enum Login {
    /// Not at all, or as the URL says.
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

/// Beside what a `tls://` in the URL and the server ask for.
#[derive(Clone, Default)]
pub(crate) struct Tls {
    /// Whom to trust besides the system's own list.
    pub(crate) ca: Option<PathBuf>,
    /// The client's own certificate and its key.
    pub(crate) client_certificate: Option<(PathBuf, PathBuf)>,
}
