//! `deploy/redis/users.acl`: enough for every promise of the port, and no word of it too much.

use super::*;
use crate::model::{SessionId, WorkerId};
use crate::store::Notifier;
use futures_util::future::FutureExt;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;

const FILE: &str = include_str!("../../../../deploy/redis/users.acl");

/// The rules of the one user that the file lets in.
fn rules() -> String {
    let line = FILE
        .lines()
        .find_map(|line| line.strip_prefix("user postdate "))
        .expect("the file has the user");
    line.replace("PASSWORD", "secret").replace("{prod", "{test")
}

fn login_options(server: &Server) -> Options {
    Options {
        username: Some("postdate".to_owned()),
        password: Some("secret".to_owned()),
        ..server.options()
    }
}

async fn login(server: &Server) -> Result<Redis, Error> {
    Redis::connect(&login_options(server)).await
}

/// The commands that Redis has denied since the last call.
async fn denied(server: &Server) -> Vec<String> {
    let log: Vec<BTreeMap<String, redis::Value>> =
        redis::from_redis_value(server.command("ACL LOG").await).unwrap();
    server.command("ACL LOG RESET").await;
    log.into_iter()
        .map(|mut entry| redis::from_redis_value(entry.remove("object").unwrap()).unwrap())
        .collect()
}

/// Every promise of the port, and what asks for more besides: a shard that a version without
/// ledgers stored, and a slice of another type.
async fn everything_works(real: &RealRedis) {
    real.redis.open(&[new_shard("old")]).await.unwrap();
    assert_eq!(
        real.redis.append(&[append("old", 0)]).await.unwrap(),
        [DONE]
    );
    real.server
        .command(&format!("HDEL {} ledger", key("old", "meta")))
        .await;
    assert_eq!(
        real.redis.append(&[append("old", 1)]).await.unwrap(),
        [DONE]
    );
    assert_eq!(
        real.redis
            .states(&[shard("old")])
            .await
            .unwrap()
            .remove(0)
            .map(|state| Balance::of(&state).accepted),
        Some(2)
    );
    real.redis.open(&[new_shard("t")]).await.unwrap();
    assert_eq!(real.redis.append(&[append("t", 0)]).await.unwrap(), [DONE]);
    real.server
        .command(&format!("SET {} something", key("t", "slice:h0")))
        .await;
    real.redis.list(&[list_everything("t")]).await.unwrap();
    contract::run(real).await;
    assert_hint_arrives(&login_options(&real.server)).await;
}

/// By another process, and not by the one that tells it.
pub(super) async fn assert_hint_arrives(options: &Options) {
    let [sender, listener] = [1, 2].map(|process| {
        let session = SessionId::first(WorkerId(1), process);
        RedisNotifier::new(options, session).unwrap()
    });
    let (heard, mut hints) = tokio::sync::mpsc::channel(1);
    let hint = Hint {
        shard: shard("t"),
        least_due: Timestamp::from_millis(7),
    };
    let tell_again = async {
        // The start of a subscription is not reported.
        loop {
            sender.publish(std::slice::from_ref(&hint)).await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let mut on_hint = |hint: Hint| drop(heard.try_send((hint.shard, hint.least_due)));
    let mut on_own_hint = |hint| panic!("a process hears its own hint: {hint:?}");
    tokio::select! {
        biased;
        told = hints.recv() => assert_eq!(told, Some((hint.shard.clone(), hint.least_due))),
        outcome = listener.listen(&mut on_hint) => panic!("{outcome:?}"),
        outcome = sender.listen(&mut on_own_hint) => panic!("{outcome:?}"),
        () = tell_again => unreachable!("it never ends"),
    }
}

#[tokio::test]
async fn the_users_file_is_sufficient_and_every_command_in_it_is_needed() {
    let server = Server::start_with(&["--appendfsync", "no"]);
    server
        .command(&format!("ACL SETUSER postdate {}", rules()))
        .await;
    let mut real = RealRedis {
        redis: login(&server).await.unwrap(),
        server,
    };
    everything_works(&real).await;
    assert_eq!(denied(&real.server).await, [""; 0]);
    let commands: Vec<String> = rules()
        .split(' ')
        .filter_map(|word| word.strip_prefix('+').map(str::to_owned))
        .collect();
    assert!(commands.len() > 20, "{commands:?}");
    for command in commands {
        for words in [
            "FLUSHALL",
            "SCRIPT FLUSH",
            "CONFIG SET maxmemory 0",
            &format!("ACL SETUSER postdate -{command}"),
        ] {
            real.server.command(words).await;
        }
        let works = match login(&real.server).await {
            Ok(redis) => {
                real.redis = redis;
                AssertUnwindSafe(everything_works(&real))
                    .catch_unwind()
                    .await
                    .is_ok()
            }
            Err(_) => false,
        };
        assert!(!works, "everything works without {command}");
        let denied = denied(&real.server).await;
        assert!(
            denied.iter().all(|denied| *denied == command) && !denied.is_empty(),
            "without {command}, {denied:?} was denied"
        );
        real.server
            .command(&format!("ACL SETUSER postdate +{command}"))
            .await;
    }
}

#[tokio::test]
async fn the_users_file_denies_other_keys_and_administrative_commands() {
    let server = Server::start();
    server
        .command(&format!("ACL SETUSER postdate {}", rules()))
        .await;
    server.command("SET pd:{testing/r/t/0}:meta x").await;
    server.command("SET other x").await;
    let client =
        redis::Client::open(format!("redis://postdate:secret@127.0.0.1:{}", server.port)).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    for words in [
        "HGETALL pd:{testing/r/t/0}:meta",
        "TYPE other",
        "UNLINK other",
        "RENAME other pd:{test/r/t/0}:meta",
        "GET other",
        "KEYS *",
        "CONFIG GET *",
        "CONFIG SET maxmemory 1",
        "FLUSHALL",
        "EVAL return 0",
        "SCRIPT FLUSH",
        "ACL LIST",
        "SHUTDOWN",
        "REPLICAOF no one",
        "MONITOR",
        "CLIENT LIST",
        "PUBLISH a b",
        "SUBSCRIBE a",
        "SAVE",
        "MODULE LIST",
    ] {
        let mut command = redis::Cmd::new();
        command.arg(words.split(' ').collect::<Vec<_>>());
        let said = command
            .query_async::<redis::Value>(&mut connection)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            said.contains("NOPERM")
                || said.contains("No permissions")
                || said.contains("no permissions"),
            "{words}: {said}"
        );
    }
}
