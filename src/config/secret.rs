//! Text that is never printed: passwords, addresses with a login, client properties. It is plain
//! memory, not a vault.

use serde::de::{Deserialize, Deserializer, Error, Visitor};
use std::fmt;

/// Prints as `[secret]`.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Secret(Box<str>);

impl Secret {
    /// The type that a decoder expects. Errors show no value where this was expected.
    pub(super) const EXPECTED: &str = "secret text";

    pub(crate) fn new(text: impl Into<Box<str>>) -> Self {
        Self(text.into())
    }

    /// Returns the text for the client that needs it. Never print it.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

struct SecretVisitor;

impl Visitor<'_> for SecretVisitor {
    type Value = Secret;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Secret::EXPECTED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Secret, E> {
        Ok(Secret::new(text))
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(SecretVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_does_not_print_its_text() {
        let secret = Secret::new("hunter2");
        assert_eq!(
            format!("{secret:?} {:?}", Some(&secret)),
            "[secret] Some([secret])"
        );
        assert_eq!(secret.expose(), "hunter2");
    }
}
