//! The reads that no script can do, as they touch slices that only `counts` names: lists and fetches, as plain pipelined commands.

use super::key::{self, Key, Keys};
use super::reply::text;
use super::script::{Call, SliceKey};
use super::{Redis, codec, connection};
use crate::limit;
use crate::model::{Progress, ShardId, Slice, Timestamp, Watermark};
use crate::run::RunName;
use crate::store::{Error, Fetch, Lineage, List, Listed, RunEntry, ShardPosition};
use bytes::Bytes;
use redis::{Pipeline, Value};
use std::collections::BTreeMap;

impl Redis {
    /// Slices are looked into in the order of their least dues, a few at a time, until no other can hold what is asked for.
    pub(super) async fn list_runs(&self, requests: &[List]) -> Result<Vec<Listed>, Error> {
        let mut searches = self.start_scans(requests).await?;
        while searches.iter().flatten().any(|search| !search.is_done()) {
            let mut pipeline = Pipeline::new();
            for search in searches.iter_mut().flatten() {
                search.request_slices(&mut pipeline);
            }
            let mut values = self.connection.send(&pipeline).await?.into_iter();
            let mut foreign = Vec::new();
            for search in &mut searches {
                if search
                    .as_mut()
                    .is_some_and(|open| !open.read(&mut values, &mut foreign))
                {
                    *search = None;
                }
            }
            self.rename_foreign(&foreign).await?;
        }
        Ok(searches
            .into_iter()
            .map(|search| search.map_or(Listed::Unknown, ListScan::finish))
            .collect())
    }

    /// Reads watermarks and the index of slices. `None`: unknown.
    async fn start_scans<'a>(
        &self,
        requests: &'a [List],
    ) -> Result<Vec<Option<ListScan<'a>>>, Error> {
        let keys: Vec<Keys> = requests
            .iter()
            .map(|request| self.keyspace.shard_keys(&request.shard))
            .collect();
        let replies = self.run(keys.iter().map(Call::state).collect()).await?;
        let searches = requests
            .iter()
            .zip(keys)
            .zip(replies)
            .map(|((request, keys), reply)| {
                Ok(reply.slices()?.map(|(watermark, history, slices)| {
                    ListScan::new(request, keys, (watermark, history), slices)
                }))
            });
        searches.collect()
    }

    pub(super) async fn read_positions(
        &self,
        shards: &[ShardId],
    ) -> Result<Vec<Option<ShardPosition>>, Error> {
        let mut pipeline = Pipeline::new();
        for shard in shards {
            request_meta(&mut pipeline, &self.keyspace.shard_keys(shard));
            pipeline.arg("delivered");
        }
        Ok(self
            .connection
            .send(&pipeline)
            .await?
            .into_iter()
            .map(parse_position)
            .collect())
    }

    pub(super) async fn fetch_runs(
        &self,
        requests: &[Fetch],
    ) -> Result<Vec<Vec<Option<Bytes>>>, Error> {
        let mut pipeline = Pipeline::new();
        let groups: Vec<BTreeMap<Slice, Vec<usize>>> = requests
            .iter()
            .map(|request| by_slice(&request.runs))
            .collect();
        for (request, group) in requests.iter().zip(&groups) {
            let keys = self.keyspace.shard_keys(&request.shard);
            for (slice, places) in group {
                let names: Vec<&str> = places
                    .iter()
                    .map(|&at| request.runs[at].1.as_str())
                    .collect();
                pipeline.cmd("HMGET").arg(keys.pool(*slice)).arg(names);
            }
        }
        let mut values = self.connection.send(&pipeline).await?.into_iter();
        let mut fetched: Vec<Vec<Option<Bytes>>> = requests
            .iter()
            .map(|request| vec![None; request.runs.len()])
            .collect();
        for (group, runs) in groups.iter().zip(&mut fetched) {
            for places in group.values() {
                // A pool of another type reads as one that holds nothing.
                let Some(Value::Array(found)) = values.next() else {
                    continue;
                };
                for (&at, value) in places.iter().zip(found) {
                    if let Value::BulkString(bytes) = value {
                        runs[at] = Some(Bytes::from(bytes));
                    }
                }
            }
        }
        self.mark_lost_runs(requests, &mut fetched).await?;
        Ok(fetched)
    }

    /// A run without bytes whose name is still listed is not gone but lost: it is handed out empty, so that it is found unreadable and set
    /// aside, instead of being asked for again and again.
    async fn mark_lost_runs(
        &self,
        requests: &[Fetch],
        fetched: &mut [Vec<Option<Bytes>>],
    ) -> Result<(), Error> {
        let mut pipeline = Pipeline::new();
        for (request, runs) in requests.iter().zip(&*fetched) {
            let keys = self.keyspace.shard_keys(&request.shard);
            for ((slice, name), _) in request
                .runs
                .iter()
                .zip(runs)
                .filter(|(_, bytes)| bytes.is_none())
            {
                pipeline
                    .cmd("ZSCORE")
                    .arg(keys.slice(*slice))
                    .arg(codec::index_member(name));
            }
        }
        let listed = self.connection.send(&pipeline).await?;
        for (bytes, score) in fetched
            .iter_mut()
            .flatten()
            .filter(|bytes| bytes.is_none())
            .zip(listed)
        {
            if matches!(score, Value::BulkString(_)) {
                *bytes = Some(Bytes::new());
            }
        }
        Ok(())
    }
}

/// One list under way.
struct ListScan<'a> {
    request: &'a List,
    keys: Keys,
    watermark: Watermark,
    lineage: Lineage,
    /// What is still to be looked into, the least due last.
    remaining: Vec<Slice>,
    /// What was asked for in this round.
    requested: Vec<Slice>,
    /// Slices that the next round looks into. It doubles: the first few often are all that matters, and a slice may have many rows.
    slices_per_round: usize,
    /// Runs of each of them that matter, and the rows that it was asked for.
    runs_wanted: usize,
    rows_requested: usize,
    /// Rows beyond what matters that are asked for, as so many are not ours.
    foreign_rows: usize,
    found: Vec<RunEntry>,
}

impl<'a> ListScan<'a> {
    fn new(
        request: &'a List,
        keys: Keys,
        (watermark, history): (Watermark, Lineage),
        mut slices: Vec<Slice>,
    ) -> Self {
        slices.retain(|slice| may_hold(*slice, request));
        slices.sort_by_key(|slice| std::cmp::Reverse((slice.least_due(), *slice)));
        let (width, asked, found) = (*limit::LIST_SLICES_PER_CALL.start(), Vec::new(), Vec::new());
        Self {
            request,
            keys,
            watermark,
            lineage: history,
            remaining: slices,
            requested: asked,
            slices_per_round: width,
            runs_wanted: 0,
            rows_requested: 0,
            foreign_rows: 0,
            found,
        }
    }

    /// Whether no slice that is left can hold one of the first `limit` runs.
    fn is_done(&self) -> bool {
        let Some(next) = self.remaining.last() else {
            return true;
        };
        self.found.len() > self.request.limit
            && self.found[..self.request.limit]
                .last()
                .is_none_or(|last| last.least_due < next.least_due())
    }

    fn request_slices(&mut self, pipeline: &mut Pipeline) {
        if self.is_done() {
            return;
        }
        self.runs_wanted = self.runs_needed().min(limit::REQUESTED_RUNS_MAX + 1);
        self.rows_requested =
            (self.runs_wanted + self.foreign_rows).min(limit::REQUESTED_RUNS_MAX + 1);
        self.requested = self
            .remaining
            .split_off(self.remaining.len().saturating_sub(self.slices_per_round));
        self.slices_per_round = (2 * self.slices_per_round).min(*limit::LIST_SLICES_PER_CALL.end());
        request_meta(pipeline, &self.keys);
        for slice in &self.requested {
            let (from, until) = (
                codec::due_score(self.request.from),
                codec::due_score(self.request.until),
            );
            pipeline
                .cmd("ZRANGEBYSCORE")
                .arg(self.keys.slice(*slice))
                .arg(from)
                .arg(until)
                .arg("WITHSCORES");
            pipeline.arg("LIMIT").arg(0).arg(self.rows_requested);
        }
    }

    /// Of so many runs at most it matters that they are in one of the slices that are left: what was found before all of them goes before. One
    /// more than the limit tells whether there are more.
    fn runs_needed(&self) -> usize {
        let certain = self.remaining.last().map_or(0, |next| {
            self.found
                .partition_point(|run| run.least_due < next.least_due())
        });
        self.request.limit.saturating_add(1) - certain.min(self.request.limit)
    }

    /// Reads the answers to [`Search::ask`]. Answers whether the shard is still there.
    fn read(
        &mut self,
        values: &mut impl Iterator<Item = Value>,
        foreign: &mut Vec<SliceKey>,
    ) -> bool {
        if self.requested.is_empty() {
            return true;
        }
        let positions = values.next().and_then(parse_meta);
        for slice in std::mem::take(&mut self.requested) {
            let Some(rows) = values.next().and_then(texts) else {
                foreign.push(SliceKey {
                    name: self.keys.slice(slice),
                    expected_type: key::SLICE_TYPE,
                });
                continue;
            };
            self.read_slice(slice, &rows);
        }
        self.found.sort_by(|a, b| order(a).cmp(&order(b)));
        let Some((watermark, history, _)) = positions else {
            return false;
        };
        // Each of the two was read before the names that came after it; were the store to go back in between, only the lower one is true, and
        // the last history tells.
        (self.watermark, self.lineage) = (self.watermark.min(watermark), history);
        true
    }

    /// Where rows that are not ours took the place of runs that matter, the slice is looked into once more, for as many more: at least twice
    /// as many beyond what matters as before.
    fn read_slice(&mut self, slice: Slice, rows: &[String]) {
        let ours: Vec<RunEntry> = rows
            .chunks_exact(2)
            .filter_map(|row| listing(slice, &row[0], &row[1]))
            .collect();
        let count = rows.len() / 2;
        if ours.len() < self.runs_wanted
            && count == self.rows_requested
            && count <= limit::REQUESTED_RUNS_MAX
        {
            self.foreign_rows += count - ours.len();
            self.remaining.push(slice);
        } else {
            self.found.extend(ours);
        }
    }

    fn finish(mut self) -> Listed {
        let more = self.found.len() > self.request.limit;
        self.found.truncate(self.request.limit);
        Listed::Runs {
            watermark: self.watermark,
            lineage: self.lineage,
            runs: self.found,
            has_more: more,
        }
    }
}

fn order(listing: &RunEntry) -> (Timestamp, crate::model::Offset, &RunName) {
    (
        listing.least_due,
        listing.name.least_offset(),
        &listing.name,
    )
}

fn listing(slice: Slice, member: &str, score: &str) -> Option<RunEntry> {
    Some(RunEntry {
        slice,
        name: codec::parse_index_member(member)?,
        least_due: codec::parse_score(score)?,
    })
}

fn may_hold(slice: Slice, request: &List) -> bool {
    let ended = slice.end().is_some_and(|end| end <= request.from);
    slice.least_due() <= request.until && !ended
}

fn request_meta(pipeline: &mut Pipeline, keys: &Keys) {
    pipeline
        .cmd("HMGET")
        .arg(keys.name(Key::Meta))
        .arg("version")
        .arg("watermark")
        .arg("history");
}

/// Watermark, history, and what else was asked for. A shard may have no history yet.
fn parse_meta(value: Value) -> Option<(Watermark, Lineage, Option<Value>)> {
    let Value::Array(values) = value else {
        return None;
    };
    let mut values = values.into_iter();
    let (version, watermark, history) = (
        text(values.next()?)?,
        text(values.next()?)?,
        text(values.next()?),
    );
    let history = history.map_or_else(Lineage::default, |history| codec::parse_lineage(&history));
    if version == key::LAYOUT_VERSION {
        Some((codec::parse_watermark(&watermark)?, history, values.next()))
    } else {
        None
    }
}

fn parse_position(value: Value) -> Option<ShardPosition> {
    let (watermark, history, delivered) = parse_meta(value)?;
    Some(ShardPosition {
        watermark,
        delivered: Progress::from_hex(&text(delivered?)?)?,
        lineage: history,
    })
}

/// A list of strings; `None` if it is something else, or one of them is missing.
fn texts(value: Value) -> Option<Vec<String>> {
    match value {
        Value::Array(values) => values.into_iter().map(text).collect(),
        _ => None,
    }
}

fn by_slice(runs: &[(Slice, RunName)]) -> BTreeMap<Slice, Vec<usize>> {
    let mut groups: BTreeMap<Slice, Vec<usize>> = BTreeMap::new();
    for (at, (slice, _)) in runs.iter().enumerate() {
        groups.entry(*slice).or_default().push(at);
    }
    groups
}

/// Fields of `counts`, for erasing; empty if it is not a hash.
pub(super) fn fields(value: Value) -> Vec<String> {
    texts(value).unwrap_or_default()
}

pub(super) fn is_wrong_type(value: &Value) -> bool {
    connection::is_error(value, "WRONGTYPE")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Level, Partition, ShardId};
    use crate::store::redis::key::Keyspace;

    #[test]
    fn a_list_promises_no_more_than_the_store_held_while_it_was_read() {
        let shard = ShardId::new("route", Partition::new("topic", 0));
        let keys = Keyspace::new("test").shard_keys(&shard);
        let request = List {
            shard,
            from: Timestamp::AT_ONCE,
            until: Timestamp::MAX,
            limit: 9,
        };
        let string = |text: &str| Value::BulkString(text.into());
        let meta = |watermark: &str, history: &str| {
            Value::Array(vec![
                string(key::LAYOUT_VERSION),
                string(watermark),
                string(history),
            ])
        };
        let (before, after) = (
            codec::parse_lineage("0-0 0-0 0000000000000000 3"),
            codec::parse_lineage("7-1 0-0 0000000000000005 2"),
        );
        let slice = Slice {
            level: Level::Hour,
            start: 1,
        };
        // The store went back, or on, between the two looks: names of the lower watermark are all that is sure to be among them.
        for (second, wanted) in [("0000000000000005", 5), ("000000000000000c", 10)] {
            let mut search =
                ListScan::new(&request, keys.clone(), (Watermark(10), before), vec![slice]);
            search.request_slices(&mut Pipeline::new());
            assert!(
                search.read(
                    &mut [
                        meta(second, "7-1 0-0 0000000000000005 2"),
                        Value::Array(vec![])
                    ]
                    .into_iter(),
                    &mut Vec::new()
                )
            );
            assert_eq!(
                search.finish(),
                Listed::Runs {
                    watermark: Watermark(wanted),
                    lineage: after,
                    runs: vec![],
                    has_more: false
                }
            );
        }
        let mut search = ListScan::new(&request, keys, (Watermark(10), before), vec![slice]);
        search.request_slices(&mut Pipeline::new());
        let gone = Value::Array(vec![Value::Nil, Value::Nil, Value::Nil]);
        assert!(
            !search.read(
                &mut [gone, Value::Array(vec![])].into_iter(),
                &mut Vec::new()
            ),
            "the shard was lost meanwhile"
        );
    }

    #[test]
    fn rows_that_are_not_ours_cost_few_rounds_however_many_runs_come_after_them() {
        let shard = ShardId::new("route", Partition::new("topic", 0));
        let (keys, slice) = (
            Keyspace::new("test").shard_keys(&shard),
            Slice {
                level: Level::Hour,
                start: 0,
            },
        );
        let request = List {
            shard,
            from: Timestamp::AT_ONCE,
            until: Timestamp::MAX,
            limit: 3,
        };
        let string = |text: &str| Value::BulkString(text.into());
        let meta = || {
            Value::Array(vec![
                string(key::LAYOUT_VERSION),
                string("0000000000000005"),
                Value::Nil,
            ])
        };
        for (foreign, most) in [(0, 1), (1, 2), (2, 2), (40, 6), (1_000, 10)] {
            let member = |row: usize| {
                if row < foreign {
                    format!("foreign{row}")
                } else {
                    format!("{row:016x} 1-{row:x}-1-{row:x}")
                }
            };
            let mut search = ListScan::new(
                &request,
                keys.clone(),
                (Watermark(5), Lineage::default()),
                vec![slice],
            );
            let mut rounds = 0;
            while !search.is_done() {
                search.request_slices(&mut Pipeline::new());
                let rows = (0..search.rows_requested.min(foreign + 10_000))
                    .flat_map(|row| [string(&member(row)), string(&row.to_string())]);
                assert!(search.read(
                    &mut [meta(), Value::Array(rows.collect())].into_iter(),
                    &mut Vec::new()
                ));
                rounds += 1;
            }
            let Listed::Runs {
                runs,
                has_more: more,
                ..
            } = search.finish()
            else {
                panic!("the shard is there")
            };
            let offsets: Vec<u64> = runs.iter().map(|run| run.name.least_offset().0).collect();
            assert_eq!(
                (offsets, more),
                ((foreign as u64..).take(3).collect(), true)
            );
            assert!(
                rounds <= most,
                "{rounds} rounds for {foreign} rows that are not ours"
            );
        }
    }
}
