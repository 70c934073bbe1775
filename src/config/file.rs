//! The layers of a configuration: the file, and over it the environment. Knows where each value was written; what a value means is
//! not its concern.

use super::key::{PREFIX, Path, Segment};
use super::problem::{Place, Problem};
use figment::providers::{Format, Toml};
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path as FilePath, PathBuf};
use toml_edit::{ImDocument, Item};

/// A file and an environment, one over the other.
pub(super) struct Layers {
    root: Dict,
    sources: Figment,
    document: ImDocument<String>,
    file: PathBuf,
    /// What each variable held, before it was read as a typed value.
    raw: BTreeMap<String, String>,
}

impl Layers {
    /// Lays `environment` over the file's text.
    pub(super) fn new(
        file: &FilePath,
        text: &str,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, Vec<Problem>> {
        let document = ImDocument::parse(text.to_owned())
            .map_err(|error| vec![not_toml(file, text, &error)])?;
        let variables = variables(environment)?;
        let raw = variables
            .iter()
            .map(|variable| (variable.name.clone(), variable.raw.clone()))
            .collect();
        let sources = variables
            .into_iter()
            .fold(Figment::from(Toml::string(text)), Figment::merge);
        let root = sources
            .data()
            .unwrap_or_default()
            .remove(&Profile::Default)
            .unwrap_or_default();
        Ok(Self {
            root,
            sources,
            document,
            file: file.to_owned(),
            raw,
        })
    }

    pub(super) fn root(&self) -> &Dict {
        &self.root
    }

    /// Where the value at `path` was written.
    pub(super) fn place(&self, path: &Path, value: &Value) -> Place {
        match self.variable(value) {
            Some(name) => Place::Variable(name),
            None => self.place_in_file(path),
        }
    }

    /// The line of `path` in the file, or of the innermost table around it that stands there.
    pub(super) fn place_in_file(&self, path: &Path) -> Place {
        Place::File {
            path: self.file.clone(),
            line: self.line(path),
        }
    }

    /// The text of the environment variable that `value` came from.
    pub(super) fn raw(&self, value: &Value) -> Option<&str> {
        self.raw.get(&self.variable(value)?).map(String::as_str)
    }

    fn variable(&self, value: &Value) -> Option<String> {
        let name = &self.sources.get_metadata(value.tag())?.name;
        name.starts_with(PREFIX).then(|| name.clone().into_owned())
    }

    fn line(&self, path: &Path) -> Option<usize> {
        let mut item = self.document.as_item();
        let mut found = None;
        for segment in path.segments() {
            let span = match segment {
                Segment::Key(name) => {
                    let Some((key, below)) = item
                        .as_table_like()
                        .and_then(|table| table.get_key_value(name))
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

fn line_of(text: &str, at: usize) -> usize {
    1 + text
        .as_bytes()
        .iter()
        .take(at)
        .filter(|byte| **byte == b'\n')
        .count()
}

fn not_toml(file: &FilePath, text: &str, error: &toml_edit::TomlError) -> Problem {
    Problem {
        place: Place::File { path: file.to_owned(), line: error.span().map(|span| line_of(text, span.start)) },
        key: None,
        what: format!("this is not TOML: {}", error.message().trim().replace('\n', ", ")),
        fix: "text stands in \"quotes\", a list in [brackets], a table in {braces} on one line; each key is written once".to_owned(),
    }
}

/// The text of the configuration file. A missing file is an error: a service that starts with nothing but defaults is not the one that was
/// asked for.
pub(super) fn read(file: &FilePath) -> Result<String, Problem> {
    let problem = |what: String, fix: &str| Problem {
        place: Place::File {
            path: file.to_owned(),
            line: None,
        },
        key: None,
        what,
        fix: fix.to_owned(),
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
        let line = line_of(
            &String::from_utf8_lossy(error.as_bytes()),
            error.utf8_error().valid_up_to(),
        );
        problem(
            format!("line {line} is not UTF-8"),
            "save the file as UTF-8",
        )
    })
}

/// Variables with our prefix that are meant for what is run around the service: the program to test, and where test servers are kept.
const OF_THE_TOOLS: [&str; 2] = ["BIN", "SERVERS"];

/// One environment variable that reaches a key.
struct Variable {
    name: String,
    keys: Vec<String>,
    raw: String,
}

/// In the order of their names, so that the outcome does not hang on the order in which the system lists them.
fn variables(
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Vec<Variable>, Vec<Problem>> {
    let (mut variables, mut problems) = (Vec::new(), Vec::new());
    for (name, value) in environment {
        let name = name.to_string_lossy().into_owned();
        let Some(rest) = name.strip_prefix(PREFIX) else {
            continue;
        };
        if OF_THE_TOOLS.contains(&rest) || is_of_kubernetes(rest, &value.to_string_lossy()) {
            continue;
        }
        let keys: Vec<_> = rest.split("__").map(str::to_lowercase).collect();
        let fault = match value.into_string() {
            Ok(raw) if keys.iter().all(|key| !key.is_empty()) => {
                variables.push(Variable { name, keys, raw });
                continue;
            }
            Ok(_) => (
                "its name reaches no key",
                "write POSTDATE_ and the key's path in upper case, with __ for each dot; or unset it",
            ),
            Err(_) => (
                "its value is not UTF-8",
                "set it to UTF-8 text, or unset it",
            ),
        };
        problems.push(Problem {
            place: Place::Variable(name),
            key: None,
            what: fault.0.to_owned(),
            fix: fault.1.to_owned(),
        });
    }
    variables.sort_by(|a, b| a.name.cmp(&b.name));
    if problems.is_empty() {
        Ok(variables)
    } else {
        Err(problems)
    }
}

/// Kubernetes sets such variables in every pod beside a Service called `postdate` or `postdate-<something>`. None can be meant for us: a
/// key below a table needs `__`, and no key at the top is called so.
fn is_of_kubernetes(rest: &str, value: &str) -> bool {
    if rest == "PORT" || rest.starts_with("PORT_") || rest.starts_with("SERVICE_") {
        return true;
    }
    let protocol = ["_TCP", "_UDP", "_SCTP"]
        .iter()
        .any(|protocol| rest.contains(protocol));
    !rest.contains("__")
        && (rest.ends_with("_SERVICE_HOST")
            || rest.contains("_SERVICE_PORT")
            || (rest.ends_with("_PORT") && value.contains("://"))
            || (rest.contains("_PORT_") && protocol))
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
        Ok(Map::from([(
            Profile::Default,
            Dict::from([(self.keys[0].clone(), value)]),
        )]))
    }
}

/// Figment's own reading of a variable: a typed value where the text looks like one, else the text.
fn typed(raw: &str) -> Value {
    // Figment 0.10 counts characters where it cuts bytes: of "é\\n" in quotes it makes something else, or panics.
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

    fn layers(text: &str, environment: &[(&str, &str)]) -> Layers {
        let environment = environment
            .iter()
            .map(|(name, value)| (OsString::from(name), OsString::from(value)));
        Layers::new(FilePath::new("postdate.toml"), text, environment)
            .unwrap_or_else(|problems| panic!("{problems:?}"))
    }

    #[test]
    fn the_environment_lies_over_the_file() {
        let text = "deployment = \"a\"\nroles = [\"x\", \"y\"]\n[admin]\nlisten = \"b\"\n";
        let layers = layers(
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
        assert_eq!(layers.root(), &expected);
    }

    #[test]
    fn a_variable_of_any_letters_is_read_as_it_is_written() {
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
        let layers = layers(text, &[("POSTDATE_ADMIN__LISTEN", "c")]);
        let line = |keys: &[&str]| layers.line(&Path::of(keys));
        assert_eq!(line(&["route", "orders"]), Some(2));
        assert_eq!(line(&["route", "orders", "source", "kafka"]), Some(3));
        assert_eq!(
            line(&["route", "orders", "dead_letter"]),
            Some(2),
            "a missing key is looked for in its table"
        );
        assert_eq!(line(&["store"]), None);
        let second = Path::of(&["route", "orders", "source", "topics"]).index(1);
        assert_eq!(layers.line(&second), Some(4));
        let listen = Path::of(&["admin", "listen"]);
        let value = layers.root()["admin"].as_dict().unwrap()["listen"].clone();
        assert_eq!(
            layers.place(&listen, &value),
            Place::Variable("POSTDATE_ADMIN__LISTEN".to_owned())
        );
        assert_eq!(layers.raw(&value), Some("c"));
    }

    #[test]
    fn variables_that_kubernetes_invents_are_ignored() {
        for name in [
            "SERVICE_HOST",
            "SERVICE_PORT",
            "SERVICE_PORT_HTTP",
            "PORT",
            "PORT_8088_TCP",
            "PORT_8088_TCP_ADDR",
        ] {
            assert!(is_of_kubernetes(name, "tcp://10.0.0.1:8088"), "{name}");
            assert!(
                is_of_kubernetes(&format!("METRICS_{name}"), "tcp://10.0.0.1:8088"),
                "METRICS_{name}"
            );
        }
        assert!(
            !is_of_kubernetes("ADMIN_PORT", "8088"),
            "somebody meant this"
        );
        assert!(!is_of_kubernetes("ROUTE__A__SERVICE_HOST", "x"));
    }
}
