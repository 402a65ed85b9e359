# The project's commands; `make help` lists them. Everything is installed into .venv, nothing else.

PYTHON ?= python3
PORT ?= 8000

VENV := .venv
BIN := $(VENV)/bin
NATIVE := backends/blink_persistent/csrc plugins/blink_bpe/csrc
SOURCES := CMakeLists.txt $(shell find $(NATIVE) -type f)
# Seconds: a test that waits for good fails, with its stack.
PATIENCE := --timeout 600
CHECKED := blink_server backends plugins tests tools
CXX_SOURCES := $(shell find $(NATIVE) -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')

.PHONY: help demo stop test test-all test-browser test-rdma test-gpu coverage lint format bench bench-llama bench-steps bench-tokenizer stubs clean
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

help:
	@echo "make demo        install, import SmolLM2-135M-Instruct, serve it, ask it something"
	@echo "                   PORT=8001      listen elsewhere than on 8000"
	@echo "                   DEMO_EXIT=1    stop the server again afterwards"
	@echo "make stop        stop the server that make demo has left running"
	@echo "make test        lint, types and the fast tests"
	@echo "make test-all    the same and the tests marked slow, which use the real model"
	@echo "make test-browser  the console in the system's Chromium (a minute)"
	@echo "make test-rdma   the tests of RDMA, in a small virtual machine with two software devices"
	@echo "make test-gpu    the tests that need an NVIDIA GPU; installs PyTorch"
	@echo "make coverage    the fast tests, and which lines and branches they do not reach"
	@echo "make bench       measure the server on this machine against its targets"
	@echo "make bench-llama the same against llama.cpp, which it builds first (minutes)"
	@echo "make bench-steps what a step costs beside its engine, and a claim among 4,096 slots"
	@echo "make bench-tokenizer  blink_bpe against tokenizers, tiktoken and llama.cpp's tokenizer"
	@echo "make lint        ruff, clang-format and mypy alone"
	@echo "make format      rewrite Python and C++ in the project's format"
	@echo "make stubs       write the native modules' type stubs again"
	@echo "make clean       remove what was built and installed; imported models stay"
	@echo "PYTHON=python3.12 in front of or behind any of them chooses the interpreter of .venv"

# A file in .venv for each set of extras that is installed. The install is editable: one install
# serves demo, tests and development, Python changes act at once, and a change of the native
# sources or of the dependencies makes these files old, so that the next command installs again.
$(VENV)/installed: pyproject.toml $(SOURCES)
	@$(PYTHON) tools/set_up.py $(VENV)
	@touch $@

$(VENV)/installed-dev: pyproject.toml $(SOURCES)
	@$(PYTHON) tools/set_up.py $(VENV) dev bench
	@touch $@ $(VENV)/installed

$(VENV)/installed-gpu: pyproject.toml $(SOURCES)
	@$(PYTHON) tools/set_up.py $(VENV) dev bench cuda
	@touch $@ $(VENV)/installed $(VENV)/installed-dev

demo: $(VENV)/installed
	@$(BIN)/python tools/demo.py run --port $(PORT) $(if $(filter-out 0,$(DEMO_EXIT)),--exit)

stop:
	@if [ -x $(BIN)/python ]; then $(BIN)/python tools/demo.py stop; fi

test: lint
	$(BIN)/python -m pytest -n 2 $(PATIENCE) $(PYTEST_FLAGS)

test-all: lint
	$(BIN)/python -m pytest -m "not gpu and not rdma" $(PATIENCE)

test-browser: $(VENV)/installed-dev
	$(BIN)/python -m pytest -m browser $(PYTEST_FLAGS) tests/console

test-rdma: $(VENV)/installed-dev
	tests/rdma/run.sh

test-gpu: $(VENV)/installed-gpu
	$(BIN)/python -m pytest -m gpu tests/gpu tests/parity

coverage: $(VENV)/installed-dev
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage html --quiet
	$(BIN)/coverage report

lint: $(VENV)/installed-dev
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/clang-format --dry-run --Werror $(CXX_SOURCES)
	$(BIN)/mypy
	$(BIN)/mypy tests/gpu # most machines that change what these call cannot run them

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix $(CHECKED)
	$(BIN)/ruff format $(CHECKED)
	$(BIN)/clang-format -i $(CXX_SOURCES)

bench: $(VENV)/installed-dev
	$(BIN)/python tests/bench/serve_bench.py

bench-llama: $(VENV)/installed-dev
	$(BIN)/python tests/bench/llama_cpp_bench.py

bench-steps: $(VENV)/installed-dev
	$(BIN)/python tests/bench/step_overhead.py

bench-tokenizer: $(VENV)/installed-dev
	$(BIN)/python tests/bench/tokenizer.py

stubs: $(VENV)/installed-dev
	$(BIN)/python -m nanobind.stubgen -m blink_persistent._native -o backends/blink_persistent/_native.pyi
	$(BIN)/python -m nanobind.stubgen -m blink_bpe._bpe -o plugins/blink_bpe/blink_bpe/_bpe.pyi

clean: stop
	rm -rf $(VENV) build .run .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage .coverage.* htmlcov
