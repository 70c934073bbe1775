//! The loop that consumes the target and the dead-letter topic, like any other consumer.

use super::News;
use super::board::{Arrival, Author};
use super::sender::HEADER;
use crate::broker::{Error, Event, RecordBatch, Source};
use crate::clock::Clock;
use crate::limit::{DEMO_RETRY_DELAY, DEMO_TEXT_CHARS_MAX};
use crate::model::header_name::{DUE, ERROR_DETAIL};
use crate::model::{Partition, Record, Timestamp};
use crate::task::StopToken;
use tokio::sync::mpsc;

/// The consumer and its context.
pub(super) struct Watcher<C> {
    pub(super) source: Box<dyn Source>,
    pub(super) dead_letter: String,
    pub(super) run: String,
    /// Handling of messages from other producers.
    pub(super) guests: Guests,
    pub(super) clock: C,
    pub(super) news: mpsc::Sender<News>,
    /// Cancelled when the target's partitions are positioned, so that no delivery is missed.
    /// Sending starts then.
    pub(super) begin: StopToken,
}

/// Handling of messages that the demo did not send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guests {
    /// The demo invited the user to send them, so show them.
    Welcome,
    /// They belong to other producers, so leave them out.
    Ignored,
}

impl<C: Clock> Watcher<C> {
    /// Runs until `stop` is cancelled.
    pub(super) async fn serve(mut self, stop: StopToken) -> Result<(), Error> {
        let seen = stop
            .run_until_cancelled(self.watch())
            .await
            .unwrap_or(Ok(()));
        self.source.close().await;
        seen
    }

    async fn watch(&mut self) -> Result<(), Error> {
        loop {
            match self.source.next_event().await {
                Ok(Event::Assigned(partitions)) => self.start(&partitions).await?,
                Ok(Event::Records(batch)) => self.see(&batch).await,
                Ok(Event::OutOfRange { partition, .. }) => self.start(&[partition]).await?,
                Ok(Event::Revoked(_) | Event::RecordsRemoved { .. } | Event::EndReached { .. }) => {
                }
                Err(error) if error.is_transient() => {
                    self.tell(News::Trouble(error.to_string())).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Starts at the end of each partition, because earlier deliveries belong to other runs.
    async fn start(&mut self, partitions: &[Partition]) -> Result<(), Error> {
        let described = loop {
            match self.source.describe(partitions).await {
                Ok(described) => break described,
                Err(error) if error.is_transient() => {
                    self.tell(News::Trouble(error.to_string())).await;
                }
                Err(error) => return Err(error),
            }
            tokio::time::sleep(DEMO_RETRY_DELAY).await;
        };
        for (partition, described) in partitions.iter().zip(described) {
            self.source.start(partition, described.end_offset, 1);
        }
        if partitions
            .iter()
            .any(|partition| *partition.topic != *self.dead_letter)
        {
            self.begin.cancel();
        }
        Ok(())
    }

    async fn see(&mut self, batch: &RecordBatch) {
        let now = self.clock.now();
        let is_dead = *batch.partition.topic == *self.dead_letter;
        for record in batch.iter() {
            if let Some(arrival) = self.arrival(&record, now, is_dead) {
                self.tell(News::Arrived(arrival)).await;
            }
        }
    }

    fn arrival(&self, record: &Record<'_>, at: Timestamp, is_dead: bool) -> Option<Arrival> {
        let author = self.author(record);
        if author == Author::Guest && self.guests == Guests::Ignored {
            return None;
        }
        let refusal = is_dead.then(|| header(record, ERROR_DETAIL).unwrap_or("refused").to_owned());
        let due = header(record, DUE)
            .and_then(|due| due.parse().ok())
            .map(Timestamp::from_millis);
        Some(Arrival {
            author,
            key: shown(record.key),
            text: shown(record.payload),
            due,
            at,
            refusal,
        })
    }

    fn author(&self, record: &Record<'_>) -> Author {
        let own = header(record, HEADER)
            .and_then(|value| value.split_once('/'))
            .filter(|(run, _)| *run == self.run);
        own.and_then(|(_, number)| number.parse().ok())
            .map_or(Author::Guest, Author::Own)
    }

    async fn tell(&self, news: News) {
        // The send fails only when the demo is over.
        let _ = self.news.send(news).await;
    }
}

fn header<'a>(record: &Record<'a>, wanted: &str) -> Option<&'a str> {
    let found = record
        .headers
        .iter()
        .find(|(name, _)| *name == wanted.as_bytes());
    found
        .and_then(|(_, value)| value)
        .and_then(|value| std::str::from_utf8(value).ok())
}

/// Makes foreign bytes safe for a terminal: short, one line, no control characters.
fn shown(bytes: Option<&[u8]>) -> String {
    let Some(bytes) = bytes else {
        return "(null)".to_owned();
    };
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4 * DEMO_TEXT_CHARS_MAX)]);
    text.chars()
        .map(|char| if char.is_control() { ' ' } else { char })
        .take(DEMO_TEXT_CHARS_MAX)
        .collect::<String>()
        .trim()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_bytes_do_not_reach_the_terminal() {
        assert_eq!(shown(Some(b"\x1b[31mred\r\nalert\x07\n")), "[31mred  alert");
        assert_eq!(shown(Some("\u{9b}2J".as_bytes())), "2J");
        assert_eq!(
            (shown(None).as_str(), shown(Some(b"")).as_str()),
            ("(null)", "")
        );
        assert_eq!(shown(Some(&[b'x'; 5_000])).len(), DEMO_TEXT_CHARS_MAX);
        assert_eq!(shown(Some(b"\xff\xfe")), "\u{fffd}\u{fffd}");
    }
}
