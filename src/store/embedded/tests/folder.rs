//! Which folders are accepted.

use super::*;

#[tokio::test]
async fn a_folder_in_use_is_rejected_with_the_id_of_its_process() {
    let mut test = TestStore::new(FileSizes::DEFAULT);
    let text = open_error(test.folder.path());
    let process = std::process::id();
    assert!(
        text.contains(&format!(
            "is in use by process {process}: only one process can have an embedded store at a time"
        )),
        "{text}"
    );
    assert!(
        text.contains("Stop that one, or set store.embedded.path to another folder"),
        "{text}"
    );
    // A second handle keeps the folder locked.
    let second = test.store().clone();
    test.store = None;
    assert!(open_error(test.folder.path()).contains("is in use"));
    drop(second);
    test.reopen();
}

#[test]
fn a_folder_with_another_format_is_rejected_and_left_alone() {
    let test = TestStore::new(FileSizes::DEFAULT);
    let folder = test.folder;
    drop(test.store);
    for (format, expected) in [
        (
            "postdate embedded store, format 0\n",
            "has format 0, and this version of Postdate reads and writes format 1",
        ),
        ("", "has an unknown format, and this version"),
    ] {
        std::fs::write(folder.path().join("format"), format).unwrap();
        let text = open_error(folder.path());
        assert!(
            text.contains(expected)
                && text.contains("let the version that wrote it deliver the waiting messages"),
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
fn a_folder_of_a_newer_version_asks_for_that_version() {
    let test = TestStore::new(FileSizes::DEFAULT);
    let folder = test.folder;
    drop(test.store);
    let format = folder.path().join("format");
    std::fs::write(format, "postdate embedded store, format 2\n").unwrap();
    let text = open_error(folder.path());
    assert!(text.ends_with("run the newer version"), "{text}");
}

#[test]
fn a_folder_with_foreign_files_is_rejected_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("thesis.txt"), "years of work").unwrap();
    let text = open_error(folder.path());
    assert!(text.contains("holds `thesis.txt` and no Postdate store: set store.embedded.path to a folder of its own"), "{text}");
    assert!(!folder.path().join("data").exists() && !folder.path().join("format").exists());
}

#[test]
fn a_path_that_is_no_folder_is_rejected_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(open_error(&file).contains(&format!("{}: ", file.display())));
    assert!(open_error(&file.join("below")).contains("Not a directory"));
}

#[tokio::test]
async fn a_new_folder_is_created_with_its_parents_and_readable_only_by_its_owner() {
    use std::os::unix::fs::PermissionsExt as _;
    let above = tempfile::tempdir().unwrap();
    let path = above.path().join("var").join("postdate");
    let store = opened(&path, FileSizes::DEFAULT);
    assert!(matches!(
        store.open(&[new_shard("t")]).await.unwrap()[0],
        Opened::Created(_)
    ));
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o700
    );
}

/// A process may die after any step of the creation. The next process completes the folder.
#[tokio::test]
async fn an_incomplete_new_folder_is_completed() {
    let whole = tempfile::tempdir().unwrap();
    drop(opened(whole.path(), FileSizes::DEFAULT));
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
        let store = opened(folder.path(), FileSizes::DEFAULT);
        assert!(
            matches!(
                store.open(&[new_shard("t")]).await.unwrap()[0],
                Opened::Created(_)
            ),
            "{step:?}"
        );
        drop(store);
        let store = opened(folder.path(), FileSizes::DEFAULT);
        assert!(state_of(&store, "t").await.is_some(), "{step:?}");
        assert!(
            !folder.path().join("data.new").exists() && !folder.path().join("format.new").exists(),
            "{step:?}"
        );
    }
}
