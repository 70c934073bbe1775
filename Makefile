# What a newcomer and CI type. Each target does its own set-up and may be repeated.
#   POSTDATE_SERVERS       where fetched servers and tools are kept, default .servers
#   KAFKA_PORT NATS_PORT REDIS_PORT
#                          for `make up`, default 9092, 4222 and 6379
#   FOR                    for `make demo`: how long, default 30s
#   COUNT                  for `make bench`: over how many messages, default 1000000
#   STAGES                 for `make bench`: only these of copy, ingress, drain, embedded, steady, burst, exact, fleet, idle, layout, asynq; and, left out unless
#                          they stand here, deep, which takes minutes and gigabytes of the disk, and nats, the same from stream to stream
#   WAITING                for `make bench STAGES=deep`: beside how many messages that wait, default 10000000
#   WORKLOAD               for `make bench`: a file that describes messages like yours; integration/bench/workload.toml is an example
#   RUNS                   for `make bench`: how often, default 1; of several, the median
#   DEPENDENCIES           for `make image-check`: once compiles the crates of others for the first build alone, in half the time
#   TEST                   for `make integration`: only the tests whose name contains it

SERVERS := $(or $(POSTDATE_SERVERS),.servers)
TESTS := --features test-support
.DEFAULT_GOAL := help
.PHONY: help demo build test integration lint sbom bench chaos kube image-check servers packages up down

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: packages ## the whole service in one process, live: nothing else is needed; FOR=2m lasts longer
	cargo run --release -- demo $(if $(FOR),--for $(FOR))

build: packages ## the service as it is shipped: target/release/postdate
	cargo build --release

# The integration tests come last, so that their summary is what is left on the screen.
test: servers ## everything, from a fresh clone: unit tests, style, doc-tests, then the promises on real servers
	cargo test $(TESTS) --lib --bins --test tidy
	cargo test $(TESTS) --doc
	@$(MAKE) --no-print-directory integration

# Two at a time: each may have a JVM of its own beside the shared one.
integration: servers ## only the tests on real servers; TEST=name chooses among them
	cargo test $(TESTS) --test integration -- --test-threads=2 $(TEST)

lint: packages $(SERVERS)/tools/bin/cargo-deny ## format, clippy, and what may be depended on
	cargo fmt --check
	cargo clippy --all-targets $(TESTS) -- -D warnings
	PATH="$(SERVERS)/tools/bin:$$PATH" cargo deny check bans licenses sources

# Unoptimised: it builds in half the time, and checks as fast.
$(SERVERS)/tools/bin/cargo-deny: | packages
	cargo install cargo-deny --version 0.20.2 --locked --debug --root $(SERVERS)/tools

# The same bytes for the same Cargo.lock: without a date and a number of its own.
sbom: $(SERVERS)/tools/bin/cargo-cyclonedx ## what the program is made of, as CycloneDX: postdate.cdx.json, which the image has in it
	PATH="$(SERVERS)/tools/bin:$$PATH" SOURCE_DATE_EPOCH=0 cargo cyclonedx --format json --spec-version 1.5

$(SERVERS)/tools/bin/cargo-cyclonedx: | packages
	cargo install cargo-cyclonedx --version 0.5.9 --locked --debug --root $(SERVERS)/tools

# The program as it is shipped, hence without the tests' feature.
bench: servers ## what the service does beside a plain copy and other ways to do it, in one run; RUNS=3 WORKLOAD=file.toml
	cargo bench --bench figures -- $(COUNT) $(STAGES) $(if $(WORKLOAD),workload=$(WORKLOAD)) $(if $(WAITING),waiting=$(WAITING)) $(if $(RUNS),runs=$(RUNS))

chaos: servers ## a fleet of real processes under load while all is killed, frozen and emptied; FOR=30m BROKER=nats BROKERS=3 MODE=exactly-once
	cargo bench --bench chaos -- $(if $(FOR),for=$(FOR)) $(if $(BROKER),broker=$(BROKER)) $(if $(BROKERS),brokers=$(BROKERS)) $(if $(MODE),mode=$(MODE)) $(if $(SEED),seed=$(SEED)) $(if $(REPORT),report=$(REPORT))

kube: servers ## the Helm chart on a real Kubernetes control plane, which is built first: ten minutes or more, once
	@integration/deploy/tools.sh cluster
	cargo test --test kube -- --test-threads=2 --skip env::

# Not part of `make test`: it builds the program twice as it is shipped.
image-check: servers sbom ## the image as it is shipped: two builds give the same bytes, its size, and messages delivered by it, confined: ten minutes or more
	@deploy/image/check.sh

up: servers ## a Kafka, a NATS server and a Redis on this machine, to try the service with
	@integration/env/local.sh up

down: ## ends them, keeps their data
	@integration/env/local.sh down

servers: ## fetches what the tests need: Debian's packages, Kafka through Maven, NATS, Helm and a collector through Go
	@integration/env/servers.sh

packages:
	@integration/env/servers.sh packages
