//! Damaged rows and files.

use super::disk::{big, files};
use super::key;
use super::*;

/// Opens the database without the store.
pub(super) fn with_tables<T>(test: &mut TestStore, body: impl FnOnce(&Tables) -> T) -> T {
    test.store = None;
    let folder = DataDir::lock(test.folder.path()).unwrap();
    let answer = body(&folder.open(&FileSizes::DEFAULT).unwrap());
    drop(folder);
    test.reopen();
    answer
}

async fn two_shards() -> TestStore {
    let test = TestStore::new(FileSizes::DEFAULT);
    test.store()
        .open(&[new_shard("bad"), new_shard("good")])
        .await
        .unwrap();
    assert_eq!(
        test.store()
            .append(&[append("bad", 0), append("good", 0)])
            .await
            .unwrap(),
        [DONE, DONE]
    );
    test
}

#[tokio::test]
async fn an_unreadable_meta_row_affects_only_its_shard() {
    let mut test = two_shards().await;
    with_tables(&mut test, |tables| {
        let key = key::meta("test", &shard("bad"));
        tables.index.insert(key, "something else").unwrap();
    });
    let store = test.store();
    assert_eq!(
        store
            .append(&[append("bad", 1), append("good", 1)])
            .await
            .unwrap(),
        [Appended::Unknown, DONE]
    );
    let states = store.state(&[shard("bad"), shard("good")]).await.unwrap();
    assert!(states[0].is_none() && states[1].is_some());
    let requests = [acquire("bad"), acquire("good")];
    let acquired = store.acquire(&requests).await.unwrap();
    assert!(
        acquired[0] == Acquired::Unknown && matches!(acquired[1], Acquired::Granted(_)),
        "{acquired:?}"
    );
    let listed = store
        .list(&[list_everything("bad"), list_everything("good")])
        .await
        .unwrap();
    assert!(
        listed[0] == Listed::Unknown
            && matches!(&listed[1], Listed::Runs { runs, .. } if runs.len() == 2),
        "{listed:?}"
    );
    let advanced = store
        .advance(&[
            advance("bad", Progress::START),
            advance("good", Progress::START),
        ])
        .await
        .unwrap();
    assert!(
        advanced[0] == Advanced::Unknown && matches!(advanced[1], Advanced::Done { .. }),
        "{advanced:?}"
    );

    let opened = store
        .open(&[new_shard("bad"), new_shard("good")])
        .await
        .unwrap();
    let Opened::Incompatible(text) = &opened[0] else {
        panic!("{:?}", opened[0])
    };
    assert!(
        text.contains("under route/bad/0 the embedded store holds positions that cannot be read"),
        "{text}"
    );
    assert!(
        text.contains("`postdate reset`") && matches!(opened[1], Opened::Existing(_)),
        "{text}"
    );

    store.erase(&[shard("bad")]).await.unwrap();
    assert!(matches!(
        store.open(&[new_shard("bad")]).await.unwrap()[0],
        Opened::Created(_)
    ));
    assert_eq!(
        list_all(store, "bad").await,
        [],
        "the new shard has none of the old runs"
    );
}

#[tokio::test]
async fn unreadable_rows_do_not_push_runs_out_of_a_list() {
    let mut test = TestStore::new(FileSizes::DEFAULT);
    test.store().open(&[new_shard("bad")]).await.unwrap();
    for offset in 0..4 {
        assert_eq!(
            test.store().append(&[append("bad", offset)]).await.unwrap(),
            [DONE]
        );
    }
    with_tables(&mut test, |tables| {
        for run in [append("bad", 0), append("bad", 2)].map(|append| append.runs[0].clone()) {
            tables
                .index
                .insert(
                    key::order(1, run.summary.least_due(), &run.name),
                    "no slice",
                )
                .unwrap();
        }
    });
    for limit in 0..4 {
        let listed = test
            .store()
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
            ([1, 3].into_iter().take(limit).collect(), limit < 2)
        );
    }
}

#[tokio::test]
async fn unreadable_counts_affect_only_their_shard() {
    let mut test = two_shards().await;
    with_tables(&mut test, |tables| {
        let slice = append("bad", 0).runs[0].slice;
        tables
            .index
            .insert(key::count(1, Some(slice)), "many")
            .unwrap();
    });
    let opened = test
        .store()
        .open(&[new_shard("bad"), new_shard("good")])
        .await
        .unwrap();
    assert!(
        matches!(&opened[0], Opened::Incompatible(text) if text.contains("counts that cannot be read")),
        "{opened:?}"
    );
    assert!(matches!(opened[1], Opened::Existing(_)));
    test.store().erase(&[shard("bad")]).await.unwrap();
    with_tables(&mut test, |tables| {
        for prefix in key::all_of_a_shard(1) {
            assert_eq!(tables.rows(&prefix).count(), 0, "{prefix:?}");
        }
        assert!(tables.rows(&key::all_counts(2)).count() > 0);
    });
}

#[tokio::test]
async fn an_unreadable_pause_stops_only_its_shard() {
    let mut test = two_shards().await;
    with_tables(&mut test, |tables| {
        tables
            .index
            .insert(key::pause(1), "of a newer version")
            .unwrap();
    });
    let opened = test
        .store()
        .open(&[new_shard("bad"), new_shard("good")])
        .await
        .unwrap();
    assert!(
        matches!(&opened[0], Opened::Incompatible(text) if text.contains("a pause that cannot be read")),
        "{opened:?}"
    );
    assert!(matches!(opened[1], Opened::Existing(_)));
}

#[tokio::test]
async fn a_slice_of_a_newer_version_stops_only_its_shard() {
    let mut test = two_shards().await;
    let slice = append("bad", 0).runs[0].slice;
    let mut newer = key::count(1, Some(slice));
    *newer.last_mut().unwrap() = b'x';
    with_tables(&mut test, |tables| {
        let totals = tables.index.get(key::count(1, Some(slice))).unwrap();
        tables.index.insert(newer, totals.unwrap()).unwrap();
    });
    let store = test.store();
    let requests = [acquire("bad"), acquire("good")];
    let acquired = store.acquire(&requests).await;
    let acquired = acquired.unwrap();
    assert!(
        acquired[0] == Acquired::Unknown && matches!(acquired[1], Acquired::Granted(_)),
        "{acquired:?}"
    );
    let listed = store.list(&[list_everything("bad")]).await.unwrap();
    assert_eq!(listed, [Listed::Unknown]);
    let new = [new_shard("bad"), new_shard("good")];
    let opened = store.open(&new).await.unwrap();
    assert!(
        matches!(&opened[0], Opened::Incompatible(text) if text.contains("run the newer version")),
        "{opened:?}"
    );
    assert!(matches!(opened[1], Opened::Existing(_)));
}

#[tokio::test]
async fn a_run_without_bytes_is_empty_and_can_be_quarantined() {
    let mut test = two_shards().await;
    let run = append("bad", 0).runs.remove(0);
    let named = vec![(run.slice, run.name.clone())];
    with_tables(&mut test, |tables| {
        tables
            .pool
            .remove(key::bytes(1, run.slice, &run.name))
            .unwrap();
    });
    let fetch = || Fetch {
        shard: shard("bad"),
        runs: named.clone(),
    };
    assert_eq!(
        test.store().fetch(&[fetch()]).await.unwrap(),
        [[Some(Bytes::new())]]
    );
    take_lease(test.store(), "bad").await;
    assert_eq!(
        test.store()
            .quarantine(&[Quarantine {
                lease: lease("bad"),
                runs: named.clone()
            }])
            .await
            .unwrap(),
        [1]
    );
    assert_eq!(test.store().fetch(&[fetch()]).await.unwrap(), [[None]]);
    let state = state_of(test.store(), "bad").await.unwrap();
    assert_eq!(
        (state.pending(), state.quarantined, state.lowest_pending),
        (0, 1, Offset(0))
    );
}

#[tokio::test]
async fn a_quarantined_run_is_kept_with_its_bytes() {
    let mut test = two_shards().await;
    let run = append("bad", 0).runs.remove(0);
    take_lease(test.store(), "bad").await;
    let runs = vec![(run.slice, run.name.clone())];
    assert_eq!(
        test.store()
            .quarantine(&[Quarantine {
                lease: lease("bad"),
                runs
            }])
            .await
            .unwrap(),
        [1]
    );
    let aside = with_tables(&mut test, |tables| {
        tables.pool.get(key::quarantined(1, &run.name)).unwrap()
    });
    assert_eq!(aside.map(Bytes::from), Some(run.bytes));
}

/// A flipped bit on the disk affects only one run.
#[tokio::test]
async fn damaged_bytes_on_disk_are_detected_and_quarantined() {
    let mut test = TestStore::new(SMALL);
    test.store().open(&[new_shard("t")]).await.unwrap();
    let big: Vec<Run> = (0..40).map(|offset| big(offset, 2_000)).collect();
    let batch = Append {
        runs: big.clone(),
        to: Watermark(40),
        changes: vec![],
        pause: None,
        ..append("t", 0)
    };
    assert_eq!(test.store().append(&[batch]).await.unwrap(), [DONE]);
    with_tables(&mut test, |tables| {
        tables.flush_pool().unwrap();
        assert!(
            tables.pool.inner().blob_file_count() > 0,
            "the runs are in blob files"
        );
    });
    test.store = None;
    let wanted = &big[17].bytes[..];
    let file = files(&test.folder.path().join("data"))
        .into_iter()
        .find(|file| at(&std::fs::read(file).unwrap(), wanted).is_some());
    let file = file.unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    let flipped = at(&bytes, wanted).unwrap() + 1_000;
    bytes[flipped] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    test.reopen();

    let runs: Vec<_> = big
        .iter()
        .map(|run| (run.slice, run.name.clone()))
        .collect();
    let fetched = test
        .store()
        .fetch(&[Fetch {
            shard: shard("t"),
            runs: runs.clone(),
        }])
        .await
        .unwrap()
        .remove(0);
    for (at, (bytes, run)) in fetched.iter().zip(&big).enumerate() {
        assert_eq!(
            *bytes,
            Some(if at == 17 {
                Bytes::new()
            } else {
                run.bytes.clone()
            })
        );
    }
    take_lease(test.store(), "t").await;
    assert_eq!(
        test.store()
            .quarantine(&[Quarantine {
                lease: lease("t"),
                runs: vec![runs[17].clone()]
            }])
            .await
            .unwrap(),
        [1]
    );
    assert_eq!(
        state_of(test.store(), "t")
            .await
            .map(|state| (state.pending(), state.quarantined)),
        Some((39, 1))
    );
}

/// Overwrites 100 bytes inside this text in the journal with zeros, like a page that never reached
/// the disk.
fn damage_commit(test: &mut TestStore, text: &[u8]) -> (PathBuf, Vec<u8>) {
    test.store = None;
    let journal = test.folder.path().join("data").join("0.jnl");
    let mut bytes = std::fs::read(&journal).unwrap();
    let from = at(&bytes, text).unwrap() + 50;
    bytes[from..from + 100].fill(0);
    std::fs::write(&journal, &bytes).unwrap();
    (journal, bytes)
}

async fn three_commits() -> TestStore {
    let test = TestStore::new(FileSizes::DEFAULT);
    test.store().open(&[new_shard("t")]).await.unwrap();
    for offset in 0..3 {
        let append = Append {
            runs: vec![big(offset, 500)],
            ..append("t", offset)
        };
        assert_eq!(test.store().append(&[append]).await.unwrap(), [DONE]);
    }
    test
}

#[tokio::test]
async fn only_the_last_commit_is_left_out_if_a_power_loss_damaged_it() {
    let mut test = three_commits().await;
    damage_commit(&mut test, &big(2, 500).bytes);
    test.reopen();
    assert_eq!(
        state_of(test.store(), "t")
            .await
            .map(|state| state.watermark),
        Some(Watermark(2))
    );
    assert_eq!(list_all(test.store(), "t").await.len(), 2);
    assert_eq!(
        test.store().append(&[append("t", 2)]).await.unwrap(),
        [DONE]
    );
    test.reopen();
    assert_eq!(list_all(test.store(), "t").await.len(), 3);
}

#[tokio::test]
async fn a_journal_with_another_damage_is_rejected_and_left_alone() {
    let mut test = three_commits().await;
    let (journal, bytes) = damage_commit(&mut test, &big(1, 500).bytes);
    let text = open_error(test.folder.path());
    assert!(
        text.contains("cannot be opened: JournalRecovery(ChecksumMismatch). If the disk is in order, the store in it is damaged"),
        "{text}"
    );
    assert!(
        text.contains("move the folder away and start again"),
        "{text}"
    );
    assert!(std::fs::read(journal).unwrap() == bytes);
    assert!(!test.folder.path().join("torn").exists());
}

fn at(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}
