# `make` lists the targets. What they install is in .venv and .venv-proto; `make clean` removes it again.

PYTHON ?= python3
ARGS ?=
# Many tests wait, so that two cores feed four workers; what ARGS names runs in one process, which starts sooner.
WORKERS ?= $(if $(ARGS),0,4)
# Tests that kill, flood or take long are those of `make test-faults`; what ARGS names runs whatever its marks are.
QUICK := $(if $(ARGS),,-m "not long and not fault and not slow")
VENV := .venv
KAFKA_VERSION ?= 4.1.0
# Of Spark's Kafka source, the first that Maven finds: that of Spark, else one that works with it.
KAFKA_SOURCE_VERSIONS ?= $(shell sed -n 's/^pyspark==//p' constraints.txt) 4.2.0
PROTO_VENV := .venv-proto
COMPOSE_FILE := docker/docker-compose.yml
COMPOSE = $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Hundreds of servers start in the tests: each would compile all our sources anew, a third of the time it takes to start.
unexport PYTHONDONTWRITEBYTECODE
# Spark starts its workers with the python3 on PATH otherwise, which does not have our packages.
export PYSPARK_PYTHON := $(CURDIR)/$(VENV)/bin/python

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup java etcd promtool chromium screenshots demo test test-faults test-long test-pythons mutants fuzz dist docs lint format proto proto-check lock sbom audit clean
.PHONY: bench bench-arrow bench-console bench-delays bench-exactly-once bench-faults bench-find bench-floods bench-kafka bench-pop bench-rebalances bench-replication bench-routes bench-spark bench-spark-kafka bench-transactions bench-work-queues compose-up compose-down compose-credentials compose-test

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-19s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.done java etcd promtool chromium ## Install everything: the virtual environment .venv; Java, etcd, promtool, Chromium, nginx if there are none

demo: setup ## Run the demonstration: a cluster on this machine, real data, a result
	$(VENV)/bin/python examples/flights_demo.py $(ARGS)

test: setup $(VENV)/spark.jsa $(VENV)/.collected ## Run the tests, about 8 minutes; one of them: make test ARGS="tests/unit -k batch"
	$(VENV)/bin/pytest -n $(WORKERS) --no-loadscope-reorder $(QUICK) $(ARGS)

test-faults: setup $(VENV)/spark.jsa $(VENV)/.collected ## Run the tests that kill, flood, browse or take long, about 25 minutes; repeats what fails once
	@scripts/ensure-faststream-tests.sh
	$(VENV)/bin/python scripts/test_faults.py $(ARGS)

test-long: setup $(VENV)/spark.jsa ## Run the long tests, and those with random rounds for many rounds; takes hours
	MINIMQ_TEST_ROUNDS=20 MINIMQ_TEST_SCHEDULES=100000 $(VENV)/bin/pytest -m "long or rounds" $(ARGS)

test-pythons: setup dist ## Test the wheel with each supported Python that is found; six minutes for each
	scripts/test-pythons.sh $(ARGS)

mutants: $(VENV)/.done ## Plant faults in copies of the broker, each of which the store machine must find; 10 minutes
	PYTHONPATH=tests $(VENV)/bin/python -m machine.mutants $(ARGS)

fuzz: setup ## Play hostile input at decoders and servers, for hours; a part: make fuzz ARGS="decoders --seed 7"
	PYTHONPATH=tests $(VENV)/bin/python -m fuzz $(ARGS)

bench: setup ## Measure throughput and latency on this machine
	$(VENV)/bin/python bench/run.py $(ARGS)

# proto-check comes last in the recipe, not as a prerequisite: its download is then the last wait.
lint: $(VENV)/.done ## Check style, types, imports, what may only fall, and the generated code; changes nothing
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/ruff check
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo --config importlinter.toml
	$(VENV)/bin/python scripts/ratchets.py
	$(MAKE) --no-print-directory proto-check

format: $(VENV)/.done ## Format the code and repair what can be repaired
	$(VENV)/bin/ruff check --fix-only
	$(VENV)/bin/ruff format

proto: $(PROTO_VENV)/.done ## Generate the code of the wire protocol from proto/minimq_proto/v1/*.proto
	scripts/generate-proto.sh

proto-check: $(PROTO_VENV)/.done ## Check that the generated code belongs to the .proto files
	scripts/generate-proto.sh --check

bench-arrow: setup ## Measure topics as Arrow tables; ARGS="--jars .venv/kafka" compares with Kafka, into Polars
	$(VENV)/bin/python bench/arrow.py $(ARGS)

bench-console: setup ## Measure the pages of the console with 1,000 topics, 200 groups and 10 brokers; two minutes
	$(VENV)/bin/python bench/console_pages.py $(ARGS)

bench-delays: setup ## Measure delayed messages: rates in and out, and how late they come
	$(VENV)/bin/python bench/delays.py $(ARGS)

bench-exactly-once: setup ## Kill what a Spark query runs on, 200 times, and compare what it wrote; three quarters of an hour
	$(VENV)/bin/python bench/spark_exactly_once.py $(ARGS)

bench-faults: setup ## Measure sends while a broker is killed or hangs; takes about three minutes
	$(VENV)/bin/python bench/send_faults.py $(ARGS)

bench-find: setup ## Measure searches by key and by id; ARGS="--messages 18000000" fills a whole hour, a tenth is the default
	$(VENV)/bin/python bench/find.py $(ARGS)

bench-floods: setup ## Flood a broker and a name server; measure their memory, and others meanwhile; eight minutes
	$(VENV)/bin/python bench/flood_table.py $(ARGS)

bench-pop: setup ## Kill workers of a work queue, their broker and its slave, and count lost messages, and those that two workers had at once
	$(VENV)/bin/python bench/pop_faults.py $(ARGS)

bench-work-queues: setup ## Measure taking and acknowledging; with ARGS=--peers also Redis Streams and RabbitMQ, if installed
	$(VENV)/bin/python bench/work_queues.py $(ARGS)

bench-transactions: setup ## Kill what a pipeline with transactions runs on, 500 times, and count messages that are lost or twice; half an hour
	$(VENV)/bin/python bench/transaction_faults.py $(ARGS)

bench-rebalances: setup ## Count what a group loses or reads twice while members come, leave, die and hang
	$(VENV)/bin/python bench/rebalances.py $(ARGS)

bench-replication: setup ## Kill replicas and cut them off (as root), time fail-overs, measure what a slave costs; half an hour
	$(VENV)/bin/python bench/replication_faults.py $(ARGS)

bench-routes: setup ## Measure a name server with 20,000 topics, on 4 and on 20 of 100 brokers each
	$(VENV)/bin/python bench/routes.py $(ARGS)

bench-spark: setup ## Measure what Spark reads and writes, in batches and as a stream; --check only sees that all runs
	$(VENV)/bin/python bench/spark_scan.py $(ARGS)
	$(VENV)/bin/python bench/spark_stream.py $(ARGS)
	$(VENV)/bin/python bench/spark_sink.py $(ARGS)

bench-kafka: setup $(VENV)/kafka/.done ## Compare with Kafka from Python, side by side; needs Maven once, for its jars
	$(VENV)/bin/python bench/beside_kafka.py --jars $(VENV)/kafka $(ARGS)

bench-spark-kafka: setup $(VENV)/kafka/.done ## Compare with Spark's Kafka source and sink, side by side; needs Maven once, for their jars
	$(VENV)/bin/python bench/spark_kafka.py --jars $(VENV)/kafka $(ARGS)

dist: $(VENV)/.done ## Build the sdist and the wheel, check them, and run the README with the wheel alone
	PYTHON=$(PYTHON) scripts/check-dist.sh

docs: $(VENV)/.done ## Write docs/configuration.md and the dashboards from the code, check all links, and build the site in site/
	$(VENV)/bin/python scripts/document_options.py
	$(VENV)/bin/python scripts/write_dashboards.py
	$(VENV)/bin/python scripts/check_links.py
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet
	@echo "open site/index.html"

screenshots: setup ## Write pictures of all pages of the console to build/screenshots; ARGS=--docs writes those of docs/images
	PYTHONPATH=tests $(VENV)/bin/python scripts/console_screenshots.py $(ARGS)

lock: ## Write constraints.txt and docker/requirements*.txt anew, with the newest versions that fit (use the oldest supported Python)
	PYTHON=$(PYTHON) scripts/lock.sh
	PYTHON=$(PYTHON) scripts/make-sbom.sh

sbom: ## Write docker/sbom.cdx.json, the packages of the image of the servers (CycloneDX)
	PYTHON=$(PYTHON) scripts/make-sbom.sh

audit: ## Look for known vulnerabilities in the packages of the images; needs the network
	PYTHON=$(PYTHON) scripts/audit.sh

compose-up: ## Start a cluster in containers
	$(COMPOSE) -f $(COMPOSE_FILE) up --build --detach

compose-down: ## Stop the containers; the data stays in their volumes
	$(COMPOSE) -f $(COMPOSE_FILE) down

compose-credentials: ## Print the credentials of the user admin of the cluster in containers
	@$(COMPOSE) -f $(COMPOSE_FILE) run --rm -T --no-deps --entrypoint cat client /etc/minimq/secrets/admin.minimq

compose-test: $(VENV)/.done ## Test a cluster in containers: kill masters, read with Spark, stop and start
	COMPOSE="$(COMPOSE)" docker/compose-test.sh

clean: ## Remove the virtual environments and what the tools leave behind
	rm -rf $(VENV) $(PROTO_VENV) .venv-pythons dist site spark-warehouse \
	  .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

java:
	@scripts/ensure-java.sh

etcd:
	@scripts/ensure-etcd.sh

promtool:
	@scripts/ensure-promtool.sh

chromium:
	@scripts/ensure-chromium.sh

# A stamp is written last: the next run installs again after an interruption or a change of what it depends on.
# The constraints go through the environment as well, so that they hold for the tools that build packages.
$(VENV)/.done: pyproject.toml constraints.txt
	@$(call make_venv,$(VENV))
	PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
	  $(VENV)/bin/python -m pip install --use-pep517 -c constraints.txt -e '.[spark,faststream,etcd,secure,otel,console,schemas,docs,dev,demo]'
	@touch $@

# Tests start a JVM many times.
$(VENV)/spark.jsa: scripts/archive-spark-classes.py $(VENV)/.done | java
	$(VENV)/bin/python scripts/archive-spark-classes.py $@ || touch $@

# Spark's Kafka source, and a broker for it. Only the comparison needs them, no test.
$(VENV)/kafka/.done: bench/kafka/pom.xml constraints.txt
	@command -v mvn >/dev/null || { echo "install Maven: on Debian, apt-get install maven" >&2; exit 1; }
	rm -rf $(@D)
	$(call copy_jars,server,-Dkafka.version=$(KAFKA_VERSION))
	for version in $(KAFKA_SOURCE_VERSIONS); do $(call copy_jars,source,-Dspark.version=$$version) && exit; done; exit 1
	@touch $@

# On a new machine each worker of a parallel run would compile all tests, with asserts rewritten, which is a third of a
# minute: two processes do it once. Later runs compile what has changed.
$(VENV)/.collected: $(VENV)/.done
	@printf '%s\n' tests/unit 'tests --ignore=tests/unit' \
	  | xargs -P 2 -L 1 $(VENV)/bin/pytest --collect-only -qq >/dev/null || true
	@touch $@

# The generator has an environment of its own: it must be older than the runtime.
$(PROTO_VENV)/.done: proto/requirements.txt
	@$(call make_venv,$(PROTO_VENV))
	$(PROTO_VENV)/bin/python -m pip install -r proto/requirements.txt
	@touch $@

# ensurepip is what Debian's python3 lacks as long as python3-venv is not installed.
define make_venv
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
  || { echo "minimq needs Python 3.11 or newer; name it, for example: make PYTHON=python3.12" >&2; exit 1; }; \
$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
  || { echo "$(PYTHON) cannot make virtual environments; on Debian: apt-get install python3-venv" >&2; exit 1; }; \
$(1)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(1)
endef

define copy_jars
mvn -q -B -f bench/kafka/pom.xml -P $(1) $(2) dependency:copy-dependencies -DincludeScope=runtime \
  -DoutputDirectory=$(CURDIR)/$(@D)/$(1)
endef
