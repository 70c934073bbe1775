//! Reads the configuration file, puts the environment over it, and knows where each value was
//! written.

use super::path::{PREFIX, Path, Segment};
use crate::config::error::{Place, Problem};
use figment::providers::{Format, Toml};
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path as FilePath, PathBuf};
use toml_edit::{ImDocument, Item};

/// The values of a file with those of the environment over them.
pub(in crate::config) struct Sources {
    root: Value,
    figment: Figment,
    document: ImDocument<String>,
    file: PathBuf,
    /// The text of each environment variable, before it was read as a typed value.
    raw: BTreeMap<String, String>,
}

impl Sources {
    pub(in crate::config) fn new(
        file: &FilePath,
        text: &str,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, Vec<Problem>> {
        let document = ImDocument::parse(text.to_owned())
            .map_err(|error| vec![invalid_toml(file, text, &error)])?;
        let variables = variables(environment)?;
        let raw = variables
            .iter()
            .map(|variable| (variable.name.clone(), variable.raw.clone()))
            .collect();
        let figment = variables
            .into_iter()
            .fold(Figment::from(Toml::string(text)), Figment::merge);
        let mut profiles = figment.data().unwrap_or_default();
        let root = profiles.remove(&Profile::Default).unwrap_or_default();
        Ok(Self {
            root: root.into(),
            figment,
            document,
            file: file.to_owned(),
            raw,
        })
    }

    pub(super) fn root(&self) -> &Value {
        &self.root
    }

    pub(super) fn value(&self, path: &Path) -> Option<&Value> {
        path.segments()
            .iter()
            .try_fold(&self.root, |value, segment| match segment {
                Segment::Key(key) => value.as_dict()?.get(key),
                Segment::Index(index) => value.as_array()?.get(*index),
            })
    }

    /// Where the value at `path` was written; for a missing value the innermost table around it.
    pub(super) fn place(&self, path: &Path) -> Place {
        match self.variable(path) {
            Some(name) => Place::Variable(name),
            None => Place::File {
                path: self.file.clone(),
                line: self.line(path),
            },
        }
    }

    /// The environment variable that set the value at `path`.
    pub(super) fn variable(&self, path: &Path) -> Option<String> {
        let name = &self.figment.get_metadata(self.value(path)?.tag())?.name;
        name.starts_with(PREFIX).then(|| name.clone().into_owned())
    }

    /// The text of that variable.
    pub(super) fn raw(&self, path: &Path) -> Option<&str> {
        self.raw.get(&self.variable(path)?).map(String::as_str)
    }

    fn line(&self, path: &Path) -> Option<usize> {
        let mut item = self.document.as_item();
        let mut found = None;
        for segment in path.segments() {
            let span = match segment {
                Segment::Key(name) => {
                    let table = item.as_table_like();
                    let Some((key, below)) = table.and_then(|table| table.get_key_value(name))
                    else {
                        break;
                    };
                    item = below;
                    key.span().or_else(|| item.span())
                }
                Segment::Index(index) => item
                    .as_array()
                    .and_then(|array| array.get(*index))
                    .and_then(toml_edit::Value::span),
            };
            found = span.or(found);
            if matches!(item, Item::None) {
                break;
            }
        }
        found.map(|span| line_of(self.document.raw(), span.start))
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().iter().take(offset);
    1 + before.filter(|byte| **byte == b'\n').count()
}

fn invalid_toml(file: &FilePath, text: &str, error: &toml_edit::TomlError) -> Problem {
    let place = Place::File {
        path: file.to_owned(),
        line: error.span().map(|span| line_of(text, span.start)),
    };
    let cause = error.message().trim().replace('\n', ", ");
    Problem::without_key(
        place,
        format!("invalid TOML: {cause}"),
        "write text in \"quotes\", a list in [brackets], a table in {braces} on one line, and each key once",
    )
}

/// Reads the text of the configuration file. A missing file is an error: a service that runs on
/// defaults alone is not the one that was asked for.
pub(in crate::config) fn read_file(file: &FilePath) -> Result<String, Problem> {
    let problem = |what: String, fix: &str| {
        let place = Place::File {
            path: file.to_owned(),
            line: None,
        };
        Problem::without_key(place, what, fix)
    };
    let bytes = std::fs::read(file).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => problem(
            "there is no such file".to_owned(),
            "give the path of the file with --config",
        ),
        _ => problem(
            format!("cannot be read: {error}"),
            "let this user read it, or give another file with --config",
        ),
    })?;
    String::from_utf8(bytes).map_err(|error| {
        let text = String::from_utf8_lossy(error.as_bytes());
        let line = line_of(&text, error.utf8_error().valid_up_to());
        problem(
            format!("line {line} is not UTF-8"),
            "save the file as UTF-8",
        )
    })
}

/// Variables with our prefix that belong to the tools around the service: the tested program, and
/// the folder of test servers.
const TOOL_VARIABLES: [&str; 2] = ["BIN", "SERVERS"];

/// One environment variable that sets a key.
struct Variable {
    name: String,
    keys: Vec<String>,
    raw: String,
}

/// Returns the variables sorted by name, so that the order of the environment does not matter.
fn variables(
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Vec<Variable>, Vec<Problem>> {
    let mut variables = Vec::new();
    let mut problems = Vec::new();
    for (name, value) in environment {
        let name = name.to_string_lossy().into_owned();
        let Some(rest) = name.strip_prefix(PREFIX) else {
            continue;
        };
        if TOOL_VARIABLES.contains(&rest) || is_from_kubernetes(rest, &value.to_string_lossy()) {
            continue;
        }
        let keys: Vec<_> = rest.split("__").map(str::to_lowercase).collect();
        let (what, fix) = match value.into_string() {
            Ok(raw) if keys.iter().all(|key| !key.is_empty()) => {
                variables.push(Variable { name, keys, raw });
                continue;
            }
            Ok(_) => (
                "its name sets no key",
                "write POSTDATE_ and the key's path in upper case, with __ for each dot; or unset it",
            ),
            Err(_) => (
                "its value is not UTF-8",
                "set it to UTF-8 text, or unset it",
            ),
        };
        problems.push(Problem::without_key(Place::Variable(name), what, fix));
    }
    variables.sort_by(|a, b| a.name.cmp(&b.name));
    if problems.is_empty() {
        Ok(variables)
    } else {
        Err(problems)
    }
}

/// Returns whether Kubernetes sets this variable in the pods beside a Service called `postdate` or
/// `postdate-<something>`. No key has such a name: keys below a table need `__`.
fn is_from_kubernetes(rest: &str, value: &str) -> bool {
    if rest == "PORT" || rest.starts_with("PORT_") || rest.starts_with("SERVICE_") {
        return true;
    }
    let names_protocol = ["_TCP", "_UDP", "_SCTP"]
        .iter()
        .any(|protocol| rest.contains(protocol));
    !rest.contains("__")
        && (rest.ends_with("_SERVICE_HOST")
            || rest.contains("_SERVICE_PORT")
            || (rest.ends_with("_PORT") && value.contains("://"))
            || (rest.contains("_PORT_") && names_protocol))
}

impl Provider for Variable {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.name.clone())
    }

    fn data(&self) -> figment::Result<Map<Profile, Dict>> {
        let mut value = typed(&self.raw);
        for key in self.keys.iter().skip(1).rev() {
            value = Dict::from([(key.clone(), value)]).into();
        }
        let root = Dict::from([(self.keys[0].clone(), value)]);
        Ok(Map::from([(Profile::Default, root)]))
    }
}

/// Reads a variable as figment does: as a typed value if the text looks like one, else as text.
fn typed(raw: &str) -> Value {
    // Figment 0.10 cuts bytes where it counts characters, so "é\\n" in quotes is read wrongly or
    // panics.
    if !raw.is_ascii() && raw.contains('\\') {
        let read = Toml::string(&format!("value = {raw}")).data().ok();
        return read
            .and_then(|mut data| data.remove(&Profile::Default)?.remove("value"))
            .unwrap_or_else(|| raw.into());
    }
    let Ok(value) = raw.parse();
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(text: &str, environment: &[(&str, &str)]) -> Sources {
        let environment = environment
            .iter()
            .map(|(name, value)| (OsString::from(name), OsString::from(value)));
        Sources::new(FilePath::new("postdate.toml"), text, environment)
            .unwrap_or_else(|problems| panic!("{problems:?}"))
    }

    #[test]
    fn the_environment_overrides_the_file() {
        let text = "deployment = \"a\"\nroles = [\"x\", \"y\"]\n[admin]\nlisten = \"b\"\n";
        let sources = sources(
            text,
            &[
                ("POSTDATE_DEPLOYMENT", "c"),
                ("POSTDATE_ROLES", "[z]"),
                ("POSTDATE_LOG__LEVEL", "info,a=warn"),
                ("OTHER", "d"),
            ],
        );
        let expected = "deployment = \"c\"\nroles = [\"z\"]\nadmin = { listen = \"b\" }\nlog = { level = \"info,a=warn\" }";
        let expected = Toml::string(expected)
            .data()
            .unwrap()
            .remove(&Profile::Default)
            .unwrap();
        assert_eq!(sources.root(), &Value::from(expected));
    }

    #[test]
    fn a_variable_may_hold_any_characters() {
        for (raw, value) in [
            ("\"éé\\n\"", "éé\n"),
            ("\"é\\\"x\"", "é\"x"),
            ("é\\x", "é\\x"),
            ("\"é\"", "é"),
            ("a,[b", "a,[b"),
            (" a ", "a"),
        ] {
            assert_eq!(typed(raw), Value::from(value), "{raw}");
        }
        assert_eq!(typed("[\"é\\n\", \"a\"]"), Value::from(vec!["é\n", "a"]));
    }

    #[test]
    fn every_value_knows_where_it_was_written() {
        let text = "\n[route.orders]\nsource = { kafka = \"main\", topics = [\"a\",\n \"b\"] }\n[admin]\nlisten = \"b\"\n";
        let sources = sources(text, &[("POSTDATE_ADMIN__LISTEN", "c")]);
        let line = |keys: &[&str]| sources.line(&Path::of(keys));
        assert_eq!(line(&["route", "orders"]), Some(2));
        assert_eq!(line(&["route", "orders", "source", "kafka"]), Some(3));
        assert_eq!(
            line(&["route", "orders", "dead_letter"]),
            Some(2),
            "a missing key has the line of its table"
        );
        assert_eq!(line(&["store"]), None);
        let second = Path::of(&["route", "orders", "source", "topics"]).index(1);
        assert_eq!(sources.line(&second), Some(4));
        let listen = Path::of(&["admin", "listen"]);
        let place = Place::Variable("POSTDATE_ADMIN__LISTEN".to_owned());
        assert_eq!(sources.place(&listen), place);
        assert_eq!(sources.raw(&listen), Some("c"));
    }

    #[test]
    fn variables_from_kubernetes_are_ignored() {
        for name in [
            "SERVICE_HOST",
            "SERVICE_PORT",
            "SERVICE_PORT_HTTP",
            "PORT",
            "PORT_8088_TCP",
            "PORT_8088_TCP_ADDR",
        ] {
            for name in [name.to_owned(), format!("METRICS_{name}")] {
                assert!(is_from_kubernetes(&name, "tcp://10.0.0.1:8088"), "{name}");
            }
        }
        assert!(
            !is_from_kubernetes("ADMIN_PORT", "8088"),
            "an operator's mistake, not a variable of Kubernetes"
        );
        assert!(!is_from_kubernetes("ROUTE__A__SERVICE_HOST", "x"));
    }
}
