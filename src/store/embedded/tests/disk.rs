//! How much of the disk is taken, and what is deleted.

use super::*;
use std::path::PathBuf;

/// A run of `length` bytes that look like nothing else.
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

/// Bytes that the folder's files take on the disk.
fn taken(folder: &Path) -> u64 {
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
            from: Watermark(first),
            to,
            runs,
            changes: vec![],
        };
        assert_eq!(store.append(&[append]).await.unwrap(), [DONE]);
    }
}

async fn drain(store: &Embedded) {
    held(store, "t").await;
    for some in listed(store, "t").await.chunks(BATCH as usize) {
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
    let sizes = Sizes {
        pool_memory: 4 << 20,
        blob_file: 1 << 20,
        ..Sizes::DEFAULT
    };
    let mut kept = Kept::new(sizes);
    kept.store().open(&[new_shard("t")]).await.unwrap();
    let (batches, cycles) = (8, 12);
    let each = batches * BATCH * LENGTH as u64;
    let (files, journals) = (
        each * 3 / 2 + limit::EMBEDDED_SLACK_BYTES + 2 * sizes.pool_memory,
        2 * limit::EMBEDDED_JOURNAL_BYTES,
    );
    let size = |folder: &Path| (taken(folder), taken(&folder.join("data").join("keyspaces")));
    // Journals go when threads of the store's own have written what is in them elsewhere.
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
        fill(kept.store(), cycle * batches * BATCH, batches).await;
        look(kept.folder.path()).await;
        drain(kept.store()).await;
        look(kept.folder.path()).await;
    }
    assert!(
        cycles * each > files && cycles * each > journals,
        "or this shows nothing"
    );
    kept.reopen();
    assert_eq!(listed(kept.store(), "t").await, []);
}

#[tokio::test]
async fn what_was_delivered_is_freed_when_nothing_new_comes() {
    let sizes = Sizes {
        pool_memory: 4 << 20,
        blob_file: 1 << 20,
        ..Sizes::DEFAULT
    };
    let mut kept = Kept::new(sizes);
    kept.store().open(&[new_shard("t")]).await.unwrap();
    fill(kept.store(), 0, 16).await;
    drain(kept.store()).await;
    kept.store = None;
    let folder = DataDir::lock(kept.folder.path()).unwrap();
    let rows = folder.open(&sizes).unwrap();
    let data = kept.folder.path().join("data").join("keyspaces");
    assert!(taken(&data) > 16 << 20);
    gc::collect(&rows).unwrap();
    assert!(taken(&data) < 1 << 20, "{} bytes", taken(&data));
    // What waits is not touched.
    drop((rows, folder));
    kept.reopen();
    fill(kept.store(), 16 * BATCH, 4).await;
    let runs = listed(kept.store(), "t").await;
    kept.store = None;
    let folder = DataDir::lock(kept.folder.path()).unwrap();
    gc::collect(&folder.open(&sizes).unwrap()).unwrap();
    drop(folder);
    kept.reopen();
    let fetched = kept
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
async fn an_erased_shard_leaves_no_rows_even_if_the_process_ended_meanwhile() {
    let mut kept = Kept::new(Sizes::DEFAULT);
    kept.store()
        .open(&[new_shard("gone"), new_shard("kept")])
        .await
        .unwrap();
    for offset in 0..30 {
        assert_eq!(
            kept.store()
                .append(&[append("gone", offset), append("kept", offset)])
                .await
                .unwrap(),
            [DONE, DONE]
        );
    }
    held(kept.store(), "gone").await;
    let cancel = IdChange {
        id: "id3".into(),
        kind: IdChangeKind::Cancel,
    };
    let cancels = Append {
        runs: vec![],
        changes: vec![cancel],
        ..append("gone", 30)
    };
    kept.store().append(&[cancels]).await.unwrap();
    let run = append("gone", 5).runs.remove(0);
    kept.store()
        .quarantine(&[Quarantine {
            lease: lease("gone"),
            runs: vec![(run.slice, run.name)],
        }])
        .await
        .unwrap();
    kept.store().erase(&[shard("gone")]).await.unwrap();
    kept.reopen();
    // A new life of the same shard sees nothing of the one before.
    assert!(matches!(
        kept.store().open(&[new_shard("gone")]).await.unwrap()[0],
        Opened::Created(_)
    ));
    assert_eq!(listed(kept.store(), "gone").await, []);
    assert_eq!(listed(kept.store(), "kept").await.len(), 30);
    kept.store = None;
    let folder = DataDir::lock(kept.folder.path()).unwrap();
    let rows = folder.open(&Sizes::DEFAULT).unwrap();
    let here = Context {
        deployment: "test".into(),
        clock: Arc::new(WallClock),
        room: DiskSpace::new(kept.folder.path().to_owned()),
    };
    let mut registry = Shards::load(rows.clone(), here, &BTreeMap::new()).unwrap();
    while registry.has_garbage() {
        registry
            .attempt(Shards::delete_garbage)
            .and_then(|()| registry.commit())
            .unwrap();
    }
    let keys = |keyspace: &fjall::Keyspace| {
        keyspace
            .iter()
            .map(|row| row.key().unwrap().to_vec())
            .collect::<Vec<_>>()
    };
    // The number stands behind the letter, but for the bytes, where it stands behind the slice.
    let of_gone = |key: &Vec<u8>| {
        key.get(if key[0] == b'p' { 10..14 } else { 1..5 }) == Some(&1u32.to_be_bytes()[..])
            && key[0] != b'm'
    };
    let left: Vec<_> = keys(&rows.index)
        .into_iter()
        .chain(keys(&rows.pool))
        .filter(of_gone)
        .collect();
    assert!(left.is_empty(), "{left:?}");
}
