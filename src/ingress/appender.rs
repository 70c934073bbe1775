//! The writer: takes sealed appends to the store, several in one call, and tells the ingress loop what became of each. Apart from that
//! loop, so that reading and encoding go on while the store answers.

use crate::health::HealthPart;
use crate::limit::{APPEND_QUEUE_MAX, APPENDS_PER_PIPELINE_MAX};
use crate::model::{Hint, Partition, Watermark};
use crate::retry::until_store_answers;
use crate::store::{Append, Appended, Error, Store};
use crate::trace::BatchLinks;
use std::rc::Rc;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// An append on its way to the store.
pub(crate) struct AppendJob {
    pub(crate) partition: Partition,
    pub(crate) epoch: u64,
    pub(crate) append: Append,
    pub(crate) links: BatchLinks,
}

/// What became of it.
pub(crate) struct AppendResult {
    pub(crate) partition: Partition,
    pub(crate) epoch: u64,
    pub(crate) to: Watermark,
    pub(crate) messages: u64,
    pub(crate) outcome: Appended,
    pub(crate) links: BatchLinks,
}

/// See the module's page.
pub(crate) struct Appender {
    pub(crate) store: Rc<dyn Store>,
    pub(crate) jobs: mpsc::Receiver<AppendJob>,
    pub(crate) results: mpsc::Sender<AppendResult>,
    /// Timers may want to look for what was stored, that of this process and others'; where one is full, they look all the same, if later.
    pub(crate) hints: Vec<mpsc::Sender<Hint>>,
    pub(crate) health: HealthPart,
}

/// The two bounded channels between an ingress and its writer, as (ingress' ends, writer's ends).
#[allow(
    clippy::type_complexity,
    reason = "four ends of two channels, taken apart at once"
)]
pub(crate) fn appender_channels() -> (
    (mpsc::Sender<AppendJob>, mpsc::Receiver<AppendResult>),
    (mpsc::Receiver<AppendJob>, mpsc::Sender<AppendResult>),
) {
    let (jobs, jobs_in) = mpsc::channel(APPEND_QUEUE_MAX);
    let (settled, settled_in) = mpsc::channel(APPEND_QUEUE_MAX);
    ((jobs, settled_in), (jobs_in, settled))
}

impl Appender {
    /// Serves until its jobs' channel is closed or `give_up` is cancelled. An append is repeated until the store answers: a repeat of what
    /// was stored is told as such (I2).
    pub(crate) async fn serve(mut self, give_up: CancellationToken) -> Result<(), Error> {
        while let Some(first) = self.jobs.recv().await {
            let mut jobs = vec![first];
            while jobs.len() < APPENDS_PER_PIPELINE_MAX
                && let Ok(job) = self.jobs.try_recv()
            {
                jobs.push(job);
            }
            let (appends, tags): (Vec<_>, Vec<_>) = jobs
                .into_iter()
                .map(|job| (job.append, (job.partition, job.epoch, job.links)))
                .unzip();
            // Dropping an append is safe: the reader continues at the store's watermark.
            let append = async || self.store.append(&appends).await;
            let consequence = "nothing new can be stored";
            let outcomes = until_store_answers(&self.health, consequence, &give_up, append).await?;
            let Some(outcomes) = outcomes else { break };
            for ((append, (partition, epoch, links)), outcome) in
                appends.iter().zip(tags).zip(outcomes)
            {
                let least_due = append.runs.iter().map(|run| run.summary.least_due()).min();
                if let (Appended::Done { .. }, Some(least_due)) = (&outcome, least_due) {
                    for hints in &self.hints {
                        let _full_is_late = hints.try_send(Hint {
                            shard: append.shard.clone(),
                            least_due,
                        });
                    }
                }
                let messages = append
                    .runs
                    .iter()
                    .map(|run| u64::from(run.summary.count))
                    .sum();
                let settled = AppendResult {
                    partition,
                    epoch,
                    to: append.to,
                    messages,
                    outcome,
                    links,
                };
                if self.results.send(settled).await.is_err() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}
