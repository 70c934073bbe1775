//! Foreign data under the keys of Postdate affects only one shard, or one slice.

use super::super::reads::slices_to_read;
use super::*;
use crate::model::{LeaseToken, Level, SessionId, Slice, WorkerEntry};
use crate::store::{Heartbeat, SessionEnd, SessionHeartbeat};
use std::collections::BTreeMap;

/// Two shards with a message each, in the same slice.
async fn two_shards() -> RealRedis {
    let real = RealRedis::start().await;
    real.redis
        .open(&[new_shard("bad"), new_shard("good")])
        .await
        .unwrap();
    assert_eq!(
        real.redis
            .append(&[append("bad", 0), append("good", 0)])
            .await
            .unwrap(),
        [DONE, DONE]
    );
    real
}

fn slice() -> Slice {
    append("bad", 0).runs[0].slice
}

/// Every call answers `Unknown` for the bad shard and works for the good one. `open` names the
/// problem.
async fn assert_only_bad_is_unknown(real: &RealRedis, said: &[&str]) {
    let redis = &real.redis;
    assert_eq!(
        redis
            .append(&[append("bad", 1), append("good", 1)])
            .await
            .unwrap(),
        [Appended::Unknown, DONE]
    );
    let states = redis.state(&[shard("bad"), shard("good")]).await.unwrap();
    assert!(states[0].is_none() && states[1].is_some());
    assert_only_good_is_leased(redis).await;
    assert_only_good_is_listed(redis).await;
    assert_only_good_is_changed(redis).await;
    redis.release(&[lease("bad"), lease("good")]).await.unwrap();

    let opened = redis
        .open(&[new_shard("bad"), new_shard("good")])
        .await
        .unwrap();
    let Opened::Incompatible(text) = &opened[0] else {
        panic!("{:?}", opened[0])
    };
    assert!(said.iter().all(|part| text.contains(part)), "{text}");
    assert!(matches!(opened[1], Opened::Existing(_)));
}

async fn assert_only_good_is_leased(redis: &Redis) {
    let leases = [acquire("bad"), acquire("good")];
    let acquired = redis.acquire(&leases).await.unwrap();
    assert!(
        acquired[0] == Acquired::Unknown && matches!(acquired[1], Acquired::Granted(_)),
        "{acquired:?}"
    );
}

async fn assert_only_good_is_listed(redis: &Redis) {
    let listed = redis
        .list(&[list_everything("bad"), list_everything("good")])
        .await
        .unwrap();
    assert!(
        listed[0] == Listed::Unknown
            && matches!(&listed[1], Listed::Runs { runs, .. } if runs.len() == 2),
        "{listed:?}"
    );
    assert_only_good_has_a_tail(redis, 2).await;
}

async fn assert_only_good_has_a_tail(redis: &Redis, runs_of_good: usize) {
    let tail = |topic| Tail {
        shard: shard(topic),
        after: Watermark(0),
        until: Timestamp::MAX,
        limit: 9,
        bytes_max: usize::MAX,
    };
    let tailed = redis.tail(&[tail("bad"), tail("good")]).await.unwrap();
    assert!(
        tailed[0] == Tailed::Unknown
            && matches!(&tailed[1], Tailed::Runs { runs, .. } if runs.len() == runs_of_good),
        "{tailed:?}"
    );
}

/// Needs the lease of the good shard.
async fn assert_only_good_is_changed(redis: &Redis) {
    let advances = [
        advance("bad", Progress::START),
        advance("good", Progress::START),
    ];
    let advanced = redis.advance(&advances).await.unwrap();
    assert!(
        advanced[0] == Advanced::Unknown && matches!(advanced[1], Advanced::Done { .. }),
        "{advanced:?}"
    );
    let quarantine = |topic| Quarantine {
        lease: lease(topic),
        runs: vec![(slice(), append(topic, 0).runs[0].name.clone())],
    };
    assert_eq!(
        redis
            .quarantine(&[quarantine("bad"), quarantine("good")])
            .await
            .unwrap(),
        [0, 1]
    );
}

#[tokio::test]
async fn a_meta_key_of_another_type_affects_only_its_shard() {
    let real = two_shards().await;
    real.server
        .command(&format!("SET {} something", key("bad", "meta")))
        .await;
    assert_only_bad_is_unknown(&real, &[&key("bad", "meta"), "erase the shard"]).await;
    real.redis.erase(&[shard("bad")]).await.unwrap();
    assert!(matches!(
        real.redis.open(&[new_shard("bad")]).await.unwrap()[0],
        Opened::Created(_)
    ));
}

#[tokio::test]
async fn a_meta_key_of_a_newer_layout_asks_for_that_version() {
    let real = two_shards().await;
    real.server
        .command(&format!("HSET {} version 2", key("bad", "meta")))
        .await;
    assert_only_bad_is_unknown(&real, &["layout version 2", "run the newer version"]).await;
}

#[tokio::test]
async fn a_meta_key_of_another_layout_affects_only_its_shard() {
    let real = two_shards().await;
    real.server
        .command(&format!("HSET {} version 0", key("bad", "meta")))
        .await;
    assert_only_bad_is_unknown(
        &real,
        &[
            "layout version `0`",
            "let the version that wrote it deliver",
            "erase the shard",
        ],
    )
    .await;
    real.server
        .command(&format!("HSET {} version 1", key("bad", "meta")))
        .await;
    let state = real
        .redis
        .state(&[shard("bad")])
        .await
        .unwrap()
        .remove(0)
        .unwrap();
    assert_eq!(
        (state.watermark, state.pending()),
        (Watermark(1), 1),
        "nothing was written meanwhile"
    );
}

#[tokio::test]
async fn a_meta_key_with_foreign_values_affects_only_its_shard() {
    for value in [
        "watermark zzzz",
        "claimed 12",
        "delivered 0x",
        "tail_from gggggggggggggggg",
        "pause 000000000000000ap1:1:1",
        "pause p1:1:1:1:",
    ] {
        let real = two_shards().await;
        real.server
            .command(&format!("HSET {} {value}", key("bad", "meta")))
            .await;
        assert_only_bad_is_unknown(&real, &[&key("bad", "meta"), "values that cannot be read"])
            .await;
    }
}

/// Deletes the key and writes a string in its place.
async fn overwrite(real: &RealRedis, key: &str) {
    real.server.command(&format!("SET {key} something")).await;
}

#[tokio::test]
async fn an_append_that_finds_a_key_of_another_type_writes_nothing() {
    for name in ["counts", "tail", "ids", "cancelled"] {
        let real = two_shards().await;
        overwrite(&real, &key("bad", name)).await;
        let before = real.server.keys().await;
        assert_eq!(
            real.redis
                .append(&[append("bad", 1), append("good", 1)])
                .await
                .unwrap(),
            [Appended::Unknown, DONE]
        );
        let good: Vec<String> = ["slice:h1", "pool:h1"]
            .map(|name| key("good", name))
            .to_vec();
        let after: Vec<String> = real
            .server
            .keys()
            .await
            .into_iter()
            .filter(|key| !good.contains(key))
            .collect();
        assert_eq!(after, before);
        let opened = real
            .redis
            .open(&[new_shard("bad")])
            .await
            .unwrap()
            .remove(0);
        assert!(
            matches!(&opened, Opened::Incompatible(text) if text.contains(&key("bad", name))),
            "{opened:?}"
        );
    }
}

#[tokio::test]
async fn an_advance_that_finds_a_key_of_another_type_writes_nothing() {
    for name in ["ids", "cancelled"] {
        let real = two_shards().await;
        real.redis.acquire(&[acquire("bad")]).await.unwrap();
        overwrite(&real, &key("bad", name)).await;
        let run = append("bad", 0).runs.remove(0);
        let all = Progress::new(place(0), Watermark(1));
        let deletes = vec![(run.slice, run.name)];
        let request = Advance {
            delivered: Some(all),
            deletes,
            delivered_ids: vec![("id0".into(), place(0))],
            claimed_answers: vec![],
            delivered_answers: vec![],
            ..advance("bad", all)
        };
        assert_eq!(
            real.redis.advance(&[request]).await.unwrap(),
            [Advanced::Unknown]
        );
        let state = real
            .redis
            .state(&[shard("bad")])
            .await
            .unwrap()
            .remove(0)
            .unwrap();
        assert_eq!(
            (state.delivered, state.claimed, state.pending()),
            (Progress::START, Progress::START, 1)
        );
    }
}

#[tokio::test]
async fn foreign_values_in_other_keys_do_not_stop_a_shard() {
    let real = two_shards().await;
    real.redis.acquire(&[acquire("bad")]).await.unwrap();
    for words in [
        "ZADD cancelled 0 00",
        "ZADD cancelled 0 0zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz",
        "HSET ids id0 x",
        "HSET counts h0 x",
        "HSET counts x x",
    ] {
        let (command, rest) = words.split_once(' ').unwrap();
        let (name, rest) = rest.split_once(' ').unwrap();
        real.server
            .command(&format!("{command} {} {rest}", key("bad", name)))
            .await;
    }
    let all = Progress::new(place(9), Watermark(1));
    let advanced = real.redis.advance(&[advance("bad", all)]).await.unwrap();
    assert_eq!(
        advanced,
        [Advanced::Done {
            watermark: Watermark(1),
            cancelled: vec![],
            effects: vec![]
        }]
    );
    let cancel = IdChange::new("id0", IdChangeKind::Cancel);
    let append = Append {
        changes: vec![cancel],
        ..append("bad", 1)
    };
    assert_eq!(
        real.redis.append(&[append]).await.unwrap(),
        [Appended::Done {
            cancelled: 0,
            missed: 1,
            told: Vec::new(),
        }]
    );
    let state = real
        .redis
        .state(&[shard("bad")])
        .await
        .unwrap()
        .remove(0)
        .unwrap();
    assert_eq!(
        state.lowest_pending,
        Offset(0),
        "what cannot be read is never too high"
    );
    assert!(
        matches!(&real.redis.list(&[list_everything("bad")]).await.unwrap()[0], Listed::Runs { runs, .. } if runs.len() == 2)
    );
}

/// Junk is no slice of any version. Two fields of it are as harmless as one.
#[tokio::test]
async fn foreign_fields_of_counts_do_not_stop_a_shard() {
    let real = two_shards().await;
    let counts = key("bad", "counts");
    for field in ["junk", "x", "h007", "X12", "x99999999999999999999"] {
        real.server
            .command(&format!("HSET {counts} {field} something"))
            .await;
    }
    let acquired = real.redis.acquire(&[acquire("bad")]).await.unwrap();
    assert!(
        matches!(&acquired[0], Acquired::Granted(state) if state.pending() == 1),
        "{acquired:?}"
    );
    let listed = real.redis.list(&[list_everything("bad")]).await.unwrap();
    assert!(
        matches!(&listed[0], Listed::Runs { runs, .. } if runs.len() == 1),
        "{listed:?}"
    );
}

/// Adds a slice that this version does not know, with one run.
async fn add_newer_slice(real: &RealRedis, topic: &str) {
    let count = format!("1 10 {:016x}", 0);
    let member = format!("{:016x} 9-1-1-0", 0);
    for command in [
        ["HSET", &key(topic, "counts"), "x12", &count],
        ["ZADD", &key(topic, "slice:x12"), "5", &member],
        ["HSET", &key(topic, "pool:x12"), "9-1-1-0", "0123456789"],
    ] {
        real.server.command_of(&command).await;
    }
}

#[tokio::test]
async fn a_slice_of_a_newer_version_stops_only_its_shard() {
    let real = two_shards().await;
    let redis = &real.redis;
    add_newer_slice(&real, "bad").await;
    let command = format!("HGETALL {}", key("bad", "meta"));
    let meta = async || {
        let fields = real.server.command(&command).await;
        redis::from_redis_value::<BTreeMap<String, String>>(fields).unwrap()
    };
    let before = meta().await;

    let requests = [acquire("bad"), acquire("good")];
    let acquired = redis.acquire(&requests).await.unwrap();
    let Acquired::Incompatible(text) = &acquired[0] else {
        panic!("{:?}", acquired[0])
    };
    assert!(
        text.contains("`x12`") && text.contains("run the newer version"),
        "{text}"
    );
    assert!(matches!(acquired[1], Acquired::Granted(_)));
    let states = redis.state(&[shard("bad"), shard("good")]).await.unwrap();
    assert!(states[0].is_none() && states[1].is_some());
    let lists = [list_everything("bad"), list_everything("good")];
    let listed = redis.list(&lists).await.unwrap();
    assert!(
        listed[0] == Listed::Unknown
            && matches!(&listed[1], Listed::Runs { runs, .. } if runs.len() == 1),
        "{listed:?}"
    );
    let new = [new_shard("bad"), new_shard("good")];
    let opened = redis.open(&new).await.unwrap();
    assert!(
        matches!(&opened[0], Opened::Incompatible(text) if text.contains("`x12`")),
        "{opened:?}"
    );
    assert!(matches!(opened[1], Opened::Existing(_)));
    assert_eq!(meta().await, before, "nothing was written");

    // The newer version has delivered the slice.
    real.server
        .command(&format!("HDEL {} x12", key("bad", "counts")))
        .await;
    let acquired = redis.acquire(&requests[..1]).await.unwrap();
    assert!(matches!(acquired[0], Acquired::Granted(_)), "{acquired:?}");
}

/// A worker of this version has the lease when a newer ingress appends. Others leave it alone.
#[tokio::test]
async fn a_tail_with_a_slice_of_a_newer_version_is_not_read() {
    let real = two_shards().await;
    let redis = &real.redis;
    redis.acquire(&[acquire("bad")]).await.unwrap();
    add_newer_slice(&real, "bad").await;
    let by_other = Acquire {
        lease: crate::store::lease(&shard("bad"), LeaseToken::for_test(8)),
        ..acquire("bad")
    };
    assert_eq!(
        redis.acquire(&[by_other]).await.unwrap(),
        [Acquired::HeldBy(lease("bad").token)]
    );
    let member = format!("{:016x} {:016x} 9-1-1-1 5 x12", 2, 1);
    let command = ["ZADD", &key("bad", "tail"), "0", &member];
    real.server.command_of(&command).await;
    assert_only_good_has_a_tail(redis, 1).await;
}

#[tokio::test]
async fn a_slice_of_another_type_is_renamed_and_the_shard_continues() {
    let real = two_shards().await;
    assert_eq!(
        real.redis.append(&[append("bad", 1)]).await.unwrap(),
        [DONE]
    );
    overwrite(&real, &key("bad", "slice:h0")).await;
    let listed = real
        .redis
        .list(&[list_everything("bad"), list_everything("good")])
        .await
        .unwrap();
    for listed in listed {
        assert!(
            matches!(&listed, Listed::Runs { runs, .. } if runs.len() == 1),
            "{listed:?}"
        );
    }
    assert_eq!(
        real.server
            .command(&format!("GET {}", key("bad", "slice:h0:foreign")))
            .await,
        redis::Value::BulkString(b"something".into())
    );
    // The slice accepts appends again, even if an append is the first call to find the foreign
    // value.
    overwrite(&real, &key("bad", "slice:h0")).await;
    let back = Append {
        runs: append("bad", 0).runs,
        ..append("bad", 2)
    };
    assert_eq!(
        real.redis.append(&[append("good", 1), back]).await.unwrap(),
        [DONE, DONE]
    );
    assert!(
        matches!(&real.redis.list(&[list_everything("bad")]).await.unwrap()[0], Listed::Runs { runs, .. } if runs.len() == 2)
    );
}

#[tokio::test]
async fn runs_without_bytes_are_unreadable_and_can_be_quarantined() {
    let lost = [
        format!("DEL {}", key("bad", "pool:h0")),
        format!("SET {} something", key("bad", "pool:h0")),
    ];
    for command in lost {
        let real = two_shards().await;
        real.server.command(&command).await;
        let runs = vec![(slice(), append("bad", 0).runs[0].name.clone())];
        let fetch = |topic| Fetch {
            shard: shard(topic),
            runs: runs.clone(),
        };
        let fetched = real
            .redis
            .fetch(&[fetch("bad"), fetch("good")])
            .await
            .unwrap();
        assert_eq!(
            fetched,
            [
                [Some(Bytes::new())],
                [Some(append("good", 0).runs[0].bytes.clone())]
            ]
        );
        real.redis.acquire(&[acquire("bad")]).await.unwrap();
        assert_eq!(
            real.redis
                .quarantine(&[Quarantine {
                    lease: lease("bad"),
                    runs: runs.clone()
                }])
                .await
                .unwrap(),
            [1]
        );
        let state = real
            .redis
            .state(&[shard("bad")])
            .await
            .unwrap()
            .remove(0)
            .unwrap();
        assert_eq!(
            (state.pending(), state.quarantined, state.lowest_pending),
            (0, 1, Offset(0))
        );
        assert_eq!(real.redis.fetch(&[fetch("bad")]).await.unwrap(), [[None]]);
        assert_eq!(
            real.redis.append(&[append("bad", 1)]).await.unwrap(),
            [DONE]
        );
    }
}

/// As after a failover to a server that has the bytes.
#[tokio::test]
async fn a_run_whose_bytes_come_back_during_a_fetch_is_not_lost() {
    let real = two_shards().await;
    let (pool, run) = (key("bad", "pool:h0"), append("bad", 0).runs.remove(0));
    real.server.command(&format!("DEL {pool}")).await;
    let fetch = [Fetch {
        shard: shard("bad"),
        runs: vec![(run.slice, run.name.clone())],
    }];
    // On the same connection, so it comes right after the first read.
    let mut restore = Pipeline::new();
    restore
        .cmd("HSET")
        .arg(pool)
        .arg(run.name.as_str())
        .arg(&*run.bytes);
    let restored = real.redis.connections.send(&restore);
    let (fetched, restored) = futures_util::future::join(real.redis.fetch(&fetch), restored).await;
    restored.unwrap();
    assert_eq!(fetched.unwrap(), [[Some(run.bytes)]]);
}

#[tokio::test]
async fn foreign_rows_do_not_push_runs_out_of_a_list() {
    let real = RealRedis::start().await;
    real.redis.open(&[new_shard("bad")]).await.unwrap();
    let place = |minute: u64| {
        Cursor::new(
            Timestamp::from_millis(minute as i64 * 60_000),
            Offset(minute),
        )
    };
    for minute in 0..6 {
        assert_eq!(
            real.redis
                .append(&[append_at("bad", place(minute))])
                .await
                .unwrap(),
            [DONE]
        );
    }
    // More rows than a list requests at once, before the runs and between them.
    for foreign in 0..20 {
        let score = -1 + 40_000 * (foreign % 4);
        real.server
            .command(&format!(
                "ZADD {} {score} foreign{foreign}",
                key("bad", "slice:h0")
            ))
            .await;
    }
    for limit in 0..8 {
        let listed = real
            .redis
            .list(&[List {
                limit,
                ..list_everything("bad")
            }])
            .await
            .unwrap()
            .remove(0);
        let Listed::Runs { runs, has_more, .. } = listed else {
            panic!("{listed:?}")
        };
        let offsets: Vec<u64> = runs.iter().map(|run| run.name.least_offset().0).collect();
        assert_eq!(
            (offsets, has_more),
            ((0..6).take(limit).collect(), limit < 6)
        );
    }
}

/// Messages that were due when they were stored have a slice per hour. All these slices may hold
/// the first run.
#[tokio::test]
async fn a_list_of_many_slices_reads_little_more_than_its_limit() {
    let real = RealRedis::start().await;
    real.redis.open(&[new_shard("t")]).await.unwrap();
    let slices = 40;
    for offset in 0..5 * slices {
        let place = Cursor::new(Timestamp::from_millis(offset as i64), Offset(offset));
        let mut append = append_at("t", place);
        append.runs[0].slice = Slice {
            level: Level::Now,
            start: (offset / 5) as i64,
        };
        assert_eq!(real.redis.append(&[append]).await.unwrap(), [DONE]);
    }
    for limit in [0, 1, 3, 7, 20, 500] {
        let list = List {
            limit,
            ..list_everything("t")
        };
        let known = real.redis.state(&[shard("t")]).await.unwrap();
        let known = known[0].as_ref().unwrap().slices.clone();
        assert_eq!(known.len() as u64, slices);
        let read = slices_to_read(&list, &known);
        let call = Call::list(&real.redis.keyspace, &list, &known, &read);
        let reply = real
            .redis
            .connections
            .call(&[call])
            .await
            .unwrap()
            .remove(0);
        let redis::Value::Array(parts) = reply else {
            panic!("{reply:?}")
        };
        let runs = (parts.len() - 3) / 3;
        assert!(runs > limit || limit == 500, "{runs} of {limit}");
        assert!(runs <= 2 * limit + 7, "{runs} of {limit}");
        let Listed::Runs { runs, has_more, .. } = real.redis.list(&[list]).await.unwrap().remove(0)
        else {
            panic!("it is there")
        };
        let offsets = runs.iter().map(|run| run.name.least_offset().0);
        let first = 0..(5 * slices).min(limit as u64);
        assert!(offsets.eq(first) && has_more == (limit < 200), "{limit}");
    }
}

/// Its session protects its leases, and ends like any other.
#[tokio::test]
async fn a_session_whose_entry_cannot_be_read_is_a_worker_without_work() {
    let real = RealRedis::start().await;
    let redis = &real.redis;
    let id = LeaseToken::for_test(9).session;
    let clusters = r#"{"name":"x","clusters":7}"#;
    for entry in ["no JSON", "7", "null", clusters] {
        let value = format!("1 1 1 0 {entry}");
        let command = ["HSET", "pd:{test}:sessions", &id.to_string(), &value];
        real.server.command_of(&command).await;
        let entry = WorkerEntry::for_test("a");
        let session = SessionId::first(entry.id(), 1);
        let request = SessionHeartbeat {
            session,
            heartbeats: 1,
            answered: 0,
            length: Duration::from_secs(5),
            entry,
        };
        let heartbeat = redis.heartbeat(&request).await.unwrap();
        let Heartbeat::Renewed { sessions, .. } = heartbeat else {
            panic!("{heartbeat:?}")
        };
        let unread = sessions.iter().find(|it| it.id == id).unwrap();
        assert!(unread.entry.roles.is_empty());
        let end = |session| SessionEnd {
            session,
            heartbeats: Some(1),
        };
        redis.end_sessions(&[end(id), end(session)]).await.unwrap();
        assert_eq!(redis.sessions().await.unwrap(), []);
    }
}
