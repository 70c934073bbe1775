//! The loader: reads runs for the dispatcher - names, runs by name, the tail of what was appended - and decodes them, on a thread and a store
//! connection of its own, so that a big run holds nothing up that is due. Keeps no state of its own, and no more in memory than one call of the
//! store brings: each reply is sent before more is asked for.

use crate::health::Part;
use crate::limit::{FETCH_BYTES_MAX, LOADER_REQUESTS_MAX, STORE_RETRY_MAX, STORE_RETRY_MIN};
use crate::model::{Claim, ShardId, Slice, Timestamp, Watermark};
use crate::mutant::{self, Mutant};
use crate::run::{Corrupt, Decoder, Loaded, Name, bytes_decoded};
use crate::store::{Error, Fetch, Glance, History, List, Listed, Listing, Store, Tail, Tailed};
use bytes::Bytes;
use std::collections::BTreeMap;
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

#[derive(Debug)]
pub(crate) enum What {
    /// What was appended past `after`; runs that begin after `until` are left in the store. If nothing is `expected`, it is looked first
    /// whether there is anything, which costs the store less.
    Tail {
        after: Watermark,
        until: Timestamp,
        keep: Timestamp,
        limit: usize,
        expected: bool,
    },
    /// Names of the runs that begin in `from..=until`.
    List {
        from: Timestamp,
        until: Timestamp,
        limit: usize,
    },
    /// Runs by name, as many as take no more than `bytes` of memory; of each, messages due after `keep` are left in the store, and so are those
    /// at its head that `taken` covers.
    Fetch {
        runs: Vec<(Slice, Name)>,
        bytes: usize,
        keep: Timestamp,
        taken: Claim,
    },
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
        history: History,
        runs: Vec<Read>,
    },
    /// The tail does not reach back far enough, or the store went back: everything is to be loaded again.
    Broken {
        watermark: Watermark,
    },
    List {
        watermark: Watermark,
        history: History,
        runs: Vec<Listing>,
        more: bool,
    },
    /// The first of the runs that were asked for; and what each of the others would take.
    Fetch {
        reads: Vec<Read>,
        left: Vec<usize>,
    },
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

/// Why it serves no longer.
enum End {
    /// It was told to, or nobody waits for its replies.
    Over,
    Failed(Error),
}

/// What was asked of each kind, as the store is asked.
#[derive(Default)]
struct Calls<'a> {
    tails: Vec<(&'a Request, Timestamp, Tail)>,
    lists: Vec<(&'a Request, List)>,
    fetches: Vec<(&'a Request, Wanted, Fetch)>,
}

/// What of the runs that are fetched is wanted.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) bytes: usize,
    pub(super) keep: Timestamp,
    pub(super) taken: Claim,
}

impl Loader {
    /// Serves until the requests' channel is closed, or `give_up` is cancelled: a timer that hands its shards over serves them meanwhile.
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
                match self.answer(some, &mut decoder, &give_up).await {
                    Ok(()) => {}
                    Err(End::Over) => return Ok(()),
                    Err(End::Failed(error)) => return Err(error),
                }
            }
        }
    }

    /// Asks the store until it answers.
    async fn at_last<T>(
        &self,
        give_up: &CancellationToken,
        ask: impl AsyncFn() -> Result<T, Error>,
    ) -> Result<T, End> {
        let mut wait = STORE_RETRY_MIN;
        loop {
            // Dropped, it has changed nothing: it only reads.
            let outcome = tokio::select! {
                biased;
                () = give_up.cancelled() => return Err(End::Over),
                outcome = ask() => outcome,
            };
            match outcome {
                Ok(answer) => {
                    self.health.ready();
                    return Ok(answer);
                }
                Err(error) if error.is_transient() => {
                    self.health
                        .not_ready(format!("what waits cannot be read: {error}"));
                    tokio::select! {
                        biased;
                        () = give_up.cancelled() => return Err(End::Over),
                        () = tokio::time::sleep(wait) => wait = (wait * 2).min(STORE_RETRY_MAX),
                    }
                }
                Err(error) => return Err(End::Failed(error)),
            }
        }
    }

    async fn reply(&self, request: &Request, answer: Answer) -> Result<(), End> {
        let reply = Reply {
            shard: request.shard.clone(),
            tag: request.tag,
            answer,
        };
        self.replies.send(reply).await.map_err(|_| End::Over)
    }

    /// Shards whose tail nothing was appended to, among those of which nothing else is expected, with their histories.
    async fn quiet(&self, batch: &[Request]) -> Result<BTreeMap<ShardId, History>, Error> {
        let unexpected = batch.iter().filter_map(|request| match request.what {
            What::Tail {
                after,
                expected: false,
                ..
            } => Some((request.shard.clone(), after)),
            _ => None,
        });
        let (shards, afters): (Vec<_>, Vec<_>) = unexpected.unzip();
        if shards.is_empty() {
            return Ok(BTreeMap::new());
        }
        let glances = self.store.glance(&shards).await?;
        let is_quiet = |glance: &Glance, after| {
            glance.watermark == after || mutant::active(Mutant::TakesForQuiet)
        };
        let quiet = |(glance, after): (Option<Glance>, Watermark)| {
            Some(glance.filter(|glance| is_quiet(glance, after))?.history)
        };
        let looked = shards.into_iter().zip(glances.into_iter().zip(afters));
        Ok(looked
            .filter_map(|(shard, look)| Some((shard, quiet(look)?)))
            .collect())
    }

    /// Of the requests that wait, tails go before lists: a run that is appended in between is then in the list, or past the tail's end.
    async fn answer(
        &self,
        batch: &[Request],
        decoder: &mut Decoder,
        give_up: &CancellationToken,
    ) -> Result<(), End> {
        let quiet = self.at_last(give_up, || self.quiet(batch)).await?;
        let Calls {
            tails,
            lists,
            fetches,
        } = self.sort(batch, &quiet).await?;
        if !tails.is_empty() {
            let calls: Vec<_> = tails.iter().map(|(.., call)| call.clone()).collect();
            let tailed = self.at_last(give_up, || self.store.tail(&calls)).await?;
            for ((request, keep, _), tailed) in tails.into_iter().zip(tailed) {
                self.reply(request, tail_answer(tailed, keep, decoder))
                    .await?;
            }
        }
        if !lists.is_empty() {
            let calls: Vec<_> = lists.iter().map(|(_, call)| call.clone()).collect();
            let listed = self.at_last(give_up, || self.store.list(&calls)).await?;
            for ((request, _), listed) in lists.into_iter().zip(listed) {
                let answer = match listed {
                    Listed::Runs {
                        watermark,
                        history,
                        runs,
                        more,
                    } => Answer::List {
                        watermark,
                        history,
                        runs,
                        more,
                    },
                    Listed::Unknown => Answer::Unknown,
                };
                self.reply(request, answer).await?;
            }
        }
        let mut rest = &fetches[..];
        while !rest.is_empty() {
            let (some, after) = rest.split_at(together(rest));
            let calls: Vec<_> = some.iter().map(|(.., call)| call.clone()).collect();
            let fetched = self.at_last(give_up, || self.store.fetch(&calls)).await?;
            for ((request, wanted, call), blobs) in some.iter().zip(fetched) {
                self.reply(request, fetch_answer(&call.runs, blobs, *wanted, decoder))
                    .await?;
            }
            rest = after;
        }
        Ok(())
    }

    /// What the store is to be asked; of tails that are quiet nothing, they are answered.
    async fn sort<'a>(
        &self,
        batch: &'a [Request],
        quiet: &BTreeMap<ShardId, History>,
    ) -> Result<Calls<'a>, End> {
        let mut calls = Calls::default();
        for request in batch {
            let shard = request.shard.clone();
            match &request.what {
                What::Tail {
                    after,
                    until,
                    keep,
                    limit,
                    ..
                } => {
                    if let Some(&history) = quiet.get(&shard) {
                        let answer = Answer::Tail {
                            watermark: *after,
                            seen: *after,
                            history,
                            runs: Vec::new(),
                        };
                        self.reply(request, answer).await?;
                        continue;
                    }
                    calls.tails.push((
                        request,
                        *keep,
                        Tail {
                            shard,
                            after: *after,
                            until: *until,
                            limit: *limit,
                        },
                    ));
                }
                What::List { from, until, limit } => calls.lists.push((
                    request,
                    List {
                        shard,
                        from: *from,
                        until: *until,
                        limit: *limit,
                    },
                )),
                What::Fetch {
                    runs,
                    bytes,
                    keep,
                    taken,
                } => {
                    let wanted = Wanted {
                        bytes: *bytes,
                        keep: *keep,
                        taken: *taken,
                    };
                    calls.fetches.push((
                        request,
                        wanted,
                        Fetch {
                            shard,
                            runs: runs.clone(),
                        },
                    ));
                }
            }
        }
        Ok(calls)
    }
}

/// How many of the fetches go in one call: few enough that what they bring is bounded, and one at least.
fn together(fetches: &[(&Request, Wanted, Fetch)]) -> usize {
    let mut bytes = 0;
    let fits = fetches.iter().take_while(|(_, wanted, _)| {
        let fits = bytes == 0 || bytes + wanted.bytes <= FETCH_BYTES_MAX;
        bytes += wanted.bytes;
        fits
    });
    fits.count()
}

fn tail_answer(tailed: Tailed, keep: Timestamp, decoder: &mut Decoder) -> Answer {
    match tailed {
        Tailed::Runs {
            watermark,
            seen,
            history,
            runs,
        } => {
            let wanted = runs
                .into_iter()
                .filter_map(|run| run.bytes.map(|bytes| (run.listing, bytes)));
            let reads = wanted.map(|(Listing { slice, name, .. }, bytes)| {
                read(slice, &name, Some(&bytes), (keep, Claim::START), decoder)
            });
            Answer::Tail {
                watermark,
                seen,
                history,
                runs: reads.collect(),
            }
        }
        Tailed::Broken { watermark } => Answer::Broken { watermark },
        Tailed::Unknown => Answer::Unknown,
    }
}

/// Decodes as many of the runs as fit into the bytes that are kept for them.
pub(super) fn fetch_answer(
    runs: &[(Slice, Name)],
    blobs: Vec<Option<Bytes>>,
    wanted: Wanted,
    decoder: &mut Decoder,
) -> Answer {
    let (mut reads, mut left, mut held) = (Vec::new(), Vec::new(), 0);
    for ((slice, name), blob) in runs.iter().zip(blobs) {
        let size = blob.as_ref().map_or(0, |bytes| bytes_decoded(bytes));
        if !left.is_empty() || held + size > wanted.bytes {
            left.push(size);
            continue;
        }
        held += size;
        reads.push(read(
            *slice,
            name,
            blob.as_ref(),
            (wanted.keep, wanted.taken),
            decoder,
        ));
    }
    Answer::Fetch { reads, left }
}

pub(super) fn read(
    slice: Slice,
    name: &Name,
    bytes: Option<&Bytes>,
    (keep, taken): (Timestamp, Claim),
    decoder: &mut Decoder,
) -> Read {
    let Some(bytes) = bytes else {
        return Read::Gone {
            slice,
            name: name.clone(),
        };
    };
    match decoder.decode(name.clone(), slice, bytes) {
        Ok(mut run) => {
            run.keep_until(keep);
            run.drop_head(|place| taken.covers(place));
            Read::Run(run)
        }
        Err(why) => Read::Corrupt {
            slice,
            name: name.clone(),
            why,
        },
    }
}
