//! The loader: reads runs for the dispatcher - names, runs by name, the tail of what was appended - and decodes them, on a thread and a store
//! connection of its own, so that a big run holds nothing up that is due. Keeps no state of its own.

use crate::health::Part;
use crate::limit::{LOADER_REQUESTS_MAX, STORE_RETRY_MAX, STORE_RETRY_MIN};
use crate::model::{Claim, ShardId, Slice, Timestamp, Watermark};
use crate::run::{Corrupt, Decoder, Loaded, Name};
use crate::store::{Error, Fetch, Glance, List, Listed, Listing, Store, Tail, Tailed};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::rc::Rc;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// What the dispatcher asks for one shard. `tag` comes back with the reply.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) shard: ShardId,
    pub(crate) tag: u64,
    pub(crate) what: What,
}

impl Request {
    fn reply(&self, answer: Answer) -> Reply {
        Reply { shard: self.shard.clone(), tag: self.tag, answer }
    }
}

#[derive(Debug)]
pub(crate) enum What {
    /// What was appended past `after`; runs that begin after `until` are left in the store. If nothing is `expected`, it is looked first
    /// whether there is anything, which costs the store less.
    Tail { after: Watermark, until: Timestamp, keep: Timestamp, limit: usize, expected: bool },
    /// Names of the runs that begin in `from..=until`.
    List { from: Timestamp, until: Timestamp, limit: usize },
    /// Runs by name; of each, messages due after `keep` are left in the store, and so are those at its head that `taken` covers.
    Fetch { runs: Vec<(Slice, Name)>, keep: Timestamp, taken: Claim },
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) shard: ShardId,
    pub(crate) tag: u64,
    pub(crate) answer: Answer,
}

#[derive(Debug)]
pub(crate) enum Answer {
    Tail {
        watermark: Watermark,
        seen: Watermark,
        runs: Vec<Read>,
    },
    /// The tail does not reach back far enough, or the store went back: everything is to be loaded again.
    Broken {
        watermark: Watermark,
    },
    List {
        watermark: Watermark,
        runs: Vec<Listing>,
        more: bool,
    },
    Fetch(Vec<Read>),
    Unknown,
}

/// One run that was asked for.
#[derive(Debug)]
pub(crate) enum Read {
    Run(Loaded),
    Corrupt {
        slice: Slice,
        name: Name,
        why: Corrupt,
    },
    /// It is not there any more.
    Gone {
        slice: Slice,
        name: Name,
    },
}

/// See the module's page.
pub(crate) struct Loader {
    pub(crate) store: Rc<dyn Store>,
    /// Those of one tick together.
    pub(crate) requests: mpsc::Receiver<Vec<Request>>,
    pub(crate) replies: mpsc::Sender<Reply>,
    pub(crate) health: Part,
}

impl Loader {
    /// Serves until the requests' channel is closed, or `give_up` is cancelled: a timer that hands its shards over serves them meanwhile.
    ///
    /// Of the requests that wait, tails go before lists: a run that is appended in between is then in the list, or past the tail's end.
    pub(crate) async fn serve(mut self, give_up: CancellationToken) -> Result<(), Error> {
        let mut decoder = Decoder::new();
        loop {
            // Both arms are safe to drop: what was not received stays in the channel.
            let mut batch = tokio::select! {
                biased;
                () = give_up.cancelled() => return Ok(()),
                requests = self.requests.recv() => match requests {
                    Some(requests) => requests,
                    None => return Ok(()),
                },
            };
            while batch.len() < LOADER_REQUESTS_MAX
                && let Ok(more) = self.requests.try_recv()
            {
                batch.extend(more);
            }
            for some in batch.chunks(LOADER_REQUESTS_MAX) {
                let Some(replies) = self.answer_at_last(some, &mut decoder, &give_up).await? else { return Ok(()) };
                for reply in replies {
                    if self.replies.send(reply).await.is_err() {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Asks the store until it answers; `None`: it was told to give up.
    async fn answer_at_last(
        &self,
        batch: &[Request],
        decoder: &mut Decoder,
        give_up: &CancellationToken,
    ) -> Result<Option<Vec<Reply>>, Error> {
        let mut wait = STORE_RETRY_MIN;
        loop {
            // Dropped, it has changed nothing: it only reads.
            let outcome = tokio::select! {
                biased;
                () = give_up.cancelled() => return Ok(None),
                outcome = self.answer(batch, decoder) => outcome,
            };
            match outcome {
                Ok(replies) => {
                    self.health.ready();
                    return Ok(Some(replies));
                }
                Err(error) if error.is_transient() => {
                    self.health.not_ready(format!("what waits cannot be read: {error}"));
                    tokio::select! {
                        biased;
                        () = give_up.cancelled() => return Ok(None),
                        () = tokio::time::sleep(wait) => wait = (wait * 2).min(STORE_RETRY_MAX),
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Shards whose tail nothing was appended to, among those of which nothing else is expected.
    async fn quiet(&self, batch: &[Request]) -> Result<BTreeSet<ShardId>, Error> {
        let unexpected = batch.iter().filter_map(|request| match request.what {
            What::Tail { after, expected: false, .. } => Some((request.shard.clone(), after)),
            _ => None,
        });
        let (shards, afters): (Vec<_>, Vec<_>) = unexpected.unzip();
        if shards.is_empty() {
            return Ok(BTreeSet::new());
        }
        let glances = self.store.glance(&shards).await?;
        let is_quiet = |(glance, after): (Option<Glance>, Watermark)| glance.is_some_and(|glance| glance.watermark == after);
        let looked = shards.into_iter().zip(glances.into_iter().zip(afters));
        Ok(looked.filter_map(|(shard, look)| is_quiet(look).then_some(shard)).collect())
    }

    async fn answer(&self, batch: &[Request], decoder: &mut Decoder) -> Result<Vec<Reply>, Error> {
        let (mut tails, mut lists, mut fetches) = (Vec::new(), Vec::new(), Vec::new());
        let (quiet, mut replies) = (self.quiet(batch).await?, Vec::new());
        for request in batch {
            let shard = request.shard.clone();
            match &request.what {
                What::Tail { after, .. } if quiet.contains(&shard) => {
                    replies.push(request.reply(Answer::Tail { watermark: *after, seen: *after, runs: Vec::new() }));
                }
                What::Tail { after, until, keep, limit, .. } => {
                    tails.push((request, *keep, Tail { shard, after: *after, until: *until, limit: *limit }));
                }
                What::List { from, until, limit } => lists.push((request, List { shard, from: *from, until: *until, limit: *limit })),
                What::Fetch { runs, keep, taken } => fetches.push((request, (*keep, *taken), Fetch { shard, runs: runs.clone() })),
            }
        }
        if !tails.is_empty() {
            let calls: Vec<_> = tails.iter().map(|(.., call)| call.clone()).collect();
            for ((request, keep, _), tailed) in tails.iter().zip(self.store.tail(&calls).await?) {
                replies.push(request.reply(tail_answer(tailed, *keep, decoder)));
            }
        }
        if !lists.is_empty() {
            let calls: Vec<_> = lists.iter().map(|(_, call)| call.clone()).collect();
            for ((request, _), listed) in lists.iter().zip(self.store.list(&calls).await?) {
                replies.push(request.reply(match listed {
                    Listed::Runs { watermark, runs, more } => Answer::List { watermark, runs, more },
                    Listed::Unknown => Answer::Unknown,
                }));
            }
        }
        if !fetches.is_empty() {
            let calls: Vec<_> = fetches.iter().map(|(.., call)| call.clone()).collect();
            for ((request, bounds, call), blobs) in fetches.iter().zip(self.store.fetch(&calls).await?) {
                let reads = call.runs.iter().zip(blobs).map(|((slice, name), bytes)| read(*slice, name, bytes.as_ref(), *bounds, decoder));
                replies.push(request.reply(Answer::Fetch(reads.collect())));
            }
        }
        Ok(replies)
    }
}

fn tail_answer(tailed: Tailed, keep: Timestamp, decoder: &mut Decoder) -> Answer {
    match tailed {
        Tailed::Runs { watermark, seen, runs } => {
            let wanted = runs.into_iter().filter_map(|run| run.bytes.map(|bytes| (run.listing, bytes)));
            let reads = wanted.map(|(Listing { slice, name, .. }, bytes)| read(slice, &name, Some(&bytes), (keep, Claim::START), decoder));
            Answer::Tail { watermark, seen, runs: reads.collect() }
        }
        Tailed::Broken { watermark } => Answer::Broken { watermark },
        Tailed::Unknown => Answer::Unknown,
    }
}

pub(super) fn read(slice: Slice, name: &Name, bytes: Option<&Bytes>, (keep, taken): (Timestamp, Claim), decoder: &mut Decoder) -> Read {
    let Some(bytes) = bytes else { return Read::Gone { slice, name: name.clone() } };
    match decoder.decode(name.clone(), slice, bytes) {
        Ok(mut run) => {
            run.keep_until(keep);
            run.drop_head(|place| taken.covers(place));
            Read::Run(run)
        }
        Err(why) => Read::Corrupt { slice, name: name.clone(), why },
    }
}
