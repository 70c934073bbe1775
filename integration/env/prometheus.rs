//! A real Prometheus that scrapes one service every second, and is asked as Grafana asks it.

use std::process::Command;

use serde_json::Value;

use super::postdate::is_ready;
use super::process::{Process, folder, free_port};

pub(crate) struct Prometheus {
    port: u16,
    _process: Process,
}

impl Prometheus {
    /// Scrapes what answers on this port, as a pod of the namespace `shop`. It answers itself when this returns.
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
        // It listens before that, and refuses to answer.
        process.until("Prometheus is ready", || {
            is_ready(port, "/-/ready").then_some(())
        });
        Prometheus {
            port,
            _process: process,
        }
    }

    /// The `data` of an answer, which has to be one.
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

    /// What a query finds now.
    pub(crate) fn query(&self, query: &str) -> Vec<Value> {
        self.ask("query", &format!("query={query}"))["result"]
            .as_array()
            .cloned()
            .unwrap_or_default()
    }
}
