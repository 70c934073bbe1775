//! Makes sure that free memory is available at once when a measurement starts.
//!
//! A virtual machine returns unused memory to its host. Getting it back may be limited to some
//! hundred megabytes per second, and that time counts as processor time of the program that
//! allocates.

use std::fs::File;
use std::io::Write as _;

use crate::env::folder;

/// More than a service and a broker's log files need for a million messages.
const SIZE: usize = 1 << 30;
const PART: usize = 1 << 20;

/// Makes the memory available for allocations within the next second. Later the host may have taken
/// it back.
pub(crate) fn find_memory() {
    drop(hold_memory());
}

/// Allocates the memory and holds it until the returned file is dropped. It consists of file pages,
/// like a broker's log. The file has no name, so it is deleted with the handle.
pub(crate) fn hold_memory() -> File {
    let (mut file, part) = (
        tempfile::tempfile_in(folder("fresh")).expect("a file can be made"),
        vec![1; PART],
    );
    for _ in 0..SIZE / PART {
        file.write_all(&part).expect("there is room for a gigabyte");
    }
    file
}
