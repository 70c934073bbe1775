//! The position of a value, at which the checks report problems.

use super::decode::quantity::Quantity;
use super::decode::secret::Secret;
use super::decode::source::Sources;
use super::error::Problem;
use std::cell::RefCell;
use std::fmt::Display;
use std::path::PathBuf;

#[derive(Clone)]
pub(crate) struct At<'a> {
    sources: &'a Sources,
    problems: &'a RefCell<Vec<Problem>>,
    path: Vec<String>,
}

impl<'a> At<'a> {
    /// The position of the whole configuration.
    pub(super) fn root(sources: &'a Sources, problems: &'a RefCell<Vec<Problem>>) -> Self {
        Self {
            sources,
            problems,
            path: Vec::new(),
        }
    }

    /// The position of a key of this table, or of an index of this list.
    pub(super) fn key(&self, key: impl Display) -> Self {
        let mut below = self.clone();
        below.path.push(key.to_string());
        below
    }

    pub(super) fn is_set(&self) -> bool {
        self.sources.is_set(&self.path)
    }

    pub(super) fn refuse(&self, what: impl Into<String>, fix: impl Into<String>) {
        let problem = self.sources.problem(&self.path, what, fix);
        self.problems.borrow_mut().push(problem);
    }

    /// Checks a value against its range, which is written as in the file.
    pub(super) fn in_range<T: Quantity>(&self, value: T, least: &str, greatest: &str) {
        if Some(value) < T::parse(least) || Some(value) > T::parse(greatest) {
            let fix = format!("choose from {least} to {greatest}");
            self.refuse("the value is out of range", fix);
        }
    }

    /// Checks that a list has each entry once, and at least one.
    pub(super) fn check_list(&self, list: &[String]) {
        if list.is_empty() {
            self.refuse("the list is empty", "add an entry");
        }
        for (index, entry) in list.iter().enumerate() {
            if list[..index].contains(entry) {
                let what = format!("{entry:?} is in the list twice");
                self.key(index).refuse(what, "keep one of the two");
            }
        }
    }

    /// Checks that a secret is not empty, as a variable without a value would be.
    pub(super) fn check_secret(&self, secret: Option<&Secret>) {
        if secret.is_some_and(|secret| secret.expose().is_empty()) {
            self.refuse("the text is empty", "write a value, or remove the key");
        }
    }

    /// Checks the paths of `ca`, `certificate` and `certificate_key`. `tls`: how to turn on TLS,
    /// without which they have no meaning.
    pub(super) fn check_certificates(&self, paths: [&Option<PathBuf>; 3], tls: Option<&str>) {
        let [ca, certificate, key] = paths.map(Option::is_some);
        if certificate && !key {
            let fix = "add the path of the certificate's key";
            self.key("certificate_key").refuse("missing", fix);
        }
        if key && !certificate {
            let fix = "add the path of the key's certificate";
            self.key("certificate").refuse("missing", fix);
        }
        let Some(fix) = tls else { return };
        for (name, is_set) in [("ca", ca), ("certificate", certificate)] {
            if is_set {
                let what = "a certificate without TLS";
                self.key(name).refuse(what, fix);
            }
        }
    }
}
