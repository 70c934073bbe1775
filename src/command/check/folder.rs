//! What the facts of a folder mean for an embedded store in it.

use super::item::Item;
use crate::command::page::{several, size};
use crate::limit::EMBEDDED_RESERVE_BYTES;
use crate::store::embedded::{Inspection, Use};

const AREA: &str = "store";
/// Below it a busy day may fill the disk.
const FREE_LOW: u64 = 4 * EMBEDDED_RESERVE_BYTES;

pub(super) fn judge(folder: &Inspection) -> Vec<Item> {
    let path = folder.path.display();
    let used = match folder.used {
        Use::Absent => format!("{path} is not there yet: `postdate run` makes it"),
        Use::Free => format!("{path} holds a store, and no process uses it"),
        Use::Taken(Some(id)) => format!("{path} is in use by process {id}: a service runs"),
        Use::Taken(None) => format!("{path} is in use: a service runs"),
    };
    let mut items = vec![Item::ok(AREA, "folder", used)];
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
    let reserve = size(EMBEDDED_RESERVE_BYTES);
    match free {
        None => Item::ok(AREA, "free disk", "the file system does not say"),
        Some(free) if free < EMBEDDED_RESERVE_BYTES => {
            let found = format!("{}: the last {reserve} are left alone, so nothing new is stored", size(free));
            Item::fail(AREA, "free disk", found, "free disk; what waits is delivered all the same")
        }
        Some(free) if free < FREE_LOW => {
            let found = format!("{}: below {reserve} nothing new is stored", size(free));
            Item::warn(AREA, "free disk", found, "free disk, or set store.embedded.path to a larger one")
        }
        Some(free) => Item::ok(AREA, "free disk", size(free)),
    }
}

/// A folder beside a configuration with another store. `waits`: so many messages; not known of one that is in use.
pub(super) fn left_behind(path: &str, waits: Option<u64>) -> Option<Item> {
    let found = match waits {
        Some(0) => return None,
        Some(count) => format!("in {path} {} still wait, which this store knows nothing of", several(count, "message")),
        None => format!("a service uses the folder {path}, and what waits there does not wait in this store"),
    };
    let fix = "drain it (run it with its own store until nothing waits), or stop it and let this store be filled again from the log, and remove the folder then: docs/store.md";
    Some(Item::warn("waiting", "another store", found, fix))
}
