PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# One thread a process: the suite runs two processes, and small models gain nothing from more.
export OMP_NUM_THREADS ?= 1
export NO_MKDOCS_2_WARNING := 1

.PHONY: install install-gallery lint types test test-slow test-gpu test-models demo gallery docs docs-test reproduce clean

install: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev,docs,examples,serve]"
	touch $(STAMP)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

test: install
	$(BIN)/python -m pytest -n 2 --dist loadfile --durations=25

test-slow: install
	$(BIN)/python -m pytest -m slow

test-gpu: install
	$(BIN)/python -m pytest -m gpu

# Networks of other libraries, and the table of them in the documentation.
test-models: install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[test-models]"
	$(BIN)/python -m pytest tests/models -m "models or not models" --table docs/models.md

demo: install
	$(BIN)/python examples/digits/demo.py --output runs/demo

# Execute the notebooks that changed into pages with their pictures; all of them with `make -B gallery`. Adult is
# looked for in $(DATA_ROOT)/adult, and downloaded where it is not there. Warnings are left out.
DATA_ROOT ?= $(CURDIR)/data
GALLERY := $(patsubst examples/gallery/%.py,docs/gallery/%.md,$(wildcard examples/gallery/*.py))

gallery: $(GALLERY)

$(GALLERY): docs/gallery/%.md: examples/gallery/%.py | install-gallery
	rm -rf docs/gallery/$*_files build/gallery/$*
	mkdir -p build/gallery/$*
	$(BIN)/jupytext --quiet --to ipynb --output build/gallery/$*/$*.ipynb $<
	DATA_ROOT=$(DATA_ROOT) PYTHONWARNINGS=ignore $(BIN)/jupyter-nbconvert --log-level WARN --execute --to markdown \
		--output-dir docs/gallery build/gallery/$*/$*.ipynb

install-gallery: install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[gallery]"

# The commands of README, of the documentation and of the examples, also those that take minutes.
docs-test: install
	$(BIN)/python -m pytest tests/test_documentation.py -m "slow or not slow"

docs: install
	$(BIN)/mkdocs build --strict --quiet

# The papers' experiments that take ten minutes together, against the stored results. Those with data need DATA.
DATA ?= data
reproduce: install
	$(BIN)/python benchmarks/papers/reproduce.py --data-root $(DATA)

clean:
	rm -rf $(VENV) runs site build dist .mypy_cache .ruff_cache .pytest_cache
