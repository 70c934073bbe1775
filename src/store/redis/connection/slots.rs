//! Which node of a Redis Cluster is the primary of each slot.

use super::access::Address;
use super::lock;
use redis::{Arg, Cmd, Value};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// The number of slots of every Redis Cluster.
const SLOTS: usize = 16_384;

/// A slot of the cluster. All keys with the same hash tag have the same slot.
pub(in crate::store::redis) type Slot = u16;

/// The slot of a command: that of its first key, or of its channel.
pub(super) fn slot_of(command: &Cmd) -> Slot {
    let mut words = command.args_iter().filter_map(|arg| match arg {
        Arg::Simple(word) => Some(word),
        _ => None,
    });
    // The hash of the script and the number of its keys come before its keys.
    let before_key = if words.next() == Some(b"EVALSHA") {
        2
    } else {
        0
    };
    slot_of_key(words.nth(before_key).unwrap_or_default())
}

pub(in crate::store::redis) fn slot_of_key(key: &[u8]) -> Slot {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|start| {
        let rest = &key[start + 1..];
        let length = rest.iter().position(|byte| *byte == b'}')?;
        (length > 0).then(|| &rest[..length])
    });
    crc16(tag.unwrap_or(key)) % SLOTS as u16
}

/// CRC-16/XMODEM, as the specification of Redis Cluster demands.
fn crc16(bytes: &[u8]) -> u16 {
    let shift = |crc: u16, _| (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 };
    let add = |crc: u16, byte: &u8| (0..8).fold(crc ^ (u16::from(*byte) << 8), shift);
    bytes.iter().fold(0, add)
}

/// The primary of each slot, as one node told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotMap {
    primaries: Vec<Address>,
    /// The index in `primaries` for each slot; `None`: no node serves it.
    by_slot: Vec<Option<u16>>,
}

impl SlotMap {
    /// Reads the reply of this node to `CLUSTER SLOTS`: for each range its first and last slot, and
    /// the nodes, the primary first. `None`: it is no such reply.
    pub(super) fn parse(reply: Value, asked: &Address) -> Option<Self> {
        let ranges: Vec<(usize, usize, Value)> = match reply {
            Value::Array(ranges) => ranges.into_iter().map(range).collect::<Option<_>>()?,
            _ => return None,
        };
        let mut map = Self {
            primaries: Vec::new(),
            by_slot: vec![None; SLOTS],
        };
        for (first, last, node) in ranges {
            let primary = map.index(node_address(node, asked)?);
            map.by_slot.get_mut(first..=last)?.fill(Some(primary));
        }
        Some(map)
    }

    /// The index of a primary, which is added if it is new.
    fn index(&mut self, address: Address) -> u16 {
        let known = self.primaries.iter().position(|known| *known == address);
        let index = known.unwrap_or_else(|| {
            self.primaries.push(address);
            self.primaries.len() - 1
        });
        // There are fewer primaries than slots.
        index as u16
    }

    pub(super) fn primary(&self, slot: Slot) -> Option<&Address> {
        let index = self.by_slot.get(usize::from(slot))?;
        self.primaries.get(usize::from((*index)?))
    }

    /// The number of the primary, which it keeps in later maps; 0 if no node serves the slot.
    pub(super) fn part_of(&self, slot: Slot) -> u16 {
        let index = self.by_slot.get(usize::from(slot));
        index.copied().flatten().unwrap_or_default()
    }

    /// The primaries that serve a slot.
    pub(super) fn primaries(&self) -> BTreeSet<&Address> {
        let served = self.by_slot.iter().flatten().collect::<BTreeSet<_>>();
        let served = served.into_iter();
        served
            .map(|index| &self.primaries[usize::from(*index)])
            .collect()
    }

    /// Gives each primary the number that it has in the map before, so that a call which runs still
    /// belongs to the same part.
    fn with_numbers_of(mut self, before: &Self) -> Self {
        let kept: BTreeSet<Address> = before.primaries().into_iter().cloned().collect();
        let mut primaries = before.primaries.clone();
        let mut numbers = Vec::with_capacity(self.primaries.len());
        for new in &self.primaries {
            let known = primaries.iter().position(|known| known == new);
            // A primary that served nothing in the map before gives its number away.
            let free = || {
                let unused = |old: &Address| !kept.contains(old) && !self.primaries.contains(old);
                primaries.iter().position(unused)
            };
            let number = known.or_else(free).unwrap_or(primaries.len());
            if number == primaries.len() {
                primaries.push(new.clone());
            } else {
                primaries[number] = new.clone();
            }
            numbers.push(number as u16);
        }
        for number in self.by_slot.iter_mut().flatten() {
            *number = numbers[usize::from(*number)];
        }
        self.primaries = primaries;
        self
    }

    fn moved(&self, slot: Slot, to: Address) -> Self {
        let mut map = self.clone();
        let index = map.index(to);
        map.by_slot[usize::from(slot)] = Some(index);
        map
    }
}

fn range(value: Value) -> Option<(usize, usize, Value)> {
    let Value::Array(parts) = value else {
        return None;
    };
    let mut parts = parts.into_iter();
    match (parts.next()?, parts.next()?, parts.next()?) {
        (Value::Int(first), Value::Int(last), node) => {
            Some((first.try_into().ok()?, last.try_into().ok()?, node))
        }
        _ => None,
    }
}

/// A node that does not know its own name leaves it out: then it is the one that was asked.
fn node_address(node: Value, asked: &Address) -> Option<Address> {
    let Value::Array(parts) = node else {
        return None;
    };
    let mut parts = parts.into_iter();
    let (host, port) = (parts.next()?, parts.next()?);
    let host = match host {
        Value::Nil => String::new(),
        host => redis::from_redis_value(host).ok()?,
    };
    address(&host, redis::from_redis_value(port).ok()?, asked)
}

fn address(host: &str, port: u16, asked: &Address) -> Option<Address> {
    let host = if matches!(host, "" | "?") {
        &asked.host
    } else {
        host
    };
    Some(Address {
        host: host.to_owned(),
        port,
    })
}

/// An answer that sends a command elsewhere or makes it wait, because of its slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// The slot belongs to another node now.
    Moved(Slot, Address),
    /// The keys of the slot are moving to another node.
    Moving,
}

impl Redirect {
    /// `None`: the value is an answer.
    pub(super) fn of(value: &Value, asked: &Address) -> Option<Self> {
        let Value::ServerError(error) = value else {
            return None;
        };
        match error.code() {
            // `ASK` names the node that gets the slot. That node refuses a script until it has all
            // of its keys, and some keys of a shard do not exist. So the command waits, too.
            "ASK" | "TRYAGAIN" => Some(Self::Moving),
            "MOVED" => {
                let (slot, node) = error.details()?.split_once(' ')?;
                let (host, port) = node.rsplit_once(':')?;
                let host = host.trim_matches(['[', ']']);
                let slot = slot
                    .parse()
                    .ok()
                    .filter(|slot| usize::from(*slot) < SLOTS)?;
                Some(Self::Moved(slot, address(host, port.parse().ok()?, asked)?))
            }
            _ => None,
        }
    }
}

/// The slots as all connections of one process know them.
#[derive(Debug, Default)]
pub(crate) struct CurrentSlots(Mutex<LastMap>);

#[derive(Debug, Default)]
struct LastMap {
    /// The last map that was known. Its primaries can be asked for the next one.
    map: Option<Arc<SlotMap>>,
    /// False: it may be out of date, so the next call asks the nodes.
    is_current: bool,
}

impl CurrentSlots {
    pub(super) fn map(&self) -> Option<Arc<SlotMap>> {
        let last = lock(&self.0);
        last.map.clone().filter(|_| last.is_current)
    }

    pub(super) fn last_map(&self) -> Option<Arc<SlotMap>> {
        lock(&self.0).map.clone()
    }

    pub(super) fn last_primaries(&self) -> BTreeSet<Address> {
        let map = self.last_map();
        let primaries = map.iter().flat_map(|map| map.primaries());
        primaries.cloned().collect()
    }

    pub(super) fn set(&self, map: SlotMap) -> Arc<SlotMap> {
        let mut last = lock(&self.0);
        let map = match &last.map {
            None => map,
            Some(before) => {
                let map = map.with_numbers_of(before);
                if map.primaries() != before.primaries() {
                    let names = map.primaries().into_iter().map(ToString::to_string);
                    let names = names.collect::<Vec<_>>().join(" ");
                    tracing::warn!(
                        primaries = names,
                        "the primaries of the Redis Cluster have changed"
                    );
                }
                map
            }
        };
        let map = Arc::new(map);
        last.map = Some(map.clone());
        last.is_current = true;
        map
    }

    /// A node has told where this slot is now.
    pub(super) fn on_moved(&self, slot: Slot, to: Address) {
        let mut last = lock(&self.0);
        if last.is_current
            && let Some(map) = &last.map
            && map.primary(slot) != Some(&to)
        {
            last.map = Some(Arc::new(map.moved(slot, to)));
        }
    }

    /// The next call asks the nodes again, unless another call has done so meanwhile.
    pub(super) fn forget(&self, map: &Arc<SlotMap>) {
        let mut last = lock(&self.0);
        if last.map.as_ref().is_some_and(|last| Arc::ptr_eq(last, map)) {
            last.is_current = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(port: u16) -> Address {
        let host = "n".to_owned();
        Address { host, port }
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn entry(first: i64, last: i64, host: Value, port: u16) -> Value {
        let node = Value::Array(vec![host, Value::Int(port.into()), text("id")]);
        Value::Array(vec![
            Value::Int(first),
            Value::Int(last),
            node.clone(),
            node,
        ])
    }

    #[test]
    fn a_slot_is_that_of_the_specification() {
        // CRC16 of the specification, and slots that `CLUSTER KEYSLOT` of Redis 7.0.15 answers.
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (key, slot) in [
            ("foo", 12_182),
            ("{foo}:a", 12_182),
            ("x{foo}{bar}", 12_182),
            ("{}foo", 9_500),
            ("", 0),
        ] {
            assert_eq!(slot_of_key(key.as_bytes()), slot, "{key}");
        }
    }

    #[test]
    fn the_slot_of_a_command_is_that_of_its_first_key() {
        let slot = slot_of_key(b"foo");
        let mut script = redis::cmd("EVALSHA");
        script.arg("hash").arg(1).arg("foo").arg("bar");
        let mut read = redis::cmd("HGET");
        read.arg("foo").arg("bar");
        assert_eq!((slot_of(&script), slot_of(&read)), (slot, slot));
    }

    #[test]
    fn a_map_has_the_first_node_of_each_range() {
        let reply = Value::Array(vec![
            entry(0, 5_460, text("n"), 1),
            entry(5_461, 16_383, Value::Nil, 2),
        ]);
        let map = SlotMap::parse(reply, &node(9)).unwrap();
        assert_eq!(map.primary(0), Some(&node(1)));
        assert_eq!(map.primary(5_460), Some(&node(1)));
        assert_eq!(
            map.primary(5_461),
            Some(&node(2)),
            "it does not know its name"
        );
        assert_eq!(map.primary(16_383), Some(&node(2)));
        let moved = map.moved(0, node(3));
        assert_eq!(
            (moved.primary(0), moved.primary(1)),
            (Some(&node(3)), Some(&node(1)))
        );
        assert_eq!(moved.primaries(), [&node(1), &node(2), &node(3)].into());
        let gap = Value::Array(vec![entry(1, 2, text("n"), 1)]);
        assert_eq!(SlotMap::parse(gap, &node(9)).unwrap().primary(0), None);
        for wrong in [
            Value::Nil,
            Value::Array(vec![Value::Nil]),
            Value::Array(vec![entry(0, 16_384, text("n"), 1)]),
            Value::Array(vec![entry(-1, 5, text("n"), 1)]),
        ] {
            assert_eq!(SlotMap::parse(wrong, &node(9)), None);
        }
    }

    #[test]
    fn a_primary_keeps_its_number_in_later_maps() {
        let map = |ports: [u16; 2]| {
            let [low, high] = ports;
            let ranges = [(0, 8_191, low), (8_192, 16_383, high)];
            let ranges = ranges.map(|(first, last, port)| entry(first, last, text("n"), port));
            SlotMap::parse(Value::Array(ranges.into()), &node(9)).unwrap()
        };
        let current = CurrentSlots::default();
        let parts = |ports| {
            let map = current.set(map(ports));
            assert_eq!(map.primary(0), Some(&node(ports[0])));
            assert_eq!(map.primary(16_383), Some(&node(ports[1])));
            (map.part_of(0), map.part_of(16_383), map.primaries.len())
        };
        assert_eq!(parts([1, 2]), (0, 1, 2));
        assert_eq!(parts([2, 1]), (1, 0, 2), "the slots were exchanged");
        assert_eq!(parts([2, 3]), (1, 2, 3), "the call to node 1 may still run");
        assert_eq!(parts([4, 3]), (0, 2, 3), "nothing is left of node 1");
        assert_eq!(parts([3, 3]), (2, 2, 3));
    }

    #[test]
    fn a_redirect_names_the_node() {
        let redirect = |error: &str| {
            let reply = format!("-{error}\r\n");
            let value = redis::parse_redis_value(reply.as_bytes()).unwrap();
            Redirect::of(&value, &node(9))
        };
        let moved = |slot, host: &str, port| {
            let host = host.to_owned();
            Some(Redirect::Moved(slot, Address { host, port }))
        };
        assert_eq!(redirect("MOVED 7 n:1"), moved(7, "n", 1));
        assert_eq!(redirect("MOVED 7 :1"), moved(7, "n", 1));
        assert_eq!(redirect("MOVED 7 ::1:1"), moved(7, "::1", 1));
        assert_eq!(redirect("ASK 7 n:1"), Some(Redirect::Moving));
        assert_eq!(redirect("TRYAGAIN wait"), Some(Redirect::Moving));
        for error in ["MOVED 16384 n:1", "MOVED 7", "ERR wrong"] {
            assert_eq!(redirect(error), None, "{error}");
        }
    }

    #[test]
    fn a_map_that_another_call_has_replaced_is_not_forgotten() {
        let map = |port| {
            let range = entry(0, 16_383, text("n"), port);
            SlotMap::parse(Value::Array(vec![range]), &node(9)).unwrap()
        };
        let current = CurrentSlots::default();
        let old = current.set(map(1));
        current.on_moved(5, node(2));
        assert_eq!(current.map().unwrap().primary(5), Some(&node(2)));
        current.forget(&old);
        let new = current.map().expect("it is newer");
        current.forget(&new);
        assert_eq!(current.map(), None);
        assert_eq!(current.last_primaries(), [node(1), node(2)].into());
    }
}
