//! The scripts of `lua/`, and calls of them: keys and arguments in the order of the head of each
//! script. `reply` reads their replies.

use super::codec;
use super::key::{self, CANCELLED, COUNTS, EFFECTS, IDS, Keyspace, META, TAIL};
use crate::encryption::StoredId;
use crate::limit;
use crate::model::{Lease, Progress, ShardId, Slice};
use crate::run::{Run, RunName};
use crate::store::{
    Acquire, Advance, Append, FinishedIds, List, NewShard, Quarantine, ReplaceRuns, Restore,
    SliceCount, Tail,
};
use redis::{Cmd, ToRedisArgs};
use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Script {
    OpenShard,
    Append,
    AcquireLease,
    ReleaseLease,
    Advance,
    Quarantine,
    ReplaceRuns,
    State,
    List,
    Tail,
    Heartbeat,
    EndSessions,
    Sessions,
    Erase,
    RenameForeign,
    Restore,
    EndHold,
    RemoveFinishedIds,
    BeginCopy,
    AddToCopy,
    EndCopy,
}

/// The text of each script, in the order of [`Script`].
#[rustfmt::skip]
const SCRIPTS: [(Script, &str); 21] = [
    (Script::OpenShard, include_str!("../../../lua/open_shard.lua")),
    (Script::Append, include_str!("../../../lua/append.lua")),
    (Script::AcquireLease, include_str!("../../../lua/acquire_lease.lua")),
    (Script::ReleaseLease, include_str!("../../../lua/release_lease.lua")),
    (Script::Advance, include_str!("../../../lua/advance.lua")),
    (Script::Quarantine, include_str!("../../../lua/quarantine.lua")),
    (Script::ReplaceRuns, include_str!("../../../lua/replace_runs.lua")),
    (Script::State, include_str!("../../../lua/state.lua")),
    (Script::List, include_str!("../../../lua/list.lua")),
    (Script::Tail, include_str!("../../../lua/tail.lua")),
    (Script::Heartbeat, include_str!("../../../lua/heartbeat.lua")),
    (Script::EndSessions, include_str!("../../../lua/end_sessions.lua")),
    (Script::Sessions, include_str!("../../../lua/sessions.lua")),
    (Script::Erase, include_str!("../../../lua/erase.lua")),
    (Script::RenameForeign, include_str!("../../../lua/rename_foreign.lua")),
    (Script::Restore, include_str!("../../../lua/restore.lua")),
    (Script::EndHold, include_str!("../../../lua/end_hold.lua")),
    (Script::RemoveFinishedIds, include_str!("../../../lua/remove_finished_ids.lua")),
    (Script::BeginCopy, include_str!("../../../lua/begin_copy.lua")),
    (Script::AddToCopy, include_str!("../../../lua/add_to_copy.lua")),
    (Script::EndCopy, include_str!("../../../lua/end_copy.lua")),
];

const INCLUDES: &str = concat!(
    include_str!("../../../lua/include/shard.lua"),
    include_str!("../../../lua/include/slice.lua"),
    include_str!("../../../lua/include/id.lua"),
    include_str!("../../../lua/include/ledger.lua"),
    include_str!("../../../lua/include/lineage.lua"),
    include_str!("../../../lua/include/session.lua")
);

/// A script with its includes, and the hash that calls it.
struct Source {
    text: String,
    hash: String,
}

impl Source {
    fn new(script: &str, includes: &str) -> Self {
        // The shebang must stay the first line.
        let (shebang, body) = script
            .split_once('\n')
            .expect("a script has more than one line");
        let text = format!("{shebang}\n{includes}{body}");
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }
}

static SOURCES: LazyLock<[Source; SCRIPTS.len()]> =
    LazyLock::new(|| SCRIPTS.map(|(_, script)| Source::new(script, INCLUDES)));

impl Script {
    fn source(self) -> &'static Source {
        #[cfg(test)]
        if let Some(sources) = changed::sources() {
            return &sources[self as usize];
        }
        &SOURCES[self as usize]
    }

    /// The command that loads the script into the cache of the server.
    pub(super) fn load(self) -> Cmd {
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(&self.source().text);
        command
    }
}

/// The index or the pool of a slice, and the Redis type that it should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SliceKey {
    pub(super) name: String,
    pub(super) expected_type: &'static str,
}

pub(super) struct Call {
    pub(super) script: Script,
    pub(super) command: Cmd,
    /// All `KEYS`, because a reply names a key by its number.
    pub(super) keys: Vec<String>,
    /// Number of keys that belong to the shard itself. The rest belong to slices.
    fixed_keys: usize,
    /// Number in `KEYS`, counted from 1, of the index of each slice.
    slice_numbers: BTreeMap<Slice, usize>,
}

impl Call {
    fn new(script: Script, keys: Vec<String>) -> Self {
        let mut command = redis::cmd("EVALSHA");
        command
            .arg(&script.source().hash)
            .arg(keys.len())
            .arg(&keys);
        Self {
            script,
            command,
            fixed_keys: keys.len(),
            keys,
            slice_numbers: BTreeMap::new(),
        }
    }

    /// A call whose first argument is the layout version.
    fn on_shard(script: Script, keyspace: &Keyspace, shard: &ShardId, keys: &[&str]) -> Self {
        Self::on_slices(script, keyspace, shard, keys, std::iter::empty())
    }

    /// Like [`Call::on_shard`], with the keys of [`Call::with_keys`].
    fn on_slices(
        script: Script,
        keyspace: &Keyspace,
        shard: &ShardId,
        keys: &[&str],
        slices: impl Iterator<Item = Slice>,
    ) -> Self {
        let mut call = Self::with_keys(script, keyspace, shard, keys, slices);
        call.arg(key::LAYOUT_VERSION);
        call
    }

    /// A call without arguments. Index and pool of each slice follow the other keys.
    pub(super) fn with_keys(
        script: Script,
        keyspace: &Keyspace,
        shard: &ShardId,
        keys: &[&str],
        slices: impl Iterator<Item = Slice>,
    ) -> Self {
        let shard_keys = keyspace.shard_keys(shard);
        let mut names = shard_keys.names(keys);
        let mut slice_numbers = BTreeMap::new();
        for slice in slices {
            slice_numbers.entry(slice).or_insert_with(|| {
                names.push(shard_keys.slice(slice));
                names.push(shard_keys.pool(slice));
                names.len() - 1
            });
        }
        Self {
            fixed_keys: keys.len(),
            slice_numbers,
            ..Self::new(script, names)
        }
    }

    pub(super) fn arg(&mut self, arg: impl ToRedisArgs) -> &mut Self {
        self.command.arg(arg);
        self
    }

    /// The four arguments that name a run.
    pub(super) fn run_name_args(&mut self, slice: Slice, name: &RunName) -> &mut Self {
        self.arg(self.slice_numbers[&slice])
            .arg(slice.to_string())
            .arg(codec::index_member(name))
            .arg(name.count())
    }

    /// The names of an id.
    fn id_args(&mut self, id: &StoredId) -> &mut Self {
        for name in id.names() {
            self.arg(name);
        }
        self
    }

    /// The six arguments that add a run.
    fn new_run_args(&mut self, run: &Run) {
        self.run_name_args(run.slice, &run.name)
            .arg(codec::due_score(run.summary.least_due()))
            .arg(&*run.bytes);
    }

    pub(super) fn open(keyspace: &Keyspace, new: &NewShard) -> Self {
        let mut call = Self::on_shard(
            Script::OpenShard,
            keyspace,
            &new.shard,
            &key::OF_EVERY_SHARD,
        );
        call.arg(&*new.identity.0)
            .arg(codec::watermark_hex(new.watermark))
            .arg(new.delivered.to_hex())
            .arg(codec::watermark_hex(new.hold))
            .arg(new.possibly_delivered.to_hex())
            .arg(u8::from(new.creates))
            .arg(codec::pause_text(new.pause.as_ref()));
        call
    }

    pub(super) fn append(keyspace: &Keyspace, append: &Append) -> Self {
        let mut call = Self::on_slices(
            Script::Append,
            keyspace,
            &append.shard,
            &[META, COUNTS, TAIL, IDS, CANCELLED, EFFECTS],
            append.runs.iter().map(|run| run.slice),
        );
        call.arg(codec::watermark_hex(append.from))
            .arg(codec::watermark_hex(append.to))
            .arg(codec::epoch_text(append.epoch))
            .arg(limit::TAIL_RUNS_MAX)
            .arg(append.changes.len())
            .arg(&*append.identity.0)
            .arg(name_count(append.changes.iter().map(|change| &change.id)))
            .arg(codec::pause_text(append.pause.as_ref()));
        for change in &append.changes {
            call.id_args(&change.id).arg(&codec::id_change(change)[..]);
        }
        for run in &append.runs {
            call.new_run_args(run);
        }
        call
    }

    pub(super) fn acquire(keyspace: &Keyspace, request: &Acquire) -> Self {
        let lease = &request.lease;
        let keys = [META, COUNTS];
        let mut call = Self::on_shard(Script::AcquireLease, keyspace, &lease.shard, &keys);
        let ended = request.ended_holder.map(|token| token.to_string());
        call.arg(lease.token.to_string())
            .arg(&*request.identity.0)
            .arg(ended.unwrap_or_default());
        call
    }

    pub(super) fn release(keyspace: &Keyspace, lease: &Lease) -> Self {
        let mut call = Self::on_shard(Script::ReleaseLease, keyspace, &lease.shard, &[META]);
        call.arg(lease.token.to_string());
        call
    }

    pub(super) fn advance(keyspace: &Keyspace, advance: &Advance) -> Self {
        let mut call = Self::on_slices(
            Script::Advance,
            keyspace,
            &advance.lease.shard,
            &[META, COUNTS, IDS, CANCELLED, EFFECTS],
            advance.deletes.iter().map(|(slice, _)| *slice),
        );
        let claim_due = advance
            .claim
            .map_or(0, |claim| claim.cursor.due.as_millis());
        call.arg(advance.lease.token.to_string())
            .arg(optional_hex(advance.delivered))
            .arg(optional_hex(advance.claim))
            .arg(claim_due)
            .arg(millis(advance.clock_skew_max))
            .arg(limit::CANCELLED_REMOVALS_MAX)
            .arg(advance.deletes.len())
            .arg(advance.delivered_before.to_hex())
            .arg(advance.outcomes.delivered)
            .arg(advance.outcomes.cancelled)
            .arg(advance.outcomes.dead_lettered)
            .arg(advance.outcomes.retried)
            .arg(codec::watermark_hex(advance.seen))
            .arg(advance.delivered_ids.len())
            .arg(name_count(advance.delivered_ids.iter().map(|(id, _)| id)))
            .arg(advance.claimed_answers.len())
            .arg(advance.occurrences);
        for (slice, name) in &advance.deletes {
            call.run_name_args(*slice, name);
        }
        for (id, place) in &advance.delivered_ids {
            call.id_args(id).arg(place.to_hex());
        }
        let (claimed, delivered) = (&advance.claimed_answers, &advance.delivered_answers);
        for request in claimed.iter().chain(delivered) {
            call.arg(codec::offset_hex(*request));
        }
        call
    }

    pub(super) fn quarantine(keyspace: &Keyspace, quarantine: &Quarantine) -> Self {
        let mut call = Self::on_slices(
            Script::Quarantine,
            keyspace,
            &quarantine.lease.shard,
            &[META, COUNTS, key::QUARANTINE],
            quarantine.runs.iter().map(|(slice, _)| *slice),
        );
        call.arg(quarantine.lease.token.to_string());
        for (slice, name) in &quarantine.runs {
            call.run_name_args(*slice, name);
        }
        call
    }

    pub(super) fn replace_runs(keyspace: &Keyspace, request: &ReplaceRuns) -> Self {
        let inputs = request.inputs.iter().map(|(slice, _)| *slice);
        let outputs = request.outputs.iter().map(|run| run.slice);
        let mut call = Self::on_slices(
            Script::ReplaceRuns,
            keyspace,
            &request.lease.shard,
            &[META, COUNTS, IDS],
            inputs.chain(outputs),
        );
        call.arg(request.lease.token.to_string())
            .arg(request.known_replacements)
            .arg(request.inputs.len())
            .arg(request.renamed_ids.len())
            .arg(name_count(request.renamed_ids.iter().map(|(id, _)| id)));
        for (slice, name) in &request.inputs {
            call.run_name_args(*slice, name);
        }
        for (id, place) in &request.renamed_ids {
            call.id_args(id).arg(place.to_hex());
        }
        for run in &request.outputs {
            call.new_run_args(run);
        }
        call
    }

    pub(super) fn remove_finished_ids(keyspace: &Keyspace, request: &FinishedIds) -> Self {
        let keys = [META, IDS, EFFECTS];
        let mut call = Self::on_shard(Script::RemoveFinishedIds, keyspace, &request.shard, &keys);
        let cursor = (request.from.as_ref()).map_or(&b"0"[..], |position| &position.0);
        call.arg(cursor).arg(limit::IDS_PER_STEP);
        call
    }

    pub(super) fn restore(keyspace: &Keyspace, restore: &Restore) -> Self {
        let mut call = Self::on_slices(
            Script::Restore,
            keyspace,
            &restore.shard,
            &[META, COUNTS, key::QUARANTINE],
            restore.runs.iter().map(|run| run.slice),
        );
        call.arg(restore.quarantined.as_str())
            .arg(restore.quarantined.count())
            .arg(restore.first_place().to_hex());
        for run in &restore.runs {
            call.new_run_args(run);
        }
        call
    }

    pub(super) fn state(keyspace: &Keyspace, shard: &ShardId) -> Self {
        Self::on_shard(Script::State, keyspace, shard, &[META, COUNTS])
    }

    pub(super) fn end_hold(keyspace: &Keyspace, shard: &ShardId) -> Self {
        Self::on_shard(Script::EndHold, keyspace, shard, &[META])
    }

    /// `known`: all slices in counts. `slices`: those to read, ordered by their least due.
    pub(super) fn list(
        keyspace: &Keyspace,
        list: &List,
        known: &[SliceCount],
        slices: &[Slice],
    ) -> Self {
        let keys = keyspace.shard_keys(&list.shard);
        let fixed = [META, COUNTS];
        let mut names = keys.names(&fixed);
        names.extend(slices.iter().map(|slice| keys.slice(slice)));
        let mut call = Self {
            fixed_keys: fixed.len(),
            ..Self::new(Script::List, names)
        };
        call.arg(key::LAYOUT_VERSION)
            .arg(codec::due_score(list.from))
            .arg(codec::due_score(list.until))
            .arg(list.limit())
            .arg(known.len());
        for count in known {
            call.arg(count.slice.to_string());
        }
        for slice in slices {
            call.arg(codec::due_score(slice.least_due()));
        }
        call
    }

    pub(super) fn tail(keyspace: &Keyspace, tail: &Tail) -> Self {
        let keys = [META, TAIL, IDS];
        let mut call = Self::on_shard(Script::Tail, keyspace, &tail.shard, &keys);
        call.arg(codec::watermark_hex(tail.after))
            .arg(tail.limit.min(limit::REQUESTED_RUNS_MAX));
        call
    }

    /// The workers key of version 0.1.0 is a zset, and the sessions key is a hash, like the two
    /// keys of a slice. Without fixed keys they are treated alike: a foreign value is renamed.
    pub(super) fn on_sessions(script: Script, keyspace: &Keyspace) -> Self {
        let keys = vec![keyspace.workers_key(), keyspace.sessions_key()];
        Self {
            fixed_keys: 0,
            ..Self::new(script, keys)
        }
    }

    /// `fields`: the fields of `counts` when it was read.
    pub(super) fn erase(keyspace: &Keyspace, shard: &ShardId, fields: &[String]) -> Self {
        let keys = keyspace.shard_keys(shard);
        let mut names = keys.names(&key::OF_EVERY_SHARD);
        for field in fields {
            names.extend([keys.slice(field), keys.pool(field)]);
        }
        let foreign: Vec<String> = names.iter().map(|name| key::foreign_key(name)).collect();
        names.extend(foreign);
        let mut call = Self::new(Script::Erase, names);
        call.arg(fields);
        call
    }

    pub(super) fn rename_foreign(key: &SliceKey) -> Self {
        let keys = vec![key.name.clone(), key::foreign_key(&key.name)];
        let mut call = Self::new(Script::RenameForeign, keys);
        call.arg(key.expected_type);
        call
    }

    /// The slice key with this number in `KEYS`; `None` if it is a key of the shard itself.
    pub(super) fn slice_key(&self, number: usize) -> Option<SliceKey> {
        let position = number.checked_sub(1 + self.fixed_keys)?;
        // A list reads no pool.
        let is_index = self.script == Script::List || position.is_multiple_of(2);
        Some(SliceKey {
            name: self.keys[number - 1].clone(),
            expected_type: if is_index {
                key::INDEX_TYPE
            } else {
                key::POOL_TYPE
            },
        })
    }
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The number of names that each id of a call has: all are from one key ring.
fn name_count<'a>(mut ids: impl Iterator<Item = &'a StoredId>) -> usize {
    ids.next().map_or(1, |id| id.names().count())
}

fn optional_hex(pair: Option<Progress>) -> String {
    pair.map_or_else(String::new, Progress::to_hex)
}

/// Faults in the scripts: tests replace a piece of a script's text.
#[cfg(test)]
pub(super) mod changed {
    use super::{INCLUDES, SCRIPTS, Script, Source};
    use std::cell::Cell;

    type Sources = [Source; SCRIPTS.len()];

    thread_local!(static CHANGED: Cell<Option<&'static Sources>> = const { Cell::new(None) });

    pub(super) fn sources() -> Option<&'static Sources> {
        CHANGED.get()
    }

    /// Replaces `from` by `to` in a script (`None`: in the includes) while `body` runs on this
    /// thread. Panics if the text does not contain `from`.
    pub(in super::super) fn with_replaced<T>(
        script: Option<Script>,
        from: &str,
        to: &str,
        body: impl FnOnce() -> T,
    ) -> T {
        let replace = |text: &str, is_wanted: bool| {
            if !is_wanted {
                return text.to_owned();
            }
            assert!(text.contains(from), "{script:?} does not contain: {from}");
            text.replace(from, to)
        };
        let includes = replace(INCLUDES, script.is_none());
        let sources = SCRIPTS
            .map(|(known, text)| Source::new(&replace(text, script == Some(known)), &includes));
        CHANGED.set(Some(Box::leak(Box::new(sources))));
        let result = body();
        CHANGED.set(None);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_listed_in_the_order_of_the_enum() {
        for (at, (script, _)) in SCRIPTS.iter().enumerate() {
            assert_eq!(*script as usize, at);
        }
    }

    #[test]
    fn a_full_server_refuses_only_scripts_that_add_data() {
        for (script, text) in SCRIPTS {
            let expected = match script {
                Script::OpenShard
                | Script::Append
                | Script::ReplaceRuns
                | Script::Restore
                | Script::BeginCopy
                | Script::AddToCopy => "#!lua",
                Script::State | Script::List | Script::Tail | Script::Sessions => {
                    "#!lua flags=no-writes"
                }
                _ => "#!lua flags=allow-oom",
            };
            assert_eq!(text.lines().next(), Some(expected), "{script:?}");
            let loaded = script.source().text.lines().next();
            assert_eq!(loaded, Some(expected), "{script:?}");
        }
    }
}
