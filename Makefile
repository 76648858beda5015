# make run: set up and compare the methods on SmolLM2-135M, which is downloaded once (93 MB); where
#   it cannot be had, on the lab family, which comes with the project.
# make test: set up and run the tests that are not slow, and the quick notebooks.
# make test-all: those, and then all others: several processes, trainings that are killed, the shipped
#   models, a browser, every notebook.
# make mutants: code that is wrong on purpose, each piece of which the tests must refute.
# make prove: the machine-checked proofs in theory/coq, where Coq is installed.
# make slides: slides of the lessons, without code, in build/slides.
# make site: README, course, theory, API reference, ledger and a gallery of microscopes as static
#   pages, build/site/index.html; it installs Sphinx first.
# make matrix: docs/matrix.md, what works of every model type, method, number type and device.
# make dry: every method's CUDA code without a GPU, on a runtime whose kernels do nothing (docs/gpu.md).
# make gpu: tests and benchmarks that need a CUDA device. make lab: JupyterLab on the notebooks,
#   served from here, so that their links to theory/ and docs/ open.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# short drafts, which are fastest where little is accepted
SMOL := pld:gamma=3 suffix recycling lookahead:window=3,level=3,guesses=3 sps:gamma=2 \
  mcsd:tree=2-1 mcsd_ti:tree=2-1 medusa:nodes=6 eagle:nodes=4 eagle:nodes=4,copy=2 \
  eagle2:nodes=6,depth=3,top=3 eagle3:nodes=5,depth=2,top=3 falcon:nodes=4 \
  falcon_dynamic:nodes=6 kangaroo:gamma=3 diffuspec:k=3
TRACE := $(BIN)/specwb trace mcsd:tree=2-1 eagle3:nodes=5,depth=2,top=3 medusa:nodes=6 \
  --target smol --temperature 0 --max-new-tokens 40 --html build/run.html --chat --prompt
PROMPT := Explain to a child why the moon changes its shape.
# the tests of make test; .ci/run takes "not rare"
TIER := not slow
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests notebooks --nbval -n 2 --dist loadscope

.PHONY: run test test-slow test-all prove mutants matrix slides dry gpu site
.PHONY: lint lab clean

run: $(STAMP)
	@if $(BIN)/python -m specwb.models.smol; then \
	  $(BIN)/specwb compare --target smol --prompts chat --seconds 240 --methods "$(SMOL)" && \
	  $(TRACE) "$(PROMPT)" && \
	  echo "every decision on one request, step by step: build/run.html; for a request of your" \
	    "own: $(TRACE) 'Who are you?'"; \
	else \
	  echo "so the lab family is compared, which comes with the project"; $(BIN)/specwb compare; \
	fi && echo "to learn how this works: make lab opens lesson 1, one speculative step"

test: $(STAMP)
	$(PYTEST) -m "$(TIER)"

test-slow: $(STAMP)
	$(PYTEST) -m slow

test-all: test test-slow

prove: $(STAMP)
	$(BIN)/python -m pytest tests/theory/test_coq.py -rs

mutants: $(STAMP)
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m mutants

matrix: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python tests/matrix.py --out docs/matrix.md

slides: $(STAMP)
	$(BIN)/python notebooks/slides.py

dry: $(STAMP)
	$(BIN)/python tests/dry/run.py --install

gpu: $(STAMP)
	$(BIN)/python benchmarks/gpu.py

site: $(VENV)/.site
	$(BIN)/python docs/site/make.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lab: $(STAMP)
	$(BIN)/jupyter lab --notebook-dir=. notebooks/lessons/1_one_speculative_step.ipynb

# installed again only when what is to be installed has changed
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "specwb needs Python >= 3.11; name one with make PYTHON=..."; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e ".[dev]"
	@# on all cores; pip would use one. Of the parts left out few files are ever imported. Some
	@# packages have files that are no Python 3
	@$(BIN)/python -m compileall -qq -j 0 -x 'transformers/models|torch/(_inductor|testing)' \
	  $(VENV)/lib || true
	@touch $@

$(VENV)/.site: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[site]"
	@touch $@

clean:
	rm -rf $(VENV) build
