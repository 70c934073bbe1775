//! Judges the folder of an embedded store.

use super::item::Item;
use crate::command::page::{several, size};
use crate::limit::EMBEDDED_DISK_RESERVE_BYTES;
use crate::store::embedded::{FolderDescription, FolderUse};

const AREA: &str = "store";
/// Below this amount, a busy day may fill the disk.
const FREE_LOW: u64 = 4 * EMBEDDED_DISK_RESERVE_BYTES;

pub(super) fn judge(folder: &FolderDescription) -> Vec<Item> {
    let path = folder.path.display();
    let used = match folder.used {
        FolderUse::Absent => format!("{path} is not there yet: `postdate run` makes it"),
        FolderUse::Free => format!("{path} holds a store, and no process uses it"),
        FolderUse::InUse(Some(id)) => format!("{path} is in use by process {id}: a service runs"),
        FolderUse::InUse(None) => format!("{path} is in use: a service runs"),
        FolderUse::OwnedByOther(owner) => format!("{path} belongs to user {owner}"),
        FolderUse::Unreadable(ref why) => format!("{path} cannot be looked into: {why}"),
    };
    let mut items = match folder.used {
        FolderUse::OwnedByOther(_) | FolderUse::Unreadable(_) => vec![Item::warn(
            AREA,
            "folder",
            used,
            "run the check as the user that the service runs as",
        )],
        _ => vec![Item::ok(AREA, "folder", used)],
    };
    if let Some(why) = &folder.unwritable {
        let fix = "give the folder to the user that the service runs as, or set store.embedded.path to another one";
        items.push(Item::fail(AREA, "writable", why.clone(), fix));
    } else {
        items.push(Item::ok(AREA, "writable", "by this user"));
    }
    if let Some(format) = &folder.foreign_format {
        items.push(Item::fail(
            AREA,
            "format",
            format!("`{format}` is not what this version reads and writes"),
            "let the version that wrote it deliver what waits there, or set store.embedded.path to a new folder",
        ));
    }
    items.push(room(folder.free));
    items
}

fn room(free: Option<u64>) -> Item {
    let reserve = size(EMBEDDED_DISK_RESERVE_BYTES);
    match free {
        None => Item::ok(AREA, "free disk", "the file system does not say"),
        Some(free) if free < EMBEDDED_DISK_RESERVE_BYTES => {
            let found = format!(
                "{}: the last {reserve} are left alone, so nothing new is stored",
                size(free)
            );
            Item::fail(
                AREA,
                "free disk",
                found,
                "free disk; what waits is delivered all the same",
            )
        }
        Some(free) if free < FREE_LOW => {
            let found = format!("{}: below {reserve} nothing new is stored", size(free));
            Item::warn(
                AREA,
                "free disk",
                found,
                "free disk, or set store.embedded.path to a larger one",
            )
        }
        Some(free) => Item::ok(AREA, "free disk", size(free)),
    }
}

/// Warns of messages in a folder that the configuration does not use. `waits` is `None` if a
/// process uses the folder.
pub(super) fn left_behind(path: &str, waits: Option<u64>) -> Option<Item> {
    let found = match waits {
        Some(0) => return None,
        Some(count) => format!(
            "{} in {path}, of which this store knows nothing",
            several(count, "message")
        ),
        None => format!(
            "a service uses the folder {path}, and what waits there does not wait in this store"
        ),
    };
    let fix = "drain it (run it with its own store until nothing waits), or stop it and let this store be filled again from the log, and \
               remove the folder then: docs/stores.md";
    Some(Item::warn("waiting", "another store", found, fix))
}

#[cfg(test)]
mod tests {
    use super::super::item::Verdict::{Fail, Ok as Fine, Warn};
    use super::*;

    #[test]
    fn a_folder_is_judged_by_its_rights_its_format_and_its_room() {
        let good = FolderDescription {
            path: "x".into(),
            used: FolderUse::Free,
            unwritable: None,
            foreign_format: None,
            free: Some(FREE_LOW),
        };
        let verdicts = |folder: FolderDescription| {
            judge(&folder)
                .iter()
                .map(|item| item.verdict)
                .collect::<Vec<_>>()
        };
        assert_eq!(verdicts(good.clone()), [Fine, Fine, Fine]);
        assert_eq!(
            verdicts(FolderDescription {
                unwritable: Some("denied".into()),
                ..good.clone()
            }),
            [Fine, Fail, Fine]
        );
        assert_eq!(
            verdicts(FolderDescription {
                foreign_format: Some("7".into()),
                ..good.clone()
            }),
            [Fine, Fine, Fail, Fine]
        );
        assert_eq!(
            verdicts(FolderDescription {
                free: Some(FREE_LOW - 1),
                ..good.clone()
            }),
            [Fine, Fine, Warn]
        );
        assert_eq!(
            verdicts(FolderDescription {
                free: Some(EMBEDDED_DISK_RESERVE_BYTES - 1),
                ..good.clone()
            }),
            [Fine, Fine, Fail]
        );
        assert_eq!(
            verdicts(FolderDescription {
                used: FolderUse::OwnedByOther(7),
                ..good.clone()
            }),
            [Warn, Fine, Fine]
        );
        assert_eq!(
            verdicts(FolderDescription {
                used: FolderUse::Unreadable("denied".into()),
                ..good.clone()
            }),
            [Warn, Fine, Fine]
        );
        assert!(
            judge(&FolderDescription {
                used: FolderUse::InUse(Some(7)),
                ..good
            })[0]
                .found
                .contains("process 7: a service runs")
        );
    }

    #[test]
    fn an_unused_folder_is_reported_only_if_it_holds_messages() {
        assert_eq!(left_behind("./d", Some(0)), None);
        assert!(
            left_behind("./d", Some(1))
                .unwrap()
                .found
                .starts_with("1 message in ./d, ")
        );
        assert_eq!(left_behind("./d", None).unwrap().verdict, Warn);
    }
}
