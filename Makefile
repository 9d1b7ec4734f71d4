# make demo   sets up .venv, migrates a made survey on two ranks, and says where the pictures are
# make test   sets up .venv, and runs linters and all tests on 1, 2, 3 and 4 ranks
#
# PYTHON=python3.12      the interpreter to make .venv with
# MPI=system             mpi4py and mpiexec of this machine or cluster instead of the mpich wheel
# MPIEXEC="srun"         another launcher; it is given -n N

PYTHON ?= python3
MPI ?= mpich
RANKS ?= 1 2 3 4
VENV := .venv
BIN := $(VENV)/bin

ifeq ($(MPI),system)
MPI_PACKAGES := mpi4py
MPIEXEC ?= mpiexec
else
MPI_PACKAGES := mpi4py mpich
MPIEXEC ?= $(BIN)/mpiexec
endif

.PHONY: demo test lint format clean

demo: $(VENV)/demo
	$(BIN)/collops lsm --ranks 2 --out lsm-result
	@echo "The pictures are lsm-result/image.png and lsm-result/convergence.png"

test: lint
	$(BIN)/python -m pytest -m serial
	@for ranks in $(RANKS); do \
	  echo "== tests on $$ranks rank(s)"; \
	  $(MPIEXEC) -n $$ranks $(BIN)/python -m pytest -m "not serial" || exit 1; \
	done

lint: $(VENV)/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(VENV)/test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist lsm-result .pytest_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/demo: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[numba,segy,eikonal]" $(MPI_PACKAGES)
	@touch $@

$(VENV)/test: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[test]" $(MPI_PACKAGES)
	@touch $@
