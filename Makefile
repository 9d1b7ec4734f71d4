# make demo     make .venv, install, migrate a synthetic survey on two ranks, say where the pictures are
# make test     make .venv, install, run linters and all tests on 1, 2, 3 and 4 ranks; those on one rank beside the linters
# make docs     make .venv, install, build the documentation: docs/_build/html/index.html
# make test-jax-oldest    all tests of JAX with its oldest supported version, not only those of its primitives
# make fuzz     ten thousand calls with wrong arguments, and damaged files, on two ranks
# make wheels   source distributions and wheels of everything that is published, in dist/; needs pip only, no compiler
# make check-wheels     install what `make wheels` has built into an empty environment, and try it
# make examples thousands of random graphs for the star forests, and random programs of JAX, on 1, 2, 3 and 4 ranks
# make recipes  packaging/recipes with the hashes of what `make wheels` has built, in dist/recipes
# make audit    search the code for insecure patterns, and the versions in packaging/test.lock for known vulnerabilities
# make sbom     the bill of materials of packaging/test.lock: dist/sbom.cdx.json
# make workflows  run the shell steps of .github/workflows here, each job in a clean clone; JOB=docs: only this one
# make lock     all versions and hashes that the tests install, newest and oldest: packaging/test.lock, packaging/oldest.lock
# make lint     the linters alone      make format   let them rewrite      make clean   remove what was made
#
# PYTHON=python3.12    the interpreter to make .venv with
# MPI=system           this machine's or cluster's mpiexec and MPI library instead of those of the mpich wheel
# MPIEXEC="srun"       another launcher, with its options; it is given -n N
# RANKS="1 2"          the numbers of ranks to test on
# LOCKED=test          install what packaging/test.lock lists, by hash; LOCKED=oldest VENV=.venv-oldest: the oldest versions

PYTHON ?= python3
MPI ?= mpich
RANKS ?= 1 2 3 4
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Python compiles a module when it is first imported; of all that is installed, most never is.
INSTALL := $(PIP) install --quiet --no-compile
unexport PYTHONDONTWRITEBYTECODE

ifeq ($(MPI),system)
# The command line and the tests that start ranks themselves must take the same launcher.
MPIEXEC ?= mpiexec
MPI_PACKAGES := "mpi4py>=4.1"
export COLLOPS_MPIEXEC ?= $(MPIEXEC)
else
MPIEXEC ?= $(BIN)/mpiexec
EXTRA_MPI := mpi,
endif

ifdef LOCKED
ifeq ($(MPI),system)
$(error LOCKED installs the mpich wheel: omit MPI=system)
endif
LOCK := packaging/$(LOCKED).lock
endif

DEMO := $(VENV)/.installed-for-demo-with-$(MPI)
TEST := $(VENV)/.installed-for-test-with-$(MPI)$(addprefix -locked-,$(LOCKED))
DOCS := $(VENV)/.installed-for-docs-with-$(MPI)
OLDEST := $(VENV)/oldest-jax/.installed
WHEEL_TOOLS := $(VENV)/wheel-tools/.installed
RELEASE_TOOLS := $(VENV)/release-tools/.installed
WITH_OLDEST := PYTHONPATH=$(abspath $(dir $(OLDEST)))

.PHONY: demo docs wheels check-wheels recipes audit sbom lock workflows test test-one-rank test-jax-oldest fuzz examples lint format clean

demo: $(DEMO)
	$(BIN)/collops lsm --ranks 2 --out lsm-result --overwrite
	@echo "The pictures are in $(CURDIR)/lsm-result: image.png and convergence.png"

docs: $(DOCS)
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet docs docs/_build/html
	$(BIN)/python docs/check_site.py docs/_build/html
	@echo "The documentation is in $(CURDIR)/docs/_build/html/index.html"

wheels: $(WHEEL_TOOLS)
	@rm -rf dist
	PYTHONPATH=$(abspath $(dir $(WHEEL_TOOLS))jaxlib) $(dir $(WHEEL_TOOLS))bin/python packaging/wheels.py dist

check-wheels: $(WHEEL_TOOLS)
	PYTHONPATH=$(abspath $(dir $(WHEEL_TOOLS))jaxlib) $(dir $(WHEEL_TOOLS))bin/python packaging/check.py dist
	PYTHONPATH=$(abspath $(dir $(WHEEL_TOOLS))jaxlib) $(dir $(WHEEL_TOOLS))bin/python packaging/check.py --jax 0.7.0 dist

recipes:
	$(PYTHON) packaging/recipes.py dist

workflows: $(RELEASE_TOOLS)
	$(dir $<)bin/python packaging/workflows.py $(addprefix --job ,$(JOB))

audit: $(RELEASE_TOOLS)
	$(dir $<)bin/bandit --quiet --configfile pyproject.toml --recursive src native benchmarks packaging
	$(dir $<)bin/pip-audit --strict --disable-pip --require-hashes --requirement packaging/test.lock

sbom: $(RELEASE_TOOLS)
	@mkdir -p dist
	$(dir $<)bin/cyclonedx-py requirements --pyproject pyproject.toml --mc-type library --output-reproducible \
	  --output-file dist/sbom.cdx.json packaging/test.lock

# --emit-package would list the three distributions of this checkout, which have no hash.
LOCK_OPTIONS := --quiet --generate-hashes --no-header --upgrade $(addprefix --no-emit-package ,collops collops-bench collops-native)

lock: $(RELEASE_TOOLS)
	$(dir $<)bin/uv pip compile $(LOCK_OPTIONS) --python-version 3.11 --universal --output-file packaging/test.lock packaging/test.in
	$(dir $<)bin/uv pip compile $(LOCK_OPTIONS) --python-version 3.11 --resolution lowest-direct --output-file packaging/oldest.lock \
	  packaging/test.in

# Numbers of ranks share the cases of large tests only where all of them run.
CASES := $(if $(filter-out $(RANKS),1 2 3 4),COLLOPS_ALL_CASES=1,COLLOPS_SHARED_CASES=1)

test: $(TEST)
	@$(MAKE) --no-print-directory --jobs 3 lint test-one-rank $(OLDEST)
	@set -e; for ranks in $(filter-out 1,$(RANKS)); do \
	  echo "== tests on $$ranks rank(s)"; \
	  $(CASES) $(MPIEXEC) -n $$ranks $(BIN)/python -m pytest -m "not serial"; \
	done
	@$(WITH_OLDEST) $(BIN)/python -c 'import jax; print("== tests on 2 ranks with JAX", jax.__version__)'
	$(WITH_OLDEST) $(MPIEXEC) -n 2 $(BIN)/python -m pytest tests/jax/test_primitives.py
	@echo "All tests passed on $(RANKS) ranks."

# pytest rewrites the tests' assertions once, beside the linters, and not in each of its workers.
test-one-rank: $(TEST)
	@$(BIN)/python -m pytest --collect-only --quiet > $(VENV)/collected.txt || { cat $(VENV)/collected.txt; exit 1; }
	$(CASES) $(BIN)/python -m pytest $(if $(filter 1,$(RANKS)),,-m serial) --numprocesses 4 --dist worksteal

fuzz: $(TEST)
	COLLOPS_FUZZ_CASES=$${COLLOPS_FUZZ_CASES:-10000} $(MPIEXEC) -n 2 $(BIN)/python -m pytest tests/fuzz

examples: $(TEST)
	@set -e; for ranks in $(RANKS); do \
	  COLLOPS_EXAMPLES=$${COLLOPS_EXAMPLES:-1000} COLLOPS_RANDOM_PROGRAMS=$${COLLOPS_RANDOM_PROGRAMS:-1000} COLLOPS_JAX_RANKS=4 \
	    $(MPIEXEC) -n $$ranks $(BIN)/python -m pytest tests/exchange tests/jax/test_order.py --timeout 3600; \
	done

lint: $(TEST)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

format: $(TEST)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf docs/_build docs/_measured docs/gallery docs/reference
	rm -rf $(VENV) build dist lsm-result .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "collops needs Python 3.11 or newer; say which: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "cannot make $(VENV); on Debian and Ubuntu: apt install python3-venv"; exit 1; }

$(DEMO): $(BIN)/python pyproject.toml
	@echo "Installing collops into $(VENV)"
	@$(INSTALL) --editable ".[$(EXTRA_MPI)numba,segy]" $(MPI_PACKAGES)
	@touch $@

$(DOCS): $(BIN)/python pyproject.toml benchmarks/pyproject.toml
	@echo "Installing collops and what its documentation needs into $(VENV)"
	@$(INSTALL) ./native --editable ".[$(EXTRA_MPI)docs]" --editable ./benchmarks $(MPI_PACKAGES)
	@touch $@

$(TEST): $(BIN)/python pyproject.toml benchmarks/pyproject.toml $(wildcard native/*.toml native/*.py native/*/*.py native/src/*) $(LOCK)
	@echo "Installing collops and what its tests need into $(VENV)"
ifdef LOCKED
	@$(INSTALL) --require-hashes --requirement $(LOCK)
	@$(INSTALL) --no-deps --no-build-isolation ./native --editable . --editable ./benchmarks
else
	@$(INSTALL) ./native --editable ".[$(EXTRA_MPI)test]" --editable "./benchmarks[peers]" $(MPI_PACKAGES)
endif
	@touch $@

# The oldest JAX that is supported, and the native library built with it, in a folder that goes before all others.
$(OLDEST): $(TEST)
	@echo "Installing JAX 0.7.0 into $(@D)"
	@rm -rf $(@D)
	@$(INSTALL) --no-deps --target $(@D) jax==0.7.0 jaxlib==0.7.0
	@PYTHONPATH=$(abspath $(@D)) $(INSTALL) --no-build-isolation --no-deps --target $(@D) ./native
	@touch $@

# The tools that build wheels, and the headers of the oldest jaxlib.
$(WHEEL_TOOLS): packaging/requirements.txt
	@echo "Installing the tools for wheels into $(@D)"
	@rm -rf $(@D)
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check install --quiet --requirement packaging/requirements.txt
	@$(@D)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --target $(@D)/jaxlib jaxlib==0.7.0
	@touch $@

$(RELEASE_TOOLS): packaging/tools.txt
	@echo "Installing the tools of a release into $(@D)"
	@rm -rf $(@D)
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check install --quiet --requirement packaging/tools.txt
	@touch $@

test-jax-oldest: $(OLDEST)
	$(WITH_OLDEST) $(BIN)/python -m pytest tests/jax
	$(WITH_OLDEST) $(MPIEXEC) -n 2 $(BIN)/python -m pytest -m "not serial" tests/jax
