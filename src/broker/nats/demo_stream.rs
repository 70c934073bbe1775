//! A temporary stream for `postdate demo`. Each call opens a connection of its own.

use super::connection::{Connection, error_chain};
use super::limit::{NATS_CLOSE_TIMEOUT, NATS_REQUEST_TIMEOUT};
use super::{Cluster, kv};
use crate::broker::Error;
use crate::health::Health;
use async_nats::jetstream::Context;
use async_nats::jetstream::stream::Config;
use std::time::Duration;

/// Creates a stream. Its messages expire after twice the longest demo, if it is never deleted.
pub(crate) async fn create_demo_stream(cluster: &Cluster, id: &str) -> Result<(), Error> {
    let config = Config {
        name: format!("DEMO_{id}"),
        subjects: vec![format!("demo.{id}.>")],
        max_age: Duration::from_secs(2 * 3_600),
        ..Config::default()
    };
    let create = async |context: Context| {
        let created = context.create_stream(config).await;
        created.map(|_| ()).map_err(|error| error_chain(&error))
    };
    with_jetstream(cluster, "the demo's stream was not created", create).await
}

/// Deletes the stream, and the KV bucket of the demo's deployment.
pub(crate) async fn delete_demo_stream(cluster: &Cluster, name: &str) -> Result<(), Error> {
    let bucket = kv::bucket_name(&cluster.deployment);
    let delete = async |context: Context| {
        let deleted = context.delete_stream(name).await;
        deleted.map_err(|error| error_chain(&error))?;
        let deleted = context.delete_key_value(&bucket).await;
        deleted.map(|_| ()).map_err(|error| error_chain(&error))
    };
    let failure = format!("the stream {name} or the bucket {bucket} was not deleted");
    with_jetstream(cluster, &failure, delete).await
}

async fn with_jetstream(
    cluster: &Cluster,
    failure: &str,
    call: impl AsyncFnOnce(Context) -> Result<(), String>,
) -> Result<(), Error> {
    let connection = Connection::new(cluster, Health::new().register("demo"));
    let called = async {
        let called = call(connection.context().await?).await;
        called.map_err(|reason| Error::Rejected(format!("{failure}: {reason}")))
    };
    let called = tokio::time::timeout(NATS_REQUEST_TIMEOUT + NATS_CLOSE_TIMEOUT, called).await;
    called.unwrap_or_else(|_| Err(Error::Unavailable(format!("{failure}: no answer"))))
}
