//! Hints between processes over one pub/sub channel of the deployment.

use super::connection::Connections;
use super::key::{self, Keyspace};
use super::{Error, Options};
use crate::limit::HINTS_RESUBSCRIBE_INTERVAL;
use crate::model::{Hint, SessionId, Timestamp};
use crate::store::Notifier;
use async_trait::async_trait;
use futures_util::StreamExt;
use redis::Pipeline;

/// Publishes and listens on two connections. Each is opened by the first call that needs it.
pub(crate) struct RedisNotifier {
    connections: Connections,
    keyspace: Keyspace,
    /// The first session of this process. Its random number tells the hints of this process from
    /// those of others.
    session: SessionId,
}

impl RedisNotifier {
    pub(crate) fn new(options: &Options, session: SessionId) -> Result<Self, Error> {
        Ok(Self {
            connections: Connections::new(options)?,
            keyspace: Keyspace::new(&options.deployment),
            session,
        })
    }

    fn encode(&self, hint: &Hint) -> String {
        format!(
            "{:x} {} {}",
            self.session.number,
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
        (sender != self.session.number).then_some(Hint { shard, least_due })
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
        self.connections.send(&pipeline).await.map(drop)
    }

    async fn listen(&self, on_hint: &mut dyn FnMut(Hint)) -> Result<(), Error> {
        let channels = [
            self.keyspace.hint_channel(),
            self.keyspace.worker_channel(self.session),
        ];
        let mut messages = self.connections.subscribe(&channels).await?;
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
                () = self.connections.switched(&channels[0]) => true,
            }
        };
        match tokio::time::timeout(HINTS_RESUBSCRIBE_INTERVAL, forward).await {
            Ok(false) => Err(Error::Unavailable(format!(
                "{} has ended the subscription to hints",
                self.connections.address()
            ))),
            Ok(true) | Err(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Partition, ShardId, WorkerId};
    use proptest::prelude::*;

    fn hints(deployment: &str, me: u64) -> RedisNotifier {
        let options = Options::of_url("redis://127.0.0.1:1", deployment);
        let (worker, number) = (WorkerId(1), me);
        RedisNotifier::new(&options, SessionId { worker, number }).unwrap()
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
