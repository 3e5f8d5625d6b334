# Everything one does with this repository. `make help` lists the targets.
.DEFAULT_GOAL := help
.PHONY: help serve chat test test-quick test-changed test-clients test-deep coverage lint types walls unit programs chaos fuzz bench bench-peers bench-real router-model cache-model adapters demo-model docs diagrams layouts screens constraints clean

PORT ?= 8080
BIN := .venv/bin
# Four processes for two cores: much of what tests do is waiting. tests/conftest.py says which runs what.
PYTEST_ARGS ?= -n 4 --no-loadscope-reorder
# Decisions without I/O, and rules about the tree.
QUICK := tests/router tests/scale tests/load tests/cache/semantic tests/engine/scheduling tests/engine/cache \
    tests/gateway/protocol tests/gateway/recognisers tests/gateway/scaling $(wildcard tests/test_*.py)
# Some images forbid compiled files, for which each of a hundred processes that tests start would pay again.
unexport PYTHONDONTWRITEBYTECODE

help: ## list the targets
	@printf 'Roundhouse\n\n'
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-14s %s\n", $$1, $$2}'
	@printf '\n  make serve PORT=9000 MODELS=small   listens on another port, and fetches one model instead of three\n'

serve: ## install what is needed, fetch models, start everything, print one URL
	@deploy/environment.sh
	@exec $(BIN)/roundhouse serve --port $(PORT) $(if $(MODELS),--models $(MODELS))

chat: ## chat in the terminal with a server started by `make serve`
	@deploy/environment.sh
	@exec $(BIN)/roundhouse chat --url http://127.0.0.1:$(PORT)

test: ## set up and run everything that must be green: lint, walls, tests, types among them
	@deploy/environment.sh dev
	@deploy/programs.sh
	@$(MAKE) --no-print-directory lint walls unit

test-quick: ## for every commit: lint, walls, types, and the tests of decisions (a minute)
	@deploy/environment.sh dev
	@$(MAKE) --no-print-directory lint walls
	@$(BIN)/pytest $(PYTEST_ARGS) $(QUICK)

test-changed: ## the tests of all that imports what has changed since BASE (the last commit)
	@deploy/environment.sh dev
	@$(BIN)/python -m tests.changed $(if $(BASE),--base $(BASE)) --run $(PYTEST_ARGS)

lint: ## style: ruff's rules and format
	@echo '== lint'
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .

types: ## strict type check
	@echo '== types'
	@$(BIN)/mypy

walls: ## which room may import which (docs/architecture.md)
	@echo '== walls'
	@$(BIN)/lint-imports --no-cache

programs: ## what tests need beside the environment: gets Debian's packages where it may
	@deploy/programs.sh

test-clients: ## install all clients of tests/clients, run them, write docs/clients.md (minutes)
	@deploy/environment.sh dev
	@$(BIN)/python -m tests.clients --write $(CLIENTS_ARGS)

test-deep: ## everything `make test` leaves out, and all random searches with a fresh seed (an hour)
	@deploy/environment.sh dev
	@seed=$${SEED:-$$(date +%s)}; echo "seed: $$seed (again with: make test-deep SEED=$$seed)"; \
	HYPOTHESIS_PROFILE=deep $(BIN)/pytest $(PYTEST_ARGS) -m 'deep or not deep' --hypothesis-seed=$$seed

coverage: ## run the tests, and show the parts that they reach for less than 90 %
	@deploy/environment.sh dev
	@$(BIN)/pytest $(PYTEST_ARGS) --cov --cov-report=term:skip-covered --cov-report=html

unit: ## all tests, the slowest ten at the end
	@echo '== tests'
	@$(BIN)/pytest $(PYTEST_ARGS)

fuzz: ## feed everything that reads strangers' bytes with more of them, a minute each
	@deploy/environment.sh dev
	@for target in bodies calls checkpoints frames session; do $(BIN)/python -m tests.fuzz.decoders $$target -max_total_time=60 || exit 1; done
	FUZZ_SEED=$$(date +%s) FUZZ_EXAMPLES=2000 $(BIN)/pytest -s tests/gateway/ws/test_socket_fuzz.py

chaos: ## break a running installation at random (set SEED, FAULTS, MINUTES, CLIENTS, TURNS)
	@deploy/environment.sh dev
	@$(BIN)/python -m tests.chaos $(if $(SEED),--seed $(SEED)) $(if $(FAULTS),--faults $(FAULTS)) \
	    $(if $(MINUTES),--minutes $(MINUTES)) $(if $(CLIENTS),--clients $(CLIENTS)) $(if $(TURNS),--turns $(TURNS)) $(CHAOS_ARGS)

bench: ## measure the engine beside the peers that are set up (results in bench/results/)
	@deploy/environment.sh dev
	$(BIN)/python -m bench.engine $(BENCH_ARGS)

bench-peers: ## set up the peers first (gigabytes, outside the repository), then measure (hours)
	@deploy/environment.sh dev
	nice $(BIN)/python -m bench.peers
	$(BIN)/python -m bench.engine $(BENCH_ARGS)

bench-real: ## measure our engine beside llama.cpp and OpenVINO on real models, with their exactness (hours)
	@deploy/environment.sh dev
	for model in smollm2-135m qwen2.5-coder-0.5b qwen2.5-coder-1.5b; do $(BIN)/roundhouse models pull $$model || exit 1; done
	nice $(BIN)/python -m bench.peers llama.cpp openvino
	$(BIN)/python -m bench.quality
	$(BIN)/python -m bench.real $(BENCH_ARGS)

router-model: ## learn the router's model file again from questions with known outcomes (minutes)
	@deploy/environment.sh dev
	$(BIN)/python -m bench.router_model

cache-model: ## learn the semantic cache's model file again from labelled question pairs (minutes)
	@deploy/environment.sh dev
	$(BIN)/python -m bench.semantic_model

adapters: ## train the adapters of the small real model again, and grade them (an hour; resumable)
	@deploy/environment.sh train
	$(BIN)/roundhouse models pull smollm2-135m
	$(BIN)/python -m deploy.adapters.train
	$(BIN)/python -m deploy.adapters.evaluate

demo-model: ## train the model that stands in without a network, and its adapters, again; grade them (half an hour)
	@deploy/environment.sh train
	$(BIN)/python -m deploy.demo.train
	$(BIN)/python -m deploy.demo.evaluate

docs: ## write the generated pages of docs/ anew
	@deploy/environment.sh dev
	$(BIN)/python -m gateway.reference docs
	$(BIN)/python -m tests.engine.grammar.suite
	$(BIN)/python -m tests.engine.composition_page > docs/composition.md
	$(BIN)/python -m tests.gateway.upstreams.conformance_page > docs/upstreams-conformance.md

diagrams: $(patsubst %.dot,%.svg,$(wildcard docs/diagrams/*.dot)) ## draw the pictures of docs/ anew (needs graphviz)

layouts: ## record anew where the pages' regions are, for tests (needs Chromium)
	@deploy/environment.sh dev
	ROUNDHOUSE_RECORD_LAYOUTS=1 $(BIN)/pytest -q -n 0 tests/e2e/test_page_recorded.py tests/gateway/admin/console/test_recorded.py

screens: ## take the pictures of the pages in docs/ anew (needs Chromium; fetches the catalogue's models)
	@deploy/environment.sh dev
	$(BIN)/python -m tests.e2e.screens
	$(BIN)/python -m tests.e2e.screens_models
	$(BIN)/python -m tests.e2e.screens_upstreams

docs/diagrams/%.svg: docs/diagrams/%.dot
	@command -v dot > /dev/null || { echo 'dot is missing; install it: apt install graphviz'; exit 1; }
	dot -Tsvg -Gid=$$(sha256sum $< | cut -c1-16) $< > $@

constraints: ## pin the versions that are installed now
	@deploy/environment.sh dev
	@$(BIN)/python -m pip freeze --exclude-editable | sed 's/ @ .*//; s/+cpu$$//' > constraints.txt

clean: ## remove the virtual environment, caches and run-time files
	rm -rf .venv .data build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
