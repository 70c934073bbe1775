//! What the scripts answer, read from the wire: a tag and then its parts, as the head of each script lists them. Decides nothing.

use super::codec;
use crate::model::{Cursor, Progress, Slice, SourceIdentity, Timestamp, Watermark, WorkerId};
use crate::store::{
    Acquired, Advanced, Appended, Error, Forecast, Ledger, Lineage, LiveWorker, Opened, Renewed,
    Replaced, ShardContents, SliceCount, StoredShard, TailRun, Tailed,
};
use redis::Value;
use std::time::Duration;

/// A script's reply: its tag, and the parts that are still to be read.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) tag: String,
    parts: std::vec::IntoIter<Value>,
}

impl Reply {
    pub(super) fn new(value: Value) -> Result<Self, Error> {
        let Value::Array(parts) = value else {
            return Err(unexpected_reply("something else than a list"));
        };
        let mut parts = parts.into_iter();
        let tag = parts
            .next()
            .and_then(text)
            .ok_or_else(|| unexpected_reply("a list without a tag"))?;
        Ok(Self { tag, parts })
    }

    /// For a shard that this layout cannot read.
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

    fn number(&mut self) -> Result<usize, Error> {
        self.part(|value| usize::try_from(int(&value)?).ok())
    }

    pub(super) fn numbers(&mut self) -> Result<Vec<usize>, Error> {
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
        self.part(|value| int(&value).map(Timestamp::from_millis))
    }

    fn state(&mut self) -> Result<StoredShard, Error> {
        self.part(state)
    }

    fn history(&mut self) -> Result<Lineage, Error> {
        self.part(|value| Some(codec::parse_lineage(&text(value)?)))
    }

    fn tail_runs(&mut self) -> Result<Vec<TailRun>, Error> {
        self.part(|value| {
            let Value::Array(values) = value else {
                return None;
            };
            // What does not read as one of our members was put there by somebody else.
            let listings = values
                .into_iter()
                .filter_map(|value| codec::parse_tail_member(&text(value)?));
            Some(
                listings
                    .map(|listing| TailRun {
                        entry: listing,
                        bytes: None,
                    })
                    .collect(),
            )
        })
    }

    fn unexpected_tag<T>(self) -> Result<T, Error> {
        Err(unexpected_reply(&self.tag))
    }

    /// `keys` are those of the call, its meta first.
    pub(super) fn opened(mut self, keys: &[String]) -> Result<Opened, Error> {
        Ok(match self.tag.as_str() {
            "born" => Opened::Created(self.state()?),
            "found" => Opened::Existing(self.state()?),
            "version" => Opened::Incompatible(wrong_layout(&keys[0], &self.text()?)),
            "foreign" => {
                let named = self
                    .numbers()?
                    .into_iter()
                    .filter_map(|number| keys.get(number - 1));
                Opened::Incompatible(wrong_type(
                    &named
                        .map(|key| format!("`{key}`"))
                        .collect::<Vec<_>>()
                        .join(", "),
                ))
            }
            _ => return self.unexpected_tag(),
        })
    }

    pub(super) fn appended(mut self) -> Result<Appended, Error> {
        Ok(match self.tag.as_str() {
            "done" => Appended::Done {
                cancelled: self.small_number()?,
                missed: self.small_number()?,
            },
            "elsewhere" => Appended::WatermarkMismatch(self.watermark()?),
            "unknown" => Appended::Unknown,
            _ => return self.unexpected_tag(),
        })
    }

    fn small_number(&mut self) -> Result<u32, Error> {
        self.part(|value| u32::try_from(int(&value)?).ok())
    }

    pub(super) fn known_state(mut self) -> Result<Option<StoredShard>, Error> {
        match self.tag.as_str() {
            "state" => Ok(Some(self.state()?)),
            "unknown" => Ok(None),
            _ => self.unexpected_tag(),
        }
    }

    /// Of a state: the watermark, the history, and the slices that this version knows. `None`: unknown.
    pub(super) fn slices(mut self) -> Result<Option<(Watermark, Lineage, Vec<Slice>)>, Error> {
        match self.tag.as_str() {
            "state" => self.part(slices).map(Some),
            "unknown" => Ok(None),
            _ => self.unexpected_tag(),
        }
    }

    /// Of a state: what the shard holds; nothing of an unknown one.
    pub(super) fn contents(mut self) -> Result<ShardContents, Error> {
        match self.tag.as_str() {
            "state" => self.part(contents),
            "unknown" => Ok(ShardContents::default()),
            _ => self.unexpected_tag(),
        }
    }

    pub(super) fn acquired(mut self) -> Result<Acquired, Error> {
        Ok(match self.tag.as_str() {
            "granted" => {
                let now = self.time()?;
                Acquired::Granted {
                    state: self.state()?,
                    now,
                }
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
            "ahead" => Advanced::ClockAhead {
                watermark: self.watermark()?,
                now: self.time()?,
            },
            "fenced" => Advanced::Fenced,
            "unknown" => Advanced::Unknown,
            _ => return self.unexpected_tag(),
        })
    }

    /// The runs come without their bytes.
    pub(super) fn tailed(mut self) -> Result<Tailed, Error> {
        Ok(match self.tag.as_str() {
            "runs" => Tailed::Runs {
                watermark: self.watermark()?,
                complete_to: self.watermark()?,
                lineage: self.history()?,
                runs: self.tail_runs()?,
            },
            "broken" => Tailed::OutOfRange {
                watermark: self.watermark()?,
            },
            "unknown" => Tailed::Unknown,
            _ => return self.unexpected_tag(),
        })
    }

    pub(super) fn replaced(self) -> Result<Replaced, Error> {
        Ok(match self.tag.as_str() {
            "done" => Replaced::Done,
            "changed" => Replaced::Conflict,
            "fenced" => Replaced::Fenced,
            "unknown" => Replaced::Unknown,
            _ => return self.unexpected_tag(),
        })
    }

    /// Names that are none of ours were put there by somebody else.
    pub(super) fn live_workers(mut self) -> Result<Vec<LiveWorker>, Error> {
        if self.tag != "workers" {
            return self.unexpected_tag();
        }
        let mut peers = Vec::new();
        while !self.parts.as_slice().is_empty() {
            let (name, left) = (self.text()?, self.time()?);
            let left = Duration::from_millis(u64::try_from(left.as_millis()).unwrap_or(0));
            peers.extend(WorkerId::parse(&name).map(|worker| LiveWorker {
                worker,
                expires_in: left,
            }));
        }
        peers.sort_by_key(|peer| peer.worker);
        Ok(peers)
    }

    pub(super) fn moved(mut self) -> Result<usize, Error> {
        match self.tag.as_str() {
            "moved" => self.number(),
            "fenced" | "unknown" => Ok(0),
            _ => self.unexpected_tag(),
        }
    }
}

/// The seven parts of a state: identity, watermark, claimed, delivered, ledger, history, counts.
fn state_parts(value: Value) -> Option<[Value; 7]> {
    let Value::Array(parts) = value else {
        return None;
    };
    <[Value; 7]>::try_from(parts).ok()
}

fn state(value: Value) -> Option<StoredShard> {
    let [identity, watermark, claimed, delivered, ledger, _, counts] = state_parts(value)?;
    let watermark = codec::parse_watermark(&text(watermark)?)?;
    let mut state = StoredShard {
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
    for (field, count) in fields(counts)? {
        codec::CountField::parse(&count).add_to(&mut state, &field);
    }
    state.ledger = codec::parse_ledger(&text(ledger)?, &state);
    Some(state)
}

fn slices(value: Value) -> Option<(Watermark, Lineage, Vec<Slice>)> {
    let [_, watermark, _, _, _, history, counts] = state_parts(value)?;
    let slices = fields(counts)?
        .iter()
        .filter_map(|(field, _)| Slice::parse(field))
        .collect();
    Some((
        codec::parse_watermark(&text(watermark)?)?,
        codec::parse_lineage(&text(history)?),
        slices,
    ))
}

fn contents(value: Value) -> Option<ShardContents> {
    let [.., counts] = state_parts(value)?;
    let mut found = ShardContents::default();
    for (field, count) in fields(counts)? {
        let codec::CountField {
            messages, bytes, ..
        } = codec::CountField::parse(&count);
        if field == super::key::QUARANTINE_FIELD {
            found.quarantined = messages;
        }
        found
            .slices
            .extend(Slice::parse(&field).map(|slice| SliceCount {
                slice,
                messages,
                bytes,
            }));
    }
    found.slices.sort_by_key(|count| count.slice);
    Some(found)
}

/// A hash as it comes over the wire: field, value, field, value.
fn fields(value: Value) -> Option<Vec<(String, String)>> {
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

/// Any string of the wire; bytes that are not UTF-8 are replaced, as nothing that we wrote has any.
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

pub(super) fn unexpected_reply(what: &str) -> Error {
    Error::Unusable(format!(
        "a script answered `{what}`, which it cannot: is this server really a Redis?"
    ))
}

fn wrong_layout(meta: &str, version: &str) -> String {
    let what = match version {
        "" => "no layout version".to_owned(),
        super::key::LAYOUT_VERSION => "values that cannot be read".to_owned(),
        other => format!("layout version `{other}`"),
    };
    format!(
        "`{meta}` holds {what}, and this version of Postdate reads and writes layout {}: let the version that wrote it deliver what \
         waits there, or erase the shard, whose messages are then read again from the source as far as it retains them",
        super::key::LAYOUT_VERSION
    )
}

fn wrong_type(keys: &str) -> String {
    format!(
        "{keys} was overwritten with a value of another type: look who writes to this Redis, then erase the shard, whose messages are \
             then read again from the source as far as it retains them"
    )
}
