# Targets for newcomers and CI. Each prepares what it needs and may be repeated. Variables:
#   POSTDATE_SERVERS       folder of downloaded servers and tools, default .servers
#   KAFKA_PORT NATS_PORT REDIS_PORT SENTINEL_PORT
#                          ports of `make up`, default 9092, 4222, 6379 and 26379
#   REDIS                  for `make up` and `make chaos`: sentinel starts a group of two Redis servers and three sentinels, and cluster a
#                          Redis Cluster of three primaries and three replicas
#   FOR                    duration of `make demo` (default 30s), `make chaos` (default 60s), and of each target of `make fuzz` (default 1m)
#   COUNT                  messages per stage of `make bench`, default 1000000
#   STAGES                 stages of `make bench`: copy, ingress, drain, through, encrypted, embedded, steady, burst, answers, exact, fleet, idle, many, routes, flood, layout, asynq, redisson, bullmq.
#                          Only on request: deep (minutes, and gigabytes of disk) and nats (from stream to stream)
#   WAITING                waiting messages of `make bench STAGES=deep`, default 10000000
#   WORKLOAD               file that describes your messages for `make bench`; example: integration/bench/workload.toml
#   RUNS                   runs of `make bench`, default 1; with several, medians are printed
#   BROKER BROKERS MODE FAULTS RATE FAILOVERS SEED REPORT
#                          for `make chaos`: kafka or nats; 1 or 3 brokers, default 3; at-least-once or exactly-once; the part that all
#                          faults hit (timers, ingresses, redis, broker or none); messages per second; failovers of Redis, instead of FOR,
#                          with REDIS=sentinel or REDIS=cluster; seed; report file
#   DEPENDENCIES           `once`: `make image-check` compiles third-party crates for the first build only
#   PROFILE                Cargo profile of the program for `make dist`, default release
#   MACHINE                for `make dist`: x86_64 or aarch64, default this machine. The program of another machine is cross-compiled, and runs
#                          under QEMU
#   TEST                   part of a test name, for `make integration`
#   OPENSSL_NO_VENDOR      1 links the OpenSSL of the system, 0 compiles a copy. Default of the demo and the tests: 1 if pkg-config finds one

SERVERS := $(or $(POSTDATE_SERVERS),.servers)
PROFILE := release
MACHINE := $(shell uname -m)
CARGO_FOR_MACHINE := cargo
BUILT = target/$(PROFILE:dev=debug)/postdate
TESTS := --features test-support
# Compiles Postdate itself without optimisation, in a fifth of the time. Servers and delays take longer than its code. `make test-all` optimises the
# simulation, which then runs three times as fast.
PLAIN := --config profile.dev.package.postdate.opt-level=0
INTEGRATION := cargo test $(TESTS) $(PLAIN) --test integration
# Tests mostly wait for due times and for servers, so each of two cores runs two of them.
AT_ONCE := --test-threads=4
# Compiles for another machine. The build of librdkafka reads CC and CXX, and build scripts are compiled for this machine.
ifneq ($(MACHINE),$(shell uname -m))
CARGO_FOR_MACHINE := env HOST_CC=cc HOST_CXX=c++ CC=$(MACHINE)-linux-gnu-gcc CXX=$(MACHINE)-linux-gnu-g++ \
	CARGO_TARGET_$(shell echo $(MACHINE) | tr a-z A-Z)_UNKNOWN_LINUX_GNU_LINKER=$(MACHINE)-linux-gnu-gcc cargo
TARGET := --target $(MACHINE)-unknown-linux-gnu
BUILT = target/$(MACHINE)-unknown-linux-gnu/$(PROFILE:dev=debug)/postdate
endif
# A copy of OpenSSL takes minutes to compile.
ifneq ($(shell pkg-config --exists 'openssl >= 3' 2>/dev/null && echo yes),)
demo test test-all integration lint: export OPENSSL_NO_VENDOR ?= 1
endif
# Names that `make test` leaves to `make test-all`. They test deployment files, clients of other languages, the console in a browser, traces, and the
# test servers themselves, and their tools take minutes to build.
WITH_TOOLS := clients:: console:: deploy:: env:: secrets:: traces::
# They take most of a minute each, and shorter tests or the simulation cover the same promises.
LONG := coordinator:: exactly_once::a_clean_shutdown exactly_once::a_killed_broker exactly_once::a_process_stops exactly_once::a_transaction_that_stays_open \
	encryption::encryption_is_turned_on encryption::keys_are_rotated installations:: levels:: login::kafka \
	memory::a_burst memory::bursts memory::messages_of_twenty nats_login::a_cluster redis_cluster::slots_move store_copy::encrypted_messages store_copy::messages_of_an upgrade::a_fleet upgrade::exactly_once
# The first four test the tests: the simulation and the contract suites must catch each injected fault. The others are long without optimisation.
SLOW := every_fault every_injected_fault every_broken_rule opening_a_producer_without compaction_levels:: compactor_stopped:: \
	a_cancel_holds_before_during encryption_is_turned_on_while random_calls_have
# Runs a suite: name, budget in seconds on two cores, command.
SUITE := @integration/env/suite.sh
.DEFAULT_GOAL := help
.PHONY: help demo build test test-all nightly fuzz integration lint docs sbom dist dist-check bench chaos kube image-check servers servers-core packages up down

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Not the release build, which takes ten minutes.
demo: packages ## show the whole service in one process, without any server; FOR=2m runs longer
	cargo run $(PLAIN) -- demo $(if $(FOR),--for $(FOR))

build: packages ## build the release binary: target/release/postdate
	cargo build --release

test: servers-core ## run unit tests, simulation and style, then every promise on real servers
test-all: servers ## run `make test` with all its seeds, injected faults, charts, dashboards, clients and traces
test: SEEDS := POSTDATE_SEEDS=0.05 PROPTEST_CASES=64
test: LIB := $(PLAIN)
test: UNIT := $(SLOW:%=--skip %)
test: REAL := $(WITH_TOOLS:%=--skip %) $(LONG:%=--skip %)
test: BUDGETS := 240 480
# Without the clients of other languages and the browser, there is room for more.
test: AT_ONCE := --test-threads=6
test-all: BUDGETS := 400 900
# A first build without incremental files takes a third less.
test test-all: export CARGO_INCREMENTAL := 0
# The integration tests run last, so that their summary is the last output.
test test-all:
	$(SUITE) build 300 cargo test $(TESTS) $(LIB) --lib --no-run
	$(SUITE) build-integration 90 cargo test $(TESTS) $(PLAIN) --test tidy --test integration --no-run
	$(SUITE) style 15 cargo test $(TESTS) $(PLAIN) --test tidy
	$(SUITE) unit $(word 1,$(BUDGETS)) env $(SEEDS) cargo test $(TESTS) $(LIB) --lib -- $(UNIT)
	$(SUITE) integration $(word 2,$(BUDGETS)) $(INTEGRATION) -- $(AT_ONCE) $(REAL)

# The simulation with a million seeds, storms of faults, a control plane, and the release artefacts.
nightly: servers ## run what takes hours: long simulation, fuzzing, chaos, Kubernetes, image, packages
	$(SUITE) simulation 36000 env POSTDATE_SEEDS=200 cargo test $(TESTS) --lib testing::sim::scenarios
	$(SUITE) cron 3600 env POSTDATE_SEEDS=200 cargo test $(TESTS) --lib cron_oracle -- --ignored
	$(SUITE) fuzz 43200 $(MAKE) --no-print-directory fuzz FOR=1h
	$(SUITE) chaos-quiet 300 $(MAKE) --no-print-directory chaos FOR=2m FAULTS=none
	$(SUITE) chaos-kafka 2700 $(MAKE) --no-print-directory chaos FOR=30m
	$(SUITE) chaos-exactly-once 2700 $(MAKE) --no-print-directory chaos FOR=30m MODE=exactly-once
	$(SUITE) chaos-nats 2700 $(MAKE) --no-print-directory chaos FOR=30m BROKER=nats
	$(SUITE) failovers 3600 $(MAKE) --no-print-directory chaos REDIS=sentinel FAULTS=redis BROKERS=1 RATE=1000 FAILOVERS=50
	$(SUITE) failovers-exactly-once 3600 $(MAKE) --no-print-directory chaos REDIS=sentinel FAULTS=redis BROKERS=1 RATE=1000 FAILOVERS=50 MODE=exactly-once
	$(SUITE) failovers-cluster 3600 $(MAKE) --no-print-directory chaos REDIS=cluster FAULTS=redis BROKERS=1 RATE=1000 FAILOVERS=50
	$(SUITE) failovers-cluster-exactly-once 3600 $(MAKE) --no-print-directory chaos REDIS=cluster FAULTS=redis BROKERS=1 RATE=1000 FAILOVERS=50 MODE=exactly-once
	$(SUITE) redis-versions 1800 integration/env/redis_versions.sh
	$(SUITE) packages 1200 $(MAKE) --no-print-directory dist-check
	$(SUITE) image 1800 $(MAKE) --no-print-directory image-check
	$(SUITE) kubernetes 1800 $(MAKE) --no-print-directory kube

# One target after the other, each for FOR (default 1m), in at most 4 GiB of memory.
fuzz: FOR := 1m
fuzz: packages ## feed mutated bytes to everything that parses them; FOR=10m for each target
	cargo test $(TESTS) --lib --no-run
	ulimit -v 4194304 && POSTDATE_FUZZ_FOR=$(FOR) cargo test $(TESTS) --lib fuzz_ -- --test-threads=1

integration: servers ## run only the tests on real servers; TEST=name selects some
	$(INTEGRATION) -- $(AT_ONCE) $(TEST)

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

# PROFILE=dev packs the program of the tests' profile, which needs no release build.
dist: sbom $(SERVERS)/tools/bin/cargo-about ## build tarball, Debian package and checksums: target/dist
	@integration/env/servers.sh dist $(MACHINE)
	rm -rf target/dist && mkdir -p target/dist/man
	$(CARGO_FOR_MACHINE) build --locked --bin postdate --profile $(PROFILE) $(PLAIN) $(TARGET)
	cargo run --quiet $(TESTS) $(PLAIN) --example man -- target/dist/man
	PATH="$(SERVERS)/tools/bin:$$PATH" deploy/dist/licenses.sh target/dist/third-party-licenses.txt
	deploy/dist/build.sh $(BUILT) target/dist $(MACHINE)

# A release build, because it compares every file of every crate with the texts of all licences. Its link-time optimisation takes minutes.
$(SERVERS)/tools/bin/cargo-about: | packages
	CARGO_PROFILE_RELEASE_LTO=off cargo install cargo-about --version 0.9.3 --locked --features cli --root $(SERVERS)/tools

dist-check: dist servers ## install these packages into empty folders, and deliver messages with them
	@deploy/dist/check.sh target/dist $(MACHINE)

# Uses the release build, without test features.
bench: servers ## measure the service beside a plain copy and rivals, in one run; RUNS=3 WORKLOAD=file.toml
	cargo bench --bench figures -- $(COUNT) $(STAGES) $(if $(WORKLOAD),workload=$(WORKLOAD)) $(if $(WAITING),waiting=$(WAITING)) $(if $(RUNS),runs=$(RUNS))

chaos: servers ## run a fleet under load while processes and servers are killed; FOR=30m BROKER=nats BROKERS=1 MODE=exactly-once
	cargo bench --bench chaos -- $(if $(FOR),for=$(FOR)) $(if $(BROKER),broker=$(BROKER)) $(if $(BROKERS),brokers=$(BROKERS)) $(if $(MODE),mode=$(MODE)) $(if $(FAULTS),faults=$(FAULTS)) $(if $(REDIS),redis=$(REDIS)) $(if $(FAILOVERS),failovers=$(FAILOVERS)) $(if $(RATE),rate=$(RATE)) $(if $(SEED),seed=$(SEED)) $(if $(REPORT),report=$(REPORT))

kube: servers ## test the Helm chart on a real Kubernetes control plane; the first build takes ten minutes or more
	@integration/deploy/tools.sh cluster
	cargo test --test kube -- --test-threads=2 --skip env::

# Not part of `make test`, because it builds the release binary twice.
image-check: servers sbom ## build the image twice, compare the bytes, and deliver messages with it; ten minutes or more
	@deploy/image/check.sh

up: servers-core ## start a Kafka, a NATS server and a Redis on this machine; REDIS=sentinel or REDIS=cluster starts several
	@integration/env/local.sh up

down: ## stop them and keep their data
	@integration/env/local.sh down

servers: ## install what the tests need: Debian packages with Chromium, Kafka (Maven), client libraries, NATS, Helm and a trace collector (Go)
	@integration/env/servers.sh

servers-core:
	@integration/env/servers.sh core

packages:
	@integration/env/servers.sh packages
