//! The scripts of `lua/` and the calls of them: which keys and arguments each takes, in the order that its head lists them. What the
//! replies mean is `reply`'s affair.

use super::form;
use super::key::{self, Key, Keys};
use crate::limit;
use crate::model::{Claim, Lease, Slice, Worker};
use crate::run::{Name, Run};
use crate::store::{Advance, Append, Birth, ChangeKind, Quarantine, Rewrite, Tail, Tally};
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
    Rewrite,
    State,
    Tail,
    Enrol,
    Resign,
    Erase,
    SetAside,
}

const ALL: [(Script, &str); 14] = [
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
    (Script::Rewrite, include_str!("../../../lua/rewrite.lua")),
    (Script::State, include_str!("../../../lua/state.lua")),
    (Script::Tail, include_str!("../../../lua/tail.lua")),
    (Script::Enrol, include_str!("../../../lua/enrol.lua")),
    (Script::Resign, include_str!("../../../lua/resign.lua")),
    (Script::Erase, include_str!("../../../lua/erase.lua")),
    (Script::SetAside, include_str!("../../../lua/set_aside.lua")),
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

static SOURCES: LazyLock<[Source; ALL.len()]> = LazyLock::new(|| {
    ALL.map(|(_, script)| {
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
    pub(super) of_type: &'static str,
}

/// One call of a script for one shard.
pub(super) struct Call {
    pub(super) script: Script,
    pub(super) command: Cmd,
    /// What `KEYS` holds, to name the one that a reply complains of.
    pub(super) keys: Vec<String>,
    /// How many of the keys are the shard's own; the rest are slices.
    fixed: usize,
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
            fixed,
        }
    }

    fn arg(&mut self, arg: impl ToRedisArgs) -> &mut Self {
        self.command.arg(arg);
        self
    }

    pub(super) fn open(keys: &Keys, birth: &Birth) -> Self {
        let all = [
            Key::Meta,
            Key::Counts,
            Key::Tail,
            Key::Ids,
            Key::Cancelled,
            Key::Quarantine,
        ];
        let mut call = Self::new(Script::OpenShard, all.len(), keys.names(all));
        call.arg(key::LAYOUT)
            .arg(&*birth.identity.0)
            .arg(form::watermark_hex(birth.watermark))
            .arg(birth.delivered.to_hex());
        call
    }

    pub(super) fn append(keys: &Keys, append: &Append) -> Self {
        let fixed = [Key::Meta, Key::Counts, Key::Tail, Key::Ids, Key::Cancelled];
        let (at, mut call) = Self::on_slices(
            Script::Append,
            keys,
            fixed,
            append.runs.iter().map(|run| run.slice),
        );
        call.arg(key::LAYOUT)
            .arg(form::watermark_hex(append.from))
            .arg(form::watermark_hex(append.to));
        call.arg(form::reading(append.reading))
            .arg(limit::TAIL_RUNS_MAX)
            .arg(append.changes.len());
        for change in &append.changes {
            let place = match change.kind {
                ChangeKind::Schedule(place) => place.to_hex(),
                ChangeKind::Cancel => String::new(),
            };
            call.arg(&*change.id).arg(place);
        }
        append.runs.iter().for_each(|run| call.arg_new(&at, run));
        call
    }

    pub(super) fn acquire(keys: &Keys, lease: &Lease, length: Duration) -> Self {
        let mut call = Self::new(
            Script::AcquireLease,
            2,
            keys.names([Key::Meta, Key::Counts]),
        );
        call.arg(key::LAYOUT)
            .arg(lease.token.to_string())
            .arg(millis(length));
        call
    }

    pub(super) fn renew(keys: &Keys, lease: &Lease, length: Duration) -> Self {
        let mut call = Self::new(Script::RenewLease, 1, keys.names([Key::Meta]));
        call.arg(key::LAYOUT)
            .arg(lease.token.to_string())
            .arg(millis(length));
        call
    }

    pub(super) fn release(keys: &Keys, lease: &Lease) -> Self {
        let mut call = Self::new(Script::ReleaseLease, 1, keys.names([Key::Meta]));
        call.arg(key::LAYOUT).arg(lease.token.to_string());
        call
    }

    pub(super) fn advance(keys: &Keys, advance: &Advance) -> Self {
        let fixed = [Key::Meta, Key::Counts, Key::Ids, Key::Cancelled];
        let (at, mut call) = Self::on_slices(
            Script::Advance,
            keys,
            fixed,
            advance.deletes.iter().map(|(slice, _)| *slice),
        );
        let due = advance
            .claim
            .map_or(0, |claim| claim.cursor.due.as_millis());
        call.arg(key::LAYOUT)
            .arg(advance.lease.token.to_string())
            .arg(optional_hex(advance.delivered))
            .arg(optional_hex(advance.claim));
        call.arg(due)
            .arg(millis(advance.skew_max))
            .arg(limit::CANCELLED_DROPS_MAX)
            .arg(advance.deletes.len());
        let Tally {
            delivered,
            cancelled,
            dead_lettered,
            sent_back,
        } = advance.tally;
        call.arg(advance.since.to_hex())
            .arg(delivered)
            .arg(cancelled)
            .arg(dead_lettered)
            .arg(sent_back);
        for (slice, name) in &advance.deletes {
            call.arg_run(&at, *slice, name);
        }
        for (id, place) in &advance.ids {
            call.arg(&**id).arg(place.to_hex());
        }
        call
    }

    pub(super) fn quarantine(keys: &Keys, quarantine: &Quarantine) -> Self {
        let fixed = [Key::Meta, Key::Counts, Key::Quarantine];
        let (at, mut call) = Self::on_slices(
            Script::Quarantine,
            keys,
            fixed,
            quarantine.runs.iter().map(|(slice, _)| *slice),
        );
        call.arg(key::LAYOUT)
            .arg(quarantine.lease.token.to_string());
        for (slice, name) in &quarantine.runs {
            call.arg_run(&at, *slice, name);
        }
        call
    }

    pub(super) fn rewrite(keys: &Keys, rewrite: &Rewrite) -> Self {
        let slices = rewrite
            .inputs
            .iter()
            .map(|(slice, _)| *slice)
            .chain(rewrite.outputs.iter().map(|run| run.slice));
        let (at, mut call) =
            Self::on_slices(Script::Rewrite, keys, [Key::Meta, Key::Counts], slices);
        call.arg(key::LAYOUT)
            .arg(rewrite.lease.token.to_string())
            .arg(rewrite.after)
            .arg(rewrite.inputs.len());
        for (slice, name) in &rewrite.inputs {
            call.arg_run(&at, *slice, name);
        }
        rewrite
            .outputs
            .iter()
            .for_each(|run| call.arg_new(&at, run));
        call
    }

    pub(super) fn state(keys: &Keys) -> Self {
        let mut call = Self::new(Script::State, 2, keys.names([Key::Meta, Key::Counts]));
        call.arg(key::LAYOUT);
        call
    }

    pub(super) fn tail(keys: &Keys, tail: &Tail) -> Self {
        let mut call = Self::new(Script::Tail, 2, keys.names([Key::Meta, Key::Tail]));
        call.arg(key::LAYOUT)
            .arg(form::watermark_hex(tail.after))
            .arg(tail.limit.min(limit::ROWS_MAX));
        call
    }

    /// The roll is a zset as a slice's index is, and so is set aside like one if somebody overwrote it.
    pub(super) fn enrol(workers: String, worker: Worker, length: Duration) -> Self {
        let mut call = Self::new(Script::Enrol, 0, vec![workers]);
        call.arg(worker.to_string()).arg(millis(length));
        call
    }

    pub(super) fn resign(workers: String, worker: Worker) -> Self {
        let mut call = Self::new(Script::Resign, 0, vec![workers]);
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
                .map(|name| key::aside(name))
                .collect::<Vec<_>>(),
        );
        let mut call = Self::new(Script::Erase, names.len(), names);
        call.arg(fields);
        call
    }

    pub(super) fn set_aside(key: &SliceKey) -> Self {
        let mut call = Self::new(
            Script::SetAside,
            2,
            vec![key.name.clone(), key::aside(&key.name)],
        );
        call.arg(key.of_type);
        call
    }

    /// The key that a reply complains of by its number in KEYS, if it is a slice's.
    pub(super) fn slice_key(&self, number: usize) -> Option<SliceKey> {
        let at = number.checked_sub(1 + self.fixed)?;
        Some(SliceKey {
            name: self.keys[number - 1].clone(),
            of_type: if at.is_multiple_of(2) {
                key::SLICE_TYPE
            } else {
                key::POOL_TYPE
            },
        })
    }

    /// A call whose keys go on with two for each slice; answers also where in KEYS, counted from 1, each slice's index stands.
    fn on_slices<const N: usize>(
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
    fn arg_run(&mut self, at: &BTreeMap<Slice, usize>, slice: Slice, name: &Name) -> &mut Self {
        self.arg(at[&slice])
            .arg(slice.to_string())
            .arg(form::member(name))
            .arg(name.count())
    }

    /// The six arguments that bring a run.
    fn arg_new(&mut self, at: &BTreeMap<Slice, usize>, run: &Run) {
        self.arg_run(at, run.slice, &run.name)
            .arg(form::score(run.summary.least_due()))
            .arg(&*run.bytes);
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn optional_hex(claim: Option<Claim>) -> String {
    claim.map_or_else(String::new, Claim::to_hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_stands_at_its_own_place() {
        for (at, (script, _)) in ALL.iter().enumerate() {
            assert_eq!(*script as usize, at);
        }
    }

    #[test]
    fn only_what_brings_bytes_is_refused_on_a_full_server() {
        for (script, text) in ALL {
            let wanted = match script {
                Script::OpenShard | Script::Append | Script::Rewrite => "#!lua",
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
