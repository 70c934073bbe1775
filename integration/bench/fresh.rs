//! Memory that a measurement may take at once. A virtual machine gives what it does not use back to its host, which may find no more than some
//! hundred megabytes of it a second again; meanwhile the time counts as that of the program that wanted it.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;

use crate::env::folder;

/// What a service and a broker's file take of a million messages, and some.
const SIZE: usize = 1 << 30;
const PART: usize = 1 << 20;

/// Memory taken as a file's pages, for a broker takes its own as such.
pub(crate) struct Fresh(PathBuf);

impl Fresh {
    pub(crate) fn take() -> Fresh {
        let path = folder("fresh").join("pages");
        let (mut file, part) = (File::create(&path).expect("a file can be made"), vec![1; PART]);
        for _ in 0..SIZE / PART {
            file.write_all(&part).expect("there is room for a gigabyte");
        }
        Fresh(path)
    }

    /// What is wanted in the next second comes from there; later the host has it again.
    pub(crate) fn give(self) {
        std::fs::remove_file(self.0).expect("it is ours");
    }
}
