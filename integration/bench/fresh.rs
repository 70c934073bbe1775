//! Memory that a measurement may take at once. A virtual machine gives what it does not use back to its host, which may find no more than some
//! hundred megabytes of it a second again; meanwhile the time counts as that of the program that wanted it.

use std::fs::File;
use std::io::Write as _;

use crate::env::folder;

/// What a service and a broker's file take of a million messages, and some.
const SIZE: usize = 1 << 30;
const PART: usize = 1 << 20;

/// What is wanted in the next second comes from memory that is taken and given back here; later the host has it again.
pub(crate) fn find_memory() {
    drop(hold_memory());
}

/// The same, given back when what it answers is dropped. It is taken as a file's pages, as a broker's log is; the file has no name, so that
/// nothing stays of it.
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
