//! Rows and files that are not what was written.

use super::disk::{big, files};
use super::key::Key;
use super::*;

/// Opens the folder past the store.
fn with_rows<T>(kept: &mut Kept, body: impl FnOnce(&Tables) -> T) -> T {
    kept.store = None;
    let folder = DataDir::lock(kept.folder.path()).unwrap();
    let answer = body(&folder.open(&Sizes::DEFAULT).unwrap());
    drop(folder);
    kept.reopen();
    answer
}

async fn two_shards() -> Kept {
    let kept = Kept::new(Sizes::DEFAULT);
    kept.store()
        .open(&[new_shard("bad"), new_shard("good")])
        .await
        .unwrap();
    assert_eq!(
        kept.store()
            .append(&[append("bad", 0), append("good", 0)])
            .await
            .unwrap(),
        [DONE, DONE]
    );
    kept
}

#[tokio::test]
async fn a_meta_that_cannot_be_read_stops_its_shard_and_no_other() {
    let mut kept = two_shards().await;
    with_rows(&mut kept, |rows| {
        let key = Key::Meta {
            deployment: "test",
            shard: &shard("bad"),
        };
        rows.index.insert(key.to_bytes(), "something else").unwrap();
    });
    let store = kept.store();
    let leases = [lease("bad"), lease("good")];
    let second = Duration::from_secs(1);
    assert_eq!(
        store
            .append(&[append("bad", 1), append("good", 1)])
            .await
            .unwrap(),
        [Appended::Unknown, DONE]
    );
    let states = store.state(&[shard("bad"), shard("good")]).await.unwrap();
    assert!(states[0].is_none() && states[1].is_some());
    let acquired = store.acquire(&leases, second).await.unwrap();
    assert!(
        acquired[0] == Acquired::Unknown && matches!(acquired[1], Acquired::Granted { .. }),
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
        self::listed(store, "bad").await,
        [],
        "what the old shard had is not the new one's"
    );
}

#[tokio::test]
async fn rows_that_cannot_be_named_do_not_push_runs_out_of_a_list() {
    let mut kept = Kept::new(Sizes::DEFAULT);
    kept.store().open(&[new_shard("bad")]).await.unwrap();
    for offset in 0..4 {
        assert_eq!(
            kept.store().append(&[append("bad", offset)]).await.unwrap(),
            [DONE]
        );
    }
    with_rows(&mut kept, |rows| {
        for run in [append("bad", 0), append("bad", 2)].map(|append| append.runs[0].clone()) {
            rows.index
                .insert(
                    Key::Order(1, run.summary.least_due(), &run.name).to_bytes(),
                    "no slice",
                )
                .unwrap();
        }
    });
    for limit in 0..4 {
        let listed = kept
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
async fn counts_that_cannot_be_read_stop_their_shard() {
    let mut kept = two_shards().await;
    with_rows(&mut kept, |rows| {
        let slice = append("bad", 0).runs[0].slice;
        rows.index
            .insert(Key::Count(1, Some(slice)).to_bytes(), "many")
            .unwrap();
    });
    let opened = kept
        .store()
        .open(&[new_shard("bad"), new_shard("good")])
        .await
        .unwrap();
    assert!(
        matches!(&opened[0], Opened::Incompatible(text) if text.contains("counts that cannot be read")),
        "{opened:?}"
    );
    assert!(matches!(opened[1], Opened::Existing(_)));
}

#[tokio::test]
async fn a_run_that_lost_its_bytes_is_empty_and_can_be_set_aside() {
    let mut kept = two_shards().await;
    let run = append("bad", 0).runs.remove(0);
    let named = vec![(run.slice, run.name.clone())];
    with_rows(&mut kept, |rows| {
        rows.pool
            .remove(Key::Bytes(1, run.slice, &run.name).to_bytes())
            .unwrap()
    });
    let fetch = || Fetch {
        shard: shard("bad"),
        runs: named.clone(),
    };
    assert_eq!(
        kept.store().fetch(&[fetch()]).await.unwrap(),
        [[Some(Bytes::new())]]
    );
    held(kept.store(), "bad").await;
    assert_eq!(
        kept.store()
            .quarantine(&[Quarantine {
                lease: lease("bad"),
                runs: named.clone()
            }])
            .await
            .unwrap(),
        [1]
    );
    assert_eq!(kept.store().fetch(&[fetch()]).await.unwrap(), [[None]]);
    let state = known(kept.store(), "bad").await.unwrap();
    assert_eq!(
        (state.pending, state.quarantined, state.lowest_pending),
        (0, 1, Offset(0))
    );
}

#[tokio::test]
async fn a_quarantined_run_is_kept_with_its_bytes() {
    let mut kept = two_shards().await;
    let run = append("bad", 0).runs.remove(0);
    held(kept.store(), "bad").await;
    let runs = vec![(run.slice, run.name.clone())];
    assert_eq!(
        kept.store()
            .quarantine(&[Quarantine {
                lease: lease("bad"),
                runs
            }])
            .await
            .unwrap(),
        [1]
    );
    let aside = with_rows(&mut kept, |rows| {
        rows.pool
            .get(Key::Quarantined(1, &run.name).to_bytes())
            .unwrap()
    });
    assert_eq!(aside.map(Bytes::from), Some(run.bytes));
}

/// A bit that flips on the disk concerns one run, and no other.
#[tokio::test]
async fn bytes_that_went_bad_on_disk_are_found_and_set_aside() {
    let mut kept = Kept::new(SMALL);
    kept.store().open(&[new_shard("t")]).await.unwrap();
    let big: Vec<Run> = (0..40).map(|offset| big(offset, 2_000)).collect();
    let batch = Append {
        runs: big.clone(),
        to: Watermark(40),
        changes: vec![],
        ..append("t", 0)
    };
    assert_eq!(kept.store().append(&[batch]).await.unwrap(), [DONE]);
    with_rows(&mut kept, |rows| {
        rows.flush_pool().unwrap();
        assert!(
            rows.pool.blob_file_count() > 0,
            "the runs lie in files of their own"
        );
    });
    kept.store = None;
    let wanted = &big[17].bytes[..];
    let file = files(&kept.folder.path().join("data"))
        .into_iter()
        .find(|file| at(&std::fs::read(file).unwrap(), wanted).is_some());
    let file = file.unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    let flipped = at(&bytes, wanted).unwrap() + 1_000;
    bytes[flipped] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    kept.reopen();

    let runs: Vec<_> = big
        .iter()
        .map(|run| (run.slice, run.name.clone()))
        .collect();
    let fetched = kept
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
    held(kept.store(), "t").await;
    assert_eq!(
        kept.store()
            .quarantine(&[Quarantine {
                lease: lease("t"),
                runs: vec![runs[17].clone()]
            }])
            .await
            .unwrap(),
        [1]
    );
    assert_eq!(
        known(kept.store(), "t")
            .await
            .map(|state| (state.pending, state.quarantined)),
        Some((39, 1))
    );
}

/// The folder's journal, with 100 bytes in the midst of this text turned to zeros, as a page that never reached the disk.
fn tear(kept: &mut Kept, text: &[u8]) -> (PathBuf, Vec<u8>) {
    kept.store = None;
    let journal = kept.folder.path().join("data").join("0.jnl");
    let mut bytes = std::fs::read(&journal).unwrap();
    let from = at(&bytes, text).unwrap() + 50;
    bytes[from..from + 100].fill(0);
    std::fs::write(&journal, &bytes).unwrap();
    (journal, bytes)
}

async fn three_commits() -> Kept {
    let kept = Kept::new(Sizes::DEFAULT);
    kept.store().open(&[new_shard("t")]).await.unwrap();
    for offset in 0..3 {
        let append = Append {
            runs: vec![big(offset, 500)],
            ..append("t", offset)
        };
        assert_eq!(kept.store().append(&[append]).await.unwrap(), [DONE]);
    }
    kept
}

#[tokio::test]
async fn a_commit_that_was_torn_by_a_loss_of_power_is_left_out_and_nothing_else() {
    let mut kept = three_commits().await;
    tear(&mut kept, &big(2, 500).bytes);
    kept.reopen();
    assert_eq!(
        known(kept.store(), "t").await.map(|state| state.watermark),
        Some(Watermark(2))
    );
    assert_eq!(listed(kept.store(), "t").await.len(), 2);
    assert_eq!(
        kept.store().append(&[append("t", 2)]).await.unwrap(),
        [DONE]
    );
    kept.reopen();
    assert_eq!(listed(kept.store(), "t").await.len(), 3);
}

#[tokio::test]
async fn a_journal_that_is_damaged_elsewhere_is_refused_and_left_as_it_is() {
    let mut kept = three_commits().await;
    let (journal, bytes) = tear(&mut kept, &big(1, 500).bytes);
    let said = refused(kept.folder.path());
    assert!(
        said.contains("cannot be opened: JournalRecovery(ChecksumMismatch). If the disk is in order, the store in it is damaged"),
        "{said}"
    );
    assert!(
        said.contains("move the folder away and start again"),
        "{said}"
    );
    assert!(std::fs::read(journal).unwrap() == bytes);
    assert!(!kept.folder.path().join("torn").exists());
}

fn at(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}
