//! What is wrong with a configuration, in words for the person who must put it right. Our own words throughout: a parser's would quote
//! the value, and the value may be a password.

use std::fmt;
use std::path::PathBuf;

/// Where a value was written. The order is the one in which problems are listed: down the file, then the environment.
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

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Problem {
    pub(super) place: Place,
    /// The key's path; `None`: the file as a whole.
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

/// Everything that is wrong with a configuration, each thing once.
#[derive(Debug)]
pub struct Error(Vec<Problem>);

impl Error {
    pub(super) fn new(mut problems: Vec<Problem>) -> Self {
        problems.sort();
        problems.dedup();
        Self(problems)
    }

    /// An option of the command line that does not go with the configuration.
    pub(crate) fn for_option(option: &'static str, what: String, fix: impl Into<String>) -> Self {
        Self(vec![Problem {
            place: Place::Option(option),
            key: None,
            what,
            fix: fix.into(),
        }])
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
