//! A journal whose last commit was torn: a machine that lost its power may have written the end of it and not its middle. Every commit but
//! the last one had been waited for, so nothing of a torn one was ever answered; yet the database refuses to open such a journal. This finds
//! where the last commit begins, and changes nothing.
//!
//! | entry | bytes behind its tag |
//! |---|---|
//! | 1 begin | number of items (4), sequence number (8) |
//! | 2 item | type (1), compression (1), keyspace (8), length of key (2), of value (4), of value in the journal (4), key, value |
//! | 3 end | checksum (8), `FJL` and the format's version (4) |
//! | 4 clear | keyspace (8) |
//!
//! Numbers are little-endian. Behind the last commit there are zeros.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read as _};
use std::path::{Path, PathBuf};

/// The journal that is written to, and where the last whole commit in it begins.
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
    let begin = Entries {
        reader: BufReader::new(File::open(&path)?),
        at: 0,
    }
    .last_commit()?;
    Ok(begin.map(|begin| (path, begin)))
}

struct Entries {
    reader: BufReader<File>,
    at: u64,
}

impl Entries {
    fn last_commit(mut self) -> io::Result<Option<u64>> {
        let (mut begin, mut last) = (None, None);
        loop {
            let at = self.at;
            match self.tag() {
                Ok(Some(1)) => begin = Some(at),
                Ok(Some(3)) => last = begin.take().or(last),
                Ok(Some(_)) => {}
                Ok(None) => return Ok(last),
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(last),
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads over the next entry, and answers its tag; `None`: there is none.
    fn tag(&mut self) -> io::Result<Option<u8>> {
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
