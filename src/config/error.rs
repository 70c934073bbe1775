//! The problems of a configuration, each with its key, place, cause and fix.
//!
//! The texts are our own, because a parser would quote the value, and the value may be a password.

use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    /// The path of the key; `None` if the problem concerns the whole file.
    pub(super) key: Option<String>,
    /// The file and its line, the environment variable, or the option of the command line.
    pub(super) place: String,
    pub(super) what: String,
    pub(super) fix: String,
}

impl Problem {
    pub(super) fn without_key(
        place: impl Into<String>,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            key: None,
            place: place.into(),
            what: what.into(),
            fix: fix.into(),
        }
    }
}

/// The problems of a configuration: the first one that prevents decoding, or all that the checks
/// found.
#[derive(Debug)]
pub struct Error(pub(super) Vec<Problem>);

impl Error {
    /// A command-line option that does not fit the configuration.
    pub(crate) fn for_option(option: &str, what: String, fix: impl Into<String>) -> Self {
        Problem::without_key(format!("option {option} of the command line"), what, fix).into()
    }
}

impl From<Problem> for Error {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            1 => writeln!(f, "there is a problem with the configuration")?,
            count => writeln!(f, "there are {count} problems with the configuration")?,
        }
        for problem in &self.0 {
            writeln!(f)?;
            if let Some(key) = &problem.key {
                writeln!(f, "  key:  {key}")?;
            }
            writeln!(f, "  in:   {}", problem.place)?;
            writeln!(f, "  what: {}\n  fix:  {}", problem.what, problem.fix)?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}
