# make lab: open the course. make test: everything the course promises, tested.
# Another Python: make lab PYTHON=/path/to/python3.12

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo "$$p" && exit; done; echo python3)
BIN = .venv/bin
READY = .venv/.ready
# One more than cores: some tests wait for processes.
WORKERS ?= 3
# A worker that ends (a test out of time) ends the run, and its test is named: with another in its place xdist may wait for ever for what the first one had left.
XDIST = -n $(WORKERS) --dist loadscope --no-loadscope-reorder --max-worker-restart=0
NBVAL = --nbval --nbval-current-env --nbval-cell-timeout=120 --nbval-kernel-startup-timeout=120 --nbval-sanitize-with=tests/support/nbval.cfg

LOCK = --universal --python-version 3.11 --fork-strategy fewest --all-extras --no-annotate --custom-compile-command "make lock"

# An old pip, as Python 3.11 brings it, looks for the packages half as long again. Where no other can be had, it will do.
# pip compiles one file after the other; compileall does it on all cores. Left out are tests, what runs compiled or hardly ever and, a third of it all, those models of transformers that the course hardly uses.
# The rest is whole: where Python may write no bytecode, each process that imports a file which was left out compiles it again, a second for BERT's.
INSTALL = $(BIN)/python -m pip install --disable-pip-version-check --no-compile -c requirements.lock
EXTRAS = test
test $(READY)-nbgrader: EXTRAS = test,nbgrader

.PHONY: lab setup test lint build doctor lock clean

lab: $(READY)
	@$(BIN)/python -m trainlean.cli lab

# The set-up alone, for containers and workflows.
setup: $(READY)

test: lint $(READY)-nbgrader
	$(BIN)/python -m trainlean.cli build --check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(XDIST) $(NBVAL) solutions tests exercises_tests

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

build: $(READY)
	@$(BIN)/python -m trainlean.cli build

doctor: $(READY)
	@$(BIN)/python -m trainlean.cli doctor

# Resolves the pins of pyproject.toml for every Python and platform; what the lock has stays where it fits (UPGRADE=--upgrade takes the newest).
# Its markers go: a constraint binds only what is asked for. Not after the set-up, which would refuse pins that the old lock contradicts.
lock:
	@test -x $(BIN)/python || "$(PYTHON)" -m venv .venv
	@$(BIN)/python -m pip install --disable-pip-version-check -q "$$(grep -o 'uv==[0-9.]*' pyproject.toml)"
	$(BIN)/uv pip compile pyproject.toml $(LOCK) $(UPGRADE) --quiet --output-file requirements.lock
	@sed 's/ ;.*//' requirements.lock > requirements.lock.new && mv requirements.lock.new requirements.lock

# The stamp is as old as the last set-up; new pins make a new set-up.
$(READY): pyproject.toml requirements.lock
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || { \
		echo "Train Lean needs Python 3.11, 3.12 or 3.13, and $(PYTHON) is $$("$(PYTHON)" --version 2>/dev/null || echo not there); install one, or name it: make lab PYTHON=/path/to/python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null || { \
		echo "$(PYTHON) lacks its venv module; install it (Debian and Ubuntu: sudo apt install python3-venv), or name another Python: make lab PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(BIN)/python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || "$(PYTHON)" -m venv --clear .venv
	@$(BIN)/python -m pip install --disable-pip-version-check -q --upgrade pip || true
	$(INSTALL) -e ".[$(EXTRAS)]"
	@$(BIN)/python -m compileall -qq -j 0 -x '/(tests|testing/_internal|mypyc?|fontTools|torchgen|wcwidth)/|/models/(?!__init__|(auto|bert|bloom|encoder_decoder|llama)/)' .venv trainlean exercises_tests || true
	@$(BIN)/python -c 'from trainlean.doctor import prepare_jupyter; prepare_jupyter()'
	@touch $(READY)

$(READY)-nbgrader: $(READY)
	@$(BIN)/python -c "import nbgrader" 2>/dev/null || $(INSTALL) -e ".[$(EXTRAS)]"
	@touch $@

clean:
	rm -rf .venv build trainlean.egg-info
