//! Disk usage, and deletion of rows.

use super::damage::with_tables;
use super::*;
use std::path::PathBuf;

/// A run of `length` incompressible bytes.
pub(super) fn big(offset: u64, length: usize) -> Run {
    let mut noise = offset.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let bytes: Vec<u8> = std::iter::repeat_with(|| {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        noise.to_be_bytes()
    })
    .flatten()
    .take(length)
    .collect();
    Run {
        bytes: bytes.into(),
        ..run_of(&format!("big{offset}"), &[place(offset)])
    }
}

pub(super) fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| {
            if path.is_dir() {
                files(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}

/// Bytes on disk of all files in the folder.
fn disk_usage(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    files(folder)
        .iter()
        .filter_map(|file| std::fs::metadata(file).ok())
        .map(|metadata| metadata.blocks() * 512)
        .sum()
}

const BATCH: u64 = 32;
const LENGTH: usize = 60_000;

async fn fill(store: &Embedded, from: u64, batches: u64) {
    for batch in 0..batches {
        let first = from + batch * BATCH;
        let runs = (first..first + BATCH)
            .map(|offset| big(offset, LENGTH))
            .collect();
        let to = Watermark(first + BATCH);
        let append = Append {
            shard: shard("t"),
            epoch: AppendEpoch::default(),
            identity: new_shard("t").identity,
            from: Watermark(first),
            to,
            runs,
            changes: vec![],
            pause: None,
        };
        assert_eq!(store.append(&[append]).await.unwrap(), [DONE]);
    }
}

async fn drain(store: &Embedded) {
    take_lease(store, "t").await;
    for some in list_all(store, "t").await.chunks(BATCH as usize) {
        let advance = Advance {
            deletes: some.to_vec(),
            claim: None,
            ..advance("t", Progress::START)
        };
        assert!(matches!(
            store.advance(&[advance]).await.unwrap()[0],
            Advanced::Done { .. }
        ));
    }
}

#[tokio::test]
async fn many_cycles_of_fill_and_drain_keep_the_folder_bounded() {
    let sizes = FileSizes {
        pool_memory: 4 << 20,
        blob_file: 1 << 20,
        ..FileSizes::DEFAULT
    };
    let mut test = TestStore::new(sizes);
    test.store().open(&[new_shard("t")]).await.unwrap();
    let (batches, cycles) = (8, 12);
    let each = batches * BATCH * LENGTH as u64;
    let (files, journals) = (
        each * 3 / 2 + limit::EMBEDDED_SLACK_BYTES + 2 * sizes.pool_memory,
        2 * limit::EMBEDDED_JOURNAL_BYTES,
    );
    let size = |folder: &Path| {
        (
            disk_usage(folder),
            disk_usage(&folder.join("data").join("keyspaces")),
        )
    };
    // The database deletes journals in the background, after it has flushed them.
    let look = async |folder: &Path| {
        for _ in 0..200 {
            let (all, in_files) = size(folder);
            if in_files <= files && all.saturating_sub(in_files) <= journals {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let (all, in_files) = size(folder);
        panic!(
            "{in_files} bytes in files for {each} that waited at most, {} in journals",
            all.saturating_sub(in_files)
        );
    };
    for cycle in 0..cycles {
        fill(test.store(), cycle * batches * BATCH, batches).await;
        look(test.folder.path()).await;
        drain(test.store()).await;
        look(test.folder.path()).await;
    }
    assert!(
        cycles * each > files && cycles * each > journals,
        "the cycles write more than the limits allow"
    );
    test.reopen();
    assert_eq!(list_all(test.store(), "t").await, []);
}

#[tokio::test]
async fn space_of_delivered_runs_is_freed_without_new_data() {
    let sizes = FileSizes {
        pool_memory: 4 << 20,
        blob_file: 1 << 20,
        ..FileSizes::DEFAULT
    };
    let mut test = TestStore::new(sizes);
    test.store().open(&[new_shard("t")]).await.unwrap();
    fill(test.store(), 0, 16).await;
    drain(test.store()).await;
    test.store = None;
    let folder = DataDir::lock(test.folder.path()).unwrap();
    let tables = folder.open(&sizes).unwrap();
    let data = test.folder.path().join("data").join("keyspaces");
    assert!(disk_usage(&data) > 16 << 20);
    gc::collect(&tables).unwrap();
    assert!(disk_usage(&data) < 1 << 20, "{} bytes", disk_usage(&data));
    // Waiting runs are not touched.
    drop((tables, folder));
    test.reopen();
    fill(test.store(), 16 * BATCH, 4).await;
    let runs = list_all(test.store(), "t").await;
    test.store = None;
    let folder = DataDir::lock(test.folder.path()).unwrap();
    gc::collect(&folder.open(&sizes).unwrap()).unwrap();
    drop(folder);
    test.reopen();
    let fetched = test
        .store()
        .fetch(&[Fetch {
            shard: shard("t"),
            runs,
        }])
        .await
        .unwrap()
        .remove(0);
    assert!(
        fetched
            .iter()
            .zip(16 * BATCH..)
            .all(|(bytes, offset)| *bytes == Some(big(offset, LENGTH).bytes))
    );
}

#[tokio::test]
async fn an_erased_shard_leaves_no_rows_even_after_a_restart() {
    let mut test = TestStore::new(FileSizes::DEFAULT);
    test.store()
        .open(&[new_shard("gone"), new_shard("test")])
        .await
        .unwrap();
    for offset in 0..30 {
        assert_eq!(
            test.store()
                .append(&[append("gone", offset), append("test", offset)])
                .await
                .unwrap(),
            [DONE, DONE]
        );
    }
    take_lease(test.store(), "gone").await;
    let cancel = IdChange::new("id3", IdChangeKind::Cancel);
    let cancels = Append {
        runs: vec![],
        changes: vec![cancel],
        pause: crate::model::Pause::parse("000000000000001fp1:1:0:1:"),
        ..append("gone", 30)
    };
    test.store().append(&[cancels]).await.unwrap();
    let run = append("gone", 5).runs.remove(0);
    test.store()
        .quarantine(&[Quarantine {
            lease: lease("gone"),
            runs: vec![(run.slice, run.name)],
        }])
        .await
        .unwrap();
    test.store().erase(&[shard("gone")]).await.unwrap();
    // An erase of `test` that ended after its first commit.
    let meta = key::meta("test", &shard("test"));
    with_tables(&mut test, |tables| {
        tables.index.remove(meta).unwrap();
        tables.index.insert(key::garbage(2), "").unwrap();
    });
    // A new shard with the same name is empty.
    assert!(matches!(
        test.store().open(&[new_shard("gone")]).await.unwrap()[0],
        Opened::Created(_)
    ));
    assert_eq!(list_all(test.store(), "gone").await, []);
    test.store = None;
    let folder = DataDir::lock(test.folder.path()).unwrap();
    let tables = folder.open(&FileSizes::DEFAULT).unwrap();
    let keys = |keyspace: &fjall::SingleWriterTxKeyspace| {
        keyspace
            .inner()
            .iter()
            .map(|row| row.key().unwrap().to_vec())
            .collect::<Vec<_>>()
    };
    // The number follows the letter. In rows for bytes it follows the slice.
    let of_gone = |key: &Vec<u8>| {
        let number = key.get(if key[0] == b'p' { 10..14 } else { 1..5 });
        key[0] != b'm'
            && [1u32, 2]
                .iter()
                .any(|gone| number == Some(&gone.to_be_bytes()[..]))
    };
    let left: Vec<_> = keys(&tables.index)
        .into_iter()
        .chain(keys(&tables.pool))
        .filter(of_gone)
        .collect();
    assert!(left.is_empty(), "{left:?}");
}
