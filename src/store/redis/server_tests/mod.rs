//! The store on a real `redis-server`: the port's promises, and what only a server or its
//! neighbours can do to us. Needs `redis-server` on the path, and fails without it.

mod cluster;
mod failover;
mod foreign;
mod outage;
mod permissions;
mod presence;
mod script_faults;
mod sentinel;
mod server;
mod tls;

use super::*;
use crate::model::OutcomeCounts;
use crate::model::{Cursor, Hint, Offset, Progress, Timestamp, Watermark};
use crate::run::{Run, RunName};
use crate::store::{
    AdminStore, AppendEpoch, Balance, CopyStore, IdChange, IdChangeKind, Lineage, Store, StoreQuery,
};
use crate::testing::store::contract::random_calls::{ComparedStore, assert_same_as_memory};
use crate::testing::store::contract::{self, StoreUnderTest, run_of};
use crate::testing::store::requests::{
    acquire, advance, append_at, lease, list_everything, new_shard, shard,
};
use server::Server;
use std::time::Duration;

struct RealRedis {
    server: Server,
    redis: Redis,
}

impl RealRedis {
    async fn start() -> Self {
        let server = Server::start();
        let redis = server.redis().await;
        Self { server, redis }
    }
}

#[async_trait(?Send)]
impl StoreUnderTest for RealRedis {
    fn store(&self) -> &dyn Store {
        &self.redis
    }

    fn survey(&self) -> &dyn CopyStore {
        &self.redis
    }

    fn admin(&self) -> &dyn AdminStore {
        &self.redis
    }

    async fn set_full(&self, full: bool) {
        self.server
            .command(if full {
                "CONFIG SET maxmemory 1"
            } else {
                "CONFIG SET maxmemory 0"
            })
            .await;
    }
}

fn key(topic: &str, name: &str) -> String {
    format!("pd:{{test/route/{topic}/0}}:{name}")
}

/// A place in hour `offset` after the epoch, so that each has a slice of its own.
fn place(offset: u64) -> Cursor {
    Cursor::new(
        Timestamp::from_millis(offset as i64 * 3_600_000),
        Offset(offset),
    )
}

fn append(topic: &str, offset: u64) -> Append {
    append_at(topic, place(offset))
}

const DONE: Appended = Appended::Done {
    cancelled: 0,
    missed: 0,
    told: Vec::new(),
};

#[async_trait(?Send)]
impl ComparedStore for RealRedis {
    fn store(&self) -> &dyn Store {
        &self.redis
    }

    async fn restart(&mut self) -> bool {
        false
    }
}

#[test]
fn random_calls_have_the_same_outcomes_in_memory_and_on_redis() {
    let server = Server::start_with(&["--appendfsync", "no"]);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let redis = runtime.block_on(server.redis());
    assert_same_as_memory(&mut RealRedis { server, redis }, &runtime, 300);
}

#[tokio::test]
async fn redis_passes_the_contract_suite() {
    contract::run(&RealRedis::start().await).await;
}

#[tokio::test]
async fn a_user_with_the_permissions_in_the_error_message_passes_the_contract_suite() {
    let server = Server::start();
    server
        .command(
            "ACL SETUSER postdate on >secret ~pd:* +@read +@write +@scripting +info +time +select \
             +publish +subscribe +pubsub",
        )
        .await;
    let options = Options {
        username: Some("postdate".to_owned()),
        password: Some("secret".to_owned()),
        ..server.options()
    };
    let redis = Redis::connect(&options).await.unwrap();
    contract::run(&RealRedis { server, redis }).await;
}

#[tokio::test]
async fn all_keys_of_a_shard_have_its_hash_tag_for_any_name() {
    let real = RealRedis::start().await;
    let topic = "{a}/b\n* c";
    real.redis.open(&[new_shard(topic)]).await.unwrap();
    assert_eq!(
        real.redis.append(&[append(topic, 0)]).await.unwrap(),
        [DONE]
    );
    let keys = real.server.keys().await;
    assert_eq!(keys.len(), 6, "{keys:?}");
    for name in keys {
        assert!(
            name.starts_with("pd:{test/route/%7ba%7d%2fb%0a%2a%20c/0}:"),
            "{name}"
        );
    }
}

#[tokio::test]
async fn a_delivered_shard_keeps_only_meta_and_tail() {
    let real = RealRedis::start().await;
    real.redis.open(&[new_shard("t")]).await.unwrap();
    let appends = [append("t", 0), append("t", 1)];
    assert_eq!(real.redis.append(&appends).await.unwrap(), [DONE, DONE]);
    let cancel = IdChange::new("id0", IdChangeKind::Cancel);
    let cancels = Append {
        runs: vec![],
        changes: vec![cancel],
        ..append("t", 2)
    };
    assert_eq!(
        real.redis.append(&[cancels]).await.unwrap(),
        [Appended::Done {
            cancelled: 1,
            missed: 0,
            told: Vec::new(),
        }]
    );
    real.redis.acquire(&[acquire("t")]).await.unwrap();
    let all = Progress::new(place(1), Watermark(3));
    let runs: Vec<&Run> = appends.iter().flat_map(|append| &append.runs).collect();
    let deletes = runs
        .iter()
        .map(|run| (run.slice, run.name.clone()))
        .collect();
    let advance = Advance {
        delivered: Some(all),
        deletes,
        delivered_ids: vec![("id1".into(), place(1))],
        claimed_answers: vec![],
        delivered_answers: vec![],
        ..advance("t", all)
    };
    real.redis.advance(&[advance]).await.unwrap();
    assert_eq!(
        real.server.keys().await,
        [key("t", "meta"), key("t", "tail")]
    );
    real.redis.erase(&[shard("t")]).await.unwrap();
    assert_eq!(real.server.keys().await, [""; 0]);
}

/// A version without ledgers wrote the shard, alone or together with this version.
#[tokio::test]
async fn a_missing_ledger_starts_anew_and_is_certain_once_the_shard_is_empty() {
    let real = RealRedis::start().await;
    let balance = async || {
        let states = real.redis.states(&[shard("t")]).await.unwrap();
        Balance::of(states[0].as_ref().expect("it was born"))
    };
    real.redis.open(&[new_shard("t")]).await.unwrap();
    // The counts of keys count the same messages again.
    let append = |offset| {
        let mut append = append("t", offset);
        append.changes.clear();
        let run = &mut append.runs[0];
        run.name = RunName::new(format!("{}-0000000f-k", run.name));
        append
    };
    real.redis.append(&[append(0)]).await.unwrap();
    let meta = key("t", "meta");
    let watermark = format!("HSET {meta} watermark {:016x}", 5);
    for (lost, from, accepted) in [(format!("HDEL {meta} ledger"), 1, 2), (watermark, 5, 3)] {
        real.server.command(&lost).await;
        assert!(
            balance().await.is_uncertain && balance().await.is_balanced(),
            "{lost}"
        );
        real.redis.append(&[append(from)]).await.unwrap();
        assert_eq!(
            (balance().await.accepted, balance().await.is_uncertain),
            (accepted, true),
            "{lost}"
        );
    }
    real.redis.acquire(&[acquire("t")]).await.unwrap();
    let all = Progress::new(place(5), Watermark(6));
    let deletes = [0, 1, 5]
        .map(|offset| append(offset).runs.remove(0))
        .map(|run| (run.slice, run.name))
        .to_vec();
    // One of the three was delivered before, by the other version.
    let tally = OutcomeCounts {
        delivered: 2,
        ..OutcomeCounts::default()
    };
    real.redis
        .advance(&[Advance {
            delivered: Some(all),
            outcomes: tally,
            deletes,
            ..advance("t", all)
        }])
        .await
        .unwrap();
    let wanted = Balance {
        accepted: 2,
        outcomes: tally,
        ..Balance::default()
    };
    assert_eq!(balance().await, wanted);
}

/// The lineage of shard `t`.
async fn lineage(real: &RealRedis) -> Lineage {
    real.redis
        .positions(&[shard("t")])
        .await
        .unwrap()
        .remove(0)
        .expect("it was born")
        .lineage
}

/// Appends a message to shard `t` in an epoch.
async fn append_in_epoch(real: &RealRedis, epoch: AppendEpoch, offset: u64) {
    let append = Append {
        epoch,
        ..append("t", offset)
    };
    real.redis.append(&[append]).await.unwrap();
}

/// The request that replaces the run with the message at `offset` of shard `t`.
fn replace_run(offset: u64) -> ReplaceRuns {
    let input = append("t", offset).runs.remove(0);
    ReplaceRuns {
        lease: lease("t"),
        known_replacements: 0,
        inputs: vec![(input.slice, input.name)],
        outputs: vec![run_of(&format!("new{offset}"), &[place(offset)])],
        renamed_ids: Vec::new(),
    }
}

/// A version without lineages wrote the shard, or the field holds foreign text.
#[tokio::test]
async fn a_shard_without_lineage_gets_one_with_the_next_append_or_replacement() {
    let real = RealRedis::start().await;
    let meta = key("t", "meta");
    let of = |number| AppendEpoch {
        process: 0xab,
        number,
    };
    real.redis.open(&[new_shard("t")]).await.unwrap();
    append_in_epoch(&real, of(1), 0).await;
    assert_eq!(lineage(&real).await.epochs[0].epoch, of(1));
    real.redis.acquire(&[acquire("t")]).await.unwrap();
    for (from, lost) in [
        format!("HDEL {meta} history"),
        format!("HSET {meta} history other"),
    ]
    .iter()
    .enumerate()
    {
        let from = from as u64;
        real.server.command(lost).await;
        assert_eq!(lineage(&real).await, Lineage::default(), "{lost}");
        assert_eq!(
            real.redis.replace_runs(&[replace_run(from)]).await.unwrap(),
            [Replaced::Done],
            "{lost}"
        );
        assert_eq!(
            lineage(&real).await,
            Lineage {
                replacements: 1,
                ..Lineage::default()
            },
            "{lost}"
        );
        append_in_epoch(&real, of(2), from + 1).await;
        let mut wanted = Lineage {
            replacements: 1,
            ..Lineage::default()
        };
        wanted.appended(of(2), Watermark(from + 1));
        assert_eq!(lineage(&real).await, wanted, "{lost}");
    }
}

#[tokio::test]
async fn a_quarantined_run_is_kept_with_its_bytes() {
    let real = RealRedis::start().await;
    real.redis.open(&[new_shard("t")]).await.unwrap();
    let run = append("t", 0).runs.remove(0);
    real.redis.append(&[append("t", 0)]).await.unwrap();
    real.redis.acquire(&[acquire("t")]).await.unwrap();
    let runs = vec![(run.slice, run.name.clone())];
    assert_eq!(
        real.redis
            .quarantine(&[Quarantine {
                lease: lease("t"),
                runs
            }])
            .await
            .unwrap(),
        [1]
    );
    let kept = real
        .server
        .command(&format!("HGET {} {}", key("t", "quarantine"), run.name))
        .await;
    assert_eq!(kept, redis::Value::BulkString(run.bytes.to_vec()));
}

#[tokio::test]
async fn a_slice_that_is_in_use_again_is_not_renamed() {
    let real = RealRedis::start().await;
    real.redis.open(&[new_shard("t")]).await.unwrap();
    real.redis.append(&[append("t", 0)]).await.unwrap();
    let before = real.server.keys().await;
    // Another process found the same foreign value, and was quicker.
    let late = SliceKey {
        name: key("t", "slice:h0"),
        expected_type: key::INDEX_TYPE,
    };
    let gone = SliceKey {
        name: key("t", "slice:h9"),
        expected_type: key::INDEX_TYPE,
    };
    real.redis.rename_foreign(&[late, gone]).await.unwrap();
    assert_eq!(real.server.keys().await, before);
}

#[tokio::test]
async fn an_erase_leaves_no_slice_that_was_added_meanwhile() {
    let real = RealRedis::start().await;
    real.redis.open(&[new_shard("t")]).await.unwrap();
    real.redis.append(&[append("t", 0)]).await.unwrap();
    // The call of an erase that read the slices before the append.
    let outdated = Call::erase(&real.redis.keyspace, &shard("t"), &[]);
    let before = real.server.keys().await;
    assert_eq!(
        real.redis.run_once(&[outdated]).await.unwrap()[0].tag,
        "new_slices"
    );
    assert_eq!(real.server.keys().await, before);
}
