//! The appender: stores the batches of one ingress, several in one call, and reports each result.
//! It runs on a thread of its own, so that reading and encoding continue while the store answers.

use crate::health::HealthPart;
use crate::limit::{APPEND_QUEUE_MAX, APPENDS_PER_PIPELINE_MAX};
use crate::model::{Hint, Partition, Watermark};
use crate::retry::until_store_answers;
use crate::store::{Append, Appended, Error, Store};
use crate::trace::BatchLinks;
use std::rc::Rc;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// An append that must be stored.
pub(crate) struct AppendJob {
    pub(crate) partition: Partition,
    /// The reading that the records are from.
    pub(crate) epoch: u64,
    pub(crate) append: Append,
    pub(crate) links: BatchLinks,
}

/// The result of one append.
pub(crate) struct AppendResult {
    pub(crate) partition: Partition,
    pub(crate) epoch: u64,
    /// The watermark at which the append ended.
    pub(crate) to: Watermark,
    /// Number of messages in the append.
    pub(crate) messages: u64,
    pub(crate) outcome: Appended,
    pub(crate) links: BatchLinks,
}

/// The ingress's ends of the two channels.
pub(crate) struct AppenderHandle {
    pub(crate) jobs: mpsc::Sender<AppendJob>,
    pub(crate) results: mpsc::Receiver<AppendResult>,
}

/// The appender's ends of the two channels.
pub(crate) struct AppenderInbox {
    jobs: mpsc::Receiver<AppendJob>,
    results: mpsc::Sender<AppendResult>,
}

/// The two bounded channels between an ingress and its appender.
pub(crate) fn appender_channels() -> (AppenderHandle, AppenderInbox) {
    let (jobs, jobs_in) = mpsc::channel(APPEND_QUEUE_MAX);
    let (results_out, results) = mpsc::channel(APPEND_QUEUE_MAX);
    let inbox = AppenderInbox {
        jobs: jobs_in,
        results: results_out,
    };
    (AppenderHandle { jobs, results }, inbox)
}

pub(crate) struct Appender {
    pub(crate) store: Rc<dyn Store>,
    pub(crate) inbox: AppenderInbox,
    /// Receivers of hints: the timer of this process, and other processes. A hint for a full queue
    /// is dropped; the timer then finds the messages with its next regular poll.
    pub(crate) hints: Vec<mpsc::Sender<Hint>>,
    pub(crate) health: HealthPart,
}

impl Appender {
    /// Stores appends until the ingress closes its channel or `give_up` is cancelled. Retries until
    /// the store answers; a repeated append is recognised by its watermark (I2).
    pub(crate) async fn serve(mut self, give_up: CancellationToken) -> Result<(), Error> {
        while let Some(first) = self.inbox.jobs.recv().await {
            let mut jobs = vec![first];
            while jobs.len() < APPENDS_PER_PIPELINE_MAX
                && let Ok(job) = self.inbox.jobs.try_recv()
            {
                jobs.push(job);
            }
            let (appends, tags): (Vec<_>, Vec<_>) = jobs
                .into_iter()
                .map(|job| (job.append, (job.partition, job.epoch, job.links)))
                .unzip();
            // Dropping an append is safe: the next reader continues at the store's watermark.
            let append = async || self.store.append(&appends).await;
            let consequence = "cannot store new messages";
            let outcomes = until_store_answers(&self.health, consequence, &give_up, append).await?;
            let Some(outcomes) = outcomes else { break };
            for ((append, (partition, epoch, links)), outcome) in
                appends.iter().zip(tags).zip(outcomes)
            {
                if matches!(outcome, Appended::Done { .. }) {
                    self.send_hints(append);
                }
                let messages = append.runs.iter().map(|run| run.summary.count);
                let result = AppendResult {
                    partition,
                    epoch,
                    to: append.to,
                    messages: messages.map(u64::from).sum(),
                    outcome,
                    links,
                };
                if self.inbox.results.send(result).await.is_err() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn send_hints(&self, append: &Append) {
        let Some(least_due) = append.runs.iter().map(|run| run.summary.least_due()).min() else {
            return;
        };
        for hints in &self.hints {
            let _full_queue = hints.try_send(Hint {
                shard: append.shard.clone(),
                least_due,
            });
        }
    }
}
