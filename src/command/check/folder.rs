//! Judges the folder of an embedded store.

use crate::broker::inspection::Finding;
use crate::limit::EMBEDDED_DISK_RESERVE_BYTES;
use crate::model::readable::{several, size};
use crate::store::embedded::{FolderDescription, FolderUse};

/// Below this amount, a busy day may fill the disk.
const FREE_LOW: u64 = 4 * EMBEDDED_DISK_RESERVE_BYTES;

pub(super) fn judge(folder: &FolderDescription) -> Vec<Finding> {
    let mut findings = vec![usage(folder)];
    findings.push(match &folder.unwritable {
        None => Finding::ok("writable", "by this user"),
        Some(why) => {
            let fix = "give the folder to the user that the service runs as, or set store.embedded.path to another one";
            Finding::fail("writable", why, fix)
        }
    });
    if let Some(format) = &folder.foreign_format {
        let found = format!("this version cannot read the format `{format}`");
        let fix = "let the version that wrote it deliver the waiting messages, or set store.embedded.path to a new folder";
        findings.push(Finding::fail("format", found, fix));
    }
    findings.push(room(folder.free));
    findings
}

fn usage(folder: &FolderDescription) -> Finding {
    let path = folder.path.display();
    let warn = |found: String| {
        let fix = "run the check as the user that the service runs as";
        Finding::warn("folder", found, fix)
    };
    let found = match &folder.used {
        FolderUse::OwnedByOther(owner) => return warn(format!("{path} belongs to user {owner}")),
        FolderUse::Unreadable(why) => return warn(format!("cannot read {path}: {why}")),
        FolderUse::Absent => format!("{path} does not exist yet: `postdate run` creates it"),
        FolderUse::Free => format!("{path} holds a store, and no process uses it"),
        FolderUse::InUse(Some(id)) => format!("{path} is in use by process {id}: a service runs"),
        FolderUse::InUse(None) => format!("{path} is in use: a service runs"),
    };
    Finding::ok("folder", found)
}

fn room(free: Option<u64>) -> Finding {
    let reserve = size(EMBEDDED_DISK_RESERVE_BYTES);
    let Some(free) = free else {
        return Finding::ok("free disk", "the file system does not say");
    };
    let shown = size(free);
    if free < EMBEDDED_DISK_RESERVE_BYTES {
        let found = format!("{shown}: the store keeps {reserve} free, so it stores nothing new");
        let fix = "free disk space; waiting messages are still delivered";
        Finding::fail("free disk", found, fix)
    } else if free < FREE_LOW {
        let found = format!("{shown}: below {reserve} nothing new is stored");
        let fix = "free disk space, or set store.embedded.path to a larger one";
        Finding::warn("free disk", found, fix)
    } else {
        Finding::ok("free disk", shown)
    }
}

/// Warns of messages in a folder that the configuration does not use. `waits` is `None` if a
/// process uses the folder.
pub(super) fn left_behind(path: &str, waits: Option<u64>) -> Option<Finding> {
    let found = match waits {
        Some(0) => return None,
        Some(count) => {
            let messages = several(count, "message");
            format!("{messages} in {path}, which this configuration does not use")
        }
        None => format!("a service uses the folder {path}, and its messages are not in this store"),
    };
    let fix = "run a service with that folder until nothing waits. Or stop it, let this store be rebuilt from the source, and remove the folder: see docs/stores.md";
    Some(Finding::warn("another store", found, fix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::inspection::Verdict::{Fail, Ok as Fine, Warn};

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
                .map(|finding| finding.verdict)
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
