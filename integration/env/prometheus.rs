//! Starts a real Prometheus that scrapes one service every second, and queries it as Grafana does.

use std::process::Command;

use serde_json::Value;

use super::postdate::is_ready;
use super::process::{Process, folder, free_port};

pub(crate) struct Prometheus {
    port: u16,
    _process: Process,
}

impl Prometheus {
    /// Starts Prometheus and waits until it is ready. It scrapes this port with the label
    /// `namespace="shop"`.
    pub(crate) fn start(scraped: u16) -> Prometheus {
        let (folder, port) = (folder("prometheus"), free_port());
        let config = format!(
            "global: {{ scrape_interval: 1s }}\nscrape_configs:\n\
             - {{ job_name: postdate, static_configs: [{{ targets: [\"127.0.0.1:{scraped}\"], labels: {{ namespace: shop }} }}] }}\n"
        );
        std::fs::write(folder.join("prometheus.yml"), config).unwrap();
        let mut program = Command::new("prometheus");
        program
            .arg("--config.file")
            .arg(folder.join("prometheus.yml"))
            .arg("--storage.tsdb.path")
            .arg(folder.join("data"));
        program.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let mut process = Process::start("prometheus", &folder, &mut program);
        // The port opens earlier, but Prometheus refuses queries until it is ready.
        process.until("Prometheus is ready", || {
            is_ready(port, "/-/ready").then_some(())
        });
        Prometheus {
            port,
            _process: process,
        }
    }

    /// Calls the API and returns the answer's `data`. Panics unless the call succeeds.
    pub(crate) fn ask(&self, path: &str, parameter: &str) -> Value {
        let url = format!("http://127.0.0.1:{}/api/v1/{path}", self.port);
        let output = Command::new("curl")
            .args([
                "-sS",
                "--max-time",
                "60",
                "--get",
                "--data-urlencode",
                parameter,
                &url,
            ])
            .output()
            .unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        assert_eq!(
            answer["status"],
            "success",
            "{parameter}: {answer} {}",
            String::from_utf8_lossy(&output.stderr)
        );
        answer["data"].clone()
    }

    /// Evaluates a query at the current time.
    pub(crate) fn query(&self, query: &str) -> Vec<Value> {
        self.ask("query", &format!("query={query}"))["result"]
            .as_array()
            .cloned()
            .unwrap_or_default()
    }
}
