# Two commands are all there is to do on a fresh clone: `make demo` to see it work, `make test` to check it.
# Both need Python 3.11 or newer, and make what else they need in .venv/ and .tox/.
# Another Python: make PYTHON=/path/to/python3.12 demo

VENV := .venv
PIP := $(VENV)/bin/python -m pip --quiet --disable-pip-version-check
export PYTHON

.PHONY: help demo test test-versions test-packages lint docs bundle packages clean

help:
	@echo "make demo   one job on three small clusters inside this machine"
	@echo "make test   all tests and checks; as root on Debian it installs the batch systems they need"
	@echo "make test-versions   the tests that meet Slurm, on two newer releases of Debian in a folder; as root"
	@echo "make test-packages   the Debian package, the container image and the conda recipe, as far as their tools are here"
	@echo "make lint   the style and the types alone"
	@echo "make docs   the manual, into docs/_build/html"
	@echo "make bundle koala-adapter and all it needs in one archive in dist/, for hosts without a network"
	@echo "make packages   the same, and a Debian package and a container image where this machine has the tools"
	@echo "make clean  remove all that the above made"

demo: $(VENV)/.installed
	@$(VENV)/bin/koala demo
	@echo "See a job grow and shrink while it runs: $(VENV)/bin/koala demo --malleable"

# uv does not know what pip is told of mirrors and certificates: where it finds no packages, pip makes the environments.
RUNNER = $$(UV_HTTP_TIMEOUT=20 $(VENV)/bin/uv pip install --quiet --dry-run --refresh --python $(VENV)/bin/python wheel \
    >/dev/null 2>&1 && echo uv-venv-runner || echo virtualenv)

# Three parts at a time: tests that wait, on real batch systems above all, leave the processors to those that compute.
# What a part prints is shown when it fails.
# The closing summary is printed whether the tests pass or not; the status is that of the tests.
test: $(VENV)/.tox-installed
	@.ci/install_debian
	@rm -rf .tox/reports
	@echo "Running the parts of the tests (.venv/bin/tox list), three at a time; this takes some minutes"
	@status=0; $(VENV)/bin/tox run-parallel --parallel 3 --runner $(RUNNER) || status=$$?; $(VENV)/bin/python .ci/summary.py .tox/reports; exit $$status

# Another Debian has another Slurm and another Python; each is made in .tox/debian, and made once. The summary is that of
# the latest `make test`, too.
test-versions: $(VENV)/.made
	@.ci/install_debian debootstrap
	@status=0; $(VENV)/bin/python .ci/test_versions.py || status=$$?; $(VENV)/bin/python .ci/summary.py .tox/reports; exit $$status

# What `make packages` makes is built, installed and run, and removed again.
test-packages: $(VENV)/.tox-installed
	@.ci/install_debian build-essential debhelper dh-virtualenv python3-venv buildah debootstrap
	@$(VENV)/bin/tox run --runner $(RUNNER) -e packages

lint: $(VENV)/.tox-installed
	@$(VENV)/bin/tox run --runner $(RUNNER) -e lint,types

docs: $(VENV)/.tox-installed
	@$(VENV)/bin/tox run --runner $(RUNNER) -e docs

# With more than the ordinary: make bundle EXTRAS=web,figures OPTIONS="--python-version 3.12"
bundle: $(VENV)/.made
	@packaging/bundle $(VENV)/bin/python dist "$(EXTRAS)" $(OPTIONS)

# For minutes; recipes for conda and Spack are in packaging/, too.
packages: bundle
	@if command -v dh_virtualenv >/dev/null; then packaging/deb dist; else echo "no .deb: dh_virtualenv is not installed"; fi
	@if command -v buildah >/dev/null; then buildah bud --quiet --file packaging/Containerfile --tag koala-adapter .; \
	    else echo "no image: buildah, on which podman is built, is not installed"; fi

clean:
	rm -rf $(VENV) .tox build dist docs/_build koala_adapter.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(VENV)/.made: .ci/make_venv
	@echo "Making the virtual environment $(VENV)"
	@.ci/make_venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.made setup.cfg setup.py koala_adapter/__init__.py plugins/koala-experiments/pyproject.toml
	@echo "Installing koala-adapter and its experiments into $(VENV)"
	@$(PIP) install --use-pep517 --editable . --editable plugins/koala-experiments
	@touch $@

$(VENV)/.tox-installed: $(VENV)/.made
	@echo "Installing tox into $(VENV)"
	@$(PIP) install "tox>=4.27" "tox-uv>=1.29"
	@touch $@
