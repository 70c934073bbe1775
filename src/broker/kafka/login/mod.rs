//! Logins with tokens (SASL `OAUTHBEARER`). Gets tokens from an identity provider by client
//! credentials, or makes those of AWS IAM, and renews each of them before it expires.
//!
//! The librdkafka of this build has no HTTP client, so Postdate asks the provider itself. The options
//! have librdkafka's names. All clients of the process with the same login share one keeper.

mod aws_iam;
mod client_credentials;

use crate::broker::Error;
use crate::broker::kafka::limit::{
    KAFKA_TOKEN_CLOCK_INTERVAL, KAFKA_TOKEN_RETRY_DELAY, KAFKA_TOKEN_RETRY_DELAY_MAX,
    KAFKA_TOKEN_TIMEOUT,
};
use crate::client_thread::ClientThread;
use crate::clock::{Clock as _, WallClock};
use crate::retry::backoff;
use aws_iam::AwsIam;
use client_credentials::ClientCredentials;
use rdkafka::config::ClientConfig;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const METHOD: &str = "sasl.oauthbearer.method";
const CLIENT_ID: &str = "sasl.oauthbearer.client.id";
const CLIENT_SECRET: &str = "sasl.oauthbearer.client.secret";
const SCOPE: &str = "sasl.oauthbearer.scope";
const EXTENSIONS: &str = "sasl.oauthbearer.extensions";
const ENDPOINT: &str = "sasl.oauthbearer.token.endpoint.url";
const CA: &str = "https.ca.location";
const REGION: &str = "sasl.oauthbearer.aws.region";

/// The keepers of this process, one for each configured login.
static KEEPERS: Mutex<Vec<Weak<TokenKeeper>>> = Mutex::new(Vec::new());

/// The login of a client. Its token is renewed until the last client of the login is gone.
#[derive(Clone)]
pub(super) struct Login(Arc<TokenKeeper>);

/// A broker accepts it until it expires.
pub(super) struct Token {
    pub(super) text: String,
    /// Names the client in the logs of librdkafka.
    pub(super) principal: String,
    pub(super) expires_at_ms: i64,
    /// Names and values for the broker.
    pub(super) extensions: Vec<(String, String)>,
}

struct TokenKeeper {
    method: Method,
    /// A reload of the configuration may have changed it. Empty for AWS IAM.
    secret: watch::Sender<String>,
    state: Arc<SharedToken>,
    stop: CancellationToken,
    /// Joined at the drop.
    _thread: Mutex<ClientThread>,
}

/// Where tokens come from.
#[derive(Clone, PartialEq, Eq)]
enum Method {
    ClientCredentials(ClientCredentials),
    AwsIam(AwsIam),
}

#[derive(Default)]
struct SharedToken {
    last: Mutex<LastAnswers>,
    changed: Condvar,
    /// Counts the answers.
    changes: AtomicU64,
}

/// Both fields are empty until the provider has answered.
#[derive(Default)]
struct LastAnswers {
    token: Option<Arc<Token>>,
    /// Why the last request got no token. Until it expires, `token` is good nevertheless.
    failure: Option<String>,
}

impl Login {
    /// Takes the options of the login out of a configuration, because librdkafka would refuse them.
    /// `None`: librdkafka logs in without Postdate.
    pub(super) fn take_from(config: &mut ClientConfig) -> Result<Option<Self>, Error> {
        let method = config.get(METHOD).map(str::to_owned);
        let mut options = Options(config);
        let (method, secret) = match method.as_deref() {
            Some("oidc") => {
                let credentials = ClientCredentials::take_from(&mut options)?;
                let secret = options.require(CLIENT_SECRET)?;
                (Method::ClientCredentials(credentials), secret)
            }
            Some("aws-iam") => {
                let iam = AwsIam::take_from(&mut options)?;
                (Method::AwsIam(iam), String::new())
            }
            _ => return Ok(None),
        };
        options.take(METHOD);
        TokenKeeper::of(method, secret).map(|keeper| Some(Self(keeper)))
    }

    /// Changes the secret of the client. Another token is fetched at once.
    pub(super) fn change_secret(config: &ClientConfig) -> Result<(), Error> {
        let secret = config.get(CLIENT_SECRET).map(str::to_owned);
        if let (Some(login), Some(secret)) = (Self::take_from(&mut config.clone())?, secret) {
            login.0.secret.send_if_modified(|known| {
                let is_changed = *known != secret;
                *known = secret;
                is_changed
            });
        }
        Ok(())
    }

    /// Changes with each new token, and with each failure to get one. 0: neither has happened.
    pub(super) fn changes(&self) -> u64 {
        self.0.state.changes.load(Ordering::Acquire)
    }

    /// The token, or why the last request got none. `None`: the provider has not answered yet.
    pub(super) fn token(&self) -> Option<Result<Arc<Token>, String>> {
        self.0.state.lock().outcome()
    }

    /// A token that has not expired, also after a failed renewal. Waits for the first answer of the
    /// provider. Blocks the thread.
    pub(super) fn wait(&self, timeout: Duration) -> Result<Arc<Token>, String> {
        let state = &self.0.state;
        let is_open = |last: &mut LastAnswers| last.outcome().is_none();
        let waited = state
            .changed
            .wait_timeout_while(state.lock(), timeout, is_open);
        let (last, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let now = WallClock.now().as_millis();
        if let Some(token) = last
            .token
            .as_ref()
            .filter(|token| now < token.expires_at_ms)
        {
            return Ok(token.clone());
        }
        let silent = || Err("the identity provider does not answer".to_owned());
        last.outcome().unwrap_or_else(silent)
    }
}

/// Options that are taken out of a configuration.
struct Options<'a>(&'a mut ClientConfig);

impl Options<'_> {
    fn take(&mut self, name: &str) -> Option<String> {
        let value = self.0.get(name).map(str::to_owned);
        self.0.remove(name);
        value
    }

    fn require(&mut self, name: &str) -> Result<String, Error> {
        let missing = || Error::Rejected(format!("the property `{name}` is missing"));
        self.take(name).ok_or_else(missing)
    }
}

impl Method {
    /// The host or service that gives the tokens.
    fn source(&self) -> String {
        match self {
            Self::ClientCredentials(credentials) => credentials.host(),
            Self::AwsIam(_) => "AWS IAM".to_owned(),
        }
    }

    /// A token and its lifetime.
    async fn grant(&self, secret: &str) -> Result<(Token, Duration), String> {
        match self {
            Self::ClientCredentials(credentials) => credentials.grant(secret).await,
            Self::AwsIam(iam) => iam.grant().await,
        }
    }
}

impl TokenKeeper {
    /// The keeper of this login. A first one starts with `secret`.
    fn of(method: Method, secret: String) -> Result<Arc<Self>, Error> {
        let mut keepers = KEEPERS.lock().unwrap_or_else(PoisonError::into_inner);
        keepers.retain(|keeper| keeper.strong_count() > 0);
        let mut known = keepers.iter().filter_map(Weak::upgrade);
        if let Some(keeper) = known.find(|keeper| keeper.method == method) {
            return Ok(keeper);
        }
        let keeper = Arc::new(Self::start(method, secret)?);
        keepers.push(Arc::downgrade(&keeper));
        Ok(keeper)
    }

    fn start(method: Method, secret: String) -> Result<Self, Error> {
        let secret = watch::Sender::new(secret);
        let secrets = secret.subscribe();
        let (state, stop) = (Arc::<SharedToken>::default(), CancellationToken::new());
        let (of_thread, shared, stopped) = (method.clone(), state.clone(), stop.clone());
        let serve = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            match runtime {
                Ok(runtime) => {
                    let renew = renew(&of_thread, secrets, &shared);
                    runtime.block_on(stopped.run_until_cancelled(renew));
                }
                Err(error) => shared.set(Err(error.to_string())),
            }
        };
        let thread = ClientThread::start("kafka-login", serve)
            .map_err(|error| Error::Fatal(error.to_string()))?;
        Ok(Self {
            method,
            secret,
            state,
            stop,
            _thread: Mutex::new(thread),
        })
    }
}

impl Drop for TokenKeeper {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl LastAnswers {
    fn outcome(&self) -> Option<Result<Arc<Token>, String>> {
        let failure = self.failure.clone().map(Err);
        failure.or_else(|| self.token.clone().map(Ok))
    }
}

impl SharedToken {
    fn lock(&self) -> MutexGuard<'_, LastAnswers> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, outcome: Result<Token, String>) {
        let mut last = self.lock();
        last.failure = match outcome {
            Ok(token) => {
                last.token = Some(Arc::new(token));
                None
            }
            Err(reason) => Some(reason),
        };
        drop(last);
        self.changes.fetch_add(1, Ordering::Release);
        self.changed.notify_all();
    }
}

/// Renews the token until the future is dropped. Clients keep their token while the provider fails.
async fn renew(
    method: &Method,
    mut secrets: watch::Receiver<String>,
    shared: &SharedToken,
) -> Infallible {
    let mut failures = 0;
    loop {
        let secret = secrets.borrow_and_update().clone();
        let answer = tokio::time::timeout(KAFKA_TOKEN_TIMEOUT, method.grant(&secret)).await;
        let silent = || Err(format!("no answer within {KAFKA_TOKEN_TIMEOUT:?}"));
        let answer = answer.unwrap_or_else(|_| silent());
        let wait = match &answer {
            Ok((_, lifetime)) => {
                failures = 0;
                renewal_delay(*lifetime)
            }
            Err(_) => {
                failures += 1;
                let (first, max) = (KAFKA_TOKEN_RETRY_DELAY, KAFKA_TOKEN_RETRY_DELAY_MAX);
                backoff(first, max, failures - 1)
            }
        };
        let failure = |reason: String| format!("no token from {}: {reason}", method.source());
        shared.set(answer.map(|(token, _)| token).map_err(failure));
        wait_for_renewal(wait, &mut secrets).await;
    }
}

/// Ends after this time, or with another secret. If the machine was suspended, the clock of the
/// machine tells that the time is over.
async fn wait_for_renewal(wait: Duration, secrets: &mut watch::Receiver<String>) {
    let until = WallClock.now().plus(wait);
    let mut left = wait;
    while !left.is_zero() {
        let step = left.min(KAFKA_TOKEN_CLOCK_INTERVAL);
        if tokio::time::timeout(step, secrets.changed()).await.is_ok() {
            return;
        }
        left = (left - step).min(until.since(WallClock.now()));
    }
}

/// librdkafka would ask for another token after 80 % of the lifetime. So it always finds a new one.
fn renewal_delay(lifetime: Duration) -> Duration {
    (lifetime * 3 / 5).max(KAFKA_TOKEN_RETRY_DELAY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::net::TcpListener;
    use std::sync::mpsc::{Receiver, sync_channel};

    fn config(endpoint: &str) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("client.id", "postdate")
            .set("sasl.mechanisms", "OAUTHBEARER")
            .set(METHOD, "oidc")
            .set(ENDPOINT, endpoint)
            .set(CLIENT_ID, "team:a")
            .set(CLIENT_SECRET, "hunter2&more")
            .set(SCOPE, "kafka read");
        config
    }

    /// Answers each request with the next of these texts. Passes the requests on.
    fn provider(answers: Vec<&'static str>) -> (String, ClientThread, Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}/token", listener.local_addr().unwrap());
        let (requests, asked) = sync_channel(answers.len());
        let thread = ClientThread::start("provider", move || {
            for answer in answers {
                let (stream, _) = listener.accept().unwrap();
                let mut stream = BufReader::new(stream);
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") {
                    assert!(stream.read_line(&mut head).unwrap() > 0);
                }
                let length = head.to_lowercase();
                let length = length.split("content-length: ").nth(1).unwrap();
                let length = length.lines().next().unwrap().parse().unwrap();
                let mut body = vec![0; length];
                stream.read_exact(&mut body).unwrap();
                requests
                    .send(head + &String::from_utf8(body).unwrap())
                    .unwrap();
                let status = match answer.contains("error") {
                    true => "401 Unauthorized",
                    false => "200 OK",
                };
                let length = answer.len();
                let response =
                    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{answer}");
                stream.get_mut().write_all(response.as_bytes()).unwrap();
            }
        });
        (endpoint, thread.unwrap(), asked)
    }

    #[test]
    fn a_token_is_fetched_by_client_credentials_and_renewed_before_it_expires() {
        let answers = vec![
            r#"{"access_token":"first","expires_in":2,"token_type":"Bearer"}"#,
            r#"{"error":"invalid_client","error_description":"secret expired"}"#,
            r#"{"access_token":"second","expires_in":"3600"}"#,
        ];
        let (endpoint, _provider, asked) = provider(answers);
        let mut first = config(&endpoint);
        let login = Login::take_from(&mut first).unwrap().unwrap();
        let token = login.wait(KAFKA_TOKEN_TIMEOUT).unwrap();
        assert_eq!((&*token.text, &*token.principal), ("first", "team:a"));
        let now = WallClock.now().as_millis();
        assert!((now..=now + 2_000).contains(&token.expires_at_ms));
        assert_eq!(first.get("client.id"), Some("postdate"));
        for option in [METHOD, ENDPOINT, CLIENT_ID, CLIENT_SECRET, SCOPE] {
            assert_eq!(first.get(option), None, "librdkafka would refuse it");
        }
        let request = asked.recv().unwrap();
        let credentials = STANDARD.encode("team%3Aa:hunter2%26more");
        assert!(request.contains(&format!("authorization: Basic {credentials}\r\n")));
        assert!(request.ends_with("\r\n\r\ngrant_type=client_credentials&scope=kafka+read"));

        let other = Login::take_from(&mut config(&endpoint)).unwrap().unwrap();
        let is_shared = Arc::ptr_eq(&login.0, &other.0);
        assert!(is_shared, "the clients share a keeper");
        let outcome_after = |changes: u64| {
            while other.changes() < changes {
                std::thread::yield_now();
            }
            other.token().unwrap()
        };
        let refused = outcome_after(2).err().unwrap();
        assert_eq!(
            refused,
            "no token from 127.0.0.1: it answers 401 invalid_client secret expired"
        );
        let kept = login.wait(Duration::ZERO).map(|token| token.text.clone());
        assert_eq!(kept, Ok("first".to_owned()), "it has not expired");
        assert_eq!(outcome_after(3).unwrap().text, "second");
    }

    #[test]
    fn a_changed_secret_is_used_at_once() {
        let granted = r#"{"access_token":"t","expires_in":3600}"#;
        let (endpoint, _provider, asked) = provider(vec![granted, granted]);
        let _login = Login::take_from(&mut config(&endpoint)).unwrap().unwrap();
        let login_of = |secret: &str| STANDARD.encode(format!("team%3Aa:{secret}"));
        assert!(asked.recv().unwrap().contains(&login_of("hunter2%26more")));
        Login::change_secret(&config(&endpoint)).unwrap();
        let mut changed = config(&endpoint);
        changed.set(CLIENT_SECRET, "hunter3");
        Login::change_secret(&changed).unwrap();
        assert!(asked.recv().unwrap().contains(&login_of("hunter3")));
    }

    #[test]
    fn a_login_without_its_options_is_refused_and_another_method_is_left_to_librdkafka() {
        let mut incomplete = config("http://127.0.0.1:1");
        incomplete.remove(CLIENT_SECRET);
        let refused = Login::take_from(&mut incomplete).err().unwrap();
        assert!(refused.to_string().contains(CLIENT_SECRET), "{refused}");
        let mut other = ClientConfig::new();
        other.set("sasl.mechanisms", "PLAIN");
        assert!(Login::take_from(&mut other).unwrap().is_none());
    }

    #[test]
    fn a_token_is_renewed_well_before_librdkafka_asks() {
        let hour = Duration::from_secs(3_600);
        assert_eq!(renewal_delay(hour), hour * 3 / 5);
        let short = Duration::from_millis(1);
        assert_eq!(renewal_delay(short), KAFKA_TOKEN_RETRY_DELAY);
    }
}
