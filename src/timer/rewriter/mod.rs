//! The rewriter: the work of the outer levels. It makes of runs that are thin, or too much to be loaded at once, runs that are neither, as long
//! as nothing of them is due soon. `plan` says which, `merge` makes them.
//!
//! It writes nothing itself: the dispatcher, which alone knows what is loaded, puts the new runs in the place of the old ones, or leaves it.
//! So a rewriter that is late, or stands still, costs memory of the store and never a message.

mod merge;
mod plan;

use crate::limit::{
    LOOKAHEAD, REWRITE_BYTES_MAX, REWRITE_FETCH_MAX, REWRITE_INTERVAL, REWRITE_LEFT_MAX,
    REWRITE_LIST_MAX, REWRITE_REST, REWRITE_REST_URGENT,
};
use crate::model::{Claim, ShardId, Slice, Timestamp};
use crate::run::{Decoder, Loaded, Name, Run, Sealer};
use crate::store::{Error, Fetch, List, Listed, Store};
use plan::Job;
pub(crate) use plan::Shape;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A shard to look at.
#[derive(Clone, Debug)]
pub(crate) struct Chore {
    pub(crate) shard: ShardId,
    pub(crate) tag: u64,
    /// What is due by then is loaded, or about to be.
    pub(crate) loaded: Timestamp,
    /// Where in the list of runs to begin.
    pub(crate) from: Timestamp,
    /// Messages of an hour that can be loaded together.
    pub(crate) hour_max: u64,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) shard: ShardId,
    pub(crate) tag: u64,
    pub(crate) found: Found,
}

#[derive(Debug)]
pub(crate) enum Found {
    Swap(Swap),
    /// There is nothing to do in this part of the list. It goes on there; `None`: it was seen to its end.
    Nothing {
        more: Option<Timestamp>,
    },
    /// Runs that looked as if there was something to gain, and are left alone now.
    Useless,
    /// The store did not answer.
    NoAnswer,
}

/// Runs, and those that are to be in their place.
#[derive(Debug)]
pub(crate) struct Swap {
    pub(crate) inputs: Vec<(Slice, Name)>,
    pub(crate) outputs: Vec<Run>,
    /// It may be done until the shard is loaded so far.
    pub(crate) before: Timestamp,
}

/// See the module's page.
pub(crate) struct Rewriter {
    pub(crate) store: Rc<dyn Store>,
    pub(crate) chores: mpsc::Receiver<Chore>,
    pub(crate) done: mpsc::Sender<Done>,
    pub(crate) shape: Shape,
    /// For the names of its runs.
    pub(crate) writer: u64,
}

/// What the loop owns.
struct Tools {
    decoder: Decoder,
    sealer: Sealer,
    /// Runs that are left alone until `beyond` has come so far: unreadable, not to be made fewer, or with a message that is due before.
    left: BTreeMap<Name, Timestamp>,
    /// When something urgent was found last.
    urgent: Option<Instant>,
}

impl Rewriter {
    /// Serves until the chores' channel is closed or `stop` is cancelled. A store that does not answer now is asked again with the next chore.
    /// Between two chores it rests in proportion to the work that the first was: the store and the machine have more urgent things to do.
    pub(crate) async fn serve(mut self, stop: CancellationToken) -> Result<(), Error> {
        let mut tools = Tools::new(self.writer);
        loop {
            // Dropped at any await it has changed nothing: it only reads.
            let chore = tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                chore = self.chores.recv() => chore,
            };
            let Some(chore) = chore else { return Ok(()) };
            let begun = Instant::now();
            let outcome = tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                outcome = self.work(&chore, &mut tools) => outcome,
            };
            let found = match outcome {
                Ok(found) => found,
                Err(error) if error.is_transient() => Found::NoAnswer,
                Err(error) => return Err(error),
            };
            if self
                .done
                .send(Done {
                    shard: chore.shard,
                    tag: chore.tag,
                    found,
                })
                .await
                .is_err()
            {
                return Ok(());
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(tools.rest(begun, Instant::now())) => {}
            }
        }
    }

    async fn work(&self, chore: &Chore, tools: &mut Tools) -> Result<Found, Error> {
        let list = List {
            shard: chore.shard.clone(),
            from: chore.from,
            until: Timestamp::MAX,
            limit: REWRITE_LIST_MAX,
        };
        let delivered = self
            .store
            .state(std::slice::from_ref(&chore.shard))
            .await?
            .pop()
            .flatten()
            .map(|state| state.delivered);
        let (mut runs, is_cut) = match self.store.list(&[list]).await?.pop() {
            Some(Listed::Runs { runs, more, .. }) => (runs, more),
            _ => (Vec::new(), false),
        };
        let more = if is_cut {
            runs.last()
                .map(|run| run.least_due.plus(Duration::from_millis(1)))
        } else {
            None
        };
        let beyond = self.shape.beyond(chore.loaded);
        runs.retain(|run| {
            tools
                .left
                .get(&run.name)
                .is_none_or(|until| *until <= beyond)
        });
        match delivered.zip(self.shape.plan(&runs, beyond, chore.hour_max)) {
            Some((delivered, job)) => {
                tools.urgent = if job.is_urgent {
                    Some(Instant::now())
                } else {
                    tools.urgent
                };
                self.swap(&chore.shard, job, (delivered, beyond), tools)
                    .await
            }
            None => Ok(Found::Nothing { more }),
        }
    }

    async fn swap(
        &self,
        shard: &ShardId,
        job: Job,
        (delivered, beyond): (Claim, Timestamp),
        tools: &mut Tools,
    ) -> Result<Found, Error> {
        let inputs = self
            .fetch(shard, job.runs, (delivered, beyond), tools)
            .await?;
        let outputs = merge::rewrite(
            &inputs,
            job.into,
            (delivered, beyond),
            &self.shape,
            &mut tools.sealer,
        );
        let Some(outputs) = outputs.filter(|_| !inputs.is_empty()) else {
            return Ok(Found::Useless);
        };
        if let Some(until) = self.shape.is_useless(&inputs, &outputs, job.into, beyond) {
            inputs
                .iter()
                .for_each(|run| tools.leave(run.name().clone(), until));
            return Ok(Found::Useless);
        }
        let inputs = inputs
            .iter()
            .map(|run| (run.slice(), run.name().clone()))
            .collect();
        let before = outputs
            .iter()
            .map(|run| run.summary.least_due())
            .min()
            .map_or(Timestamp::MAX, |due| self.shape.before(due));
        Ok(Found::Swap(Swap {
            inputs,
            outputs,
            before,
        }))
    }

    /// The runs that can be rewritten now, as many as there is memory for.
    async fn fetch(
        &self,
        shard: &ShardId,
        runs: Vec<(Slice, Name)>,
        (delivered, beyond): (Claim, Timestamp),
        tools: &mut Tools,
    ) -> Result<Vec<Loaded>, Error> {
        let (mut inputs, mut held) = (Vec::new(), 0);
        for part in runs.chunks(REWRITE_FETCH_MAX) {
            let fetch = Fetch {
                shard: shard.clone(),
                runs: part.to_vec(),
            };
            let blobs = self.store.fetch(&[fetch]).await?.pop().unwrap_or_default();
            for ((slice, name), bytes) in part.iter().zip(blobs) {
                let Some(bytes) = bytes else { continue };
                let loaded = tools.decoder.decode(name.clone(), *slice, &bytes);
                match loaded
                    .map_err(|_| Timestamp::MAX)
                    .and_then(|run| waits(run, delivered, beyond))
                {
                    Ok(run) => {
                        held += run.bytes_held();
                        inputs.push(run);
                    }
                    Err(until) => tools.leave(name.clone(), until),
                }
                if held > REWRITE_BYTES_MAX {
                    return Ok(inputs);
                }
            }
        }
        Ok(inputs)
    }
}

impl Tools {
    fn new(writer: u64) -> Self {
        Self {
            decoder: Decoder::new(),
            sealer: Sealer::new(writer),
            left: BTreeMap::new(),
            urgent: None,
        }
    }

    /// How long to rest after a look that began then. Not much where there is something urgent, in whichever shard.
    fn rest(&self, begun: Instant, now: Instant) -> Duration {
        let is_urgent = self
            .urgent
            .is_some_and(|found| now < found + REWRITE_INTERVAL);
        let times = if is_urgent {
            REWRITE_REST_URGENT
        } else {
            REWRITE_REST
        };
        (now.duration_since(begun) * times).min(REWRITE_INTERVAL)
    }

    fn leave(&mut self, name: Name, until: Timestamp) {
        if self.left.len() >= REWRITE_LEFT_MAX {
            self.left.clear();
        }
        self.left.insert(name, until);
    }
}

/// A run of which nothing that is left is due by `beyond`; else when to look at it again: what is left of it may be delivered a while after
/// it was due.
fn waits(run: Loaded, delivered: Claim, beyond: Timestamp) -> Result<Loaded, Timestamp> {
    let mut places = (0..run.len())
        .map(|index| run.place(index))
        .take_while(|place| place.due <= beyond);
    if places.all(|place| delivered.covers(place)) {
        Ok(run)
    } else {
        Err(beyond.plus(LOOKAHEAD))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rests_in_proportion_to_its_work_less_while_something_is_urgent_and_never_for_long() {
        let (begun, mut tools) = (Instant::now(), Tools::new(1));
        let now = begun + Duration::from_millis(10);
        assert_eq!(
            tools.rest(begun, now),
            Duration::from_millis(10) * REWRITE_REST
        );
        assert_eq!(
            tools.rest(begun, begun + Duration::from_secs(9)),
            REWRITE_INTERVAL
        );
        tools.urgent = Some(begun);
        assert_eq!(
            tools.rest(begun, now),
            Duration::from_millis(10) * REWRITE_REST_URGENT
        );
        let later = begun + REWRITE_INTERVAL;
        assert_eq!(
            tools.rest(later, later + Duration::from_millis(10)),
            Duration::from_millis(10) * REWRITE_REST,
            "it was done"
        );
    }
}
