//! A stream for a while: made on somebody's server, and taken away again with the bucket of its deployment. Each call has a connection of its
//! own, and waits for it.

use super::Cluster;
use super::connection::{Connection, error_chain};
use super::kv;
use crate::broker::Error;
use crate::health::Health;
use crate::limit::{NATS_CLOSE_TIMEOUT, NATS_DEMO_STREAM_AGE_MAX, NATS_REQUEST_TIMEOUT};
use async_nats::jetstream::Context;
use async_nats::jetstream::stream::Config;

/// See the module's page.
pub(crate) struct DemoStream {
    cluster: Cluster,
    stream: String,
}

impl DemoStream {
    /// Makes the stream. Its messages go by themselves if nobody takes it away.
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
            match context.create_stream(config).await {
                Ok(_) => Ok(()),
                Err(error) => Err(Error::Rejected(format!(
                    "the stream {stream} cannot be made: {}",
                    error_chain(&error)
                ))),
            }
        })?;
        Ok(Self {
            cluster,
            stream: stream.to_owned(),
        })
    }

    /// Takes away what [`Stage::set`] and the service made.
    pub(crate) fn delete(self) -> Result<(), Error> {
        let Self { cluster, stream } = self;
        let bucket = kv::bucket_name(&cluster.deployment);
        with_jetstream(&cluster, async move |context| {
            let left = |what: &str, words: String| {
                Error::Unavailable(format!("{what} stays on the server: {words}"))
            };
            let gone = context.delete_stream(&stream).await;
            gone.map_err(|error| left(&format!("the stream {stream}"), error_chain(&error)))?;
            let gone = context.delete_key_value(&bucket).await;
            gone.map_err(|error| left(&format!("the bucket {bucket}"), error_chain(&error)))?;
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
    let silent = || Error::Unavailable(format!("nats.{} does not answer", cluster.name));
    runtime.block_on(async {
        let link = Connection::new(cluster, Health::new().register("stage"));
        let asked = async { call(link.context().await?).await };
        tokio::time::timeout(NATS_REQUEST_TIMEOUT + NATS_CLOSE_TIMEOUT, asked)
            .await
            .unwrap_or_else(|_| Err(silent()))
    })
}
