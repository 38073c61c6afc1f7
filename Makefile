# make book, make test: all that is needed is Python 3.11 or newer, and make.
PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TEST_OUT := _build/test
TEST_HTML := $(CURDIR)/$(TEST_OUT)/_build/html
WIDGETS := $(CURDIR)/_build/widgets
# One thread per process: results do not depend on the number of cores, and worker processes do not fight.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help env book test lint check notebooks html-test browser bench repository clean

help:  ## this list
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; try make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(BIN)/python -m pip check
	touch $@

env: $(READY)  ## the environment alone, in .venv

book: $(READY)  ## the book as HTML, in _build/html
	$(BIN)/jupyter-book build . -W --keep-going

test: lint check html-test browser  ## everything: lint, tests, notebooks, book build, browser

lint: $(READY)  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

check: $(READY)  ## tests of memlib and of the book; every notebook re-run and compared
	$(ONE_THREAD) $(BIN)/python -m pytest --nbval -n $(WORKERS) --dist loadfile --ignore=tests/test_browser.py

html-test: $(READY)  ## the book as the browser test wants it: built from clean, widget scripts local
	rm -rf $(TEST_OUT)
	$(BIN)/python tools/sphinx_memlib.py $(WIDGETS)
	MEMLIB_WIDGETS=$(WIDGETS) $(BIN)/jupyter-book build . -W --keep-going --path-output $(TEST_OUT)

browser: $(READY)  ## the built book in a real browser
	MEMLIB_HTML=$(TEST_HTML) $(BIN)/python -m pytest tests/test_browser.py

notebooks: $(READY)  ## run and save notebooks, show what changed (NB=path for one)
	$(ONE_THREAD) $(BIN)/python tools/notebooks.py $(NB)

bench: $(READY)  ## speed beside torch's own attention
	$(BIN)/python -m benchmarks.attention
	$(BIN)/python -m benchmarks.substitutes

repository:  ## make repository URL=…: set the repository address everywhere
	$(PYTHON) tools/repository.py $(URL)

clean:  ## remove what was built (keeps .venv)
	rm -rf _build .pytest_cache .ruff_cache .hypothesis
