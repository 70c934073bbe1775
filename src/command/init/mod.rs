//! `postdate init`: asks for brokers, store and one route, and writes a configuration file. `postdate
//! check` then makes the plan.

mod file;

use super::Refused;
use super::page::print;
use crate::cli::{InitArgs, SERVER_FLAGS, SERVERS_QUESTION};
use crate::config::{BrokerKind, Config};
use anyhow::{Context, Result};
use std::fs::OpenOptions;
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::Path;

/// The content of the file.
#[derive(Debug, PartialEq, Eq)]
struct Answers {
    kind: BrokerKind,
    /// The servers of the cluster, with commas between them.
    servers: String,
    /// The address of a Redis, or a folder.
    store: String,
    deployment: String,
    route: String,
    /// The keys of the source's table.
    source_keys: String,
    target: String,
    dead_letter: String,
    max_delay: String,
}

/// Writes the file that `--config` names.
pub fn init(init: &InitArgs) -> Result<()> {
    let is_terminal = std::io::stdin().is_terminal();
    let answers = answer(init, is_terminal.then_some(&mut ask_at_terminal))?;
    let text = file::text(&answers);
    Config::parse_builtin(&text)?;
    let path = init.config.display();
    let outcome = write(&init.config, &text, init.force)?;
    print(&format!(
        "{outcome} {path}: start the service with `postdate run --config {path}`\n\n"
    ))
}

/// Asks one question, with a default.
type Ask<'a> = &'a mut dyn FnMut(&str, &str) -> Result<String>;

/// Takes each answer from its flag, else from the reader, else from the default.
fn answer(init: &InitArgs, mut ask: Option<Ask<'_>>) -> Result<Answers> {
    let is_asked = ask.is_some();
    let mut answer = |flag: &Option<String>, question: &str, default: &str| match (flag, &mut ask) {
        (Some(flag), _) => Ok(flag.clone()),
        (None, Some(ask)) => ask(question, default),
        (None, None) => Ok(default.to_owned()),
    };
    let named = init.servers();
    if named.is_none() && !is_asked {
        return Err(Refused(format!("name the brokers: {SERVER_FLAGS}")).into());
    }
    let servers = named.map(|(_, servers)| servers.to_owned());
    let servers = answer(&servers, SERVERS_QUESTION, "127.0.0.1:9092")?;
    let has_urls = servers.contains("://");
    let is_likely = |kind: &BrokerKind| kind.facts().init.has_urls == has_urls;
    let kind = named.map(|(kind, _)| kind);
    let kind = kind.or(BrokerKind::ALL.into_iter().find(is_likely));
    let kind = kind.unwrap_or_default();
    let question = "Redis as redis://host:port, or a folder for a single process";
    let store = answer(&init.store, question, "./postdate-data")?;
    let question = "Name of this installation, which must not change later";
    let deployment = answer(&init.deployment, question, "prod")?;
    let route = answer(&init.route, "Name of the route", "orders")?;
    let (texts, name) = (&kind.facts().init, kind.name_key());
    let of_route = |text: &str| text.replace("ROUTE", &route);
    let question = format!("Source {} to which producers write", texts.source);
    let source = answer(&init.source, &question, &of_route(texts.default_source))?;
    let question = format!("Target {name} to which messages are delivered");
    let target = answer(&init.target, &question, &route)?;
    let question = format!("Dead-letter {name} for rejected messages");
    let dead_letter = of_route(texts.default_dead_letter);
    let dead_letter = answer(&init.dead_letter, &question, &dead_letter)?;
    let max_delay = answer(&init.max_delay, "Longest delay", "30d")?;
    let source_keys = (texts.source_keys)(&source).map_err(Refused)?;
    Ok(Answers {
        kind,
        servers,
        store,
        deployment,
        route,
        source_keys,
        target,
        dead_letter,
        max_delay,
    })
}

/// Asks on stderr, so that the output can be redirected.
fn ask_at_terminal(question: &str, default: &str) -> Result<String> {
    let mut err = std::io::stderr().lock();
    write!(err, "{question} [{default}]: ")?;
    err.flush()?;
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line)? == 0 {
        return Err(Refused("the input ended; nothing was written".to_owned()).into());
    }
    let line = line.trim();
    Ok(if line.is_empty() { default } else { line }.to_owned())
}

/// Writes a file, and tells whether it was new. A file with this content stays.
fn write(path: &Path, text: &str, force: bool) -> Result<&'static str> {
    let failed = || format!("cannot write {}", path.display());
    let mut options = OpenOptions::new();
    options.write(true);
    match std::fs::read_to_string(path) {
        Ok(found) if found == text => return Ok("Unchanged:"),
        Ok(_) if !force => {
            let path = path.display();
            return Err(Refused(format!(
                "{path} exists with other content: check it with `postdate check --fix --config {path}`, or overwrite it with --force"
            ))
            .into());
        }
        Ok(_) => options.truncate(true),
        // Another process may create it meanwhile.
        Err(error) if error.kind() == ErrorKind::NotFound => options.create_new(true),
        Err(error) => return Err(error).with_context(failed),
    };
    let mut file = options.open(path).with_context(failed)?;
    file.write_all(text.as_bytes()).with_context(failed)?;
    Ok("Wrote")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn arguments(flags: &[&str]) -> Box<InitArgs> {
        let line = [&["postdate", "init"], flags].concat();
        match Cli::parse_from(line).command {
            Command::Init(init) => init,
            _ => panic!("another command"),
        }
    }

    #[test]
    fn a_flag_answers_and_without_a_terminal_the_default() {
        let init = arguments(&["--kafka", "a:1,b:2", "--route", "mail", "--max-delay", "7d"]);
        let found = answer(&init, None).unwrap();
        assert_eq!(
            (
                &*found.servers,
                &*found.source_keys,
                &*found.target,
                &*found.dead_letter
            ),
            (
                "a:1,b:2",
                "kafka = \"main\", topics = [\"mail.delayed\"]",
                "mail",
                "mail.dead"
            )
        );
        assert_eq!(
            (&*found.store, &*found.max_delay),
            ("./postdate-data", "7d")
        );
        assert!(answer(&arguments(&[]), None).unwrap_err().is::<Refused>());
    }

    #[test]
    fn a_terminal_is_asked_for_the_rest() {
        let mut asked = Vec::new();
        let mut ask = |question: &str, default: &str| {
            asked.push(question.to_owned());
            Ok(match question {
                question if question.starts_with("Kafka") => "nats://n:4222",
                question if question.starts_with("Redis") => "redis://r:6379",
                _ => default,
            }
            .to_owned())
        };
        let init = arguments(&["--route", "mail"]);
        let found = answer(&init, Some(&mut ask)).unwrap();
        assert_eq!(
            (found.kind, &*found.source_keys, &*found.dead_letter),
            (
                BrokerKind::Nats,
                "nats = \"main\", stream = \"DELAYED\", subjects = [\"delayed.mail\"]",
                "dead.mail"
            )
        );
        assert_eq!(asked.len(), 7, "{asked:?}");
        let init = arguments(&["--nats", "nats://n:4222", "--source", "delayed"]);
        assert!(
            answer(&init, None)
                .unwrap_err()
                .to_string()
                .contains("DELAYED:delayed")
        );
    }

    #[test]
    fn a_file_is_overwritten_only_if_forced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("postdate.toml");
        assert_eq!(write(&path, "a", false).unwrap(), "Wrote");
        assert_eq!(write(&path, "a", false).unwrap(), "Unchanged:");
        assert!(write(&path, "b", false).unwrap_err().is::<Refused>());
        assert_eq!(write(&path, "b", true).unwrap(), "Wrote");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "b");
    }
}
