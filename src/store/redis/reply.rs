//! The replies of the scripts as outcomes of the port. A reply is a tag and its parts, as the head
//! of each script lists them.

use super::codec::{self, CountField};
use super::key;
use crate::model::{Cursor, Progress, Slice, SourceIdentity, Timestamp, Watermark, WorkerId};
use crate::store::{
    Acquired, Advanced, Appended, Error, Forecast, Ledger, Lineage, LiveWorker, Opened, Renewed,
    Replaced, ShardContents, SliceCount, StoredShard, TailRun, Tailed,
};
use redis::Value;
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

    fn has_more_parts(&self) -> bool {
        !self.parts.as_slice().is_empty()
    }

    fn text(&mut self) -> Result<String, Error> {
        self.part(text)
    }

    fn number<N: TryFrom<i64>>(&mut self) -> Result<N, Error> {
        self.part(|value| N::try_from(int(&value)?).ok())
    }

    /// All remaining parts as numbers.
    pub(super) fn numbers(&mut self) -> Result<Vec<usize>, Error> {
        let mut numbers = Vec::new();
        while self.has_more_parts() {
            numbers.push(self.number()?);
        }
        Ok(numbers)
    }

    fn watermark(&mut self) -> Result<Watermark, Error> {
        self.part(|value| codec::parse_watermark(&text(value)?))
    }

    fn time(&mut self) -> Result<Timestamp, Error> {
        self.part(|value| int(&value).map(Timestamp::from_millis))
    }

    fn state(&mut self) -> Result<StoredShard, Error> {
        self.part(parse_state)
    }

    fn lineage(&mut self) -> Result<Lineage, Error> {
        self.part(|value| Some(codec::parse_lineage(&text(value)?)))
    }

    fn tail_runs(&mut self) -> Result<Vec<TailRun>, Error> {
        self.part(|value| {
            let Value::Array(members) = value else {
                return None;
            };
            // A member that cannot be parsed is foreign.
            let entries = members
                .into_iter()
                .filter_map(|member| codec::parse_tail_member(&text(member)?));
            let runs = entries.map(|entry| TailRun { entry, bytes: None });
            Some(runs.collect())
        })
    }

    fn unexpected_tag<T>(self) -> Result<T, Error> {
        Err(unexpected_reply(&self.tag))
    }

    /// `keys` are the keys of the call. The first one is meta.
    pub(super) fn opened(mut self, keys: &[String]) -> Result<Opened, Error> {
        Ok(match self.tag.as_str() {
            "created" => Opened::Created(self.state()?),
            "existing" => Opened::Existing(self.state()?),
            "version" => Opened::Incompatible(wrong_layout(&keys[0], &self.text()?)),
            "foreign" => {
                let numbers = self.numbers()?.into_iter();
                let names: Vec<String> = numbers
                    .filter_map(|number| keys.get(number - 1))
                    .map(|key| format!("`{key}`"))
                    .collect();
                Opened::Incompatible(wrong_type(&names.join(", ")))
            }
            _ => return self.unexpected_tag(),
        })
    }

    pub(super) fn appended(mut self) -> Result<Appended, Error> {
        Ok(match self.tag.as_str() {
            "done" => Appended::Done {
                cancelled: self.number()?,
                missed: self.number()?,
            },
            "watermark_mismatch" => Appended::WatermarkMismatch(self.watermark()?),
            "unknown" => Appended::Unknown,
            _ => return self.unexpected_tag(),
        })
    }

    pub(super) fn known_state(self) -> Result<Option<StoredShard>, Error> {
        self.state_with(parse_state)
    }

    /// Watermark, lineage, and the slices whose level this version knows. `None`: unknown shard.
    pub(super) fn slices(self) -> Result<Option<(Watermark, Lineage, Vec<Slice>)>, Error> {
        self.state_with(parse_slices)
    }

    /// The contents of a shard. An unknown shard is empty.
    pub(super) fn contents(self) -> Result<ShardContents, Error> {
        Ok(self.state_with(parse_contents)?.unwrap_or_default())
    }

    fn state_with<T>(mut self, parse: impl FnOnce(Value) -> Option<T>) -> Result<Option<T>, Error> {
        match self.tag.as_str() {
            "state" => self.part(parse).map(Some),
            "unknown" => Ok(None),
            _ => self.unexpected_tag(),
        }
    }

    pub(super) fn acquired(mut self) -> Result<Acquired, Error> {
        Ok(match self.tag.as_str() {
            "granted" => {
                let now = self.time()?;
                let state = self.state()?;
                Acquired::Granted { state, now }
            }
            "held" => Acquired::HeldByOther,
            "unknown" => Acquired::Unknown,
            _ => return self.unexpected_tag(),
        })
    }

    pub(super) fn renewed(mut self) -> Result<Renewed, Error> {
        Ok(match self.tag.as_str() {
            "renewed" => Renewed::Renewed { now: self.time()? },
            "fenced" => Renewed::Fenced,
            "unknown" => Renewed::Unknown,
            _ => return self.unexpected_tag(),
        })
    }

    pub(super) fn advanced(mut self) -> Result<Advanced, Error> {
        Ok(match self.tag.as_str() {
            "done" => {
                let watermark = self.watermark()?;
                let places: Option<Vec<_>> = self
                    .parts
                    .map(|value| Cursor::from_hex(&text(value)?))
                    .collect();
                Advanced::Done {
                    watermark,
                    cancelled: places.ok_or_else(|| unexpected_reply("done"))?,
                }
            }
            "clock_ahead" => Advanced::ClockAhead {
                watermark: self.watermark()?,
                now: self.time()?,
            },
            "fenced" => Advanced::Fenced,
            "unknown" => Advanced::Unknown,
            _ => return self.unexpected_tag(),
        })
    }

    /// The runs come without bytes.
    pub(super) fn tailed(mut self) -> Result<Tailed, Error> {
        Ok(match self.tag.as_str() {
            "runs" => Tailed::Runs {
                watermark: self.watermark()?,
                complete_to: self.watermark()?,
                lineage: self.lineage()?,
                runs: self.tail_runs()?,
            },
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

    /// The live workers, ordered by id. Skips foreign names.
    pub(super) fn live_workers(mut self) -> Result<Vec<LiveWorker>, Error> {
        if self.tag != "workers" {
            return self.unexpected_tag();
        }
        let mut workers = Vec::new();
        while self.has_more_parts() {
            let name = self.text()?;
            let millis = self.number::<i64>()?;
            let expires_in = Duration::from_millis(u64::try_from(millis).unwrap_or(0));
            workers.extend(WorkerId::parse(&name).map(|worker| LiveWorker { worker, expires_in }));
        }
        workers.sort_by_key(|live| live.worker);
        Ok(workers)
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

/// The parts of a state: identity, watermark, claimed, delivered, ledger, lineage, counts.
fn state_parts(value: Value) -> Option<[Value; 7]> {
    let Value::Array(parts) = value else {
        return None;
    };
    <[Value; 7]>::try_from(parts).ok()
}

fn parse_state(value: Value) -> Option<StoredShard> {
    let [identity, watermark, claimed, delivered, ledger, _, counts] = state_parts(value)?;
    let watermark = codec::parse_watermark(&text(watermark)?)?;
    let mut shard = StoredShard {
        identity: SourceIdentity(text(identity)?.into()),
        watermark,
        claimed: Progress::from_hex(&text(claimed)?)?,
        delivered: Progress::from_hex(&text(delivered)?)?,
        lowest_pending: watermark.offset(),
        pending: 0,
        stored_bytes: 0,
        quarantined: 0,
        forecast: Forecast::default(),
        ledger: Ledger::default(),
    };
    for (field, count) in hash(counts)? {
        CountField::parse(&count).add_to(&mut shard, &field);
    }
    shard.ledger = codec::parse_ledger(&text(ledger)?, &shard);
    Some(shard)
}

fn parse_slices(value: Value) -> Option<(Watermark, Lineage, Vec<Slice>)> {
    let [_, watermark, _, _, _, lineage, counts] = state_parts(value)?;
    let watermark = codec::parse_watermark(&text(watermark)?)?;
    let lineage = codec::parse_lineage(&text(lineage)?);
    let fields = hash(counts)?;
    let slices = fields.iter().filter_map(|(field, _)| Slice::parse(field));
    Some((watermark, lineage, slices.collect()))
}

fn parse_contents(value: Value) -> Option<ShardContents> {
    let [.., counts] = state_parts(value)?;
    let mut contents = ShardContents::default();
    for (field, count) in hash(counts)? {
        let count = CountField::parse(&count);
        if field == key::QUARANTINE_FIELD {
            contents.quarantined = count.messages;
        }
        if let Some(slice) = Slice::parse(&field) {
            contents.slices.push(SliceCount {
                slice,
                messages: count.messages,
                bytes: count.bytes,
            });
        }
    }
    contents.slices.sort_by_key(|count| count.slice);
    Some(contents)
}

/// A hash as Redis sends it: field, value, field, value.
fn hash(value: Value) -> Option<Vec<(String, String)>> {
    let Value::Array(values) = value else {
        return None;
    };
    let mut values = values.into_iter();
    let mut fields = Vec::with_capacity(values.len() / 2);
    while let (Some(field), Some(value)) = (values.next(), values.next()) {
        fields.push((text(field)?, text(value)?));
    }
    Some(fields)
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

fn int(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
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

fn wrong_type(keys: &str) -> String {
    format!(
        "{keys} was overwritten with a value of another type: find the client that writes to this \
         Redis, then erase the shard (`postdate reset`); its messages are then read again from \
         the source, as far as the source retains them"
    )
}
