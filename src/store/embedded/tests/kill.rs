//! A process that is killed, or cannot write any more. The process is this test program, started
//! again with one test.

use super::disk::big;
use super::*;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

/// Parameters of the other process: its folder, the size of its runs, and its memtable size.
const FOLDER: &str = "EMBEDDED_TEST_FOLDER";
const LENGTH: &str = "EMBEDDED_TEST_LENGTH";
const MEMORY: &str = "EMBEDDED_TEST_MEMORY";

/// Starts this program with the test that writes. `shell` runs first.
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
        "store::embedded::tests::kill::writer_process",
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

fn env<T: std::str::FromStr>(name: &str) -> T {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| panic!("{name} is set"))
}

/// No test of its own: the other tests start it. Appends to two shards, advances behind the
/// appends, and prints every acknowledgement.
#[test]
fn writer_process() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let sizes = FileSizes {
        pool_memory: env(MEMORY),
        blob_file: 128 << 10,
        ..FileSizes::DEFAULT
    };
    let store = opened(Path::new(&folder), sizes);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(write_on(&store, env(LENGTH)));
}

#[allow(clippy::print_stdout, reason = "the other process reads it")]
async fn write_on(store: &Embedded, length: usize) {
    store.open(&[new_shard("a"), new_shard("b")]).await.unwrap();
    take_lease(store, "a").await;
    let mut next = state_of(store, "a").await.unwrap().watermark.0;
    loop {
        let appends = ["a", "b"].map(|topic| Append {
            runs: vec![big(next, length)],
            ..append(topic, next)
        });
        match store.append(&appends).await {
            Ok(outcomes) => {
                // A mismatch follows a commit whose result is unknown.
                let mismatch = || Appended::WatermarkMismatch(Watermark(next + 1));
                let repeated = [mismatch(), mismatch()];
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
            // All but the last ten of shard `a`.
            let delivered = Progress::new(place(next.saturating_sub(10)), Watermark(next));
            let deletes = list_all(store, "a")
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

/// The number after this word.
fn number(line: &str, word: &str) -> Option<u64> {
    line.split_once(word)?.1.trim().parse().ok()
}

#[tokio::test]
async fn acknowledged_writes_survive_a_kill_at_any_moment() {
    let folder = tempfile::tempdir().unwrap();
    let (mut stored, mut delivered) = (None, None);
    for round in 0..12 {
        let (mut child, output) = start(folder.path(), (9_000, 1 << 20), "");
        let mut lines = output.lines().map_while(Result::ok);
        let note = |line: &str, stored: &mut Option<u64>, delivered: &mut Option<u64>| {
            *stored = number(line, "stored ").or(*stored);
            *delivered = number(line, "delivered ").or(*delivered);
        };
        // Some rounds are long enough to write and merge files, some are short.
        let rounds = [1, 40, 150, 7][round % 4];
        for line in lines
            .by_ref()
            .filter(|line| line.contains("stored "))
            .take(rounds)
            .collect::<Vec<_>>()
        {
            note(&line, &mut stored, &mut delivered);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // Lines that the process printed before it died.
        for line in lines {
            note(&line, &mut stored, &mut delivered);
        }
        let store = opened(folder.path(), FileSizes::DEFAULT);
        check_store(&store, 9_000, (stored.unwrap(), delivered)).await;
    }
}

/// Checks that all acknowledged writes are there, and at most one more.
async fn check_store(store: &Embedded, length: usize, (stored, delivered): (u64, Option<u64>)) {
    for topic in ["a", "b"] {
        let state = state_of(store, topic).await.unwrap();
        assert!(
            (stored + 1..=stored + 2).contains(&state.watermark.0),
            "{topic}: {} after {stored} was acknowledged",
            state.watermark
        );
        let runs = list_all(store, topic).await;
        let first = runs.first().map_or(0, |(_, name)| name.least_offset().0);
        assert_eq!(
            runs.len() as u64,
            state.watermark.0 - first,
            "{topic}: every run from the first one"
        );
        assert_eq!(state.pending(), runs.len() as u64);
        if topic == "a" {
            assert!(delivered.is_none_or(|delivered| state.delivered.cursor.offset.0 >= delivered));
            assert!(
                first == 0 || first - 1 <= state.delivered.cursor.offset.0,
                "only delivered runs are deleted"
            );
        } else {
            assert_eq!(first, 0, "shard b delivers nothing");
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
                "{topic}: bytes of {name}"
            );
        }
    }
}

/// Run size that reaches the limit soon.
const LONG: usize = 200_000;

/// First no file can grow beyond a limit, as on a full disk. Later it can.
#[tokio::test]
async fn the_store_recovers_from_a_full_disk_without_losing_acknowledged_writes() {
    let folder = tempfile::tempdir().unwrap();
    // The initial size of a journal, in blocks of 512 bytes.
    let (mut child, output) = start(
        folder.path(),
        (LONG, 256 << 20),
        "trap '' XFSZ; ulimit -S -f 131072;",
    );
    let mut lines = output.lines().map_while(Result::ok);
    let failed = lines
        .by_ref()
        .find(|line| line.contains("failed "))
        .expect("the process runs until it is killed");
    assert!(
        failed.contains("the store is unavailable: the embedded store's folder: File too large"),
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
    check_store(
        &opened(folder.path(), FileSizes::DEFAULT),
        LONG,
        (stored.unwrap(), None),
    )
    .await;
}
