//! A server that is full, restarts, hangs, or rejects the client.

use super::*;

#[tokio::test]
async fn scripts_are_loaded_again_after_a_flush_and_no_call_runs_twice() {
    let real = RealRedis::start().await;
    let topics: Vec<String> = (0..20).map(|i| format!("t{i}")).collect();
    let births: Vec<NewShard> = topics.iter().map(|topic| new_shard(topic)).collect();
    real.redis.open(&births).await.unwrap();
    for offset in 0..3 {
        real.server.command("SCRIPT FLUSH").await;
        let appends: Vec<Append> = topics.iter().map(|topic| append(topic, offset)).collect();
        assert_eq!(real.redis.append(&appends).await.unwrap(), [DONE; 20]);
    }
    let state = real
        .redis
        .state(&[shard("t19")])
        .await
        .unwrap()
        .remove(0)
        .unwrap();
    assert_eq!((state.watermark, state.pending()), (Watermark(3), 3));
}

#[tokio::test]
async fn a_full_server_without_loaded_scripts_still_delivers() {
    let real = RealRedis::start().await;
    real.redis.open(&[new_shard("t")]).await.unwrap();
    real.redis.append(&[append("t", 0)]).await.unwrap();
    real.server.command("SCRIPT FLUSH").await;
    real.set_full(true).await;
    assert!(matches!(
        real.redis.append(&[append("t", 1)]).await,
        Err(Error::Full)
    ));
    assert!(matches!(
        real.redis.acquire(&[acquire("t")]).await.unwrap()[0],
        Acquired::Granted(_)
    ));
    assert!(
        matches!(&real.redis.list(&[list_everything("t")]).await.unwrap()[0], Listed::Runs { runs, .. } if runs.len() == 1)
    );
    let advanced = real
        .redis
        .advance(&[advance("t", Progress::new(place(0), Watermark(1)))])
        .await
        .unwrap();
    assert_eq!(
        advanced,
        [Advanced::Done {
            watermark: Watermark(1),
            cancelled: vec![],
            effects: vec![]
        }]
    );
    real.redis.erase(&[shard("t")]).await.unwrap();
}

#[tokio::test]
async fn a_killed_server_comes_back_with_all_acknowledged_writes() {
    let mut real = RealRedis::start().await;
    real.redis.open(&[new_shard("t")]).await.unwrap();
    assert_eq!(real.redis.append(&[append("t", 0)]).await.unwrap(), [DONE]);
    real.server.kill();
    for _ in 0..2 {
        let down = real.redis.append(&[append("t", 1)]).await;
        assert!(
            matches!(&down, Err(error @ Error::Unavailable(_)) if error.is_transient()),
            "{down:?}"
        );
    }
    real.server.restart();
    assert_eq!(
        real.redis.append(&[append("t", 0)]).await.unwrap(),
        [Appended::WatermarkMismatch(Watermark(1))]
    );
    assert_eq!(real.redis.append(&[append("t", 1)]).await.unwrap(), [DONE]);
}

#[tokio::test]
async fn a_server_that_hangs_times_out_and_works_again_later() {
    let real = RealRedis::start().await;
    real.redis.open(&[new_shard("t")]).await.unwrap();
    real.server.signal("STOP");
    // No other task runs, so the paused clock jumps to the timeout.
    tokio::time::pause();
    let hung = real.redis.append(&[append("t", 0)]).await;
    tokio::time::resume();
    assert!(
        matches!(&hung, Err(Error::Unavailable(text)) if text.contains("did not answer in time")),
        "{hung:?}"
    );
    real.server.signal("CONT");
    // The effect of the timed out request is unknown. The repeat finds out.
    let settled = real
        .redis
        .append(&[append("t", 0)])
        .await
        .unwrap()
        .remove(0);
    assert!(
        [DONE, Appended::WatermarkMismatch(Watermark(1))].contains(&settled),
        "{settled:?}"
    );
    assert_eq!(
        real.redis.state(&[shard("t")]).await.unwrap()[0]
            .as_ref()
            .map(|state| state.pending()),
        Some(1)
    );
}

async fn refused(options: &Options) -> String {
    match Redis::connect(options).await {
        Err(error @ Error::Unusable(_)) => error.to_string(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("connected"),
    }
}

#[tokio::test]
async fn a_rejected_login_names_the_option_and_shows_no_secret() {
    let server = Server::start_with(&["--requirepass", "right-word"]);
    let none = server.options();
    assert!(
        refused(&none)
            .await
            .contains("demands a password: set store.redis.password")
    );

    let wrong = Options {
        password: Some("wrong-word".to_owned()),
        ..none.clone()
    };
    let in_url = Options {
        servers: Servers::Url(format!(
            "redis://someone:wrong-word@127.0.0.1:{}",
            server.port
        )),
        ..none.clone()
    };
    for options in [&wrong, &in_url] {
        let text = refused(options).await;
        assert!(
            text.contains("refuses the user or the password: check store.redis.username"),
            "{text}"
        );
        assert!(
            !format!("{text} {options:?}").contains("word@")
                && !format!("{text} {options:?}").contains("wrong-word")
        );
    }

    let right = Options {
        password: Some("right-word".to_owned()),
        ..none.clone()
    };
    Redis::connect(&right).await.unwrap();
    let right_in_url = Options {
        servers: Servers::Url(format!("redis://:right-word@127.0.0.1:{}/3", server.port)),
        ..none
    };
    Redis::connect(&right_in_url).await.unwrap();
}

#[tokio::test]
async fn the_error_names_the_permissions_that_a_user_lacks() {
    let server = Server::start();
    server
        .command("ACL SETUSER poor on >secret ~pd:* +info")
        .await;
    let options = Options {
        username: Some("poor".to_owned()),
        password: Some("secret".to_owned()),
        ..server.options()
    };
    let redis = Redis::connect(&options).await.unwrap();
    let Err(Error::Unusable(text)) = redis.state(&[shard("t")]).await else {
        panic!("no rights, yet it answered")
    };
    assert!(
        text.contains("grant it what deploy/redis/users.acl has")
            && text.contains("`~pd:* &pd:* +@read +@write +@scripting"),
        "{text}"
    );
}

#[tokio::test]
async fn a_server_that_evicts_is_rejected_at_start_and_after_a_reconnect() {
    let evicting = Server::start_with(&["--maxmemory-policy", "allkeys-lru"]);
    let text = refused(&evicting.options()).await;
    assert!(
        text.contains("maxmemory-policy allkeys-lru")
            && text.contains("`CONFIG SET maxmemory-policy noeviction`"),
        "{text}"
    );
    evicting
        .command("CONFIG SET maxmemory-policy noeviction")
        .await;
    let redis = evicting.redis().await;

    redis.open(&[new_shard("t")]).await.unwrap();
    evicting
        .command("CONFIG SET maxmemory-policy volatile-lru")
        .await;
    assert!(
        redis.state(&[shard("t")]).await.is_ok(),
        "the policy is checked per connection, not per call"
    );
    evicting.command("CLIENT KILL TYPE normal").await;
    assert!(matches!(
        redis.state(&[shard("t")]).await,
        Err(Error::Unavailable(_))
    ));
    assert!(
        matches!(redis.state(&[shard("t")]).await, Err(Error::Refused(text)) if text.contains("volatile-lru"))
    );
}

#[tokio::test]
async fn a_cluster_node_and_a_wrong_address_are_rejected_with_the_reason() {
    let node = Server::start_with(&["--cluster-enabled", "yes"]);
    assert!(
        refused(&node.options())
            .await
            .contains("is a node of a Redis Cluster")
    );
    for url in [
        "127.0.0.1:6379",
        "http://127.0.0.1",
        "redis://user:secret@127.0.0.1:6379/one",
        "",
    ] {
        let text = refused(&Options {
            servers: Servers::Url(url.to_owned()),
            ..node.options()
        })
        .await;
        assert!(
            text.contains("write redis://host:port") && !text.contains("secret"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn the_connection_to_a_new_replica_is_dropped() {
    let real = RealRedis::start().await;
    real.redis.open(&[new_shard("t")]).await.unwrap();
    real.server.command("REPLICAOF 127.0.0.1 1").await;
    let refused = real.redis.append(&[append("t", 0)]).await;
    assert!(
        matches!(&refused, Err(Error::Unavailable(text)) if text.contains("READONLY")),
        "{refused:?}"
    );
    real.server.command("REPLICAOF NO ONE").await;
    assert_eq!(real.redis.append(&[append("t", 0)]).await.unwrap(), [DONE]);
}
