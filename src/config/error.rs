//! The problems of a configuration, each with its key, place, cause and fix.
//!
//! The texts are our own, because a parser would quote the value, and the value may be a password.

use std::fmt;
use std::path::PathBuf;

/// Where a value was written. Problems are listed in this order: by line of the file, then by
/// variable.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    File { path: PathBuf, line: Option<usize> },
    Variable(String),
    Option(&'static str),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File {
                path,
                line: Some(line),
            } => write!(f, "{}, line {line}", path.display()),
            Self::File { path, line: None } => write!(f, "{}", path.display()),
            Self::Option(name) => write!(f, "option {name} of the command line"),
            Self::Variable(name) => write!(f, "environment variable {name}"),
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

impl Problem {
    /// A problem that no key has.
    pub(super) fn without_key(
        place: Place,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            place,
            key: None,
            what: what.into(),
            fix: fix.into(),
        }
    }
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
pub struct Error(Vec<Problem>);

impl Error {
    pub(super) fn new(mut problems: Vec<Problem>) -> Self {
        problems.sort();
        problems.dedup();
        Self(problems)
    }

    /// A command-line option that does not fit the configuration.
    pub(crate) fn for_option(option: &'static str, what: String, fix: impl Into<String>) -> Self {
        Self(vec![Problem::without_key(Place::Option(option), what, fix)])
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
