//! A temporary stream for `postdate demo`. Each call opens a connection and blocks until the end.

use super::Cluster;
use super::connection::{Connection, error_chain};
use super::kv;
use crate::broker::Error;
use crate::health::Health;
use crate::limit::{NATS_CLOSE_TIMEOUT, NATS_DEMO_STREAM_AGE_MAX, NATS_REQUEST_TIMEOUT};
use async_nats::jetstream::Context;
use async_nats::jetstream::stream::Config;

/// A stream that the demo has created on a server.
pub(crate) struct DemoStream {
    cluster: Cluster,
    stream: String,
}

impl DemoStream {
    /// Creates the stream. Its messages expire, in case the stream is never deleted.
    pub(crate) fn create(
        cluster: Cluster,
        stream: &str,
        subjects: Vec<String>,
    ) -> Result<Self, Error> {
        let config = Config {
            name: stream.to_owned(),
            subjects,
            max_age: NATS_DEMO_STREAM_AGE_MAX,
            ..Config::default()
        };
        with_jetstream(&cluster, async move |context| {
            let created = context.create_stream(config).await;
            created.map(|_| ()).map_err(|error| {
                let reason = error_chain(&error);
                Error::Rejected(format!("the stream {stream} cannot be created: {reason}"))
            })
        })?;
        Ok(Self {
            cluster,
            stream: stream.to_owned(),
        })
    }

    /// Deletes the stream, and the KV bucket of the demo's deployment.
    pub(crate) fn delete(self) -> Result<(), Error> {
        let Self { cluster, stream } = self;
        let bucket = kv::bucket_name(&cluster.deployment);
        with_jetstream(&cluster, async move |context| {
            let not_deleted = |what: String, reason: String| {
                Error::Unavailable(format!("{what} was not deleted: {reason}"))
            };
            context.delete_stream(&stream).await.map_err(|error| {
                not_deleted(format!("the stream {stream}"), error_chain(&error))
            })?;
            context.delete_key_value(&bucket).await.map_err(|error| {
                not_deleted(format!("the bucket {bucket}"), error_chain(&error))
            })?;
            Ok(())
        })
    }
}

fn with_jetstream<T>(
    cluster: &Cluster,
    call: impl AsyncFnOnce(Context) -> Result<T, Error>,
) -> Result<T, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Fatal(error.to_string()))?;
    runtime.block_on(async {
        let connection = Connection::new(cluster, Health::new().register("demo"));
        let called = async { call(connection.context().await?).await };
        tokio::time::timeout(NATS_REQUEST_TIMEOUT + NATS_CLOSE_TIMEOUT, called)
            .await
            .unwrap_or_else(|_| {
                let text = format!("nats.{} does not answer", cluster.name);
                Err(Error::Unavailable(text))
            })
    })
}
