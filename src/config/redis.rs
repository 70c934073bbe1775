//! `[store.redis]`: where the Redis is and how to log in. Speaks no Redis; only the address is looked at.

use super::field::Field;
use super::read::Table;
use super::secret::Secret;
use super::unsupported::REDIS_SCHEMES;
use url::Url;

/// One Redis server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Redis {
    /// `redis://` or `rediss://`. Secret, for it may hold a password.
    pub(crate) url: Secret,
    /// Goes with `password`; neither is set if the address holds a login of its own.
    pub(crate) username: Option<String>,
    pub(crate) password: Option<Secret>,
}

const FORM: &str = "write redis://host:port or rediss://host:port (TLS), with /<number> behind it for another database than 0";

pub(super) fn read(table: &Table<'_>) -> Redis {
    let username = table.field("username");
    let password = table.secret("password");
    let url = table.secret("url");
    match &url {
        Some((field, url)) => check_url(field, url, username.is_some() || password.is_some()),
        None if table
            .field("url")
            .or_else(|| table.field("url_file"))
            .is_none() =>
        {
            table.missing("url", "add url = \"redis://127.0.0.1:6379\", or url_file with the path of a file that holds it");
        }
        None => {}
    }
    if let (Some(username), None) = (
        &username,
        table
            .field("password")
            .or_else(|| table.field("password_file")),
    ) {
        username.refuse(
            "a username without a password",
            "add password or password_file, or remove the username",
        );
    }
    Redis {
        url: url.map(|(_, url)| url).unwrap_or_default(),
        username: username.and_then(|field| field.text()).map(str::to_owned),
        password: password.map(|(_, password)| password),
    }
}

fn check_url(field: &Field<'_>, url: &Secret, has_login: bool) {
    let Some((scheme, _)) = url.expose().split_once("://") else {
        return field.refuse("the address has no scheme", FORM);
    };
    if let Some((_, what)) = REDIS_SCHEMES.iter().find(|(other, _)| *other == scheme) {
        return field.refuse(
            *what,
            "give the address of a single server: redis://host:port or rediss://host:port",
        );
    }
    if !["redis", "rediss"].contains(&scheme) {
        return field.refuse(
            "the address begins with neither redis:// nor rediss://",
            FORM,
        );
    }
    let Ok(url) = Url::parse(url.expose()) else {
        return field.refuse(
            "the address is not understood",
            format!("{FORM}; in a login, write @ : / # ? and % as %40 %3A %2F %23 %3F and %25"),
        );
    };
    let database = url.path().trim_start_matches('/');
    if url.host_str().is_none_or(str::is_empty) {
        field.refuse("the address names no host", FORM);
    } else if !database.is_empty() && database.parse::<u16>().is_err() {
        field.refuse("the address names a database that is not a number", FORM);
    } else if url.fragment().is_some() {
        field.refuse(
            "the address has a part behind #, which nothing reads",
            "take it off; certificates are always verified",
        );
    }
    if has_login && (!url.username().is_empty() || url.password().is_some()) {
        field.refuse(
            "the address holds a login, and username or password stand beside it",
            "keep one of the two",
        );
    }
}
