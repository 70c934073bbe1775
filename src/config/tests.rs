use super::*;

/// The configuration that a text and an environment make.
pub(super) fn parse(text: &str, environment: &[(&str, &str)]) -> Result<Config, Error> {
    let environment = environment.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
    Config::parse(Path::new("postdate.toml"), text.to_owned(), environment)
}
