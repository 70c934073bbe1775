//! Reads the configuration file, puts the environment over it, and knows where each value was
//! written.

use crate::config::cluster::BrokerKind;
use crate::config::error::Problem;
use figment::providers::{Format, Toml};
use figment::value::{Dict, Value};
use figment::{Profile, Provider};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use toml_edit::ImDocument;

/// Prefix of the environment variables that set a key.
pub(in crate::config) const PREFIX: &str = "POSTDATE_";

/// Variables with our prefix that set no key: the tested program, the folder of test servers, and the
/// address of a service for commands.
const TOOL_VARIABLES: [&str; 3] = ["BIN", "SERVERS", "URL"];

/// The values of a file with those of the environment over them.
///
/// The names of Kafka properties are in one piece: `{ sasl = { password = "x" } }` is read as
/// `"sasl.password" = "x"`. A secret in a file, `password_file = "x"`, is read as
/// `password = { <file> = "x" }`, so that the environment overrides either form with the other one.
pub(in crate::config) struct Sources {
    pub(in crate::config) values: Value,
    variables: Vec<Variable>,
    /// The configuration file, then those that it includes.
    pub(super) files: Vec<SourceFile>,
}

pub(super) struct SourceFile {
    pub(super) path: PathBuf,
    pub(super) document: ImDocument<String>,
}

/// One environment variable that sets a key, and its value below its keys.
struct Variable {
    name: String,
    values: Value,
}

impl Sources {
    pub(in crate::config) fn new(
        file: &Path,
        text: &str,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, Problem> {
        let mut sources = Self {
            values: Value::from(Dict::new()),
            variables: variables(environment)?,
            files: Vec::new(),
        };
        let mut from_environment = Dict::new();
        for variable in &sources.variables {
            merge(&mut from_environment, variable.values.clone());
        }
        let mut values = sources.values_of_file(file, text)?;
        merge(&mut values, sources.normal(from_environment, false)?.into());
        sources.values = values.into();
        Ok(sources)
    }

    /// Adds a file to the list. Returns its values.
    pub(super) fn values_of_file(&mut self, file: &Path, text: &str) -> Result<Dict, Problem> {
        let document =
            ImDocument::parse(text.to_owned()).map_err(|error| invalid_toml(file, text, &error))?;
        self.files.push(SourceFile {
            path: file.to_owned(),
            document,
        });
        self.normal(toml_values(text), true)
    }

    /// The values in the form that [`Sources`] describes.
    fn normal(&self, values: Dict, is_file: bool) -> Result<Dict, Problem> {
        let mut normal = Dict::new();
        let result = normalize(values, is_file, &[], "", &mut normal);
        result.map_err(|path| {
            self.problem(&path, "the option is set twice", "keep one of the two")
        })?;
        Ok(normal)
    }

    pub(in crate::config) fn is_set(&self, path: &[String]) -> bool {
        find(&self.values, path).is_some()
    }

    pub(in crate::config) fn problem(
        &self,
        path: &[String],
        what: impl Into<String>,
        fix: impl Into<String>,
    ) -> Problem {
        let place = match (self.variable(path), self.line(path)) {
            (Some(name), _) => format!("environment variable {name}"),
            (None, Some((file, line))) => format!("{}, line {line}", file.display()),
            (None, None) => self.files[0].path.display().to_string(),
        };
        Problem {
            key: Some(name(path)),
            ..Problem::without_key(place, what, fix)
        }
    }

    /// The name of the environment variable that sets the value at `path`.
    pub(in crate::config) fn variable(&self, path: &[String]) -> Option<&str> {
        let sets = |variable: &&Variable| find(&variable.values, path).is_some();
        let variable = self.variables.iter().rev().find(sets)?;
        Some(&variable.name)
    }

    /// The file and the line of the value at `path`, or of the innermost table around it.
    fn line(&self, path: &[String]) -> Option<(&Path, usize)> {
        let places = self.files.iter().filter_map(|file| {
            let (depth, line) = file.line(path)?;
            Some((depth, &*file.path, line))
        });
        // The first one of equals is the configuration file.
        let (_, file, line) = places.rev().max_by_key(|(depth, ..)| *depth)?;
        Some((file, line))
    }
}

impl SourceFile {
    /// The depth of the last key of the path that the file has, from 0, and its line.
    pub(super) fn line(&self, path: &[String]) -> Option<(usize, usize)> {
        let mut item = self.document.as_item();
        let mut found = None;
        for (depth, key) in path.iter().enumerate() {
            let index = || item.get(key.parse::<usize>().ok()?);
            let file = || item.get(format!("{key}_file"));
            let Some(below) = item.get(key).or_else(index).or_else(file) else {
                break;
            };
            item = below;
            if let Some(span) = item.span() {
                found = Some((depth, line_of(self.document.raw(), span.start)));
            }
        }
        found
    }
}

/// Writes a path as in TOML, such as `route.orders.source.topics[1]`.
fn name(path: &[String]) -> String {
    let part = |key: &String| match key.parse::<usize>() {
        Ok(index) => format!("[{index}]"),
        Err(_) if key.is_empty() || key.contains(['.', ' ']) => format!(".{key:?}"),
        Err(_) => format!(".{key}"),
    };
    let name: String = path.iter().map(part).collect();
    name.trim_start_matches('.').to_owned()
}

/// Finds a value by its keys and indices. The values need not be normal.
pub(super) fn find<'a>(values: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter()
        .try_fold(values, |value, key| value_below(value, key))
}

fn value_below<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    match value {
        Value::Array(_, list) => list.get(key.parse::<usize>().ok()?),
        Value::Dict(_, table) => table
            .get(key)
            .or_else(|| table.get(&format!("{key}_file")))
            .or_else(|| {
                let (first, rest) = key.split_once('.')?;
                value_below(table.get(first)?, rest)
            }),
        _ => None,
    }
}

/// Returns whether a file may contain the value. The key then ends with `_file`.
pub(in crate::config) fn is_secret(path: &[&str]) -> bool {
    match path {
        ["store", "redis", key] => ["url", "password"].contains(key),
        ["store", "redis", "sentinel", "password"] => true,
        ["retry_key"] | ["admin", "token" | "operator_token"] => true,
        ["store", "encryption", "keys"] => true,
        ["traces", "authorization"] | ["kafka", _, "properties", _] => true,
        [kind, _, key] => {
            let kind = BrokerKind::with_key(kind);
            kind.is_some_and(|kind| kind.facts().secret_keys.contains(key))
        }
        _ => false,
    }
}

/// Copies `table`, which is at `path`, in the form that [`Sources`] describes. `prefix` is the first
/// part of the names of properties. Fails with the path of an option that is set twice.
fn normalize(
    table: Dict,
    is_file: bool,
    path: &[&str],
    prefix: &str,
    normal: &mut Dict,
) -> Result<(), Vec<String>> {
    for (key, value) in table {
        let name = format!("{prefix}{key}");
        let at = [path, &[&name]].concat();
        let is_property = matches!(at[..], ["kafka", _, "properties", _]);
        let in_file = name
            .strip_suffix("_file")
            .filter(|plain| is_secret(&[path, &[plain]].concat()));
        let value = match value {
            Value::Dict(_, below) if is_property => {
                normalize(below, is_file, path, &format!("{name}."), normal)?;
                continue;
            }
            Value::Dict(_, below) => {
                let mut table = Dict::new();
                normalize(below, is_file, &at, "", &mut table)?;
                table.into()
            }
            file if in_file.is_some() => Dict::from([("<file>".to_owned(), file)]).into(),
            value if is_property => property_text(value, is_file),
            value => value,
        };
        if normal
            .insert(in_file.unwrap_or(&name).to_owned(), value)
            .is_some()
        {
            return Err(at.into_iter().map(str::to_owned).collect());
        }
    }
    Ok(())
}

/// Librdkafka takes all properties as text. Whole numbers and booleans need no quotes, except a
/// number inside a table in a variable: a password `0123` has become the number 123 there.
fn property_text(value: Value, is_file: bool) -> Value {
    match &value {
        Value::Bool(_, flag) => flag.to_string().into(),
        Value::Num(_, number) if is_file => {
            let text = number.to_u128().map(|number| number.to_string());
            let text = text.or_else(|| Some(number.to_i128()?.to_string()));
            text.map_or(value, Value::from)
        }
        _ => value,
    }
}

/// Puts `over` over `under`. Tables are merged key by key.
pub(super) fn merge(under: &mut Dict, over: Value) {
    let Value::Dict(_, over) = over else { return };
    for (key, value) in over {
        match under.get_mut(&key) {
            Some(Value::Dict(_, under)) if value.as_dict().is_some() => merge(under, value),
            _ => _ = under.insert(key, value),
        }
    }
}

fn toml_values(text: &str) -> Dict {
    let profiles = Toml::string(text).data().ok();
    let root = profiles.and_then(|mut profiles| profiles.remove(&Profile::Default));
    root.unwrap_or_default()
}

fn line_of(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().iter().take(offset);
    1 + before.filter(|byte| **byte == b'\n').count()
}

fn invalid_toml(file: &Path, text: &str, error: &toml_edit::TomlError) -> Problem {
    let line = error.span().map(|span| line_of(text, span.start));
    let line = line.map_or_else(String::new, |line| format!(", line {line}"));
    let cause = error.message().trim().replace('\n', ", ");
    Problem::without_key(
        format!("{}{line}", file.display()),
        format!("invalid TOML: {cause}"),
        "write text in \"quotes\", a list in [brackets], a table in {braces} on one line, and each key once",
    )
}

/// Reads the text of the configuration file. A missing file is an error: a service that runs on
/// defaults alone is not the one that was asked for.
pub(in crate::config) fn read_file(file: &Path) -> Result<String, Problem> {
    std::fs::read_to_string(file).map_err(|error| {
        let what = format!("cannot be read: {error}");
        let fix = "give the path of a UTF-8 file that this user can read with --config";
        Problem::without_key(file.display().to_string(), what, fix)
    })
}

/// Returns the variables sorted by name, so that the order of the environment does not matter.
fn variables(
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Vec<Variable>, Problem> {
    let mut variables = Vec::new();
    for (name, value) in environment {
        let name = name.to_string_lossy().into_owned();
        let Some(rest) = name.strip_prefix(PREFIX) else {
            continue;
        };
        if TOOL_VARIABLES.contains(&rest) || is_from_kubernetes(rest, &value.to_string_lossy()) {
            continue;
        }
        let place = format!("environment variable {name}");
        let Ok(raw) = value.into_string() else {
            let fix = "set it to UTF-8 text, or unset it";
            return Err(Problem::without_key(place, "its value is not UTF-8", fix));
        };
        let rest = rest.to_lowercase();
        let keys: Vec<&str> = rest.split("__").collect();
        if keys.contains(&"") {
            let fix = "write POSTDATE_ and the key's path in upper case, with __ for each dot; or unset it";
            return Err(Problem::without_key(place, "its name sets no key", fix));
        }
        let value = match typed(&raw) {
            // A whole variable is taken as it is written.
            Value::Num(..) if matches!(keys[..], ["kafka", _, "properties", ..]) => {
                raw.trim().into()
            }
            value => value,
        };
        let nest = |value, key: &&str| Dict::from([((*key).to_owned(), value)]).into();
        let values = keys.iter().rev().fold(value, nest);
        variables.push(Variable { name, values });
    }
    variables.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(variables)
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

/// Reads a variable as figment does: as a typed value if the text looks like one, else as text.
fn typed(raw: &str) -> Value {
    // Figment 0.10 cuts bytes where it counts characters, so "é\\n" in quotes is read wrongly or
    // panics.
    if !raw.is_ascii() && raw.contains('\\') {
        let value = toml_values(&format!("value = {raw}")).remove("value");
        return value.unwrap_or_else(|| raw.into());
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
        Sources::new(Path::new("postdate.toml"), text, environment)
            .unwrap_or_else(|problem| panic!("{problem:?}"))
    }

    fn path(keys: &[&str]) -> Vec<String> {
        keys.iter().map(ToString::to_string).collect()
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
        assert_eq!(sources.values, toml_values(expected).into());
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
        let text = "\n[route.orders]\nsource = { kafka = \"main\", topics = [\"a\",\n \"b\"] }\n[admin]\nlisten = \"b\"\n[kafka.main.properties]\na.b = 1";
        let sources = sources(text, &[("POSTDATE_ADMIN__LISTEN", "c")]);
        let line = |keys: &[&str]| Some(sources.line(&path(keys))?.1);
        assert_eq!(line(&["route", "orders"]), Some(2));
        assert_eq!(line(&["route", "orders", "source", "kafka"]), Some(3));
        assert_eq!(
            line(&["route", "orders", "dead_letter"]),
            Some(2),
            "a missing key has the line of its table"
        );
        assert_eq!(line(&["store"]), None);
        assert_eq!(line(&["route", "orders", "source", "topics", "1"]), Some(4));
        assert_eq!(
            line(&["kafka", "main", "properties", "a.b"]),
            Some(7),
            "a property has the line of its table"
        );
        let listen = path(&["admin", "listen"]);
        assert_eq!(sources.variable(&listen), Some("POSTDATE_ADMIN__LISTEN"));
        assert_eq!(name(&listen), "admin.listen");
        let property = path(&["kafka", "main", "properties", "a.b"]);
        assert_eq!(name(&property), "kafka.main.properties.\"a.b\"");
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
