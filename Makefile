# Two commands: `make compare` shows what the project does, `make test` shows that it works.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# What is compiled of the tests is kept, also where the environment says otherwise: each process would take 8 s to do it anew.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: compare test test-long lint bench models docs evidence dist setup setup-browser setup-axe setup-postgres clean

compare: $(READY)
	$(BIN)/inosgd compare

test: $(READY)
	$(PYTEST)

# The thorough forms of checks, which `make test` has short forms of.
test-long: $(READY)
	$(PYTEST) -m long

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/inosgd bench plan
	$(BIN)/inosgd bench step
	$(BIN)/inosgd bench distributed

# In an environment of its own: beside a torch without CUDA, transformers cannot import the torchvision of PyPI.
models:
	test -x $(VENV)-models/bin/python || $(PYTHON) -m venv $(VENV)-models
	$(VENV)-models/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,bench,models]'
	$(VENV)-models/bin/python -W ignore checks/models.py --out checks/MODELS.md

docs: $(READY)
	$(BIN)/python -m mkdocs build --strict --site-dir build/site

evidence: $(READY)
	$(BIN)/inosgd evidence

# The wheel and the source distribution, installed into an empty environment and used there.
dist: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dist]'
	rm -rf dist
	$(BIN)/python checks/install.py
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

setup: $(READY)

# Reports are tested in a real browser; without one those tests are skipped with a reason. CI has one.
setup-browser:
	command -v chromium && command -v chromedriver || \
	    { apt-get update && apt-get install --yes --no-install-recommends chromium chromium-driver; }

# The rules of axe-core (MPL-2.0, not part of this repository) for accessible pages; tests use them where they are.
setup-axe:
	mkdir -p build/axe && cd build/axe && npm pack --silent axe-core@4.14.0 && \
	    tar -xzf axe-core-4.14.0.tgz --strip-components=1 package/axe.min.js

# Account books are tested on a PostgreSQL server that the tests start; without one those tests are skipped with a reason.
setup-postgres:
	ls /usr/lib/postgresql/*/bin/initdb || { apt-get update && apt-get install --yes --no-install-recommends postgresql; }

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-models build dist src/*.egg-info
