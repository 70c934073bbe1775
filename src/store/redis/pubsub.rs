//! Hints between processes: that something due soon was appended to a shard, for the timer that has it and may be another process. They go by one
//! channel of the deployment. Nothing depends on them: what is not heard is found by looking.

use super::connection::Connection;
use super::key::{Key, Keyspace};
use super::{Error, Options};
use crate::limit::HINTS_RESUBSCRIBE_INTERVAL;
use crate::model::{Hint, Timestamp};
use futures_util::StreamExt;
use redis::Pipeline;

/// See the module's page. Connects with the first call of each kind, to tell by one connection and to listen by another.
pub(crate) struct RedisNotifier {
    connection: Connection,
    keyspace: Keyspace,
    process: u64,
}

impl RedisNotifier {
    /// `me` is drawn anew by each process: what it tells is not for itself.
    pub(crate) fn new(options: &Options, me: u64) -> Result<Self, Error> {
        Ok(Self {
            connection: Connection::new(options)?,
            keyspace: Keyspace::new(&options.deployment),
            process: me,
        })
    }

    /// Tells whoever listens, and nobody if nobody does. Telling it again does no harm.
    pub(crate) async fn publish(&self, hints: &[Hint]) -> Result<(), Error> {
        let channel = self.keyspace.hint_channel();
        let mut pipeline = Pipeline::new();
        for hint in hints {
            pipeline.cmd("PUBLISH").arg(&channel).arg(self.encode(hint));
        }
        self.connection.send(&pipeline).await.map(drop)
    }

    /// Hands on what other processes tell, until a few minutes have passed, for a connection that died silently brings nothing either. After
    /// an error that is transient it may be called again.
    pub(crate) async fn listen(&self, mut each: impl FnMut(Hint)) -> Result<(), Error> {
        let mut messages = self
            .connection
            .subscribe(&self.keyspace.hint_channel())
            .await?;
        let hand_on = async {
            while let Some(message) = messages.next().await {
                self.decode(message.get_payload_bytes())
                    .into_iter()
                    .for_each(&mut each);
            }
        };
        match tokio::time::timeout(HINTS_RESUBSCRIBE_INTERVAL, hand_on).await {
            Ok(()) => Err(Error::Unavailable(format!(
                "{} has ended the subscription to hints",
                self.connection.address()
            ))),
            Err(_) => Ok(()),
        }
    }

    fn encode(&self, Hint { shard, least_due }: &Hint) -> String {
        format!(
            "{:x} {} {}",
            self.process,
            least_due.as_millis(),
            self.keyspace.shard_keys(shard).name(Key::Meta)
        )
    }

    /// `None`: it is this process' own, or nothing that a process of this deployment writes.
    fn decode(&self, message: &[u8]) -> Option<Hint> {
        let mut words = std::str::from_utf8(message).ok()?.split(' ');
        let (teller, least_due, key) = (words.next()?, words.next()?, words.next()?);
        let least_due = Timestamp::from_millis(least_due.parse().ok()?);
        let is_mine = u64::from_str_radix(teller, 16).ok()? == self.process;
        self.keyspace
            .shard_of_meta_key(key)
            .filter(|_| !is_mine)
            .map(|shard| Hint { shard, least_due })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Partition, ShardId};
    use proptest::prelude::*;

    fn hints(deployment: &str, me: u64) -> RedisNotifier {
        let options = Options {
            url: "redis://127.0.0.1:1".to_owned(),
            username: None,
            password: None,
            deployment: deployment.to_owned(),
        };
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
