//! The files of the folder `include`: routes and clusters that other teams own.

use super::source::{SourceFile, Sources, find, merge, read_file};
use crate::config::cluster::BrokerKind;
use crate::config::error::Problem;
use figment::value::Value;
use std::io;
use std::path::{Path, PathBuf};

impl Sources {
    /// Adds the files of the folder in the order of their names. The environment overrides them, too.
    pub(in crate::config) fn include_files(&mut self) -> Result<(), Problem> {
        let include = ["include".to_owned()];
        let Some(Value::String(_, folder)) = find(&self.values, &include) else {
            return Ok(());
        };
        let beside = self.files[0].path.parent().unwrap_or(Path::new(""));
        let folder = beside.join(folder);
        let files = toml_files(&folder).map_err(|error| {
            let what = format!("the folder {} cannot be read: {error}", folder.display());
            let fix =
                "give the path of a folder: a relative path starts at the folder of this file";
            self.problem(&include, what, fix)
        })?;
        files.iter().try_for_each(|file| self.include(file))
    }

    fn include(&mut self, file: &Path) -> Result<(), Problem> {
        let text = read_file(file)?;
        let mut values = self.values_of_file(file, &text)?;
        for (section, tables) in &values {
            // No two files may have the same table, such as `route.orders`.
            let is_known = section == "route" || BrokerKind::with_key(section).is_some();
            let tables = tables.as_dict().filter(|_| is_known).ok_or_else(|| {
                let clusters = BrokerKind::ALL.map(|kind| format!("[{}.<name>]", kind.facts().key));
                let fix = format!(
                    "move it to the file that includes this one: an included file has only tables {} and [route.<name>]",
                    clusters.join(", ")
                );
                let section = std::slice::from_ref(section);
                self.problem_of_last_file(section, "not allowed in an included file", &fix)
            })?;
            for name in tables.keys() {
                self.check_owner(section, name)?;
            }
        }
        merge(&mut values, self.values.clone());
        self.values = values.into();
        Ok(())
    }

    /// Fails if another file has this table of the file that was added last.
    fn check_owner(&self, section: &str, name: &str) -> Result<(), Problem> {
        let others = &self.files[..self.files.len() - 1];
        let has = |other: &&SourceFile| {
            let tables = other.document.get(section);
            tables.is_some_and(|tables| tables.get(name).is_some())
        };
        let Some(other) = others.iter().find(has) else {
            return Ok(());
        };
        let what = format!("{} has this table, too", other.path.display());
        let table = [section.to_owned(), name.to_owned()];
        Err(self.problem_of_last_file(&table, what, "keep one of the two"))
    }

    /// A problem of the file that was added last.
    fn problem_of_last_file(&self, path: &[String], what: impl Into<String>, fix: &str) -> Problem {
        let file = self.files.last().expect("a file was added");
        let line = file.line(path).map_or(1, |(_, line)| line);
        Problem {
            key: Some(path.join(".")),
            ..Problem::without_key(format!("{}, line {line}", file.path.display()), what, fix)
        }
    }
}

/// The files `*.toml` of a folder and of the folders in it, by path.
fn toml_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in visible_entries(folder)? {
        match path.is_dir() {
            true => files.append(&mut visible_entries(&path)?),
            false => files.push(path),
        }
    }
    files.retain(|path| path.extension().is_some_and(|it| it == "toml") && !path.is_dir());
    files.sort();
    Ok(files)
}

/// An editor or a ConfigMap has hidden names for files that are not whole.
fn visible_entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder)?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let is_visible = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        !name.to_string_lossy().starts_with('.')
    };
    let paths = paths.filter(|path| path.as_ref().is_ok_and(is_visible) || path.is_err());
    paths.collect()
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    const MAIN: &str = r#"
deployment = "test"
include = "teams"
[kafka.main]
brokers = ["127.0.0.1:1"]
[route.own]
source = { kafka = "main", topics = ["own.delayed"] }
target = { kafka = "main", topic = "own" }
dead_letter = { kafka = "main", topic = "own.dead" }
"#;
    const TEAM: &str = r#"
[route.orders]
source = { kafka = "main", topics = ["orders.delayed"] }
target = { kafka = "main", topic = "orders" }
dead_letter = { kafka = "main", topic = "orders.dead" }
"#;

    /// Loads the main file with these files in its folder. The text of an error has no folder.
    fn load(teams: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("postdate.toml");
        std::fs::write(&file, MAIN).unwrap();
        std::fs::create_dir(folder.path().join("teams")).unwrap();
        for (name, text) in teams {
            let file = folder.path().join("teams").join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        match Config::load_with(&file, []) {
            Ok(config) => Ok(config.routes.into_keys().collect()),
            Err(error) => {
                let folder = format!("{}/", folder.path().display());
                Err(error.to_string().replace(&folder, ""))
            }
        }
    }

    #[test]
    fn the_files_of_the_folder_add_routes() {
        let other = TEAM.replace("orders", "mail");
        let teams = [("a.toml", TEAM), ("b.toml", &other), ("notes.txt", "?")];
        assert_eq!(load(&teams).unwrap(), ["mail", "orders", "own"]);
        let own_folders = [("a/routes.toml", TEAM), ("b/routes.toml", &other)];
        assert_eq!(load(&own_folders).unwrap(), ["mail", "orders", "own"]);
        let hidden = [(".a/routes.toml", TEAM), ("b/.routes.toml", &other)];
        assert_eq!(load(&hidden).unwrap(), ["own"]);
        assert_eq!(load(&[]).unwrap(), ["own"]);
    }

    #[test]
    fn a_problem_names_the_file_of_its_team() {
        let wrong = TEAM.replace("\"main\", topic", "\"other\", topic");
        for (text, place, what) in [
            (&*wrong, "teams/b.toml, line 4", "other"),
            (
                &TEAM.replace("dead_letter", "#"),
                "teams/b.toml, line 2",
                "missing",
            ),
            (
                &TEAM.replace("[route.orders]", "[route.orders"),
                "teams/b.toml, line 2",
                "invalid TOML",
            ),
            (
                &TEAM.replace("orders]", "own]"),
                "teams/b.toml, line 2",
                "postdate.toml has this table, too",
            ),
            (
                "[route.own.retry]\nmax_attempts = 3",
                "teams/b.toml, line 1",
                "postdate.toml has this table, too",
            ),
            (
                "[log]\nlevel = \"debug\"",
                "teams/b.toml, line 1",
                "not allowed in an included file",
            ),
            (
                "memory = 5",
                "teams/b.toml, line 1",
                "not allowed in an included file",
            ),
        ] {
            let error = load(&[("a.toml", ""), ("b.toml", text)]).unwrap_err();
            assert!(
                error.contains(place) && error.contains(what),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn a_missing_folder_is_a_problem_of_the_main_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("postdate.toml");
        std::fs::write(&file, MAIN).unwrap();
        let error = Config::load_with(&file, []).unwrap_err().to_string();
        assert!(error.contains("postdate.toml, line 3"), "{error}");
    }
}
