//! Text that is never printed: passwords, addresses that may hold one, client properties. Not a vault: it is plain memory.

use std::fmt;

/// Prints as `[secret]`, whatever it holds.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Secret(Box<str>);

impl Secret {
    pub(crate) fn new(text: impl Into<Box<str>>) -> Self {
        Self(text.into())
    }

    /// For the client that needs it, and for nothing that is printed.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_does_not_print_what_it_holds() {
        let secret = Secret::new("hunter2");
        assert_eq!(
            format!("{secret:?} {:?}", Some(&secret)),
            "[secret] Some([secret])"
        );
        assert_eq!(secret.expose(), "hunter2");
    }
}
