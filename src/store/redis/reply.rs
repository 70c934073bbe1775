//! The replies of the scripts as outcomes of the port. A reply is a tag and its parts, as the head
//! of each script lists them.

use super::codec::{self, CountField};
use super::key;
use crate::model::{
    Cursor, LeaseToken, Pause, Progress, SessionId, Slice, SourceIdentity, Timestamp, Watermark,
};
use crate::store::rules::NO_HOLD;
use crate::store::{
    Acquired, Advanced, Appended, Error, Heartbeat, Hold, IdPosition, Ledger, Listed, Opened,
    Replaced, Restored, RunEntry, Session, SliceCount, StoredShard, TailRun, Tailed, ToldEffect,
    begun_copy,
};
use redis::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// A reply: its tag, and the parts that were not read yet.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) tag: String,
    parts: std::vec::IntoIter<Value>,
}

impl Reply {
    pub(super) fn new(value: Value) -> Result<Self, Error> {
        let Value::Array(parts) = value else {
            return Err(unexpected_reply("no list"));
        };
        let mut parts = parts.into_iter();
        let tag = parts
            .next()
            .and_then(text)
            .ok_or_else(|| unexpected_reply("a list without a tag"))?;
        Ok(Self { tag, parts })
    }

    /// The reply for a shard that this layout version cannot read.
    pub(super) fn unknown() -> Self {
        Self {
            tag: "unknown".to_owned(),
            parts: Vec::new().into_iter(),
        }
    }

    fn part<T>(&mut self, read: impl FnOnce(Value) -> Option<T>) -> Result<T, Error> {
        self.parts
            .next()
            .and_then(read)
            .ok_or_else(|| unexpected_reply(&self.tag))
    }

    fn text(&mut self) -> Result<String, Error> {
        self.part(text)
    }

    fn number<N: TryFrom<i64>>(&mut self) -> Result<N, Error> {
        self.part(|value| match value {
            Value::Int(number) => N::try_from(number).ok(),
            _ => None,
        })
    }

    /// The remaining parts: numbers of `KEYS`, counted from 1.
    pub(super) fn key_numbers(&mut self) -> Result<Vec<usize>, Error> {
        let mut numbers = Vec::new();
        while !self.parts.as_slice().is_empty() {
            numbers.push(self.number()?);
        }
        Ok(numbers)
    }

    fn watermark(&mut self) -> Result<Watermark, Error> {
        self.part(|value| codec::parse_watermark(&text(value)?))
    }

    fn time(&mut self) -> Result<Timestamp, Error> {
        self.number().map(Timestamp::from_millis)
    }

    fn pause(&mut self) -> Result<Option<Pause>, Error> {
        parse_pause(&self.text()?).ok_or_else(|| unexpected_reply(&self.tag))
    }

    fn state(&mut self) -> Result<StoredShard, Error> {
        self.part(parse_state)
    }

    /// `None`: a newer version wrote one of the runs.
    fn tail_runs(&mut self) -> Result<Option<Vec<TailRun>>, Error> {
        let members = self.part(texts)?;
        if members
            .iter()
            .any(|member| codec::is_of_newer_slice(member))
        {
            return Ok(None);
        }
        // A member that cannot be parsed is foreign.
        let entries = members
            .iter()
            .filter_map(|member| codec::parse_tail_member(member));
        let runs = entries.map(|entry| TailRun { entry, bytes: None });
        Ok(Some(runs.collect()))
    }

    fn unexpected_tag<T>(self) -> Result<T, Error> {
        Err(unexpected_reply(&self.tag))
    }

    /// `keys` are the keys of the call. The first one is meta.
    pub(super) fn opened(mut self, keys: &[String]) -> Result<Opened, Error> {
        Ok(match self.tag.as_str() {
            "created" => Opened::Created(self.state()?),
            "existing" => Opened::Existing(self.state()?),
            "absent" => Opened::Absent,
            "version" => Opened::Incompatible(wrong_layout(&keys[0], &self.text()?)),
            "newer" => Opened::Incompatible(newer_slice(&self.text()?)),
            "foreign" => {
                let numbers = self.key_numbers()?.into_iter();
                let keys = numbers.filter_map(|number| keys.get(number.checked_sub(1)?));
                let names = keys.map(|key| format!("`{key}`"));
                Opened::Incompatible(wrong_type(&names.collect::<Vec<_>>().join(", ")))
            }
            _ => return self.unexpected_tag(),
        })
    }

    pub(super) fn appended(mut self) -> Result<Appended, Error> {
        Ok(match self.tag.as_str() {
            "done" => Appended::Done {
                cancelled: self.number()?,
                missed: self.number()?,
                told: self.told_effects()?,
            },
            "watermark_mismatch" => Appended::WatermarkMismatch(self.watermark()?),
            "unknown" => Appended::Unknown,
            _ => return self.unexpected_tag(),
        })
    }

    fn told_effects(&mut self) -> Result<Vec<ToldEffect>, Error> {
        let mut told = Vec::new();
        while !self.parts.as_slice().is_empty() {
            told.extend(codec::parse_told(&self.text()?));
        }
        Ok(told)
    }

    /// `None`: unknown shard.
    pub(super) fn known_state(mut self) -> Result<Option<StoredShard>, Error> {
        match self.tag.as_str() {
            "state" => self.state().map(Some),
            "unknown" => Ok(None),
            _ => self.unexpected_tag(),
        }
    }

    /// `slices` are those whose indexes the call has read.
    pub(super) fn listed(mut self, slices: &[Slice], limit: usize) -> Result<Listed, Error> {
        match self.tag.as_str() {
            "runs" => {}
            "unknown" => return Ok(Listed::Unknown),
            _ => return self.unexpected_tag(),
        }
        let watermark = self.watermark()?;
        let lineage = codec::parse_lineage(&self.text()?);
        let mut runs = Vec::new();
        while !self.parts.as_slice().is_empty() {
            let number: usize = self.number()?;
            let name = codec::parse_index_member(&self.text()?);
            let least_due = codec::parse_score(&self.text()?);
            // The indexes follow two other keys.
            let slice = number.checked_sub(3).and_then(|at| slices.get(at));
            runs.extend(
                slice
                    .zip(name)
                    .zip(least_due)
                    .map(|((slice, name), least_due)| RunEntry {
                        slice: *slice,
                        name,
                        least_due,
                    }),
            );
        }
        let place = |run: &RunEntry| (run.least_due, run.name.least_offset());
        runs.sort_by(|a, b| place(a).cmp(&place(b)).then_with(|| a.name.cmp(&b.name)));
        let has_more = runs.len() > limit;
        runs.truncate(limit);
        Ok(Listed::Runs {
            watermark,
            lineage,
            runs,
            has_more,
        })
    }

    pub(super) fn acquired(mut self) -> Result<Acquired, Error> {
        Ok(match self.tag.as_str() {
            "granted" => Acquired::Granted(self.state()?),
            "held" => {
                // A holder of version 0.1.0 has no session. The caller tries again later.
                let held = LeaseToken::parse(&self.text()?);
                held.map_or(Acquired::Unknown, Acquired::HeldBy)
            }
            "newer" => Acquired::Incompatible(newer_slice(&self.text()?)),
            "other_cluster" => Acquired::OtherCluster(SourceIdentity(self.text()?.into())),
            "unknown" => Acquired::Unknown,
            _ => return self.unexpected_tag(),
        })
    }

    pub(super) fn advanced(mut self) -> Result<Advanced, Error> {
        Ok(match self.tag.as_str() {
            "done" => {
                let watermark = self.watermark()?;
                let (mut cancelled, mut effects) = (Vec::new(), Vec::new());
                for value in self.parts {
                    let part = text(value).ok_or_else(|| unexpected_reply("done"))?;
                    match Cursor::from_hex(&part) {
                        Some(place) => cancelled.push(place),
                        // A value that cannot be parsed is foreign.
                        None => {
                            let moved = codec::parse_moved(&part);
                            effects.extend(moved.or_else(|| codec::parse_effect(&part)));
                        }
                    }
                }
                effects.sort_unstable();
                effects.dedup();
                Advanced::Done {
                    watermark,
                    cancelled,
                    effects,
                }
            }
            "clock_ahead" => Advanced::ClockAhead {
                watermark: self.watermark()?,
                now: self.time()?,
            },
            "rolled_back" => Advanced::RolledBack {
                watermark: self.watermark()?,
            },
            "paused" => {
                let watermark = self.watermark()?;
                let pause = self.pause()?.ok_or_else(|| unexpected_reply("paused"))?;
                Advanced::Paused { watermark, pause }
            }
            "fenced" => Advanced::Fenced,
            "unknown" => Advanced::Unknown,
            _ => return self.unexpected_tag(),
        })
    }

    /// The runs come without bytes.
    pub(super) fn tailed(mut self) -> Result<Tailed, Error> {
        Ok(match self.tag.as_str() {
            "runs" => {
                let (watermark, complete_to) = (self.watermark()?, self.watermark()?);
                let lineage = codec::parse_lineage(&self.text()?);
                let hold = match &*self.text()? {
                    "no_ids" => Hold::NoIds,
                    text => codec::parse_hold(text).map_or(Hold::Ended, Hold::Until),
                };
                let pause = self.pause()?;
                let runs = self.tail_runs()?;
                runs.map_or(Tailed::Unknown, |runs| Tailed::Runs {
                    watermark,
                    complete_to,
                    lineage,
                    hold,
                    pause,
                    runs,
                })
            }
            "out_of_range" => Tailed::OutOfRange {
                watermark: self.watermark()?,
            },
            "unknown" => Tailed::Unknown,
            _ => return self.unexpected_tag(),
        })
    }

    pub(super) fn replaced(self) -> Result<Replaced, Error> {
        Ok(match self.tag.as_str() {
            "done" => Replaced::Done,
            "conflict" => Replaced::Conflict,
            "fenced" => Replaced::Fenced,
            "unknown" => Replaced::Unknown,
            _ => return self.unexpected_tag(),
        })
    }

    pub(super) fn next_ids(mut self) -> Result<Option<IdPosition>, Error> {
        match self.tag.as_str() {
            "done" => {
                let cursor = self.text()?;
                Ok((cursor != "0").then(|| IdPosition(cursor.into_bytes().into())))
            }
            "unknown" => Ok(None),
            _ => self.unexpected_tag(),
        }
    }

    pub(super) fn restored(self) -> Result<Restored, Error> {
        Ok(match self.tag.as_str() {
            "done" => Restored::Done,
            "too_early" => Restored::TooEarly,
            "gone" | "unknown" => Restored::Gone,
            _ => return self.unexpected_tag(),
        })
    }

    pub(super) fn heartbeat(mut self) -> Result<Heartbeat, Error> {
        Ok(match self.tag.as_str() {
            "renewed" => {
                let now = self.time()?;
                let sessions = self.sessions()?;
                Heartbeat::Renewed { now, sessions }
            }
            "ended" => Heartbeat::Ended(self.sessions()?),
            "name_taken" => Heartbeat::NameTaken(self.sessions()?),
            "other_clusters" => Heartbeat::OtherClusters(self.sessions()?),
            "older_workers" => Heartbeat::OlderWorkers(self.number()?),
            _ => return self.unexpected_tag(),
        })
    }

    /// Sessions, ordered by id. Skips fields with a foreign name. A worker whose entry cannot be read
    /// counts as one without work, because its session protects its leases.
    fn sessions(&mut self) -> Result<Vec<Session>, Error> {
        let mut sessions = Vec::new();
        while !self.parts.as_slice().is_empty() {
            let id = SessionId::parse(&self.text()?);
            let heartbeats = self.text()?.parse().unwrap_or_default();
            let length = self.text()?.parse().unwrap_or_default();
            let expires_in = Duration::from_millis(self.number()?);
            let is_connected = self.number::<u64>()? > 0;
            let entry = serde_json::from_str(&self.text()?).unwrap_or_default();
            sessions.extend(id.map(|id| Session {
                id,
                entry,
                heartbeats,
                length: Duration::from_millis(length),
                expires_in,
                is_connected,
            }));
        }
        sessions.sort_by_key(|session| session.id);
        Ok(sessions)
    }

    /// The number of quarantined runs.
    pub(super) fn moved(mut self) -> Result<usize, Error> {
        match self.tag.as_str() {
            "moved" => self.number(),
            "fenced" | "unknown" => Ok(0),
            _ => self.unexpected_tag(),
        }
    }
}

/// The inner `None`: there was no control record. The outer one: unreadable.
fn parse_pause(text: &str) -> Option<Option<Pause>> {
    match text {
        "" => Some(None),
        text => Pause::parse(text).map(Some),
    }
}

/// The parts of a state are listed in `lua/include/shard.lua`.
fn parse_state(value: Value) -> Option<StoredShard> {
    let Value::Array(parts) = value else {
        return None;
    };
    let [
        identity,
        watermark,
        claimed,
        delivered,
        hold,
        possibly_delivered,
        ledger,
        counts,
        keys,
        pause,
    ] = <[Value; 10]>::try_from(parts).ok()?;
    let watermark = codec::parse_watermark(&text(watermark)?)?;
    let mut shard = StoredShard {
        identity: SourceIdentity(text(identity)?.into()),
        watermark,
        claimed: Progress::from_hex(&text(claimed)?)?,
        delivered: Progress::from_hex(&text(delivered)?)?,
        hold: codec::parse_hold(&text(hold)?).unwrap_or(NO_HOLD),
        possibly_delivered: Progress::from_hex(&text(possibly_delivered)?)?,
        pause: parse_pause(&text(pause)?)?,
        lowest_pending: watermark.offset(),
        slices: Vec::new(),
        quarantined: 0,
        keys: BTreeMap::new(),
        ledger: Ledger::default(),
    };
    for field in texts(counts)?.chunks_exact(2) {
        let count = CountField::parse(&field[1]);
        shard.lowest_pending = shard.lowest_pending.min(count.least_offset);
        if field[0] == key::QUARANTINE_FIELD {
            shard.quarantined = count.messages;
        } else {
            // A field that is no slice is foreign.
            let slice = Slice::parse(&field[0]);
            shard.slices.extend(slice.map(|slice| SliceCount {
                slice,
                messages: count.messages,
                bytes: count.bytes,
            }));
        }
    }
    for field in texts(keys)?.chunks_exact(2) {
        let key = field[0].strip_prefix(key::KEY_FIELD_PREFIX)?;
        shard.keys.insert(key.into(), field[1].parse().ok()?);
    }
    shard.slices.sort_by_key(|count| count.slice);
    shard.ledger = codec::parse_ledger(&text(ledger)?, &shard);
    Some(shard)
}

/// A list of strings. `None`: another value, or a string is missing.
pub(super) fn texts(value: Value) -> Option<Vec<String>> {
    match value {
        Value::Array(values) => values.into_iter().map(text).collect(),
        _ => None,
    }
}

/// Any string. Bytes that are not UTF-8 are replaced: Postdate writes none.
pub(super) fn text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        }),
        Value::SimpleString(text) => Some(text),
        Value::Okay => Some("OK".to_owned()),
        _ => None,
    }
}

fn unexpected_reply(reply: &str) -> Error {
    Error::Unusable(format!(
        "a script gave an unexpected reply (`{reply}`): check that this server is a Redis"
    ))
}

fn wrong_layout(meta: &str, version: &str) -> String {
    let ours = key::LAYOUT_VERSION;
    if version == key::COPY_VERSION {
        return begun_copy(meta);
    }
    if is_newer_version(version, ours) {
        return format!(
            "`{meta}` holds layout version {version}, which a newer version of Postdate wrote: run the \
             newer version"
        );
    }
    let found = match version {
        "" => "no layout version".to_owned(),
        version if version == ours => "values that cannot be read".to_owned(),
        other => format!("layout version `{other}`"),
    };
    format!(
        "`{meta}` holds {found}, and this version of Postdate reads and writes layout {ours}: \
         let the version that wrote it deliver the waiting messages, or erase the shard \
         (`postdate reset`); its messages are then read again from the source, as far as the \
         source retains them"
    )
}

fn is_newer_version(version: &str, ours: &str) -> bool {
    let number = |text: &str| text.parse::<u32>().ok();
    number(version) > number(ours)
}

fn newer_slice(slice: &str) -> String {
    format!(
        "it holds messages in the slice `{slice}`, which this version of Postdate does not know: a \
         newer version wrote it, so run the newer version"
    )
}

fn wrong_type(keys: &str) -> String {
    format!(
        "{keys} was overwritten with a value of another type: find the client that writes to this \
         Redis, then erase the shard (`postdate reset`); its messages are then read again from \
         the source, as far as the source retains them"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fuzz::fuzz;

    /// A reply from bytes: each part is a kind, and a text up to the next line end.
    fn value(lines: &mut std::slice::Split<'_, u8, impl FnMut(&u8) -> bool>, depth: u8) -> Value {
        let line = lines.next().unwrap_or_default();
        let (kind, text) = line.split_first().unwrap_or((&0, &[]));
        let number = || {
            std::str::from_utf8(text)
                .ok()
                .and_then(|it| it.parse().ok())
        };
        match kind {
            b'*' if depth < 4 => {
                let count = number().unwrap_or(0).clamp(0, 9);
                Value::Array((0..count).map(|_| value(lines, depth + 1)).collect())
            }
            b':' => Value::Int(number().unwrap_or(-1)),
            b'+' => Value::SimpleString(String::from_utf8_lossy(text).into_owned()),
            b'-' => Value::Nil,
            _ => Value::BulkString(text.to_vec()),
        }
    }

    fn parse(value: &Value) {
        let reply = || Reply::new(value.clone());
        let Ok(mut numbers) = reply() else { return };
        let _ = numbers.key_numbers();
        let slice = Slice::parse("h482913").into_iter().collect::<Vec<_>>();
        let keys = ["a".to_owned(), "b".to_owned()];
        let _ = reply().map(|it| it.opened(&keys));
        let _ = reply().map(Reply::appended);
        let _ = reply().map(Reply::known_state);
        let _ = reply().map(|it| it.listed(&slice, 2));
        let _ = reply().map(Reply::acquired);
        let _ = reply().map(Reply::advanced);
        let _ = reply().map(Reply::tailed);
        let _ = reply().map(Reply::replaced);
        let _ = reply().map(Reply::restored);
        let _ = reply().map(Reply::next_ids);
        let _ = reply().map(Reply::heartbeat);
        let _ = reply().map(Reply::moved);
    }

    #[test]
    fn fuzz_replies() {
        let zeros = "0".repeat(48);
        let (watermark, place) = (&zeros[..16], &zeros[..32]);
        let ledger = format!("1 0 0 0 0 0 0 {watermark}{zeros}");
        let state = format!(
            "*9\n$c:t\n${watermark}\n${zeros}\n${zeros}\n${watermark}\n${zeros}\n${ledger}\n*4\n$h482913\n$1 2 {watermark}\n$quarantine\n$1 1 x\n*2\n$key:1-a\n$1"
        );
        let seeds = [
            format!("*2\n$created\n{state}"),
            format!("*2\n$state\n{state}"),
            format!("*3\n$granted\n:1700000000000\n{state}"),
            "*3\n$done\n:1\n:2".to_owned(),
            format!("*3\n$done\n${watermark}\n${place}"),
            format!("*3\n$clock_ahead\n${watermark}\n:5"),
            format!(
                "*6\n$runs\n${watermark}\n$1-1 0-0 {watermark} 3\n:3\n${watermark} 1-1-1-0\n$5"
            ),
            format!(
                "*5\n$runs\n${watermark}\n${watermark}\n$\n*1\n${watermark} {watermark} 1-1-1-0 5 h7"
            ),
            format!("*3\n$workers\n${place}\n:9"),
            "*3\n$foreign\n:1\n:9223372036854775807".to_owned(),
        ];
        fuzz(&seeds, |bytes| {
            let mut lines = bytes.split(|byte| *byte == b'\n');
            parse(&value(&mut lines, 0));
        });
    }
}
