//! Starts a real OpenTelemetry collector (built from `collector/`) that writes the spans it
//! receives to a file.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use super::process::{Process, Signal, folder, free_port};
use super::servers;

pub(crate) struct Collector {
    port: u16,
    folder: PathBuf,
    process: Process,
}

impl Collector {
    /// Starts the collector and waits until it listens.
    pub(crate) fn start() -> Collector {
        let (folder, port) = (folder("collector"), free_port());
        let config = format!(
            "receivers: {{ otlp: {{ protocols: {{ http: {{ endpoint: \"127.0.0.1:{port}\" }} }} }} }}\n\
             exporters: {{ file: {{ path: {}, flush_interval: 100ms }} }}\n\
             service: {{ pipelines: {{ traces: {{ receivers: [otlp], exporters: [file] }} }} }}\n",
            folder.join("spans.json").display()
        );
        std::fs::write(folder.join("config.yaml"), config).unwrap();
        let mut program = Command::new(servers().join("collector/bin/collector"));
        program.arg("--config").arg(folder.join("config.yaml"));
        let mut process = Process::start("collector", &folder, &mut program);
        process.until("the collector listens", || {
            std::net::TcpStream::connect(("127.0.0.1", port)).ok()
        });
        Collector {
            port,
            folder,
            process,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// All spans received so far. Each carries its resource's attributes under `resource`.
    pub(crate) fn spans(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.folder.join("spans.json")).unwrap_or_default();
        // The collector may still be writing the last line, so skip lines that do not parse.
        let documents = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let of_resource = |resource: Value| {
            let about = resource["resource"]["attributes"].clone();
            let scopes = resource["scopeSpans"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            let spans = scopes
                .into_iter()
                .flat_map(|scope| scope["spans"].as_array().cloned().unwrap_or_default());
            spans.map(move |mut span| {
                span["resource"] = about.clone();
                span
            })
        };
        documents
            .flat_map(|document| {
                document["resourceSpans"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default()
            })
            .flat_map(of_resource)
            .collect()
    }

    /// Stops the process: connections stay open and get no answer.
    pub(crate) fn pause(&self) {
        self.process.signal(Signal::STOP);
    }

    pub(crate) fn resume(&self) {
        self.process.signal(Signal::CONT);
    }
}
