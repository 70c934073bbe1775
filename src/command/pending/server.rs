//! The service that a command works with: its configuration, or its HTTP API.

use crate::admin::problem::BUSY;
use crate::cli::{ServiceArgs, URL_VARIABLE};
use crate::command::Refused;
use crate::config::Config;
use crate::http_client::HttpClient;
use crate::limit::{
    ADMIN_BUSY_DELAY, ADMIN_BUSY_REPEATS_MAX, ADMIN_REQUEST_TIMEOUT, ADMIN_RESPONSE_BYTES_MAX,
};
use anyhow::{Context as _, Error, Result, anyhow, bail};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use serde::de::DeserializeOwned;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use url::Url;

/// How a command reaches the service.
pub enum Access {
    /// The command asks the store and writes to the brokers itself.
    Config(Box<Config>),
    /// A running service does it.
    Server(Box<Server>),
}

impl Access {
    /// The address of the flags, or of the environment.
    ///
    /// # Errors
    /// If there is none, or if it, its token or its authorities cannot be used.
    pub fn server(service: &ServiceArgs) -> Result<Self> {
        let variable = || std::env::var(URL_VARIABLE).ok();
        let url = service.url.clone().or_else(variable);
        let url = url.filter(|url| !url.is_empty()).ok_or_else(|| {
            let text = format!(
                "name the service: --config FILE, --url URL, or the variable {URL_VARIABLE}"
            );
            Refused(text)
        })?;
        let (token, ca) = (service.token_file.as_deref(), service.ca.as_deref());
        Ok(Self::Server(Box::new(Server::new(&url, token, ca)?)))
    }

    /// For a question: the address of the service, if it is not the one of a configuration file.
    pub(in crate::command) fn place(&self) -> String {
        match self {
            Self::Config(_) => String::new(),
            Self::Server(server) => format!(" at {}", server.base),
        }
    }
}

/// The HTTP API of a running service.
#[derive(Clone)]
pub struct Server {
    /// Without a slash at its end.
    base: String,
    /// `Bearer` and the token. Never printed.
    token: Option<HeaderValue>,
    client: HttpClient,
}

impl Server {
    fn new(url: &str, token_file: Option<&Path>, ca: Option<&Path>) -> Result<Self> {
        let wrong = || {
            Refused(format!(
                "--url {url}: write it like https://postdate.example:8088"
            ))
        };
        let parsed = Url::parse(url).map_err(|_| wrong())?;
        if !parsed.username().is_empty() || parsed.password().is_some() {
            let text = "--url: it has a user or a password, which is not sent: use --token-file";
            return Err(Refused(text.to_owned()).into());
        }
        let is_plain = parsed.query().is_none() && parsed.fragment().is_none();
        if !matches!(parsed.scheme(), "http" | "https") || !parsed.has_host() || !is_plain {
            return Err(wrong().into());
        }
        let token = token_file.map(|path| {
            let text = std::fs::read_to_string(path);
            let text = text.map_err(|error| format!("{}: {error}", path.display()))?;
            bearer(text.trim()).ok_or_else(|| format!("{} holds no token", path.display()))
        });
        let token = token.transpose();
        let token = token.map_err(|text: String| Refused(format!("--token-file {text}")))?;
        let ca = ca.map(|path| path.to_string_lossy());
        let client = HttpClient::new(ca.as_deref());
        Ok(Self {
            base: parsed.as_str().trim_end_matches('/').to_owned(),
            token,
            client: client.map_err(|text| Refused(format!("--ca {text}")))?,
        })
    }

    /// The service of a configuration, on this machine.
    pub(super) fn unencrypted(address: SocketAddr, token: Option<&str>) -> Result<Self> {
        Ok(Self {
            base: format!("http://{address}"),
            token: token.and_then(bearer),
            client: HttpClient::new(None).map_err(Error::msg)?,
        })
    }

    /// The JSON document at this path.
    pub(in crate::command) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let (_, answer) = self.send(Method::GET, path, Bytes::new()).await?;
        Ok(answer)
    }

    /// The status and the JSON document of an answer to a change.
    pub(in crate::command) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &serde_json::Value,
    ) -> Result<(StatusCode, T)> {
        self.send(Method::POST, path, body.to_string().into()).await
    }

    /// The JSON document of an answer. `None`: the service has not found the object.
    pub(in crate::command) async fn find<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Option<T>> {
        let answer = self.answer(method, path, body).await?;
        if answer.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let (_, document) = self.read(&answer)?;
        Ok(Some(document))
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, T)> {
        let answer = self.answer(method, path, body).await?;
        self.read(&answer)
    }

    /// Asks a busy service again.
    pub(super) async fn answer(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Response<Bytes>> {
        let mut repeats = 0;
        loop {
            let answer = self.send_once(method.clone(), path, body.clone()).await?;
            if !is_busy(&answer) || repeats == ADMIN_BUSY_REPEATS_MAX {
                return Ok(answer);
            }
            repeats += 1;
            tokio::time::sleep(ADMIN_BUSY_DELAY).await;
        }
    }

    async fn send_once(&self, method: Method, path: &str, body: Bytes) -> Result<Response<Bytes>> {
        let base = &self.base;
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{base}{path}"));
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token);
        }
        let request = request
            .header(CONTENT_TYPE, "application/json")
            .body(body)?;
        // Slightly longer than the service's own timeout, so that its error arrives first.
        let patience = ADMIN_REQUEST_TIMEOUT + Duration::from_secs(2);
        let answer = self.client.send(request, ADMIN_RESPONSE_BYTES_MAX);
        let answer = tokio::time::timeout(patience, answer).await;
        let answer = answer.map_err(|_| anyhow!("{base} does not answer in time"))?;
        answer.map_err(|error| anyhow!("cannot ask {base}: {error}"))
    }

    fn read<T: DeserializeOwned>(&self, answer: &Response<Bytes>) -> Result<(StatusCode, T)> {
        let base = &self.base;
        let (status, body) = (answer.status(), answer.body());
        if status.is_success() {
            let other = || {
                format!(
                    "cannot read the answer of {base}: use the version of `postdate` that the service runs"
                )
            };
            return Ok((status, serde_json::from_slice(body).with_context(other)?));
        }
        let reason = error_of(body);
        match status {
            StatusCode::UNAUTHORIZED => bail!(
                "{base} requires another token: write it to a file, and name it with --token-file"
            ),
            status if status.is_client_error() => {
                Err(Refused(format!("{base} refuses this: {reason}")).into())
            }
            status => bail!("{base} answers {}: {reason}", status.as_u16()),
        }
    }
}

/// `None`: no token has these characters.
fn bearer(token: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// True if a repeat of the request is safe, and may succeed soon.
fn is_busy(answer: &Response<Bytes>) -> bool {
    let document: Option<serde_json::Value> = serde_json::from_slice(answer.body()).ok();
    answer.status() == StatusCode::SERVICE_UNAVAILABLE
        && document.is_some_and(|document| document["code"] == BUSY)
}

/// The service's error message, if the answer has one.
pub(super) fn error_of(body: &[u8]) -> String {
    let document: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    document
        .and_then(|document| Some(document.get("detail")?.as_str()?.to_owned()))
        .unwrap_or_else(|| "it gives no reason".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_needs_a_scheme_and_a_host_and_its_token_is_never_printed() {
        let folder = tempfile::tempdir().unwrap();
        let token = folder.path().join("token");
        std::fs::write(&token, "0123456789abcdef\n").unwrap();
        let server = Server::new("http://a:8088/prefix/", Some(&token), None).unwrap();
        assert_eq!(server.base, "http://a:8088/prefix");
        let value = server.token.unwrap();
        assert_eq!(value, "Bearer 0123456789abcdef");
        assert!(!format!("{value:?}").contains("0123"));
        for url in ["a:8088", "ftp://a", "http://", "http://a/?b=c", ""] {
            let error = Server::new(url, None, None).err().unwrap();
            assert!(error.is::<Refused>(), "{url}");
        }
        let error = Server::new("https://u:secret@a", None, None).err().unwrap();
        assert!(error.is::<Refused>() && !error.to_string().contains("secret"));
        let absent = folder.path().join("absent");
        let error = Server::new("http://a", Some(&absent), None).err().unwrap();
        assert!(error.to_string().starts_with("--token-file "), "{error}");
    }

    #[test]
    fn only_a_request_that_may_be_repeated_is_repeated() {
        let answer = |status: StatusCode, body: &'static str| {
            let answer = Response::builder().status(status);
            answer.body(Bytes::from_static(body.as_bytes())).unwrap()
        };
        let unavailable = StatusCode::SERVICE_UNAVAILABLE;
        assert!(is_busy(&answer(unavailable, r#"{"code":"busy"}"#)));
        assert!(!is_busy(&answer(unavailable, r#"{"detail":"busy"}"#)));
        assert!(!is_busy(&answer(unavailable, "<html>")));
        assert!(!is_busy(&answer(
            StatusCode::CONFLICT,
            r#"{"code":"busy"}"#
        )));
    }
}
