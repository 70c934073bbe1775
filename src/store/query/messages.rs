//! The search for waiting messages: reads runs in the order of their least due times, within bounds
//! of time, runs and memory. Each answer has the position at which the next call continues.

use super::message_copy::{MessageCopy, kind, text};
use super::message_filter::MessageFilter;
use super::pending::shards_of_route;
use super::search_position::{RunKey, SearchPosition};
use super::{PlaceChange, QueryContext, StoreQuery};
use crate::encryption::StoredId;
use crate::limit::{
    LIST_RUNS_MAX, QUERY_SHARDS_PER_CALL_MAX, SEARCH_NAMES_MIN, SEARCH_PAGE_BYTES_MAX,
    SEARCH_RUNS_MAX, SEARCH_RUNS_PER_FETCH, SEARCH_TIMEOUT,
};
use crate::model::{Cursor, Disposition, Message, Progress, ShardId, Timestamp, is_id_of_offset};
use crate::run::{LoadedRun, RunDecoder};
use crate::store::{Error, Fetch, List, Listed, RunEntry};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tokio::time::Instant;
use utoipa::ToSchema;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Search {
    pub(crate) filter: MessageFilter,
    /// Messages in the answer.
    pub(crate) limit: usize,
    /// Continues behind this place.
    pub(crate) after: Option<SearchPosition>,
    /// Adds headers and payload to the messages.
    pub(crate) is_detailed: bool,
    /// Adds [`MessageCopy`] to the messages. Only for the process itself.
    pub(crate) with_copies: bool,
}

/// Waiting messages, ordered by due time within the page. Two pages may overlap in time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct MessagePage {
    pub(crate) deployment: String,
    pub(crate) at_ms: i64,
    pub(crate) items: Vec<WaitingMessage>,
    /// Stored batches that the search read.
    pub(crate) scanned: u64,
    /// Batches that this version cannot read.
    pub(crate) unreadable: u64,
    /// True if the search ended before the last batch. `after` then continues it.
    pub(crate) more: bool,
    pub(crate) after: Option<String>,
}

/// One waiting message. Bytes that are no text are written as `base64:` and their base64.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct WaitingMessage {
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) offset: u64,
    pub(crate) origin: String,
    /// Absent: at once.
    pub(crate) due_ms: Option<i64>,
    pub(crate) due: String,
    pub(crate) id: Option<String>,
    pub(crate) key: Option<String>,
    /// Absent: the default target of the route.
    pub(crate) target: Option<String>,
    /// Absent: no payload.
    pub(crate) payload_bytes: Option<u64>,
    /// The due time that a reschedule has given the message. Absent: there was none.
    pub(crate) rescheduled_ms: Option<i64>,
    /// True if a record can cancel or move the message: it has an id, or the route has
    /// `change_by_origin`, and no other message waits under its id.
    pub(crate) can_change: bool,
    /// True if the timer has claimed the message: it is being sent, and a cancel is too late.
    pub(crate) in_flight: bool,
    /// `delay`, `relay`, `dead-letter` or `retry`.
    pub(crate) kind: String,
    /// The code of a dead letter, or of the last failed attempt.
    pub(crate) code: Option<String>,
    /// Only for a single message.
    pub(crate) headers: Option<Vec<MessageHeader>>,
    /// Only for a single message, and only if `admin.payloads` is `shown`.
    pub(crate) payload: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub(crate) copy: Option<Box<MessageCopy>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct MessageHeader {
    pub(crate) name: String,
    /// Absent: a null value.
    pub(crate) value: Option<String>,
}

impl WaitingMessage {
    /// Bytes of key, headers and payload.
    fn bytes(&self) -> usize {
        let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let headers = self.headers.iter().flatten();
        let headers = headers.map(|header| header.name.len() + length(&header.value));
        let copy = self.copy.as_ref().map_or(0, |copy| copy.bytes());
        length(&self.key) + length(&self.payload) + headers.sum::<usize>() + copy
    }
}

/// A shard that may hold messages of the filter.
struct Target {
    claimed: Progress,
    delivered: Progress,
    /// The due times to read, both included.
    due: (Timestamp, Timestamp),
    /// The only place to look for.
    place: Option<Cursor>,
}

impl Target {
    /// False if no message of the run can be wanted.
    fn may_hold(&self, run: &RunEntry, filter: &MessageFilter) -> bool {
        let offset = self.place.map(|place| place.offset.0).or(filter.offset);
        run.slice.end().is_none_or(|end| end > self.due.0)
            && offset.is_none_or(|offset| run.name.least_offset().0 <= offset)
    }

    fn wants(&self, message: &Message<'_>, filter: &MessageFilter) -> bool {
        let (place, body) = (message.place, &message.body);
        let is = |wanted: &Option<String>, found: Option<&[u8]>| {
            wanted
                .as_ref()
                .is_none_or(|wanted| found == Some(wanted.as_bytes()))
        };
        (self.due.0..=self.due.1).contains(&place.due)
            && !self.delivered.covers(place)
            && self.place.is_none_or(|wanted| wanted == place)
            && filter.offset.is_none_or(|offset| offset == place.offset.0)
            && is(&filter.key, body.key)
            && filter.header.as_ref().is_none_or(|(name, value)| {
                let wanted = (name.as_bytes(), Some(value.as_bytes()));
                body.headers.iter().any(|header| header == wanted)
            })
    }
}

/// Searches within the bounds of one call.
pub(crate) async fn search(
    query: &dyn StoreQuery,
    context: &QueryContext,
    search: &Search,
    now: Timestamp,
) -> Result<MessagePage, Error> {
    let end = Instant::now() + SEARCH_TIMEOUT;
    let targets = targets(query, context, &search.filter).await?;
    let mut scan = Scan {
        end,
        bytes: 0,
        query,
        context,
        search,
        targets,
        after: search.after.clone(),
        decoder: RunDecoder::new(context.keys.clone()),
        found: Vec::new(),
        ids: Vec::new(),
        page: MessagePage {
            deployment: context.deployment.clone(),
            at_ms: now.as_millis(),
            ..MessagePage::default()
        },
    };
    scan.page.more = scan.run().await?;
    scan.into_page().await
}

/// The shards of the filter. With an id, only those in which a message waits under it.
async fn targets(
    query: &dyn StoreQuery,
    context: &QueryContext,
    filter: &MessageFilter,
) -> Result<BTreeMap<ShardId, Target>, Error> {
    let mut shards = shards_of_route(query, Some(&filter.route)).await?;
    shards.retain(|shard| {
        let partition = &shard.partition;
        filter
            .partition
            .is_none_or(|index| index == partition.index)
            && filter
                .topic
                .as_ref()
                .is_none_or(|topic| **topic == *partition.topic)
    });
    let from = filter.due_from.unwrap_or(Timestamp::AT_ONCE);
    let until = filter.due_to.unwrap_or(Timestamp::MAX);
    let mut targets = BTreeMap::new();
    for shards in shards.chunks(QUERY_SHARDS_PER_CALL_MAX) {
        let places = match &filter.id {
            None => None,
            Some(id) => {
                let ids: Vec<_> = shards
                    .iter()
                    .map(|shard| (shard.clone(), context.keys.stored_id(shard, id)))
                    .collect();
                Some(query.find_ids(&ids).await?)
            }
        };
        // A search for an id knows the place.
        let moved = match filter.due_from.filter(|_| places.is_none()) {
            None => vec![None; shards.len()],
            Some(from) => query.moved_from(shards, from).await?,
        };
        for (index, state) in query.states(shards).await?.into_iter().enumerate() {
            let place = places.as_ref().map(|places| places[index]);
            let Some(state) = state.filter(|_| place != Some(None)) else {
                continue;
            };
            let place = place.flatten();
            // A rescheduled message waits at its first due time, until it goes back to its source.
            let from = moved[index].map_or(from, |moved| moved.min(from));
            let due = place.map_or((from, until), |place| (place.due, place.due));
            let target = Target {
                claimed: state.claimed,
                delivered: state.delivered,
                due,
                place,
            };
            targets.insert(shards[index].clone(), target);
        }
    }
    Ok(targets)
}

struct Scan<'a> {
    /// No further runs are read after this time.
    end: Instant,
    /// Bytes of keys, headers and payloads on the page.
    bytes: usize,
    query: &'a dyn StoreQuery,
    context: &'a QueryContext,
    search: &'a Search,
    targets: BTreeMap<ShardId, Target>,
    after: Option<SearchPosition>,
    decoder: RunDecoder,
    /// The place of each item.
    found: Vec<(ShardId, Cursor)>,
    /// The id of each item that has one.
    ids: Vec<(ShardId, StoredId)>,
    page: MessagePage,
}

impl Scan<'_> {
    /// Reads runs until the page is full, the bounds are reached, or nothing is left. True if
    /// something is left.
    async fn run(&mut self) -> Result<bool, Error> {
        loop {
            let (runs, has_more) = self.next_runs().await?;
            let mut runs = runs.as_slice();
            while !runs.is_empty() {
                let (group, rest) = runs.split_at(runs.len().min(SEARCH_RUNS_PER_FETCH));
                let is_full = self.read(group).await?;
                let is_over =
                    self.page.scanned >= SEARCH_RUNS_MAX as u64 || Instant::now() >= self.end;
                if is_full || is_over && (has_more || !rest.is_empty()) {
                    return Ok(true);
                }
                runs = rest;
            }
            if !has_more {
                return Ok(false);
            }
        }
    }

    /// The next runs in their order, and whether more follow.
    async fn next_runs(&self) -> Result<(Vec<(RunKey, RunEntry)>, bool), Error> {
        let mut runs = Vec::new();
        // A shard whose list was cut is known up to its last run only.
        let mut known_to: Option<RunKey> = None;
        let names = SEARCH_NAMES_MIN.max(2 * SEARCH_RUNS_MAX / self.targets.len().max(1));
        for (shard, target) in &self.targets {
            let (listed, is_cut) = self.list(shard, target, names).await?;
            if is_cut && let Some((last, _)) = listed.last() {
                let last = last.clone();
                known_to = Some(known_to.map_or(last.clone(), |known| known.min(last)));
            }
            runs.extend(listed);
        }
        runs.sort_by(|(one, _), (other, _)| one.cmp(other));
        if let Some(known_to) = &known_to {
            runs.retain(|(key, _)| key <= known_to);
        }
        Ok((runs, known_to.is_some()))
    }

    /// The runs of a shard behind `after`, and whether the list was cut.
    async fn list(
        &self,
        shard: &ShardId,
        target: &Target,
        mut limit: usize,
    ) -> Result<(Vec<(RunKey, RunEntry)>, bool), Error> {
        let from = self.after.as_ref().map(|after| after.run.least_due);
        let after = self.after.as_ref();
        let done = |key: &RunKey| after.is_some_and(|after| after.has_passed(key));
        loop {
            let request = List {
                shard: shard.clone(),
                from: from.unwrap_or(Timestamp::AT_ONCE),
                until: target.due.1,
                limit,
            };
            let Some(Listed::Runs { runs, has_more, .. }) =
                self.query.list_runs(&[request]).await?.pop()
            else {
                return Ok((Vec::new(), false));
            };
            let keyed = runs
                .into_iter()
                .map(|entry| (RunKey::new(shard, &entry), entry));
            let mut left: Vec<_> = keyed.filter(|(key, _)| !done(key)).collect();
            left.sort_by(|(one, _), (other, _)| one.cmp(other));
            // Many runs may have the same least due: then ask for more of them.
            if !left.is_empty() || !has_more {
                return Ok((left, has_more));
            }
            if limit >= LIST_RUNS_MAX {
                let text = "too many stored batches have the same due time: search by id";
                return Err(Error::Unavailable(text.to_owned()));
            }
            limit *= 2;
        }
    }

    /// Reads runs. True if the page is full; `after` then is the last item.
    async fn read(&mut self, runs: &[(RunKey, RunEntry)]) -> Result<bool, Error> {
        let wanted = runs.iter().filter(|(key, entry)| {
            let target = self.targets.get(&key.shard);
            target.is_some_and(|target| target.may_hold(entry, &self.search.filter))
        });
        let wanted: Vec<_> = wanted.collect();
        let fetches: Vec<_> = wanted
            .iter()
            .map(|(key, entry)| Fetch {
                shard: key.shard.clone(),
                runs: vec![(entry.slice, entry.name.clone())],
            })
            .collect();
        let fetched = match fetches.as_slice() {
            [] => Vec::new(),
            fetches => self.query.fetch_runs(fetches).await?,
        };
        for ((key, entry), bytes) in wanted.into_iter().zip(fetched) {
            // A run that is gone was delivered, or replaced by another one.
            let Some(bytes) = bytes.into_iter().next().flatten() else {
                continue;
            };
            self.page.scanned += 1;
            let name = entry.name.clone();
            match self.decoder.decode(&key.shard, name, entry.slice, &bytes) {
                Ok(run) => {
                    if self.take(key, &run) {
                        return Ok(true);
                    }
                }
                Err(_) => self.page.unreadable += 1,
            }
        }
        if let Some((key, _)) = runs.last() {
            self.after = Some(SearchPosition::behind(key.clone()));
        }
        Ok(false)
    }

    /// Takes the wanted messages of a run, without answers. True if the page is full.
    fn take(&mut self, key: &RunKey, run: &LoadedRun) -> bool {
        let Some(target) = self.targets.get(&key.shard) else {
            return false;
        };
        let after = self.after.as_ref().filter(|after| after.run == *key);
        let after = after.map(|after| after.place);
        for index in 0..run.len() {
            if after.is_some_and(|after| run.place(index) <= after) {
                continue;
            }
            if run.is_answer(index) {
                continue;
            }
            let Some(message) = run.message(index) else {
                self.page.unreadable += 1;
                continue;
            };
            if !target.wants(&message, &self.search.filter) {
                continue;
            }
            let mut item = self.item(key, &message);
            item.in_flight = target.claimed.covers(message.place);
            self.bytes += item.bytes();
            self.page.items.push(item);
            self.found.push((key.shard.clone(), message.place));
            let id = message.body.id;
            let id = id.map(|id| self.context.keys.stored_id(&key.shard, id));
            self.ids.extend(id.map(|id| (key.shard.clone(), id)));
            let (items, limit) = (self.page.items.len(), self.search.limit);
            if items >= limit || self.bytes >= SEARCH_PAGE_BYTES_MAX {
                self.after = Some(SearchPosition {
                    run: key.clone(),
                    place: message.place,
                });
                return true;
            }
        }
        false
    }

    fn item(&self, key: &RunKey, message: &Message<'_>) -> WaitingMessage {
        let (place, body) = (message.place, &message.body);
        let (kind, code) = kind(body);
        let shows_payload = self.search.is_detailed && self.context.shows_payloads;
        let headers = self.search.is_detailed.then(|| {
            let headers = body.headers.iter().map(|(name, value)| MessageHeader {
                name: text(name),
                value: value.map(text),
            });
            headers.collect()
        });
        let origin = match body.disposition {
            Disposition::Retry(retry) => retry.origin.to_owned(),
            _ => format!(
                "{}/{}/{}",
                self.context.deployment, key.shard, place.offset.0
            ),
        };
        let copy = (self.search.with_copies).then(|| MessageCopy::of(body, &origin));
        WaitingMessage {
            topic: key.shard.partition.topic.to_string(),
            partition: key.shard.partition.index,
            offset: place.offset.0,
            copy: copy.flatten().map(Box::new),
            origin,
            due_ms: (!place.due.is_at_once()).then(|| place.due.as_millis()),
            due: place.due.to_rfc3339(),
            id: (body.id.filter(|id| !is_id_of_offset(id))).map(str::to_owned),
            key: body.key.map(text),
            target: body.target.map(str::to_owned),
            payload_bytes: body.payload.map(|payload| payload.len() as u64),
            rescheduled_ms: None,
            can_change: body.id.is_some(),
            in_flight: false,
            kind: kind.to_owned(),
            code: code.map(str::to_owned),
            headers,
            payload: body.payload.filter(|_| shows_payload).map(text),
        }
    }

    /// Removes cancelled messages, adds the due times of rescheduled ones, and sorts the rest.
    async fn into_page(mut self) -> Result<MessagePage, Error> {
        let named = match self.ids.as_slice() {
            [] => Vec::new(),
            ids => self.query.find_ids(ids).await?,
        };
        let mut named = named.into_iter();
        for (item, (_, place)) in self.page.items.iter_mut().zip(&self.found) {
            // A later message may have the id: a record would change that one.
            item.can_change = item.can_change && named.next().flatten() == Some(*place);
        }
        let changes = match self.found.as_slice() {
            [] => Vec::new(),
            found => self.query.changes(found).await?,
        };
        let mut changes = self.found.iter().zip(changes);
        let filter = &self.search.filter;
        self.page.items.retain_mut(|item| match changes.next() {
            Some((_, Some(PlaceChange::Cancelled))) => false,
            Some((_, Some(PlaceChange::Moved(due)))) => {
                item.rescheduled_ms = Some(due.as_millis());
                filter.takes_due(due)
            }
            Some(((_, place), None)) => filter.takes_due(place.due),
            None => true,
        });
        self.page
            .items
            .sort_by_key(|item| (item.due_ms, item.partition, item.offset));
        if self.page.more {
            self.page.after = self.after.map(|after| after.to_token());
        }
        Ok(self.page)
    }
}
