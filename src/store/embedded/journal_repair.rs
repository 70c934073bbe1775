//! Finds the last commit in a journal of the database, so that a damaged one can be left out.
//! Changes nothing.
//!
//! After a power loss the disk may hold the end of the last commit but not its middle. Every
//! earlier commit was on disk before its callers got an answer, and no caller got one for the last
//! commit. The database nevertheless refuses to open such a journal.
//!
//! | entry | bytes after its tag |
//! |---|---|
//! | 1 start | number of items (4), sequence number (8) |
//! | 2 item | type (1), compression (1), keyspace (8), key length (2), value length (4), stored value length (4), key, value |
//! | 3 end | checksum (8), `FJL` and format version (4) |
//! | 4 clear | keyspace (8) |
//!
//! Numbers are little-endian. Zeros follow the last commit.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read as _};
use std::path::{Path, PathBuf};

/// The newest journal, and the position of its last complete commit.
pub(super) fn last_commit(data: &Path) -> io::Result<Option<(PathBuf, u64)>> {
    let mut newest: Option<(u64, PathBuf)> = None;
    for entry in std::fs::read_dir(data)? {
        let path = entry?.path();
        let number = path
            .extension()
            .filter(|kind| *kind == "jnl")
            .and_then(|_| path.file_stem()?.to_str()?.parse().ok());
        newest = newest.max(number.map(|number: u64| (number, path.clone())));
    }
    let Some((_, path)) = newest else {
        return Ok(None);
    };
    let start = Entries {
        reader: BufReader::new(File::open(&path)?),
        at: 0,
    }
    .last_commit()?;
    Ok(start.map(|start| (path, start)))
}

struct Entries {
    reader: BufReader<File>,
    at: u64,
}

impl Entries {
    fn last_commit(mut self) -> io::Result<Option<u64>> {
        let mut start = None;
        let mut last = None;
        loop {
            let at = self.at;
            match self.skip_entry() {
                Ok(Some(1)) => start = Some(at),
                Ok(Some(3)) => last = start.take().or(last),
                Ok(Some(_)) => {}
                Ok(None) => return Ok(last),
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(last),
                Err(error) => return Err(error),
            }
        }
    }

    /// Skips the next entry and returns its tag. `None`: no entry follows.
    fn skip_entry(&mut self) -> io::Result<Option<u8>> {
        let [tag] = self.take()?;
        match tag {
            1 => _ = self.take::<12>()?,
            2 => {
                let head = self.take::<20>()?;
                let number = |from: usize, length: usize| {
                    head[from..from + length]
                        .iter()
                        .rev()
                        .fold(0, |n, &byte| n << 8 | i64::from(byte))
                };
                let length = number(10, 2) + number(16, 4);
                self.reader.seek_relative(length)?;
                self.at += length.unsigned_abs();
            }
            3 if &self.take::<12>()?[8..11] == b"FJL" => {}
            4 => _ = self.take::<8>()?,
            _ => return Ok(None),
        }
        Ok(Some(tag))
    }

    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes)?;
        self.at += N as u64;
        Ok(bytes)
    }
}
