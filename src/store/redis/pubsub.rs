//! Hints between processes over one pub/sub channel of the deployment.

use super::connection::Connection;
use super::key::{self, Keyspace};
use super::{Error, Options};
use crate::limit::HINTS_RESUBSCRIBE_INTERVAL;
use crate::model::{Hint, Timestamp, WorkerId};
use crate::store::Notifier;
use async_trait::async_trait;
use futures_util::StreamExt;
use redis::Pipeline;

/// Publishes and listens on two connections. Each is opened by the first call that needs it.
pub(crate) struct RedisNotifier {
    connection: Connection,
    keyspace: Keyspace,
    /// Random id of this process. A process ignores its own hints.
    process: u64,
    /// The worker of this process. The server shows the others that somebody listens to its
    /// channel, until the connection ends.
    worker: Option<WorkerId>,
}

impl RedisNotifier {
    pub(crate) fn new(options: &Options, process: u64) -> Result<Self, Error> {
        Ok(Self {
            connection: Connection::new(options)?,
            keyspace: Keyspace::new(&options.deployment),
            process,
            worker: None,
        })
    }

    /// Also listens to the channel of this worker, as a sign that its process lives.
    pub(crate) fn of_worker(self, worker: WorkerId) -> Self {
        let worker = Some(worker);
        Self { worker, ..self }
    }

    fn encode(&self, hint: &Hint) -> String {
        format!(
            "{:x} {} {}",
            self.process,
            hint.least_due.as_millis(),
            self.keyspace.shard_keys(&hint.shard).name(key::META)
        )
    }

    /// `None`: a hint of this process, or a foreign message.
    fn decode(&self, message: &[u8]) -> Option<Hint> {
        let mut words = std::str::from_utf8(message).ok()?.split(' ');
        let sender = u64::from_str_radix(words.next()?, 16).ok()?;
        let least_due = Timestamp::from_millis(words.next()?.parse().ok()?);
        let shard = self.keyspace.shard_of_meta_key(words.next()?)?;
        (sender != self.process).then_some(Hint { shard, least_due })
    }
}

#[async_trait(?Send)]
impl Notifier for RedisNotifier {
    async fn publish(&self, hints: &[Hint]) -> Result<(), Error> {
        let channel = self.keyspace.hint_channel();
        let mut pipeline = Pipeline::new();
        for hint in hints {
            pipeline.cmd("PUBLISH").arg(&channel).arg(self.encode(hint));
        }
        self.connection.send(&pipeline).await.map(drop)
    }

    async fn listen(&self, on_hint: &mut dyn FnMut(Hint)) -> Result<(), Error> {
        let own = self.worker.map(|worker| {
            let prefix = self.keyspace.worker_channel_prefix();
            format!("{prefix}{worker}")
        });
        let channels = [self.keyspace.hint_channel()].into_iter().chain(own);
        let channels: Vec<_> = channels.collect();
        let mut messages = self.connection.subscribe(&channels).await?;
        let forward = async {
            while let Some(message) = messages.next().await {
                if let Some(hint) = self.decode(message.get_payload_bytes()) {
                    on_hint(hint);
                }
            }
        };
        let forward = async {
            tokio::select! {
                () = forward => false,
                () = self.connection.switched() => true,
            }
        };
        match tokio::time::timeout(HINTS_RESUBSCRIBE_INTERVAL, forward).await {
            Ok(false) => Err(Error::Unavailable(format!(
                "{} has ended the subscription to hints",
                self.connection.address()
            ))),
            Ok(true) | Err(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Partition, ShardId};
    use proptest::prelude::*;

    fn hints(deployment: &str, me: u64) -> RedisNotifier {
        let options = Options::of_url("redis://127.0.0.1:1", deployment);
        RedisNotifier::new(&options, me).unwrap()
    }

    proptest! {
        #[test]
        fn a_hint_is_read_by_the_other_processes_of_its_deployment(names: [String; 3], index: i32, due: i64, me: u64, other: u64) {
            let shard = ShardId::new(&*names[1], Partition::new(&*names[2], index));
            let hint = Hint { shard: shard.clone(), least_due: Timestamp::from_millis(due) };
            let text = hints(&names[0], me).encode(&hint);
            let read = hints(&names[0], other).decode(text.as_bytes());
            prop_assert_eq!(read.map(|hint| (hint.shard, hint.least_due)), (me != other).then_some((shard, hint.least_due)));
            prop_assert!(hints(&names[0], me).decode(text.as_bytes()).is_none(), "it knows that already");
        }

        #[test]
        fn foreign_bytes_are_no_hint(message: Vec<u8>) {
            prop_assert!(hints("prod", 1).decode(&message).is_none());
        }
    }
}
