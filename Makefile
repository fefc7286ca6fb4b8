# Every target works on a fresh checkout: what it needs is installed first, into .venv.
PYTHON ?= $(shell command -v python3 || command -v python3.11 || echo python3)
STAMP := .venv/.installed
# One more than the cores of a small machine: tests wait, too, for what they start or emulate.
PARALLEL := -n 3 --dist worksteal
gb = $(shell awk -F, '$$1 == "$(1)" { print $$2 }' results/reference/first_steps/installs.csv)
SUDO := $(shell test $$(id -u) = 0 || echo sudo)

# Each process would rewrite the asserts of all tests anew where bytecode is not kept.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo reproduce papers predictions test quick long tables scripts properties lint models people parity devices gpu attack \
  numbers lock \
  site browser axe chromium benchmark clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "Another Python (3.11 or newer): make PYTHON=/path/to/python3.12 test"

demo: $(STAMP) ## the shortest way in: a network learns by two methods, half a minute
	@.venv/bin/pipekit demo

reproduce: $(STAMP) ## train, reproduce PipeDream's tables and figures, report; see the last lines
	@.venv/bin/pipekit run experiments/quickstart.yaml experiments/pipedream.yaml --jobs 2; \
	  status=$$?; .venv/bin/pipekit report; exit $$status

papers: $(STAMP) ## the notebooks of all papers, and the report
	@.venv/bin/pipekit run experiments/quickstart.yaml experiments/pipedream.yaml experiments/gpipe.yaml \
	  experiments/torchgpipe.yaml experiments/pipedream_2bw.yaml experiments/megatron.yaml \
	  experiments/memory.yaml --jobs 2; \
	  status=$$?; .venv/bin/pipekit report; exit $$status

predictions: $(STAMP) ## compare what the simulator predicts with emulated and real runs
	.venv/bin/pipekit run experiments/prediction_accuracy.yaml

test: $(STAMP) ## check style and types, run the tests
	@$(MAKE) --no-print-directory --jobs=2 lint quick

quick: $(STAMP) ## run the tests only
	@.venv/bin/python -m compileall -q pipekit experiments # else each process compiles where none writes
	.venv/bin/python -m pytest $(PARALLEL)

long: $(STAMP) ## run the tests that take more than 5 s each (4 minutes)
	.venv/bin/python -m pytest -m long $(PARALLEL) $$(grep -rlE --include='test_*.py' 'mark\.long|sampled\(' tests)

tables: $(STAMP) ## judge every table: all methods and ops, and each order of torch's messages (5 minutes)
	.venv/bin/python -m pytest -m "whole or long or not long" $(PARALLEL) tests/schedules tests/simulation
	.venv/bin/python -m experiments.message_orders --output results/runs/messages

scripts: $(STAMP) ## run the tests of what is run by hand: attacks, benchmarks, the comparison of commits
	.venv/bin/python -m pytest -m scripts $(PARALLEL) tests/attacks tests/benchmarks tests/bits tests/gpu

properties: $(STAMP) ## run the tests of properties on 200 random cases each, in place of 20 (3 minutes)
	.venv/bin/python -m pytest -m hypothesis $(PARALLEL)

lint: $(STAMP) ## check style and types only
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

models: $(STAMP) ## record, cut and train some forty networks of torchvision, timm and transformers
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[models]'
	.venv/bin/python -m pytest tests/partition tests/models -m models $(PARALLEL)

people: $(STAMP) ## train what people bring beside the plain loop, Hugging Face's families too (minutes)
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[models]'
	.venv/bin/python -m pytest tests/people -m "models or long or not models" $(PARALLEL)

parity: $(STAMP) ## judge torch's and our own pipelining on every model, and every fault (minutes)
	.venv/bin/python -m pytest tests/parity -m "whole or long or not long" $(PARALLEL)
	.venv/bin/python -m tests.parity.matrix results/runs/parity

devices: $(STAMP) ## train every schedule with every feature on a simulated accelerator (4 minutes)
	.venv/bin/python -m pytest tests/device -m "devices or not devices" $(PARALLEL)

gpu: $(STAMP) ## the same on the GPUs here, and speed beside others
	.venv/bin/python -m experiments.gpu.check

attack: $(STAMP) ## misuse, kill and interrupt trainings: none may lose a bit (20 minutes)
	.venv/bin/python -m pytest -m "long or not long" $(PARALLEL) tests/attacks tests/people/test_processes.py \
	  tests/engine/runs/test_refused_runs.py tests/experiments/study/test_trainings.py
	.venv/bin/python -m pytest -m scripts tests/attacks --tries 50 # some 60 kills, 250 interrupts

numbers: $(STAMP) ## write the numbers of results/reference into README and notebooks
	.venv/bin/python -m pipekit.ledger.numbers

lock: $(STAMP) ## write requirements.lock, the versions and hashes of an installation on this machine
	.venv/bin/python -m experiments.lock

site: $(STAMP) ## build the site into build/site: guides, a page a method, notebooks, API, report
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[site]'
	.venv/bin/python docs/site/build.py

browser: $(STAMP) chromium axe ## open the notebooks in JupyterLab and Chromium, as a reader would
	.venv/bin/python -m pytest tests/browser -m browser -n 2 --dist loadfile --no-loadscope-reorder

axe: ## install axe-core, which judges pages for readers with a screen reader, by npm
	@npm install --silent --no-save --prefix build/axe axe-core || \
	  echo "npm has not brought axe-core: pages are not judged by it" >&2

chromium: ## install Debian's Chromium
	@if command -v chromium >/dev/null; then echo "chromium is there"; \
	elif ! command -v apt-get >/dev/null; then \
	  echo "there is no apt-get here: install Chromium as 'chromium' yourself" >&2; exit 1; \
	else \
	  $(SUDO) apt-get update -qq && \
	  $(SUDO) apt-get install -y -qq --no-install-recommends chromium >/dev/null; \
	fi

benchmark: $(STAMP) ## time the engine beside torch.distributed.pipelining and DDP
	.venv/bin/python -m experiments.benchmarks.engine

clean: ## remove .venv and caches (results stay)
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find pipekit tests experiments -name __pycache__ -type d -prune -exec rm -rf {} +

# Made last, so that an interrupted installation is taken up again.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "pipekit needs Python 3.11 or newer, and '$(PYTHON)' is" \
	    "$$($(PYTHON) --version 2>/dev/null || echo missing); name a newer one: make PYTHON=python3.12 ..." >&2; \
	  exit 1; }
	@echo "installing into .venv: $(call gb,make) GB with PyPI's torch, which brings CUDA along (measured)"
	@echo "without torch, $(call gb,pip install .) GB play, plan, simulate, draw and explain: pip install ."
	@test -x .venv/bin/pip || $(PYTHON) -m venv .venv # over one of another Python it makes a broken mixture
	@.venv/bin/python experiments/cpu_torch.py
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
