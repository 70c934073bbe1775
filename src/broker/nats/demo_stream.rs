//! A temporary stream for `postdate demo`. Each call opens a connection of its own.

use super::connection::{Connection, error_chain};
use super::{Cluster, kv};
use crate::broker::Error;
use crate::health::Health;
use crate::limit::{NATS_CLOSE_TIMEOUT, NATS_REQUEST_TIMEOUT};
use async_nats::jetstream::Context;
use async_nats::jetstream::stream::Config;
use std::time::Duration;

/// A stream that the demo created. [`DemoStream::delete`] removes it; dropping does not.
pub(crate) struct DemoStream {
    cluster: Cluster,
    stream: String,
}

impl DemoStream {
    /// Creates the stream. Its messages expire, in case the stream is never deleted.
    pub(crate) async fn create(
        cluster: Cluster,
        stream: &str,
        subjects: String,
    ) -> Result<Self, Error> {
        let config = Config {
            name: stream.to_owned(),
            subjects: vec![subjects],
            // Twice the longest demo.
            max_age: Duration::from_secs(2 * 3_600),
            ..Config::default()
        };
        let create = async |context: Context| {
            context.create_stream(config).await.map_err(|error| {
                let reason = error_chain(&error);
                Error::Rejected(format!("the stream {stream} cannot be created: {reason}"))
            })
        };
        with_jetstream(&cluster, create).await?;
        let stream = stream.to_owned();
        Ok(Self { cluster, stream })
    }

    /// Deletes the stream, and the KV bucket of the demo's deployment.
    pub(crate) async fn delete(self) -> Result<(), Error> {
        let Self { cluster, stream } = self;
        let bucket = kv::bucket_name(&cluster.deployment);
        let failed = |what: String, reason: String| {
            Error::Unavailable(format!("{what} was not deleted: {reason}"))
        };
        let delete = async |context: Context| {
            let deleted = context.delete_stream(&stream).await;
            deleted.map_err(|error| failed(format!("the stream {stream}"), error_chain(&error)))?;
            let deleted = context.delete_key_value(&bucket).await;
            deleted.map_err(|error| failed(format!("the bucket {bucket}"), error_chain(&error)))
        };
        with_jetstream(&cluster, delete).await.map(|_| ())
    }
}

async fn with_jetstream<T>(
    cluster: &Cluster,
    call: impl AsyncFnOnce(Context) -> Result<T, Error>,
) -> Result<T, Error> {
    let connection = Connection::new(cluster, Health::new().register("demo"));
    let called = async { call(connection.context().await?).await };
    let silent = |_| {
        Err(Error::Unavailable(format!(
            "nats.{} does not answer",
            cluster.name
        )))
    };
    tokio::time::timeout(NATS_REQUEST_TIMEOUT + NATS_CLOSE_TIMEOUT, called)
        .await
        .unwrap_or_else(silent)
}
