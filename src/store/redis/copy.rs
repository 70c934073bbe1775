//! Moves shards to and from Redis: reads the keys of a shard part by part, and writes them under a
//! layout version of their own until the copy ends.

use super::Redis;
use super::codec::{self, CountField, due_score, index_member, offset_hex, watermark_hex};
use super::key::{self, CANCELLED, COPY_VERSION, COUNTS, EFFECTS, IDS, Keyspace, META, QUARANTINE};
use super::query::scanned;
use super::reply::{text, texts};
use super::script::{Call, Script};
use crate::limit::IDS_PER_STEP;
use crate::model::{Cursor, Offset, ShardId, Slice};
use crate::store::rules::{Change, ShardMeta};
use crate::store::{
    CopyNumber, CopyState, CopyStore, EffectKind, Error, Heartbeat, IdPosition, PartCounts,
    ShardEntry, ShardPart, ShardStore as _, StoredRun, StoredShard,
};
use async_trait::async_trait;
use redis::{Pipeline, ToRedisArgs, Value};
use std::collections::BTreeSet;

/// A position names a key and where its scan continues: the cursor of a scan, or the last member.
const IN_IDS: u8 = b'i';
const IN_CANCELLED: u8 = b'c';
const IN_EFFECTS: u8 = b'e';

#[async_trait(?Send)]
impl CopyStore for Redis {
    async fn copy_state(&self, shard: &ShardId) -> Result<CopyState, Error> {
        let meta = self.keyspace.shard_keys(shard).name(META);
        let mut pipeline = Pipeline::new();
        pipeline.cmd("EXISTS").arg(&meta);
        pipeline.cmd("HGET").arg(&meta).arg("version");
        let values = self.connections.send(&pipeline).await?;
        Ok(match <[Value; 2]>::try_from(values) {
            Ok([Value::Int(0), _]) => CopyState::Absent,
            Ok([_, version]) if version == Value::BulkString(COPY_VERSION.into()) => {
                CopyState::Begun
            }
            _ => match self.shard_state(shard).await? {
                Some(state) => CopyState::Stored(Box::new(state)),
                None => CopyState::Unreadable(format!(
                    "`{meta}` holds data that this version of Postdate cannot read"
                )),
            },
        })
    }

    async fn shard_meta(&self, shard: &ShardId) -> Result<Option<ShardMeta>, Error> {
        let mut pipeline = Pipeline::new();
        let meta = self.keyspace.shard_keys(shard).name(META);
        pipeline.cmd("HGET").arg(meta).arg("hold");
        let hold = self.connections.send(&pipeline).await?.pop().and_then(text);
        let position = self
            .read_positions(std::slice::from_ref(shard))
            .await?
            .pop();
        let lineage = position.flatten().map(|position| position.lineage);
        let meta = self.shard_state(shard).await?.map(|state| ShardMeta {
            identity: state.identity,
            watermark: state.watermark,
            claimed: state.claimed,
            delivered: state.delivered,
            hold: codec::parse_hold(&hold.unwrap_or_default()),
            possibly_delivered: state.possibly_delivered,
            pause: state.pause,
            ledger: state.ledger,
            lineage: lineage.unwrap_or_default(),
        });
        Ok(meta)
    }

    async fn entries(
        &self,
        shard: &ShardId,
        from: Option<&IdPosition>,
    ) -> Result<(Vec<ShardEntry>, Option<IdPosition>), Error> {
        let from = from.map_or(&[IN_IDS, b'0'][..], |position| &position.0);
        let (in_key, from) = from.split_first().unwrap_or((&IN_IDS, b"0"));
        let mut entries = Vec::new();
        let next = match *in_key {
            IN_CANCELLED => {
                let last = self.read_changed(shard, from, &mut entries).await?;
                Some(last.map_or(vec![IN_EFFECTS, b'0'], |last| position(IN_CANCELLED, &last)))
            }
            in_key => {
                let name = if in_key == IN_IDS { IDS } else { EFFECTS };
                let (cursor, fields) = self.scan_hash(shard, name, from).await?;
                let parse = if in_key == IN_IDS {
                    parse_id
                } else {
                    parse_effect
                };
                entries.extend(
                    fields
                        .chunks_exact(2)
                        .filter_map(|it| parse(&it[0], &it[1])),
                );
                match cursor.as_str() {
                    "0" => (in_key == IN_IDS).then(|| vec![IN_CANCELLED]),
                    cursor => Some(position(in_key, cursor)),
                }
            }
        };
        Ok((entries, next.map(|next| IdPosition(next.into()))))
    }

    async fn count_parts(&self, shard: &ShardId) -> Result<PartCounts, Error> {
        let keys = self.keyspace.shard_keys(shard);
        let mut pipeline = Pipeline::new();
        pipeline.cmd("HGETALL").arg(keys.name(COUNTS));
        for name in [QUARANTINE, IDS] {
            pipeline.cmd("HLEN").arg(keys.name(name));
        }
        pipeline.cmd("ZCARD").arg(keys.name(CANCELLED));
        let mut values = self.connections.send(&pipeline).await?.into_iter();
        let counts = values.next().and_then(texts).unwrap_or_default();
        let [quarantined_runs, ids, changed] =
            [(); 3].map(|()| number(&values.next().unwrap_or(Value::Nil)));
        let (mut pipeline, mut messages) = (Pipeline::new(), 0);
        for field in counts.chunks_exact(2) {
            let slice = Slice::parse(&field[0]);
            if let Some(slice) = slice {
                pipeline.cmd("ZCARD").arg(keys.slice(slice));
            }
            if slice.is_some() || field[0] == key::QUARANTINE_FIELD {
                messages += CountField::parse(&field[1]).messages;
            }
        }
        let runs = self.connections.send(&pipeline).await?;
        Ok(PartCounts {
            runs: runs.iter().map(number).sum(),
            quarantined_runs,
            ids,
            changed,
            effects: self.count_effects(shard).await?,
            messages,
        })
    }

    async fn begin_copy(&self, shard: &ShardId, copy: CopyNumber) -> Result<bool, Error> {
        let reply = self.call_one(Call::begin_copy(&self.keyspace, shard, copy));
        Ok(reply.await?.tag == "started")
    }

    async fn add_to_copy(
        &self,
        shard: &ShardId,
        copy: CopyNumber,
        part: ShardPart,
    ) -> Result<bool, Error> {
        let reply = self.call_one(Call::add_to_copy(&self.keyspace, shard, copy, &part));
        Ok(reply.await?.tag == "added")
    }

    async fn end_copy(
        &self,
        shard: &ShardId,
        copy: CopyNumber,
        meta: &ShardMeta,
    ) -> Result<bool, Error> {
        let reply = self.call_one(Call::end_copy(&self.keyspace, shard, copy, meta));
        Ok(reply.await?.tag == "ended")
    }

    async fn older_workers(&self) -> Result<usize, Error> {
        let reply = self.call_one(Call::sessions(&self.keyspace));
        Ok(match reply.await?.heartbeat()? {
            Heartbeat::OlderWorkers(count) => count,
            _ => 0,
        })
    }
}

impl Redis {
    async fn shard_state(&self, shard: &ShardId) -> Result<Option<StoredShard>, Error> {
        let states = self.state(std::slice::from_ref(shard)).await?;
        Ok(states.into_iter().next().flatten())
    }

    /// A part of a hash: the next cursor, and fields and values in turn.
    async fn scan_hash(
        &self,
        shard: &ShardId,
        name: &str,
        cursor: &[u8],
    ) -> Result<(String, Vec<Vec<u8>>), Error> {
        let mut pipeline = Pipeline::new();
        let scan = pipeline
            .cmd("HSCAN")
            .arg(self.keyspace.shard_keys(shard).name(name));
        scan.arg(cursor).arg("COUNT").arg(IDS_PER_STEP);
        let value = self.connections.send(&pipeline).await?.pop();
        let part = value.and_then(|value| scanned(value).ok());
        Ok(part.unwrap_or_else(|| ("0".to_owned(), Vec::new())))
    }

    /// The number of requests with effects. The hash has other fields too, and some of them may have been
    /// left behind. A scan may answer a field twice. An effect stays only until its answer is delivered, so
    /// there are few.
    async fn count_effects(&self, shard: &ShardId) -> Result<u64, Error> {
        let (mut requests, mut cursor) = (BTreeSet::new(), "0".to_owned());
        loop {
            let (next, fields) = self.scan_hash(shard, EFFECTS, cursor.as_bytes()).await?;
            let effects = fields.chunks_exact(2);
            requests.extend(effects.filter_map(|it| parse_effect(&it[0], &it[1])));
            if next == "0" {
                return Ok(requests.len() as u64);
            }
            cursor = next;
        }
    }

    /// Adds the changed places behind this member, each with its request. Returns the last member if
    /// there may be more.
    async fn read_changed(
        &self,
        shard: &ShardId,
        after: &[u8],
        entries: &mut Vec<ShardEntry>,
    ) -> Result<Option<String>, Error> {
        let keys = self.keyspace.shard_keys(shard);
        let first = match after {
            b"" => b"-".to_vec(),
            after => [b"(", after].concat(),
        };
        let mut pipeline = Pipeline::new();
        let range = pipeline
            .cmd("ZRANGEBYLEX")
            .arg(keys.name(CANCELLED))
            .arg(first);
        range.arg("+").arg("LIMIT").arg(0).arg(IDS_PER_STEP);
        let value = self.connections.send(&pipeline).await?.pop();
        let members = value.and_then(texts).unwrap_or_default();
        let mut pipeline = Pipeline::new();
        for member in &members {
            let place = member.get(..32).unwrap_or(member);
            pipeline.cmd("HGET").arg(keys.name(EFFECTS)).arg(place);
        }
        let requests = self.connections.send(&pipeline).await?;
        let changed = members.iter().zip(requests);
        entries.extend(changed.filter_map(|(member, request)| parse_changed(member, request)));
        Ok(members
            .last()
            .filter(|_| members.len() == IDS_PER_STEP)
            .cloned())
    }
}

impl Call {
    fn begin_copy(keyspace: &Keyspace, shard: &ShardId, copy: CopyNumber) -> Self {
        let keys = key::OF_EVERY_SHARD;
        let mut call = Self::with_keys(Script::BeginCopy, keyspace, shard, &keys, [].into_iter());
        call.arg(COPY_VERSION).arg(copy.0);
        call
    }

    fn add_to_copy(
        keyspace: &Keyspace,
        shard: &ShardId,
        copy: CopyNumber,
        part: &ShardPart,
    ) -> Self {
        let keys = [META, COUNTS, IDS, CANCELLED, EFFECTS, QUARANTINE];
        let slices = part.runs.iter().filter_map(|run| run.slice);
        let mut call = Self::with_keys(Script::AddToCopy, keyspace, shard, &keys, slices);
        let quarantined = part.runs.iter().filter(|run| run.slice.is_none());
        let fields = EntryFields::of(&part.entries);
        call.arg(COPY_VERSION)
            .arg(copy.0)
            .arg(part.runs.len() - quarantined.clone().count())
            .arg(quarantined.clone().count())
            .arg(fields.ids.len())
            .arg(fields.changed.len());
        for (run, slice) in part.runs.iter().filter_map(|run| Some((run, run.slice?))) {
            call.run_name_args(slice, &run.name)
                .arg(due_score(run.least_due))
                .arg(&*run.bytes);
        }
        for StoredRun { name, bytes, .. } in quarantined {
            call.arg(index_member(name)).arg(name.count()).arg(&**bytes);
        }
        for (name, place) in fields.ids {
            call.arg(name).arg(place);
        }
        call.arg_list(fields.changed);
        for (field, value) in fields.effects {
            call.arg(field).arg(value);
        }
        call
    }

    fn end_copy(keyspace: &Keyspace, shard: &ShardId, copy: CopyNumber, meta: &ShardMeta) -> Self {
        let mut call = Self::with_keys(Script::EndCopy, keyspace, shard, &[META], [].into_iter());
        call.arg(COPY_VERSION)
            .arg(copy.0)
            .arg(key::LAYOUT_VERSION)
            .arg(&*meta.identity.0)
            .arg(watermark_hex(meta.watermark))
            .arg(meta.claimed.to_hex())
            .arg(meta.delivered.to_hex())
            .arg(meta.hold.map_or_else(|| "-".to_owned(), watermark_hex))
            .arg(meta.possibly_delivered.to_hex())
            .arg(codec::ledger_text(meta))
            .arg(codec::pause_text(meta.pause.as_ref()));
        call
    }

    fn arg_list(&mut self, args: Vec<impl ToRedisArgs>) {
        args.into_iter().for_each(|arg| _ = self.arg(arg));
    }
}

/// Entries as `lua/add_to_copy.lua` reads them.
#[derive(Default)]
struct EntryFields<'a> {
    ids: Vec<(&'a [u8], String)>,
    changed: Vec<String>,
    effects: Vec<(String, String)>,
}

impl<'a> EntryFields<'a> {
    fn of(entries: &'a [ShardEntry]) -> Self {
        let mut fields = Self::default();
        for entry in entries {
            match entry {
                ShardEntry::Id(name, place) => fields.ids.push((name, place.to_hex())),
                ShardEntry::Changed(place, change) => {
                    let moved = change.moved.map(codec::move_hex).unwrap_or_default();
                    fields.changed.push(place.to_hex() + &moved);
                    let request = change.request.map(offset_hex);
                    fields
                        .effects
                        .extend(request.map(|it| (place.to_hex(), it)));
                }
                ShardEntry::Effect(effect) => {
                    let letter = match effect.kind {
                        EffectKind::Changed => "c",
                        _ => "l",
                    };
                    let value = effect.place.to_hex() + letter;
                    fields.effects.push((offset_hex(effect.request), value));
                }
            }
        }
        fields
    }
}

fn position(in_key: u8, rest: &str) -> Vec<u8> {
    [&[in_key], rest.as_bytes()].concat()
}

/// `None`: foreign.
fn parse_id(name: &[u8], place: &[u8]) -> Option<ShardEntry> {
    let place = Cursor::from_hex(std::str::from_utf8(place).ok()?)?;
    Some(ShardEntry::Id(name.into(), place))
}

/// `None`: foreign, or the request of a changed place.
fn parse_effect(request: &[u8], value: &[u8]) -> Option<ShardEntry> {
    if request.len() != 16 {
        return None;
    }
    let effect = String::from_utf8([request, value].concat()).ok()?;
    codec::parse_effect(&effect).map(ShardEntry::Effect)
}

/// `None`: foreign.
fn parse_changed(member: &str, request: Value) -> Option<ShardEntry> {
    let place = Cursor::from_hex(member.get(..32)?)?;
    let moved = match member.len() {
        32 => None,
        _ => Some(codec::parse_move(&member[32..])?),
    };
    let request = text(request).and_then(|request| codec::parse_number(&request));
    Some(ShardEntry::Changed(
        place,
        Change {
            moved,
            request: request.map(Offset),
        },
    ))
}

/// 0 for a key of another type.
fn number(value: &Value) -> u64 {
    match value {
        Value::Int(number) => u64::try_from(*number).unwrap_or(0),
        _ => 0,
    }
}
