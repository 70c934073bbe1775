//! Tests NATS sources whose streams or bucket are purged, deleted or configured unsuitably.

use std::collections::BTreeSet;
use std::time::Duration;

use async_nats::jetstream::kv::Store;
use async_nats::jetstream::stream::{Config, RetentionPolicy, Source, StorageType};
use futures_util::StreamExt as _;

use crate::env::{Nats, PATIENCE, Postdate, eventually, nats, now_ms, redis, rfc3339_in, unique};
use crate::nats::{ALONE, config, create_streams};

fn bucket<T>(name: &str, ask: impl AsyncFnOnce(Store) -> T) -> Option<T> {
    nats().ask(
        async move |context| match context.get_key_value(format!("postdate-{name}")).await {
            Ok(store) => Some(ask(store).await),
            Err(_) => None,
        },
    )
}

/// The keys of the committed offsets in the bucket.
fn commits(name: &str) -> Option<BTreeSet<String>> {
    let keys = bucket(name, async |store| {
        store
            .keys()
            .await
            .expect("keys")
            .map(|key| key.expect("a key"))
            .collect::<Vec<_>>()
            .await
    })?;
    Some(
        keys.into_iter()
            .filter(|key| key.starts_with("commit."))
            .collect(),
    )
}

#[test]
fn a_deleted_bucket_is_recreated_with_its_commits() {
    let name = unique("bucket");
    create_streams(nats(), &name);
    let postdate = Postdate::ready_with(&config(&name, &redis().url(), &nats().url(), ALONE));
    nats().publish(&format!("{name}.in.a"), &[], "first");
    nats().wait_for(&format!("{name}_OUT"), 1, PATIENCE);
    let both = || commits(&name).filter(|keys| keys.len() == 2);
    let before = eventually("both partitions are committed", PATIENCE, both);
    nats().ask(async |context| {
        context
            .delete_key_value(format!("postdate-{name}"))
            .await
            .expect("a bucket that exists");
    });
    assert_eq!(
        eventually(
            "they are committed again, though nothing moves",
            PATIENCE,
            both
        ),
        before
    );
    nats().publish(&format!("{name}.in.b"), &[], "second");
    nats().wait_for(&format!("{name}_OUT"), 2, PATIENCE);
    eventually("it is ready", PATIENCE, || postdate.ready().then_some(()));
}

/// One route reads the whole stream, and the other reads a part of it.
const WHOLE_AND_PART: &str = r#"
[nats.edge]
url = "NATS"

[route.whole]
source = { nats = "edge", stream = "@_IN", subjects = ["@.in.>"] }
target = { nats = "edge", subject = "@.out.whole" }
dead_letter = { nats = "edge", subject = "@.dead" }

[route.part]
source = { nats = "edge", stream = "@_IN", subjects = ["@.in.a"] }
target = { nats = "edge", subject = "@.out.part" }
dead_letter = { nats = "edge", subject = "@.dead" }
"#;

#[test]
fn unread_purged_messages_of_a_subject_are_counted_only_by_routes_that_read_it() {
    const EACH: u64 = 1_500;
    let name = unique("part");
    create_streams(nats(), &name);
    let postdate = Postdate::ready_with(&config(
        &name,
        &redis().url(),
        &nats().url(),
        WHOLE_AND_PART,
    ));
    let (source, out) = (format!("{name}_IN"), format!("{name}_OUT"));
    let publish = |subject: &str| {
        nats().publish_all(
            &format!("{name}.in.{subject}"),
            (0..EACH).map(|_| (&[][..], "x")),
        )
    };
    nats().publish(&format!("{name}.in.a"), &[], "x");
    nats().wait_for(&out, 2, PATIENCE);
    let whole = || {
        nats()
            .stored(&out)
            .iter()
            .filter(|stored| stored.subject.ends_with("whole"))
            .count() as u64
    };
    let gone = |route: &str| {
        postdate
            .metrics()
            .sum_where("postdate_source_gap_messages_total", &[("route", route)]) as u64
    };
    // First the purged messages are among others, then at the end of the stream.
    for (order, sent) in [(&["a", "b", "a"][..], 1 + 3 * EACH), (&["b"], 1 + 4 * EACH)] {
        postdate.pause();
        order.iter().for_each(|subject| drop(publish(subject)));
        nats().purge_subject(&source, &format!("{name}.in.b"));
        postdate.resume();
        eventually("all are accounted for", PATIENCE, || {
            (whole() + gone("whole") >= sent).then_some(())
        });
        assert_eq!(whole() + gone("whole"), sent);
    }
    assert!(gone("whole") > EACH, "{}", gone("whole"));
    eventually("the others arrive", PATIENCE, || {
        (nats().count(&out) - whole() == 1 + 2 * EACH).then_some(())
    });
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(
        gone("part"),
        0,
        "those of another subject are none of its business"
    );
}

const SCHEDULES: &str = r#"
[nats.edge]
url = "NATS"

[route.orders]
source = { nats = "edge", stream = "@_IN", subjects = ["@.native.in"] }
target = { nats = "edge", subject = "@.native.default" }
allow = ["@.native.out"]
dead_letter = { nats = "edge", subject = "@.dead" }
dialects = ["nats"]
"#;

/// Creates a source stream that is fed from another stream. The server copies schedule headers into
/// it without a check.
fn create_fed(name: &str) {
    create_streams(nats(), name);
    nats().delete_stream(&format!("{name}_IN"));
    let keeps = Config {
        allow_message_schedules: true,
        ..Config::default()
    };
    nats().create_stream_with(Config {
        name: format!("{name}_NATIVE"),
        subjects: vec![format!("{name}.native.>")],
        ..keeps
    });
    let filter_subject = Some(format!("{name}.native.in"));
    let fed = Source {
        name: format!("{name}_NATIVE"),
        filter_subject,
        ..Source::default()
    };
    nats().create_stream_with(Config {
        name: format!("{name}_IN"),
        sources: Some(vec![fed]),
        ..Config::default()
    });
}

#[test]
fn schedules_are_read_from_a_stream_that_copies_their_headers() {
    let name = unique("native");
    create_fed(&name);
    let _postdate = Postdate::ready_with(&config(&name, &redis().url(), &nats().url(), SCHEDULES));
    let (at, to, native) = (
        format!("@at {}", rfc3339_in(6)),
        format!("{name}.native.out"),
        format!("{name}_NATIVE"),
    );
    let sequence = nats().publish(
        &format!("{name}.native.in"),
        &[
            ("Nats-Schedule", &at),
            ("Nats-Schedule-Target", &to),
            ("h", "1"),
        ],
        "unpaid?",
    );
    nats().wait_for(&format!("{name}_IN"), 1, PATIENCE);
    // Otherwise the server would deliver the message, too.
    nats().delete_message(&native, sequence);
    let stored = nats().wait_for(&native, 1, PATIENCE).pop().unwrap();
    assert_eq!(
        (
            stored.subject.as_str(),
            stored.payload.as_slice(),
            stored.header("h")
        ),
        (to.as_str(), &b"unpaid?"[..], Some("1"))
    );
    assert!(
        stored
            .headers
            .iter()
            .all(|(header, _)| !header.starts_with("Nats-Schedule")),
        "{:?}",
        stored.headers
    );
    let due: i64 = stored.header("postdate-due").unwrap().parse().unwrap();
    assert!(
        (0..1_000).contains(&(stored.stored - due)),
        "{} ms after its due",
        stored.stored - due
    );
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(nats().count(&native), 1, "once");
    assert!(due < now_ms());
}

fn checked(postdate: &Postdate) -> (bool, String) {
    let check = postdate.command(&["check"]);
    (
        check.status.success(),
        String::from_utf8_lossy(&check.stdout).into_owned(),
    )
}

#[test]
fn a_stream_that_delivers_schedules_itself_is_refused_with_the_dialect() {
    let name = unique("schedules");
    create_streams(nats(), &name);
    nats().delete_stream(&format!("{name}_IN"));
    let keeps = Config {
        allow_message_schedules: true,
        ..Config::default()
    };
    nats().create_stream_with(Config {
        name: format!("{name}_IN"),
        subjects: vec![format!("{name}.in.>")],
        ..keeps
    });
    let text = |routes: &str| config(&name, &redis().url(), &nats().url(), routes);
    let speaking = format!("{ALONE}dialects = [\"nats\"]\n");
    let mut postdate = Postdate::start(&text(&speaking));
    let said = || {
        postdate
            .get("/readyz")
            .filter(|(status, body)| *status == 503 && body.contains("allow_msg_schedules"))
    };
    let (_, body) = eventually("the stream is named", PATIENCE, said);
    assert!(body.contains(&format!("{name}_IN")), "{body}");
    let (fine, told) = checked(&postdate);
    assert!(
        !fine && told.contains("would deliver them once more"),
        "{told}"
    );
    postdate.kill();
    // Without the dialect these headers have no effect, and `check` says so.
    let (fine, told) = checked(&Postdate::ready_with(&text(ALONE)));
    assert!(
        fine && told.contains("this route sees no delay on them"),
        "{told}"
    );
}

#[test]
fn check_reports_streams_that_are_sealed_in_memory_or_without_acknowledgements() {
    let name = unique("odd");
    create_streams(nats(), &name);
    for stream in ["IN", "OUT"] {
        nats().delete_stream(&format!("{name}_{stream}"));
    }
    let of = |stream: &str, subject: &str| Config {
        name: format!("{name}_{stream}"),
        subjects: vec![format!("{name}.{subject}")],
        ..Config::default()
    };
    nats().create_stream_with(Config {
        storage: StorageType::Memory,
        ..of("IN", "in.>")
    });
    nats().create_stream_with(Config {
        no_ack: true,
        ..of("OUT", "out.>")
    });
    nats().update_stream(Config {
        sealed: true,
        deny_delete: true,
        deny_purge: true,
        ..of("DEAD", "dead")
    });
    let postdate = Postdate::start(&config(&name, &redis().url(), &nats().url(), ALONE));
    let (fine, told) = checked(&postdate);
    assert!(!fine, "{told}");
    for words in [
        "sends no acknowledgements (no_ack)",
        "is sealed and takes no messages",
        "kept in memory",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
}

#[test]
fn a_stream_of_interest_retention_is_refused() {
    let name = unique("interest");
    create_streams(nats(), &name);
    nats().delete_stream(&format!("{name}_IN"));
    let retention = RetentionPolicy::Interest;
    nats().create_stream_with(Config {
        name: format!("{name}_IN"),
        subjects: vec![format!("{name}.in.>")],
        retention,
        ..Config::default()
    });
    let postdate = Postdate::start(&config(&name, &redis().url(), &nats().url(), ALONE));
    let told = || {
        let (status, body) = postdate.get("/readyz")?;
        (status == 503 && body.contains("interest retention")).then_some(())
    };
    eventually("the stream is refused", PATIENCE, told);
    let (fine, told) = checked(&postdate);
    assert!(!fine && told.contains("interest retention"), "{told}");
}

#[test]
fn a_missing_permission_is_reported_in_the_servers_words_and_logged_once() {
    let name = unique("rights");
    let users =
        "{ user: postdate, password: secret, permissions: { publish: { deny: [\"$KV.>\"] } } }, { user: test, password: test }".to_owned();
    let own = Nats::start_with(
        &format!("authorization {{ users: [{users}] }}"),
        Some(("test", "test")),
    );
    create_streams(&own, &name);
    let login = ALONE.replace(
        "url = \"NATS\"",
        "url = \"NATS\"\nusername = \"postdate\"\npassword = \"secret\"",
    );
    let postdate = Postdate::start(&config(&name, &redis().url(), &own.url(), &login));
    let told = || {
        postdate.get("/readyz").filter(|(status, body)| {
            *status == 503 && body.to_lowercase().contains("permissions violation")
        })
    };
    let (_, body) = eventually("the right is named", PATIENCE, told);
    assert!(body.contains(&format!("$KV.postdate-{name}")), "{body}");
    std::thread::sleep(Duration::from_secs(12));
    let logs = postdate.logs();
    let lines: Vec<_> = logs
        .lines()
        .filter(|line| {
            line.contains("nats::connection")
                && line.to_lowercase().contains("permissions violation")
        })
        .collect();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    let (fine, told) = checked(&postdate);
    assert!(
        !fine && told.contains("$KV.postdate-") && told.contains("cannot be stored there"),
        "{told}"
    );
}
