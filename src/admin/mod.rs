//! The admin server, over HTTP: `/healthz` and `/readyz` for probes, `/metrics` for scrapers, `/v1`
//! for programs, and the console for people. With a token or client certificates configured, only
//! probes and the login page need no token.

pub(crate) mod api;
pub(crate) mod audit;
mod auth;
mod bulk_api;
pub(crate) mod bulk_changes;
pub(crate) mod change_api;
pub(crate) mod changes;
mod console;
pub(crate) mod dead_letters;
mod kept_store;
pub(crate) mod message_change;
pub(crate) mod pause_api;
pub(crate) mod problem;
pub(crate) mod queries;
pub(crate) mod schedules;
mod server;

use crate::health::{Health, HealthProblem};
use crate::limit::ADMIN_REQUESTS_MAX;
use crate::task::StopToken;
pub(crate) use auth::{Auth, Credentials, is_user_name};
use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use change_api::ChangeApi;
use changes::Changes;
pub(crate) use console::ConsoleOptions;
use dead_letters::DeadLetters;
use problem::Problem;
use queries::Queries;
use schedules::Schedules;
use serde_json::json;
use server::Admission;
pub(crate) use server::tls::{Tls, TlsError};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Renders the metrics in the Prometheus text format.
pub(crate) type RenderMetrics = Arc<dyn Fn() -> String + Send + Sync>;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot listen on {listen} (admin.listen): {}", bind_error(cause))]
    Listen {
        listen: SocketAddr,
        cause: std::io::Error,
    },
    #[error("the admin endpoint failed")]
    Serve(#[source] std::io::Error),
}

fn bind_error(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "another process uses the port; stop it, or choose another address".to_owned()
        }
        std::io::ErrorKind::AddrNotAvailable => {
            "this machine does not have the address; 0.0.0.0 stands for all of its addresses"
                .to_owned()
        }
        std::io::ErrorKind::PermissionDenied => {
            "the user lacks the permission; choose a port of 1024 or above".to_owned()
        }
        _ => error.to_string(),
    }
}

/// Binds the port. Separate from [`serve`], so that a process fails at its start if the port is
/// taken.
pub(crate) fn bind(listen: SocketAddr) -> Result<TcpListener, Error> {
    let listener = TcpListener::bind(listen)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    listener.map_err(|cause| Error::Listen { listen, cause })
}

/// Everything that the endpoint works with.
pub(crate) struct Endpoint {
    pub(crate) auth: Auth,
    /// `None` for plain HTTP.
    pub(crate) tls: Option<Tls>,
    pub(crate) health: Health,
    pub(crate) render_metrics: RenderMetrics,
    /// The queue of the thread that answers queries.
    pub(crate) queries: Queries,
    /// The queue of the thread that writes changes.
    pub(crate) changes: Changes,
    /// The queue of the thread that reads and redrives dead letters.
    pub(crate) dead_letters: DeadLetters,
    /// The queue of the thread that reads schedules.
    pub(crate) schedules: Schedules,
    pub(crate) console: ConsoleOptions,
}

impl Endpoint {
    fn router(self) -> Router {
        let render = self.render_metrics.clone();
        let metrics = move || async move {
            (
                [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
                render(),
            )
        };
        let changes = ChangeApi {
            queries: self.queries.clone(),
            changes: self.changes,
            bulk_permit: Arc::new(Semaphore::new(1)),
        };
        let guarded = api::router(self.queries.clone())
            .merge(audit::router(self.queries))
            .merge(pause_api::router(changes.clone()))
            .merge(change_api::router(changes.clone()))
            .merge(bulk_api::router(changes.clone()))
            .merge(dead_letters::router(self.dead_letters.clone()))
            .merge(schedules::router(
                self.schedules.clone(),
                changes.changes.clone(),
            ))
            .merge(console::router(
                self.console,
                changes,
                (self.dead_letters, self.schedules),
                self.health.clone(),
                self.render_metrics.clone(),
            ))
            .route("/metrics", get(metrics));
        let (alive, ready) = (self.health.clone(), self.health);
        let alive = async move || health_response("alive", &alive.not_alive(), &[]);
        let ready = async move || health_response("ready", &ready.not_ready(), &ready.degraded());
        let login = console::login_router(self.auth.clone(), self.tls.is_some());
        // A stranger takes no permit. A login asks nothing of the store, so it needs none.
        let router = self
            .auth
            .protect(bound_requests(guarded))
            .merge(login)
            .route("/healthz", get(alive))
            .route("/readyz", get(ready));
        console::with_policy(router)
    }
}

/// Admits requests. Answers 503 if too many are being answered.
fn bound_requests(router: Router) -> Router {
    let requests = Arc::new(Semaphore::new(ADMIN_REQUESTS_MAX));
    let bound = move |request: Request, next: Next| {
        let requests = requests.clone();
        async move {
            match requests.try_acquire() {
                Ok(_permit) => {
                    if let Some(admission) = request.extensions().get::<Admission>() {
                        admission.admit();
                    }
                    next.run(request).await
                }
                Err(_) => Problem::busy("too many requests at once: try again").into_response(),
            }
        }
    };
    router.layer(from_fn(bound))
}

/// `degraded` is added only if it is not empty. It does not change the status.
fn health_response(word: &str, problems: &[HealthProblem], degraded: &[HealthProblem]) -> Response {
    let status = match problems {
        [] => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    let mut body = json!({ word: problems.is_empty(), "reasons": problems });
    if !degraded.is_empty() {
        body["degraded"] = json!(degraded);
    }
    json_response(status, body.to_string())
}

fn json_response(status: StatusCode, body: String) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], body).into_response()
}

/// Serves requests until `stop` is cancelled.
pub(crate) async fn serve(
    listener: TcpListener,
    mut endpoint: Endpoint,
    stop: StopToken,
) -> Result<(), Error> {
    let listener = tokio::net::TcpListener::from_std(listener).map_err(Error::Serve)?;
    if let Ok(address) = listener.local_addr() {
        tracing::info!(%address, tls = endpoint.tls.is_some(), "admin endpoint listens");
    }
    let tls = endpoint.tls.take().map(|tls| tls.0);
    server::serve(listener, tls, endpoint.router(), stop).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    /// Serves on a free port while `test` runs, then stops it.
    fn with_endpoint<F: Future<Output = ()>>(health: &Health, test: impl FnOnce(SocketAddr) -> F) {
        with_guarded_endpoint(None, health, test);
    }

    fn with_guarded_endpoint<F: Future<Output = ()>>(
        guard: Option<&str>,
        health: &Health,
        test: impl FnOnce(SocketAddr) -> F,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
            let address = listener.local_addr().unwrap();
            let stop = StopToken::new();
            let render: RenderMetrics = Arc::new(|| "postdate_up 1\n".to_owned());
            let test = async {
                test(address).await;
                stop.cancel();
            };
            let (queries, _unanswered) = queries::channel();
            let (changes, _unwritten) = changes::channel();
            let (dead_letters, _unread) = dead_letters::channel();
            let (schedules, _unlisted) = schedules::channel();
            let credentials = Credentials {
                token: guard.map(Arc::from),
                ..Credentials::default()
            };
            let endpoint = Endpoint {
                auth: Auth::new(credentials, audit::channel().0),
                tls: None,
                health: health.clone(),
                render_metrics: render,
                queries,
                changes,
                dead_letters,
                schedules,
                console: ConsoleOptions::default(),
            };
            let (served, ()) = tokio::join!(serve(listener, endpoint, stop.clone()), test);
            served.unwrap();
        });
    }

    /// The status and the body.
    async fn get(address: SocketAddr, path: &str) -> (String, String) {
        get_with(address, path, "").await
    }

    async fn get_with(address: SocketAddr, path: &str, headers: &str) -> (String, String) {
        let answer = answer(address, path, headers).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (
            head.lines().next().unwrap()["HTTP/1.1 ".len()..].to_owned(),
            body.to_owned(),
        )
    }

    async fn answer(address: SocketAddr, path: &str, headers: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream
            .write_all(
                format!(
                    "GET {path} HTTP/1.1\r\nhost: localhost\r\n{headers}connection: close\r\n\r\n"
                )
                .as_bytes(),
            )
            .await
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[test]
    fn readiness_names_the_parts_that_are_not_ready_and_why() {
        let health = Health::new();
        let (store, timer) = (health.register("store"), health.register("timer"));
        with_endpoint(&health, async |address| {
            store.set_not_ready("redis does not answer");
            let body = r#"{"ready":false,"reasons":[{"part":"store","reason":"redis does not answer"},{"part":"timer","reason":"starting"}]}"#;
            assert_eq!(
                get(address, "/readyz").await,
                ("503 Service Unavailable".to_owned(), body.to_owned())
            );
            store.set_ready();
            timer.set_ready();
            assert_eq!(
                get(address, "/readyz").await,
                (
                    "200 OK".to_owned(),
                    r#"{"ready":true,"reasons":[]}"#.to_owned()
                )
            );
            timer.set_degraded(
                "a topic is missing",
                tokio::time::Instant::now() + Duration::from_secs(60),
            );
            let (status, body) = get(address, "/readyz").await;
            assert_eq!(status, "200 OK");
            assert!(
                body.contains(r#""degraded":[{"part":"timer","reason":"a topic is missing"}]"#),
                "{body}"
            );
        });
    }

    #[test]
    fn a_process_that_is_not_ready_is_alive() {
        with_endpoint(&Health::new(), async |address| {
            assert_eq!(
                get(address, "/healthz").await,
                (
                    "200 OK".to_owned(),
                    r#"{"alive":true,"reasons":[]}"#.to_owned()
                )
            );
            assert_eq!(
                get(address, "/metrics").await,
                ("200 OK".to_owned(), "postdate_up 1\n".to_owned())
            );
            assert_eq!(get(address, "/other").await.0, "404 Not Found");
        });
    }

    #[test]
    fn no_answer_is_kept_in_a_cache() {
        with_endpoint(&Health::new(), async |address| {
            for path in [
                "/healthz",
                "/metrics",
                "/v1/openapi.json",
                "/login",
                "/other",
            ] {
                let answer = answer(address, path, "").await.to_lowercase();
                for header in ["cache-control: no-store", "x-content-type-options: nosniff"] {
                    assert!(answer.contains(header), "{path}: {answer}");
                }
            }
        });
    }

    #[test]
    fn a_token_protects_all_paths_except_the_probes() {
        with_guarded_endpoint(Some("0123456789abcdef"), &Health::new(), async |address| {
            assert_eq!(get(address, "/healthz").await.0, "200 OK");
            assert_eq!(
                get(address, "/readyz").await.0,
                "503 Service Unavailable",
                "answered without a token"
            );
            for path in [
                "/metrics",
                "/pending",
                "/ledger",
                "/other",
                "/",
                "//metrics",
                "/healthz/../metrics",
            ] {
                let (status, body) = get(address, path).await;
                assert_eq!(status, "401 Unauthorized", "{path}");
                assert!(
                    body.contains("Authorization: Bearer <token>")
                        && !body.contains("0123456789abcdef"),
                    "{body}"
                );
            }
            assert_eq!(
                get_with(
                    address,
                    "/metrics",
                    "authorization: Bearer 0123456789abcdef\r\n"
                )
                .await
                .0,
                "200 OK"
            );
            assert_eq!(
                get_with(
                    address,
                    "/other",
                    "authorization: Bearer 0123456789abcdef\r\n"
                )
                .await
                .0,
                "404 Not Found"
            );
            assert_eq!(
                get_with(
                    address,
                    "/metrics",
                    "authorization: Bearer 0123456789abcdeX\r\n"
                )
                .await
                .0,
                "401 Unauthorized"
            );
        });
    }

    #[test]
    fn a_slow_query_does_not_delay_probes_and_the_queue_is_bounded() {
        with_endpoint(&Health::new(), async |address| {
            let mut asked = Vec::new();
            for _ in 0..crate::limit::ADMIN_QUERIES_MAX {
                let mut stream = TcpStream::connect(address).await.unwrap();
                stream
                    .write_all(b"GET /pending HTTP/1.1\r\nhost: localhost\r\n\r\n")
                    .await
                    .unwrap();
                asked.push(stream);
            }
            assert_eq!(get(address, "/healthz").await.0, "200 OK");
            let (status, body) = get(address, "/pending").await;
            assert_eq!(
                (status.as_str(), body.contains("try again")),
                ("503 Service Unavailable", true),
                "{body}"
            );
            assert_eq!(get(address, "/pending?who=x").await.0, "400 Bad Request");
        });
    }

    #[test]
    fn an_idle_connection_does_not_delay_the_stop() {
        with_endpoint(&Health::new(), async |address| {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream
                .write_all(b"GET /healthz HTTP/1.1\r\n")
                .await
                .unwrap();
            std::mem::forget(stream);
        });
    }

    #[test]
    fn connections_that_send_half_a_request_are_closed_and_delay_no_probe() {
        with_endpoint(&Health::new(), async |address| {
            let mut half = Vec::new();
            for _ in 0..800 {
                let mut stream = TcpStream::connect(address).await.unwrap();
                let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\n").await;
                half.push(stream);
            }
            assert_eq!(get(address, "/healthz").await.0, "200 OK");
            let ends = async {
                for stream in &mut half {
                    // An error is an end too: the server closed the connection before it read.
                    let _ = stream.read_to_end(&mut Vec::new()).await;
                }
            };
            let limit = crate::limit::ADMIN_HEADER_TIMEOUT * 2;
            assert!(tokio::time::timeout(limit, ends).await.is_ok());
        });
    }

    /// Connections that send the head of a POST and then nothing.
    async fn without_body(address: SocketAddr, path: &str, count: usize) -> Vec<TcpStream> {
        let kind = "content-type: application/x-www-form-urlencoded";
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\n{kind}\r\ncontent-length: 10\r\n\r\n"
        );
        let mut open = Vec::new();
        for _ in 0..count {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let _ = stream.write_all(head.as_bytes()).await;
            open.push(stream);
        }
        open
    }

    #[test]
    fn logins_that_never_end_delay_no_probe() {
        let guard = Some("0123456789abcdef");
        with_guarded_endpoint(guard, &Health::new(), async |address| {
            let count = 2 * crate::limit::ADMIN_CONNECTIONS_MAX;
            let _open = without_body(address, "/login", count).await;
            assert_eq!(get(address, "/healthz").await.0, "200 OK");
            let _open = without_body(address, "/v1/routes/r:purge", count).await;
            assert_eq!(get(address, "/healthz").await.0, "200 OK");
            let login = "authorization: Bearer 0123456789abcdef\r\n";
            let (status, _) = get_with(address, "/v1/openapi.json", login).await;
            assert_eq!(status, "200 OK", "a stranger takes no permit");
        });
    }

    #[test]
    fn above_the_bound_of_requests_only_probes_are_answered() {
        with_endpoint(&Health::new(), async |address| {
            let path = "/v1/routes/r/messages:cancel";
            let _open = without_body(address, path, ADMIN_REQUESTS_MAX).await;
            let refused = async {
                loop {
                    let (status, body) = get(address, "/v1/openapi.json").await;
                    if status == "503 Service Unavailable" {
                        return body;
                    }
                }
            };
            // The server may need a moment to read the heads.
            let body = tokio::time::timeout(Duration::from_secs(20), refused).await;
            assert!(body.unwrap().contains("too many requests at once"));
            assert_eq!(get(address, "/healthz").await.0, "200 OK");
            assert_eq!(get(address, "/login").await.0, "200 OK");
        });
    }

    #[test]
    fn a_browser_gets_pages_also_for_errors() {
        with_endpoint(&Health::new(), async |address| {
            let html = "accept: text/html\r\n";
            for (path, status) in [
                ("/other/path", "404 Not Found"),
                ("/routes/r/messages/change", "405 Method Not Allowed"),
            ] {
                let (found, page) = get_with(address, path, html).await;
                assert_eq!(found, status);
                assert!(page.contains("<main"), "{page}");
            }
            let (_, body) = get(address, "/other").await;
            assert!(body.starts_with('{'), "{body}");
        });
    }

    #[test]
    fn a_taken_port_is_named_with_its_key() {
        with_endpoint(&Health::new(), async |address| {
            let text = bind(address).unwrap_err().to_string();
            assert_eq!(
                text,
                format!(
                    "cannot listen on {address} (admin.listen): another process uses the port; stop it, or choose another address"
                )
            );
        });
    }
}
