# make run: set up and compare all methods on the shipped models. make test: set up and run every test.
# make gpu: tests and benchmarks that need a CUDA device. make lab: JupyterLab on the notebooks.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: run test mutants gpu lint lab clean

run: $(STAMP)
	$(BIN)/specwb compare

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests notebooks --nbval --nbval-cell-timeout 120 -n 2 --dist loadscope

# deliberately wrong engines and drafters, each of which the tests must refute
mutants: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutants.py --jobs 2

gpu: $(STAMP)
	$(BIN)/python benchmarks/gpu.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lab: $(STAMP)
	$(BIN)/jupyter lab notebooks

# installed again only when what is to be installed has changed
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "specwb needs Python >= 3.11; name one with make PYTHON=..."; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

clean:
	rm -rf $(VENV) build
