# Targets for newcomers and CI. Each prepares what it needs and may be repeated. Variables:
#   POSTDATE_SERVERS       folder of downloaded servers and tools, default .servers
#   KAFKA_PORT NATS_PORT REDIS_PORT
#                          ports of `make up`, default 9092, 4222 and 6379
#   FOR                    duration of `make demo` (default 30s) and `make chaos` (default 60s)
#   COUNT                  messages per stage of `make bench`, default 1000000
#   STAGES                 stages of `make bench`: copy, ingress, drain, embedded, steady, burst, exact, fleet, idle, layout, asynq.
#                          Only on request: deep (minutes, and gigabytes of disk) and nats (from stream to stream)
#   WAITING                waiting messages of `make bench STAGES=deep`, default 10000000
#   WORKLOAD               file that describes your messages for `make bench`; example: integration/bench/workload.toml
#   RUNS                   runs of `make bench`, default 1; with several, medians are printed
#   BROKER BROKERS MODE FAULTS SEED REPORT
#                          for `make chaos`: kafka or nats; 1 or 3 Kafka brokers; at-least-once or exactly-once; the part that all
#                          faults hit (timers, ingresses, redis or broker); seed; report file
#   DEPENDENCIES           `once`: `make image-check` compiles third-party crates for the first build only
#   TEST                   part of a test name, for `make integration`

SERVERS := $(or $(POSTDATE_SERVERS),.servers)
TESTS := --features test-support
.DEFAULT_GOAL := help
.PHONY: help demo build test integration lint docs sbom bench chaos kube image-check servers packages up down

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: packages ## show the whole service in one process, without any server; FOR=2m runs longer
	cargo run --release -- demo $(if $(FOR),--for $(FOR))

build: packages ## build the release binary: target/release/postdate
	cargo build --release

# The integration tests run last, so that their summary is the last output.
test: servers ## run all tests: unit tests, simulation, style, doc-tests, then every promise on real servers
	cargo test $(TESTS) --lib --bins --test tidy
	cargo test $(TESTS) --doc
	@$(MAKE) --no-print-directory integration

# Two at a time, because each test may start a JVM of its own.
integration: servers ## run only the tests on real servers; TEST=name selects some
	cargo test $(TESTS) --test integration -- --test-threads=2 $(TEST)

lint: packages $(SERVERS)/tools/bin/cargo-deny ## check format, clippy and dependencies
	cargo fmt --check
	cargo clippy --all-targets $(TESTS) -- -D warnings
	PATH="$(SERVERS)/tools/bin:$$PATH" cargo deny check bans licenses sources

# A debug build takes half the time and checks as fast.
$(SERVERS)/tools/bin/cargo-deny: | packages
	cargo install cargo-deny --version 0.20.2 --locked --debug --root $(SERVERS)/tools

docs: $(SERVERS)/tools/bin/mdbook ## build the documentation as a site: target/book/index.html
	$(SERVERS)/tools/bin/mdbook build docs

# Without its web server. A debug build takes two minutes.
$(SERVERS)/tools/bin/mdbook: | packages
	cargo install mdbook --version 0.5.4 --locked --debug --no-default-features --features search --root $(SERVERS)/tools

# Without date and serial number, so that the same Cargo.lock gives the same bytes.
sbom: $(SERVERS)/tools/bin/cargo-cyclonedx ## write the bill of materials (CycloneDX): postdate.cdx.json
	PATH="$(SERVERS)/tools/bin:$$PATH" SOURCE_DATE_EPOCH=0 cargo cyclonedx --format json --spec-version 1.5

$(SERVERS)/tools/bin/cargo-cyclonedx: | packages
	cargo install cargo-cyclonedx --version 0.5.9 --locked --debug --root $(SERVERS)/tools

# Uses the release build, without test features.
bench: servers ## measure the service beside a plain copy and rivals, in one run; RUNS=3 WORKLOAD=file.toml
	cargo bench --bench figures -- $(COUNT) $(STAGES) $(if $(WORKLOAD),workload=$(WORKLOAD)) $(if $(WAITING),waiting=$(WAITING)) $(if $(RUNS),runs=$(RUNS))

chaos: servers ## run a fleet under load while processes and servers are killed; FOR=30m BROKER=nats BROKERS=3 MODE=exactly-once
	cargo bench --bench chaos -- $(if $(FOR),for=$(FOR)) $(if $(BROKER),broker=$(BROKER)) $(if $(BROKERS),brokers=$(BROKERS)) $(if $(MODE),mode=$(MODE)) $(if $(FAULTS),faults=$(FAULTS)) $(if $(SEED),seed=$(SEED)) $(if $(REPORT),report=$(REPORT))

kube: servers ## test the Helm chart on a real Kubernetes control plane; the first build takes ten minutes or more
	@integration/deploy/tools.sh cluster
	cargo test --test kube -- --test-threads=2 --skip env::

# Not part of `make test`, because it builds the release binary twice.
image-check: servers sbom ## build the image twice, compare the bytes, and deliver messages with it; ten minutes or more
	@deploy/image/check.sh

up: servers ## start a Kafka, a NATS server and a Redis on this machine
	@integration/env/local.sh up

down: ## stop them and keep their data
	@integration/env/local.sh down

servers: ## install what the tests need: Debian packages, Kafka (Maven), client libraries, NATS, Helm and a trace collector (Go)
	@integration/env/servers.sh

packages:
	@integration/env/servers.sh packages
