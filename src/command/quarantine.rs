//! `postdate quarantine`: lists the runs in quarantine, and puts those back that can be read.
//!
//! The claims of the timer have passed the messages of such a run, so no message would ever be
//! delivered at its old place. Messages that are due too soon therefore get a due time shortly after
//! the command. Their offsets stay.

use super::page::print;
use super::{Outcome, run};
use crate::cli::{QuarantineAction, QuarantineArgs};
use crate::clock::{Clock as _, WallClock};
use crate::config::Config;
use crate::encryption::{KeyRing, describe_key};
use crate::model::{Cursor, Level, ShardId, Slice, Timestamp};
use crate::role::StoreFactory;
use crate::run::{
    EncodedMessage, FarTarget, LoadedRun, Run, RunBuilder, RunDecoder, RunError, RunName, ThinHours,
};
use crate::store::{QuarantineStore, Restore, Restored};
use anyhow::{Context, Result, ensure};
use std::time::Duration;

/// Time from the command to the first due time: longer than clocks may differ, and than a claim may
/// be ahead.
const RESTORE_DELAY: Duration = Duration::from_secs(10);

/// Lists the quarantined runs, or restores them. Fails if a run cannot be restored.
pub fn quarantine(config: &Config, args: &QuarantineArgs) -> Result<Outcome> {
    run(async {
        let store = StoreFactory::open(config, WallClock)?.connect_query().await;
        let store = store.context("store.redis")?;
        let mut shards = store.shards().await?;
        shards.retain(|shard| {
            args.route
                .as_deref()
                .is_none_or(|route| route == &*shard.route)
        });
        let keys = config.keys();
        let (mut runs, mut failed) = (0, false);
        for shard in &shards {
            for name in store.quarantined_runs(shard).await? {
                let found = read(&*store, shard, &name, keys.clone()).await?;
                let result = match (args.action, &found) {
                    (_, Err(why)) => format!("cannot be restored: {why}"),
                    (QuarantineAction::List, Ok(_)) => "can be restored".to_owned(),
                    (QuarantineAction::Restore, Ok(run)) => {
                        restore(&*store, shard, run, &keys).await?.to_owned()
                    }
                };
                runs += 1;
                failed |= found.is_err() && args.action == QuarantineAction::Restore;
                let (messages, offset) = (name.count(), name.least_offset());
                print(&format!(
                    "{shard}: {messages} messages from offset {offset} on, run {name}: {result}\n"
                ))?;
            }
        }
        if runs == 0 {
            print("No run is in quarantine.\n")?;
        }
        Ok(Outcome::failing_if(failed))
    })
}

/// The inner error tells why the run cannot be read.
async fn read(
    store: &dyn QuarantineStore,
    shard: &ShardId,
    name: &RunName,
    keys: KeyRing,
) -> Result<Result<LoadedRun, String>> {
    let bytes = store.quarantined_bytes(shard, name).await?;
    // The runs that replace it get other slices.
    let slice = Slice::at(Level::Now, Timestamp::AT_ONCE);
    let decoded =
        RunDecoder::new(keys).decode(shard, name.clone(), slice, &bytes.unwrap_or_default());
    Ok(decoded.map_err(|why| match why {
        RunError::MissingKey => format!("it needs {}", describe_key(name.key())),
        why => why.to_string(),
    }))
}

async fn restore(
    store: &dyn QuarantineStore,
    shard: &ShardId,
    run: &LoadedRun,
    keys: &KeyRing,
) -> Result<&'static str> {
    let request = Restore {
        shard: shard.clone(),
        quarantined: run.name.clone(),
        runs: rebuild(shard, run, keys, WallClock.now()),
    };
    let restored = store.restore(&request).await?;
    ensure!(
        restored != Restored::TooEarly,
        "a timer has claimed messages of {shard} that are due more than {} s from now: synchronise the clocks, or try again later",
        RESTORE_DELAY.as_secs()
    );
    Ok(match restored {
        Restored::Done => "restored",
        _ => "not in quarantine any more",
    })
}

/// The same messages as new runs under the same key, because their ids are hashed by it. Their due
/// times are at least [`RESTORE_DELAY`] after `now`.
fn rebuild(shard: &ShardId, run: &LoadedRun, keys: &KeyRing, now: Timestamp) -> Vec<Run> {
    let earliest = now.plus(RESTORE_DELAY);
    let message = |index| {
        let place = run.place(index);
        let place = Cursor::new(place.due.max(earliest), place.offset);
        EncodedMessage {
            slice: Slice::at(Level::Hour, place.due),
            place,
            record: run.record(index),
        }
    };
    let mut messages: Vec<_> = (0..run.len()).map(message).collect();
    let keys = keys.with_writer(run.name.key());
    RunBuilder::new(rand::random(), keys).build(
        shard,
        &mut messages,
        Some(FarTarget::at(now, ThinHours::DEFAULT)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encryption::test_rings::{line, ring};
    use crate::model::Offset;
    use crate::run::test_messages::shard;

    #[test]
    fn restored_messages_are_due_after_the_command_and_keep_order_and_key() {
        let now = Timestamp::from_millis(1_800_000_000_000);
        let earliest = now.plus(RESTORE_DELAY);
        let later = earliest.plus(Duration::from_secs(60));
        let place = |due, offset| Cursor::new(due, Offset(offset));
        let stored = [
            (place(Timestamp::AT_ONCE, 7), &b"seven"[..]),
            (place(now, 3), b"three"),
            (place(later, 5), b"five"),
        ];
        let mut stored = stored.map(|(place, record)| EncodedMessage {
            slice: Slice::at(Level::Now, now),
            place,
            record,
        });
        let mut builder = RunBuilder::new(9, ring(&line("old", 1)));
        let run = builder.build(&shard(), &mut stored, None).remove(0);
        let keys = ring(&(line("new", 2) + &line("old", 1)));
        let mut decoder = RunDecoder::new(keys.clone());
        let name = run.name.clone();
        let run = decoder.decode(&shard(), run.name, run.slice, &run.bytes);
        let restored = rebuild(&shard(), &run.unwrap(), &keys, now);
        assert!(restored.iter().all(|run| run.name != name), "I3");
        assert!(restored.iter().all(|run| run.name.key() == name.key()));
        let restored = restored.iter().flat_map(|run| {
            let run = decoder.decode(&shard(), run.name.clone(), run.slice, &run.bytes);
            let run = run.unwrap();
            Vec::from_iter((0..run.len()).map(|at| (run.place(at), run.record(at).to_vec())))
        });
        let wanted = [
            (place(earliest, 3), b"three".to_vec()),
            (place(earliest, 7), b"seven".to_vec()),
            (place(later, 5), b"five".to_vec()),
        ];
        assert_eq!(Vec::from_iter(restored), wanted);
    }
}
