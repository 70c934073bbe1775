//! Key paths, and the list of all that are known. What a key's value may be is said where it is read.

use std::fmt;

/// What the environment variables that reach a key begin with.
pub(super) const PREFIX: &str = "POSTDATE_";

/// Every key. `*` is a name that the user gives; `**` is everything below.
pub(super) const KNOWN: &[&str] = &[
    "deployment",
    "roles",
    "store.redis.url",
    "store.redis.url_file",
    "store.redis.username",
    "store.redis.password",
    "store.redis.password_file",
    "store.embedded.path",
    "kafka.*.brokers",
    "kafka.*.properties.**",
    "nats.*.url",
    "nats.*.url_file",
    "nats.*.domain",
    "nats.*.username",
    "nats.*.password",
    "nats.*.password_file",
    "nats.*.token",
    "nats.*.token_file",
    "nats.*.nkey",
    "nats.*.nkey_file",
    "nats.*.credentials",
    "nats.*.credentials_file",
    "nats.*.ca",
    "nats.*.certificate",
    "nats.*.certificate_key",
    "route.*.source.kafka",
    "route.*.source.topics",
    "route.*.source.nats",
    "route.*.source.stream",
    "route.*.source.subjects",
    "route.*.target.kafka",
    "route.*.target.topic",
    "route.*.target.nats",
    "route.*.target.subject",
    "route.*.allow",
    "route.*.dead_letter.kafka",
    "route.*.dead_letter.topic",
    "route.*.dead_letter.nats",
    "route.*.dead_letter.subject",
    "route.*.delivery",
    "route.*.max_delay",
    "route.*.without_delay",
    "route.*.dialects",
    "route.*.on_source_gap",
    "route.*.overdue",
    "route.*.overdue_after",
    "route.*.catch_up_rate",
    "route.*.retry.max_attempts",
    "route.*.retry.backoff",
    "route.*.retry.backoff_max",
    "timer.memory",
    "timer.lease",
    "timer.max_clock_skew",
    "admin.listen",
    "admin.token",
    "admin.token_file",
    "admin.certificate",
    "admin.certificate_key",
    "admin.client_ca",
    "log.format",
    "log.level",
    "traces.endpoint",
    "traces.authorization",
    "traces.authorization_file",
    "traces.one_in",
];

/// Keys whose values are never shown.
const SECRET: &[&str] = &[
    "store.redis.url",
    "store.redis.password",
    "kafka.*.properties.**",
    "admin.token",
    "traces.authorization",
    "nats.*.url",
    "nats.*.password",
    "nats.*.token",
    "nats.*.nkey",
    "nats.*.credentials",
];

/// How a table is written, for the one who wrote something else in its place.
const TABLES: &[(&str, &str)] = &[
    (
        "route.*.source",
        r#"source = { kafka = "main", topics = ["orders.delayed"] }"#,
    ),
    (
        "route.*.target",
        r#"target = { kafka = "main", topic = "orders" }"#,
    ),
    (
        "route.*.dead_letter",
        r#"dead_letter = { kafka = "main", topic = "orders.dead" }"#,
    ),
    (
        "route.*.retry",
        r#"retry = { max_attempts = 10, backoff = "1s", backoff_max = "5m" }"#,
    ),
    (
        "kafka.*.properties",
        r#"properties = { "security.protocol" = "SSL" }"#,
    ),
];

/// The tables at the top.
const TOP: &[&str] = &[
    "store", "kafka", "nats", "route", "timer", "admin", "log", "traces",
];

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Segment {
    Key(String),
    Index(usize),
}

/// Where a value stands in the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Path(Vec<Segment>);

/// What the list of known keys says of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Value,
    Table,
    Unknown,
}

impl Path {
    pub(super) fn of(keys: &[&str]) -> Self {
        Self(
            keys.iter()
                .map(|key| Segment::Key((*key).to_owned()))
                .collect(),
        )
    }

    pub(super) fn join(&self, key: &str) -> Self {
        self.with(Segment::Key(key.to_owned()))
    }

    pub(super) fn index(&self, index: usize) -> Self {
        self.with(Segment::Index(index))
    }

    fn with(&self, segment: Segment) -> Self {
        Self(self.0.iter().cloned().chain([segment]).collect())
    }

    pub(super) fn segments(&self) -> &[Segment] {
        &self.0
    }

    /// Whether this is an entry of a list.
    pub(super) fn is_entry(&self) -> bool {
        matches!(self.0.last(), Some(Segment::Index(_)))
    }

    /// The last key's own name.
    pub(super) fn name(&self) -> &str {
        self.keys().last().unwrap_or_default()
    }

    /// The environment variable that reaches this key.
    pub(super) fn variable(&self) -> String {
        format!(
            "{}{}",
            PREFIX,
            self.keys().collect::<Vec<_>>().join("__").to_uppercase()
        )
    }

    fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|segment| match segment {
            Segment::Key(key) => Some(key.as_str()),
            Segment::Index(_) => None,
        })
    }

    pub(super) fn kind(&self) -> Kind {
        if KNOWN.iter().any(|pattern| self.matches(pattern)) {
            Kind::Value
        } else if KNOWN.iter().any(|pattern| self.leads_to(pattern)) {
            Kind::Table
        } else {
            Kind::Unknown
        }
    }

    /// Whether the last key is a name that the user gives.
    pub(super) fn is_named(&self) -> bool {
        let above = Self(self.0[..self.0.len().saturating_sub(1)].to_vec());
        KNOWN
            .iter()
            .any(|pattern| above.below(pattern) == Some("*"))
    }

    pub(super) fn is_secret(&self) -> bool {
        SECRET.iter().any(|pattern| self.matches(pattern))
    }

    pub(super) fn table_example(&self) -> String {
        let example = TABLES
            .iter()
            .find(|(pattern, _)| self.matches(pattern))
            .map(|(_, example)| (*example).to_owned());
        example.unwrap_or_else(|| format!("[{self}]"))
    }

    /// Whether the path is one that `pattern` stands for.
    pub(super) fn matches(&self, pattern: &str) -> bool {
        let mut parts = pattern.split('.');
        for key in self.keys() {
            match parts.next() {
                Some("**") => return true,
                Some(part) if part == "*" || part == key => {}
                _ => return false,
            }
        }
        parts.next().is_none()
    }

    fn leads_to(&self, pattern: &str) -> bool {
        self.below(pattern).is_some()
    }

    /// The part of `pattern` that comes after this path.
    fn below<'p>(&self, pattern: &'p str) -> Option<&'p str> {
        let mut parts = pattern.split('.');
        let fits = self
            .keys()
            .all(|key| parts.next().is_some_and(|part| part == "*" || part == key));
        fits.then(|| parts.next()).flatten()
    }

    /// The keys that may stand beside this one.
    fn siblings(&self) -> Vec<&'static str> {
        let above = Self(self.0[..self.0.len().saturating_sub(1)].to_vec());
        let mut names: Vec<_> = KNOWN
            .iter()
            .filter_map(|pattern| above.below(pattern))
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// What to do about a key that nobody knows: the nearest name beside it, else its right place, else all there are.
    pub(super) fn advice(&self) -> String {
        let (name, siblings) = (self.name(), self.siblings());
        if let Some(nearest) = nearest(name, siblings.iter().copied()) {
            return format!("did you mean `{nearest}`?");
        }
        if let Some(elsewhere) = KNOWN
            .iter()
            .find(|pattern| pattern.rsplit('.').next() == Some(name))
        {
            let pattern = elsewhere.replace('*', "<name>");
            return match pattern.rsplit_once('.') {
                Some((table, _)) => format!("`{name}` belongs into [{table}]; move it there"),
                None => format!(
                    "`{name}` belongs at the top of the file, before the first [table]; move it there"
                ),
            };
        }
        if self.0.len() == 1
            && TOP.iter().any(|table| {
                name.strip_prefix(table)
                    .is_some_and(|rest| rest.starts_with('_'))
            })
        {
            return "a variable has two underscores for each dot, as in POSTDATE_ROUTE__ORDERS__MAX_DELAY".to_owned();
        }
        format!("remove it; known here: {}", siblings.join(", "))
    }
}

/// The candidate that `text` was probably meant to be.
pub(super) fn nearest<'a>(
    text: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let text = text.to_lowercase().replace('-', "_");
    let distance =
        |candidate: &str| strsim::damerau_levenshtein(&text, &candidate.replace('-', "_"));
    let near = candidates
        .into_iter()
        .map(|candidate| (distance(candidate), candidate))
        .min()?;
    (near.0 <= near.1.len().div_ceil(3)).then_some(near.1)
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, segment) in self.0.iter().enumerate() {
            match segment {
                Segment::Index(index) => write!(f, "[{index}]")?,
                Segment::Key(key) => {
                    let dot = if place == 0 { "" } else { "." };
                    let bare = !key.is_empty()
                        && key
                            .chars()
                            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
                    if bare {
                        write!(f, "{dot}{key}")?
                    } else {
                        write!(f, "{dot}{key:?}")?
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
    fn a_path_is_a_value_a_table_or_unknown() {
        for (keys, kind) in [
            (&["deployment"][..], Kind::Value),
            (&["route"], Kind::Table),
            (&["route", "anything"], Kind::Table),
            (&["route", "orders", "source"], Kind::Table),
            (&["route", "orders", "source", "topics"], Kind::Value),
            (&["kafka", "main", "properties"], Kind::Table),
            (
                &["kafka", "main", "properties", "sasl", "password"],
                Kind::Value,
            ),
            (&["route", "orders", "sauce"], Kind::Unknown),
            (&["deployment", "x"], Kind::Unknown),
        ] {
            assert_eq!(Path::of(keys).kind(), kind, "{keys:?}");
        }
    }

    #[test]
    fn a_path_is_written_as_toml_has_it_and_as_its_variable() {
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

    #[test]
    fn the_nearest_key_is_named_only_if_it_is_near() {
        assert_eq!(
            nearest("max_dealy", ["max_delay", "retry"]),
            Some("max_delay")
        );
        assert_eq!(
            nearest("max-delay", ["max_delay", "retry"]),
            Some("max_delay")
        );
        assert_eq!(nearest("colour", ["max_delay", "retry"]), None);
    }
}
