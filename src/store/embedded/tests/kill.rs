//! A process that is killed, or that cannot write any more: this test program itself, started once more with one test to run.

use super::disk::big;
use super::*;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

/// What the other process is told: its folder, how many bytes its runs have, and how many it may hold in memory.
const FOLDER: &str = "EMBEDDED_TEST_FOLDER";
const LENGTH: &str = "EMBEDDED_TEST_LENGTH";
const MEMORY: &str = "EMBEDDED_TEST_MEMORY";

/// Starts this program with the one test that writes. `shell` comes before it.
fn start(
    folder: &Path,
    (length, memory): (usize, u64),
    shell: &str,
) -> (Child, BufReader<ChildStdout>) {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("{shell} exec \"$0\" \"$@\"")])
        .arg(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        "store::embedded::tests::kill::the_process_that_writes",
        "--nocapture",
    ]);
    command
        .env(FOLDER, folder)
        .env(LENGTH, length.to_string())
        .env(MEMORY, memory.to_string());
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    (child, output)
}

fn told<T: std::str::FromStr>(name: &str) -> T {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| panic!("{name} is set"))
}

/// Not a test of its own: what the others start. Appends to two shards at once, advances behind that, and says what was acknowledged.
#[test]
fn the_process_that_writes() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let sizes = Sizes {
        pool_memory: told(MEMORY),
        blob_file: 128 << 10,
        ..Sizes::DEFAULT
    };
    let store = opened(Path::new(&folder), sizes);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(write_on(&store, told(LENGTH)));
}

#[allow(clippy::print_stdout, reason = "the other process reads it")]
async fn write_on(store: &Embedded, length: usize) {
    store.open(&[new_shard("a"), new_shard("b")]).await.unwrap();
    held(store, "a").await;
    let mut next = known(store, "a").await.unwrap().watermark.0;
    loop {
        let appends = ["a", "b"].map(|topic| Append {
            runs: vec![big(next, length)],
            ..append(topic, next)
        });
        match store.append(&appends).await {
            Ok(outcomes) => {
                // Elsewhere after a commit of which nothing was known.
                let repeated = [Appended::WatermarkMismatch(Watermark(next + 1)); 2];
                assert!(
                    outcomes == [DONE, DONE] || outcomes == repeated,
                    "{outcomes:?}"
                );
                println!("stored {next}");
                next += 1;
            }
            Err(error) => {
                println!("failed {error}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        if next.is_multiple_of(4) {
            // Everything of shard `a` but the last ten.
            let delivered = Progress::new(place(next.saturating_sub(10)), Watermark(next));
            let deletes = listed(store, "a")
                .await
                .into_iter()
                .take_while(|(_, name)| name.least_offset().0 + 10 <= next)
                .collect();
            let advance = Advance {
                delivered: Some(delivered),
                deletes,
                ..advance("a", delivered)
            };
            if store.advance(&[advance]).await.is_ok() {
                println!("delivered {}", delivered.cursor.offset);
            }
        }
    }
}

/// The number behind that word.
fn number(line: &str, word: &str) -> Option<u64> {
    line.split_once(word)?.1.trim().parse().ok()
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_kill_at_any_moment() {
    let folder = tempfile::tempdir().unwrap();
    let (mut stored, mut delivered) = (None, None);
    for round in 0..12 {
        let (mut child, output) = start(folder.path(), (9_000, 1 << 20), "");
        let mut lines = output.lines().map_while(Result::ok);
        let hear = |line: &str, stored: &mut Option<u64>, delivered: &mut Option<u64>| {
            *stored = number(line, "stored ").or(*stored);
            *delivered = number(line, "delivered ").or(*delivered);
        };
        // Some rounds long enough for files to be written and merged, some short.
        let rounds = [1, 40, 150, 7][round % 4];
        for line in lines
            .by_ref()
            .filter(|line| line.contains("stored "))
            .take(rounds)
            .collect::<Vec<_>>()
        {
            hear(&line, &mut stored, &mut delivered);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // What it had said before it died.
        for line in lines {
            hear(&line, &mut stored, &mut delivered);
        }
        let store = opened(folder.path(), Sizes::DEFAULT);
        judge(&store, 9_000, (stored.unwrap(), delivered)).await;
    }
}

/// What was acknowledged is there, and nothing else but what may have been under way.
async fn judge(store: &Embedded, length: usize, (stored, delivered): (u64, Option<u64>)) {
    for topic in ["a", "b"] {
        let state = known(store, topic).await.unwrap();
        assert!(
            (stored + 1..=stored + 2).contains(&state.watermark.0),
            "{topic}: {} after {stored} was acknowledged",
            state.watermark
        );
        let runs = listed(store, topic).await;
        let first = runs.first().map_or(0, |(_, name)| name.least_offset().0);
        assert_eq!(
            runs.len() as u64,
            state.watermark.0 - first,
            "{topic}: every run from the first on is there"
        );
        assert_eq!(state.pending, runs.len() as u64);
        if topic == "a" {
            assert!(delivered.is_none_or(|delivered| state.delivered.cursor.offset.0 >= delivered));
            assert!(
                first == 0 || first - 1 <= state.delivered.cursor.offset.0,
                "nothing is gone that was not delivered"
            );
        } else {
            assert_eq!(first, 0, "nothing of it was delivered");
        }
        let fetched = store
            .fetch(&[Fetch {
                shard: shard(topic),
                runs: runs.clone(),
            }])
            .await
            .unwrap()
            .remove(0);
        for ((_, name), bytes) in runs.iter().zip(fetched) {
            assert!(
                bytes == Some(big(name.least_offset().0, length).bytes),
                "{topic}: {name} is what was written"
            );
        }
    }
}

/// Of runs that soon come to the bound.
const LONG: usize = 200_000;

/// Files cannot grow beyond a bound, as on a full disk; then they can again.
#[tokio::test]
async fn a_disk_that_refuses_writes_is_waited_for_and_nothing_acknowledged_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    // The size that journals are made with, in blocks of 512 bytes; none is ended, as nothing is written to other files before.
    let (mut child, output) = start(
        folder.path(),
        (LONG, 256 << 20),
        "trap '' XFSZ; ulimit -S -f 131072;",
    );
    let mut lines = output.lines().map_while(Result::ok);
    let failed = lines
        .by_ref()
        .find(|line| line.contains("failed "))
        .expect("it runs until it is killed");
    assert!(
        failed.contains("the store does not answer: the embedded store's folder: File too large"),
        "{failed}"
    );
    let pid = rustix::process::Pid::from_child(&child);
    let free = rustix::process::Rlimit {
        current: None,
        maximum: None,
    };
    rustix::process::prlimit(Some(pid), rustix::process::Resource::Fsize, free).unwrap();
    let mut stored = None;
    for line in lines
        .by_ref()
        .filter(|line| line.contains("stored "))
        .take(20)
        .collect::<Vec<_>>()
    {
        stored = number(&line, "stored ").or(stored);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    stored = lines
        .filter_map(|line| number(&line, "stored "))
        .last()
        .or(stored);
    judge(
        &opened(folder.path(), Sizes::DEFAULT),
        LONG,
        (stored.unwrap(), None),
    )
    .await;
}
