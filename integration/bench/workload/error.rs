//! The problems of a workload file, each with its key, place, cause and fix.

use std::fmt;
use std::path::PathBuf;

/// The file and the line. Problems are listed in this order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) path: PathBuf,
    pub(super) line: Option<usize>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.line {
            Some(line) => write!(f, "{path}, line {line}"),
            None => write!(f, "{path}"),
        }
    }
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Problem {
    pub(super) place: Place,
    /// The path of the key; `None` if the problem concerns the whole file.
    pub(super) key: Option<String>,
    pub(super) what: String,
    pub(super) fix: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(key) = &self.key {
            writeln!(f, "  key:  {key}")?;
        }
        writeln!(f, "  in:   {}", self.place)?;
        writeln!(f, "  what: {}", self.what)?;
        writeln!(f, "  fix:  {}", self.fix)
    }
}

/// All problems of a configuration, each of them once.
#[derive(Debug)]
pub(crate) struct Error(Vec<Problem>);

impl Error {
    pub(super) fn new(mut problems: Vec<Problem>) -> Self {
        problems.sort();
        problems.dedup();
        Self(problems)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            1 => writeln!(f, "there is a problem with the configuration")?,
            count => writeln!(f, "there are {count} problems with the configuration")?,
        }
        for problem in &self.0 {
            write!(f, "\n{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}
