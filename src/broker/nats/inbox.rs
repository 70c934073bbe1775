//! Receives the messages of a subject from now on, for a command that waits for one of them.

use super::Cluster;
use super::connection::{Connection, error_chain};
use crate::broker::Error;
use crate::broker::cluster::NewRecords;
use crate::health::Health;
use async_nats::Subscriber;
use async_trait::async_trait;
use futures_util::StreamExt as _;
use tokio::time::{Instant, timeout_at};

/// A subscription without JetStream, with a connection of its own.
pub(crate) struct Inbox {
    subject: String,
    messages: Subscriber,
    _connection: Connection,
}

impl Inbox {
    /// Subscribes to the subject. `None`: an inbox of its own.
    pub(crate) async fn open(cluster: &Cluster, subject: Option<String>) -> Result<Self, Error> {
        let connection = Connection::new(cluster, Health::new().register("inbox"));
        let client = connection.context().await?.client();
        let subject = subject.unwrap_or_else(|| client.new_inbox());
        let failed = |error: &dyn std::error::Error| {
            Error::Rejected(format!(
                "no subscription to {subject}: {}",
                error_chain(error)
            ))
        };
        let messages = client.subscribe(subject.clone()).await;
        let messages = messages.map_err(|error| failed(&error))?;
        // The server knows the subscription before the record is sent.
        client.flush().await.map_err(|error| failed(&error))?;
        Ok(Self {
            subject,
            messages,
            _connection: connection,
        })
    }

    pub(super) fn subject(&self) -> &str {
        &self.subject
    }
}

#[async_trait(?Send)]
impl NewRecords for Inbox {
    async fn next(&mut self, end: Instant) -> Result<Option<Vec<u8>>, Error> {
        let message = timeout_at(end, self.messages.next()).await.ok().flatten();
        Ok(message.map(|message| message.payload.to_vec()))
    }
}
