//! Key paths such as `route.orders.source.topics[1]`, and the environment variables that set them.

use std::fmt;

/// Prefix of the environment variables that set a key.
pub(super) const PREFIX: &str = "POSTDATE_";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Segment {
    Key(String),
    Index(usize),
}

/// Position of a value in the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::config) struct Path(Vec<Segment>);

impl Path {
    pub(in crate::config) fn of(keys: &[&str]) -> Self {
        keys.iter().fold(Self::default(), |path, key| path.key(key))
    }

    pub(super) fn key(&self, key: &str) -> Self {
        self.with(Segment::Key(key.to_owned()))
    }

    pub(super) fn index(&self, index: usize) -> Self {
        self.with(Segment::Index(index))
    }

    /// The key `key` of the same table.
    pub(super) fn sibling(&self, key: &str) -> Self {
        let table = &self.0[..self.0.len().saturating_sub(1)];
        Self(table.to_vec()).key(key)
    }

    fn with(&self, segment: Segment) -> Self {
        Self(self.0.iter().cloned().chain([segment]).collect())
    }

    pub(super) fn segments(&self) -> &[Segment] {
        &self.0
    }

    /// Returns whether this is an entry of a list.
    pub(super) fn is_entry(&self) -> bool {
        matches!(self.0.last(), Some(Segment::Index(_)))
    }

    /// The name of the last key.
    pub(in crate::config) fn name(&self) -> &str {
        self.keys().last().unwrap_or_default()
    }

    /// The environment variable that sets this key.
    pub(in crate::config) fn variable(&self) -> String {
        let keys: Vec<_> = self.keys().collect();
        format!("{PREFIX}{}", keys.join("__").to_uppercase())
    }

    fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|segment| match segment {
            Segment::Key(key) => Some(key.as_str()),
            Segment::Index(_) => None,
        })
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        for (position, segment) in self.0.iter().enumerate() {
            match segment {
                Segment::Index(index) => write!(f, "[{index}]")?,
                Segment::Key(key) => {
                    f.write_str(if position == 0 { "" } else { "." })?;
                    if !key.is_empty() && key.chars().all(is_bare) {
                        f.write_str(key)?;
                    } else {
                        write!(f, "{key:?}")?;
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_written_as_in_toml_and_as_a_variable() {
        let path = Path::of(&["kafka", "main", "properties", "sasl.password"]).index(1);
        assert_eq!(
            path.to_string(),
            "kafka.main.properties.\"sasl.password\"[1]"
        );
        assert_eq!(
            Path::of(&["route", "orders", "max_delay"]).variable(),
            "POSTDATE_ROUTE__ORDERS__MAX_DELAY"
        );
    }
}
