//! Who may use a folder, and which folders are used.

use super::*;

#[tokio::test]
async fn a_folder_in_use_is_refused_with_the_id_of_its_process_and_free_again_afterwards() {
    let mut kept = Kept::new(Sizes::DEFAULT);
    let said = refused(kept.folder.path());
    let process = std::process::id();
    assert!(
        said.contains(&format!(
            "is in use by process {process}: only one process can have an embedded store at a time"
        )),
        "{said}"
    );
    assert!(
        said.contains("Stop that one, or set store.embedded.path to another folder"),
        "{said}"
    );
    // A second handle is another loop's, not another process'.
    let second = kept.store().clone();
    kept.store = None;
    assert!(refused(kept.folder.path()).contains("is in use"));
    drop(second);
    kept.reopen();
}

#[test]
fn a_folder_of_another_format_is_refused_and_left_alone() {
    let kept = Kept::new(Sizes::DEFAULT);
    let folder = kept.folder;
    drop(kept.store);
    for (format, said) in [
        (
            "postdate embedded store, format 2\n",
            "has format 2, and this version of Postdate reads and writes format 1",
        ),
        ("", "has an unknown format, and this version"),
    ] {
        std::fs::write(folder.path().join("format"), format).unwrap();
        let text = refused(folder.path());
        assert!(
            text.contains(said)
                && text.contains("let the version that wrote it deliver what waits there"),
            "{text}"
        );
        assert!(
            text.contains("set store.embedded.path to a new folder"),
            "{text}"
        );
        assert_eq!(
            std::fs::read_to_string(folder.path().join("format")).unwrap(),
            format
        );
    }
}

#[test]
fn a_folder_with_other_things_in_it_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("thesis.txt"), "years of work").unwrap();
    let text = refused(folder.path());
    assert!(text.contains("holds `thesis.txt` and no Postdate store: set store.embedded.path to a folder of its own"), "{text}");
    assert!(!folder.path().join("data").exists() && !folder.path().join("format").exists());
}

#[test]
fn a_path_that_cannot_be_a_folder_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(refused(&file).contains(&format!("{}: ", file.display())));
    assert!(refused(&file.join("below")).contains("Not a directory"));
}

#[tokio::test]
async fn a_folder_is_made_with_those_above_it_and_only_its_owner_reads_it() {
    use std::os::unix::fs::PermissionsExt as _;
    let above = tempfile::tempdir().unwrap();
    let path = above.path().join("var").join("postdate");
    let store = opened(&path, Sizes::DEFAULT);
    assert!(matches!(
        store.open(&[new_shard("t")]).await.unwrap()[0],
        Opened::Created(_)
    ));
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o700
    );
}

/// A folder comes into being in steps; a process that dies after any of them leaves one that the next process completes.
#[tokio::test]
async fn a_folder_whose_making_was_cut_short_is_completed() {
    let whole = tempfile::tempdir().unwrap();
    drop(opened(whole.path(), Sizes::DEFAULT));
    let steps: [&[&str]; 5] = [
        &["lock"],
        &["lock", "data.new/0.jnl"],
        &["lock", "data.new/0.jnl", "data.new/version", "format.new"],
        &["lock", "data.new/0.jnl", "format"],
        &["lock", "format"],
    ];
    for step in steps {
        let folder = tempfile::tempdir().unwrap();
        for name in step {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let from = if *name == "format" {
                whole.path().join("format")
            } else {
                whole.path().join("lock")
            };
            std::fs::copy(from, path).unwrap();
        }
        let store = opened(folder.path(), Sizes::DEFAULT);
        assert!(
            matches!(
                store.open(&[new_shard("t")]).await.unwrap()[0],
                Opened::Created(_)
            ),
            "{step:?}"
        );
        drop(store);
        let store = opened(folder.path(), Sizes::DEFAULT);
        assert!(known(&store, "t").await.is_some(), "{step:?}");
        assert!(
            !folder.path().join("data.new").exists() && !folder.path().join("format.new").exists(),
            "{step:?}"
        );
    }
}
