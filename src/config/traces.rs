//! `[traces]`: the collector, and the share of traces. Without an endpoint there are none.

use super::check::At;
use super::decode::invalid;
use super::decode::secret::Secret;
use serde::Deserialize;
use serde::de::{Deserializer, Error};
use url::Url;

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(crate) struct Traces {
    #[serde(deserialize_with = "endpoint")]
    pub(crate) endpoint: Option<Url>,
    /// The whole value of the `Authorization` header.
    pub(crate) authorization: Option<Secret>,
    /// One in this many sampled traces is exported.
    pub(crate) one_in: u32,
}

impl Default for Traces {
    fn default() -> Self {
        Self {
            endpoint: None,
            authorization: None,
            one_in: 1,
        }
    }
}

impl Traces {
    pub(super) fn check(&self, at: &At<'_>) {
        at.key("one_in").in_range(self.one_in, "1", "1000000");
        let Some(value) = &self.authorization else {
            return;
        };
        let at = at.key("authorization");
        at.check_secret(Some(value));
        if self.endpoint.is_none() {
            at.refuse(
                "a login without traces.endpoint",
                "add the endpoint, or remove the login",
            );
        }
        let is_allowed = |c: char| c == ' ' || c.is_ascii_graphic();
        if !value.expose().chars().all(is_allowed) {
            at.refuse(
                "the value has characters that a header may not have",
                "write the header's value in one line of ASCII: Bearer <token>",
            );
        }
    }
}

fn endpoint<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Url>, D::Error> {
    let what = match Url::parse(&String::deserialize(deserializer)?) {
        Err(_) => "the address is not understood",
        Ok(url) if !["http", "https"].contains(&url.scheme()) => {
            "the address begins with neither http:// nor https://"
        }
        Ok(url) if url.host_str().is_none_or(str::is_empty) => "the address names no host",
        Ok(url) if !url.username().is_empty() || url.password().is_some() => {
            "the address contains a login, which would be logged: set authorization instead"
        }
        Ok(url) if url.query().is_some() || url.fragment().is_some() => {
            "the address has a part after ? or #"
        }
        Ok(url) if url.path().ends_with("/v1/traces") => {
            "the address ends with /v1/traces, which Postdate appends"
        }
        Ok(url) => return Ok(Some(url)),
    };
    let fix = "write the collector's address for OTLP over HTTP, such as \"http://127.0.0.1:4318\", without /v1/traces";
    Err(D::Error::custom(invalid(what, fix)))
}
