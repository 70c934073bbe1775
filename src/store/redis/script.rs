//! The scripts of `lua/` and the calls of them: which keys and arguments each takes, in the order that its head lists them. What the
//! replies mean is `reply`'s affair.

use super::codec;
use super::key::{self, Key, Keys};
use crate::limit;
use crate::model::{Lease, Progress, Slice, WorkerId};
use crate::run::{Run, RunName};
use crate::store::{
    Advance, Append, IdChangeKind, NewShard, OutcomeCounts, Quarantine, ReplaceRuns, Tail,
};
use redis::{Cmd, ToRedisArgs};
use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

/// One script of `lua/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Script {
    OpenShard,
    Append,
    AcquireLease,
    RenewLease,
    ReleaseLease,
    Advance,
    Quarantine,
    ReplaceRuns,
    State,
    Tail,
    HeartbeatWorker,
    RemoveWorker,
    Erase,
    RenameForeign,
}

const SCRIPTS: [(Script, &str); 14] = [
    (
        Script::OpenShard,
        include_str!("../../../lua/open_shard.lua"),
    ),
    (Script::Append, include_str!("../../../lua/append.lua")),
    (
        Script::AcquireLease,
        include_str!("../../../lua/acquire_lease.lua"),
    ),
    (
        Script::RenewLease,
        include_str!("../../../lua/renew_lease.lua"),
    ),
    (
        Script::ReleaseLease,
        include_str!("../../../lua/release_lease.lua"),
    ),
    (Script::Advance, include_str!("../../../lua/advance.lua")),
    (
        Script::Quarantine,
        include_str!("../../../lua/quarantine.lua"),
    ),
    (
        Script::ReplaceRuns,
        include_str!("../../../lua/rewrite.lua"),
    ),
    (Script::State, include_str!("../../../lua/state.lua")),
    (Script::Tail, include_str!("../../../lua/tail.lua")),
    (
        Script::HeartbeatWorker,
        include_str!("../../../lua/enrol.lua"),
    ),
    (
        Script::RemoveWorker,
        include_str!("../../../lua/resign.lua"),
    ),
    (Script::Erase, include_str!("../../../lua/erase.lua")),
    (
        Script::RenameForeign,
        include_str!("../../../lua/set_aside.lua"),
    ),
];

const INCLUDES: &str = concat!(
    include_str!("../../../lua/include/shard.lua"),
    include_str!("../../../lua/include/slice.lua"),
    include_str!("../../../lua/include/ledger.lua"),
    include_str!("../../../lua/include/history.lua")
);

/// A script as the server gets it, and the hash that it is called by.
struct Source {
    text: String,
    hash: String,
}

static SOURCES: LazyLock<[Source; SCRIPTS.len()]> = LazyLock::new(|| {
    SCRIPTS.map(|(_, script)| {
        // The shebang has to stay the first line.
        let (shebang, body) = script
            .split_once('\n')
            .expect("a script has more than one line");
        let text = format!("{shebang}\n{INCLUDES}{body}");
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Source { text, hash }
    })
});

impl Script {
    fn source(self) -> &'static Source {
        &SOURCES[self as usize]
    }

    /// The command that makes the server know the script.
    pub(super) fn load(self) -> Cmd {
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(&self.source().text);
        command
    }
}

/// A slice's index or pool, and the type that it should be of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SliceKey {
    pub(super) name: String,
    pub(super) expected_type: &'static str,
}

/// One call of a script for one shard.
pub(super) struct Call {
    pub(super) script: Script,
    pub(super) command: Cmd,
    /// What `KEYS` holds, to name the one that a reply complains of.
    pub(super) keys: Vec<String>,
    /// How many of the keys are the shard's own; the rest are slices.
    shard_key_count: usize,
}

impl Call {
    fn new(script: Script, fixed: usize, keys: Vec<String>) -> Self {
        let mut command = redis::cmd("EVALSHA");
        command
            .arg(&script.source().hash)
            .arg(keys.len())
            .arg(&keys);
        Self {
            script,
            command,
            keys,
            shard_key_count: fixed,
        }
    }

    fn arg(&mut self, arg: impl ToRedisArgs) -> &mut Self {
        self.command.arg(arg);
        self
    }

    pub(super) fn open(keys: &Keys, birth: &NewShard) -> Self {
        let all = [
            Key::Meta,
            Key::Counts,
            Key::Tail,
            Key::Ids,
            Key::Cancelled,
            Key::Quarantine,
        ];
        let mut call = Self::new(Script::OpenShard, all.len(), keys.names(all));
        call.arg(key::LAYOUT_VERSION)
            .arg(&*birth.identity.0)
            .arg(codec::watermark_hex(birth.watermark))
            .arg(birth.delivered.to_hex());
        call
    }

    pub(super) fn append(keys: &Keys, append: &Append) -> Self {
        let fixed = [Key::Meta, Key::Counts, Key::Tail, Key::Ids, Key::Cancelled];
        let (at, mut call) = Self::with_slices(
            Script::Append,
            keys,
            fixed,
            append.runs.iter().map(|run| run.slice),
        );
        call.arg(key::LAYOUT_VERSION)
            .arg(codec::watermark_hex(append.from))
            .arg(codec::watermark_hex(append.to));
        call.arg(codec::epoch_text(append.epoch))
            .arg(limit::TAIL_BATCHES_MAX)
            .arg(append.changes.len());
        for change in &append.changes {
            let place = match change.kind {
                IdChangeKind::Schedule(place) => place.to_hex(),
                IdChangeKind::Cancel => String::new(),
            };
            call.arg(&*change.id).arg(place);
        }
        append
            .runs
            .iter()
            .for_each(|run| call.new_run_args(&at, run));
        call
    }

    pub(super) fn acquire(keys: &Keys, lease: &Lease, length: Duration) -> Self {
        let mut call = Self::new(
            Script::AcquireLease,
            2,
            keys.names([Key::Meta, Key::Counts]),
        );
        call.arg(key::LAYOUT_VERSION)
            .arg(lease.token.to_string())
            .arg(millis(length));
        call
    }

    pub(super) fn renew(keys: &Keys, lease: &Lease, length: Duration) -> Self {
        let mut call = Self::new(Script::RenewLease, 1, keys.names([Key::Meta]));
        call.arg(key::LAYOUT_VERSION)
            .arg(lease.token.to_string())
            .arg(millis(length));
        call
    }

    pub(super) fn release(keys: &Keys, lease: &Lease) -> Self {
        let mut call = Self::new(Script::ReleaseLease, 1, keys.names([Key::Meta]));
        call.arg(key::LAYOUT_VERSION).arg(lease.token.to_string());
        call
    }

    pub(super) fn advance(keys: &Keys, advance: &Advance) -> Self {
        let fixed = [Key::Meta, Key::Counts, Key::Ids, Key::Cancelled];
        let (at, mut call) = Self::with_slices(
            Script::Advance,
            keys,
            fixed,
            advance.deletes.iter().map(|(slice, _)| *slice),
        );
        let due = advance
            .claim
            .map_or(0, |claim| claim.cursor.due.as_millis());
        call.arg(key::LAYOUT_VERSION)
            .arg(advance.lease.token.to_string())
            .arg(optional_hex(advance.delivered))
            .arg(optional_hex(advance.claim));
        call.arg(due)
            .arg(millis(advance.clock_skew_max))
            .arg(limit::CANCELLED_REMOVALS_MAX)
            .arg(advance.deletes.len());
        let OutcomeCounts {
            delivered,
            cancelled,
            dead_lettered,
            retried: sent_back,
        } = advance.outcomes;
        call.arg(advance.delivered_before.to_hex())
            .arg(delivered)
            .arg(cancelled)
            .arg(dead_lettered)
            .arg(sent_back);
        for (slice, name) in &advance.deletes {
            call.run_name_args(&at, *slice, name);
        }
        for (id, place) in &advance.delivered_ids {
            call.arg(&**id).arg(place.to_hex());
        }
        call
    }

    pub(super) fn quarantine(keys: &Keys, quarantine: &Quarantine) -> Self {
        let fixed = [Key::Meta, Key::Counts, Key::Quarantine];
        let (at, mut call) = Self::with_slices(
            Script::Quarantine,
            keys,
            fixed,
            quarantine.runs.iter().map(|(slice, _)| *slice),
        );
        call.arg(key::LAYOUT_VERSION)
            .arg(quarantine.lease.token.to_string());
        for (slice, name) in &quarantine.runs {
            call.run_name_args(&at, *slice, name);
        }
        call
    }

    pub(super) fn replace_runs(keys: &Keys, rewrite: &ReplaceRuns) -> Self {
        let slices = rewrite
            .inputs
            .iter()
            .map(|(slice, _)| *slice)
            .chain(rewrite.outputs.iter().map(|run| run.slice));
        let (at, mut call) =
            Self::with_slices(Script::ReplaceRuns, keys, [Key::Meta, Key::Counts], slices);
        call.arg(key::LAYOUT_VERSION)
            .arg(rewrite.lease.token.to_string())
            .arg(rewrite.known_replacements)
            .arg(rewrite.inputs.len());
        for (slice, name) in &rewrite.inputs {
            call.run_name_args(&at, *slice, name);
        }
        rewrite
            .outputs
            .iter()
            .for_each(|run| call.new_run_args(&at, run));
        call
    }

    pub(super) fn state(keys: &Keys) -> Self {
        let mut call = Self::new(Script::State, 2, keys.names([Key::Meta, Key::Counts]));
        call.arg(key::LAYOUT_VERSION);
        call
    }

    pub(super) fn tail(keys: &Keys, tail: &Tail) -> Self {
        let mut call = Self::new(Script::Tail, 2, keys.names([Key::Meta, Key::Tail]));
        call.arg(key::LAYOUT_VERSION)
            .arg(codec::watermark_hex(tail.after))
            .arg(tail.limit.min(limit::REQUESTED_RUNS_MAX));
        call
    }

    /// The roll is a zset as a slice's index is, and so is set aside like one if somebody overwrote it.
    pub(super) fn heartbeat_worker(workers: String, worker: WorkerId, length: Duration) -> Self {
        let mut call = Self::new(Script::HeartbeatWorker, 0, vec![workers]);
        call.arg(worker.to_string()).arg(millis(length));
        call
    }

    pub(super) fn remove_worker(workers: String, worker: WorkerId) -> Self {
        let mut call = Self::new(Script::RemoveWorker, 0, vec![workers]);
        call.arg(worker.to_string());
        call
    }

    /// `fields`: what `counts` held when it was looked at.
    pub(super) fn erase(keys: &Keys, fields: &[String]) -> Self {
        let mut names = keys.names([
            Key::Meta,
            Key::Counts,
            Key::Tail,
            Key::Ids,
            Key::Cancelled,
            Key::Quarantine,
        ]);
        for field in fields {
            names.extend(keys.names([Key::Slice(field), Key::Pool(field)]));
        }
        names.extend(
            names
                .iter()
                .map(|name| key::foreign_key(name))
                .collect::<Vec<_>>(),
        );
        let mut call = Self::new(Script::Erase, names.len(), names);
        call.arg(fields);
        call
    }

    pub(super) fn rename_foreign(key: &SliceKey) -> Self {
        let mut call = Self::new(
            Script::RenameForeign,
            2,
            vec![key.name.clone(), key::foreign_key(&key.name)],
        );
        call.arg(key.expected_type);
        call
    }

    /// The key that a reply complains of by its number in KEYS, if it is a slice's.
    pub(super) fn slice_key(&self, number: usize) -> Option<SliceKey> {
        let at = number.checked_sub(1 + self.shard_key_count)?;
        Some(SliceKey {
            name: self.keys[number - 1].clone(),
            expected_type: if at.is_multiple_of(2) {
                key::SLICE_TYPE
            } else {
                key::POOL_TYPE
            },
        })
    }

    /// A call whose keys go on with two for each slice; answers also where in KEYS, counted from 1, each slice's index stands.
    fn with_slices<const N: usize>(
        script: Script,
        keys: &Keys,
        fixed: [Key<'_>; N],
        slices: impl Iterator<Item = Slice>,
    ) -> (BTreeMap<Slice, usize>, Self) {
        let mut names = keys.names(fixed);
        let mut at = BTreeMap::new();
        for slice in slices {
            at.entry(slice).or_insert_with(|| {
                names.push(keys.slice(slice));
                names.push(keys.pool(slice));
                names.len() - 1
            });
        }
        (at, Self::new(script, N, names))
    }

    /// The four arguments that name a run.
    fn run_name_args(
        &mut self,
        at: &BTreeMap<Slice, usize>,
        slice: Slice,
        name: &RunName,
    ) -> &mut Self {
        self.arg(at[&slice])
            .arg(slice.to_string())
            .arg(codec::index_member(name))
            .arg(name.count())
    }

    /// The six arguments that bring a run.
    fn new_run_args(&mut self, at: &BTreeMap<Slice, usize>, run: &Run) {
        self.run_name_args(at, run.slice, &run.name)
            .arg(codec::due_score(run.summary.least_due()))
            .arg(&*run.bytes);
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn optional_hex(claim: Option<Progress>) -> String {
    claim.map_or_else(String::new, Progress::to_hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_stands_at_its_own_place() {
        for (at, (script, _)) in SCRIPTS.iter().enumerate() {
            assert_eq!(*script as usize, at);
        }
    }

    #[test]
    fn only_what_brings_bytes_is_refused_on_a_full_server() {
        for (script, text) in SCRIPTS {
            let wanted = match script {
                Script::OpenShard | Script::Append | Script::ReplaceRuns => "#!lua",
                Script::State | Script::Tail => "#!lua flags=no-writes",
                _ => "#!lua flags=allow-oom",
            };
            assert_eq!(text.lines().next(), Some(wanted), "{script:?}");
            assert_eq!(
                script.source().text.lines().next(),
                Some(wanted),
                "{script:?}"
            );
        }
    }
}
