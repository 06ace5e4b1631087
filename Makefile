.PHONY: lab test test-all test-long test-alone test-solutions notebooks bench results site lock

# The lessons, in JupyterLab; OPTIONS are its own.
lab:
	@./setup.sh
	@.venv/bin/fusion lab $(OPTIONS)

# For two processors: while a test waits for a browser or a kernel, the third worker has its processor.
SHARED := -n 3 --dist loadfile --no-loadscope-reorder
# Each of them, and each kernel, computes in one thread: more would wait for each other, spinning.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
# Where no notebook is run: loading it takes each worker three seconds.
NO_NBVAL := -p no:nbval
# The scripts in source/ that build what is stored: notebooks, then what is made from them. With --check, each names what
# is stale.
BUILDERS := build claims readme fusion_proof record_figures record_puzzles record_film
# In `make test`, beside every lesson: the capstone, which has rows, products and gradients.
SOLUTIONS := $(wildcard solutions/15_*.ipynb)

# Everything that must hold before a change is shared. A hundred processes import the course: its bytecode is made once,
# even where the environment lets none be kept. Lessons and tests are run together, so that no processor waits.
test:
	@./setup.sh dev,cluster
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/codespell
	.venv/bin/python -m compileall -qq helpers kernels benchmarks
	printf '%s\n' $(BUILDERS) | xargs -P 3 -I{} .venv/bin/python source/{}.py --check
	$(ONE_THREAD) .venv/bin/pytest $(SHARED) --nbval -m "not alone and not long" notebooks $(SOLUTIONS) tests
	.venv/bin/pytest $(NO_NBVAL) -m "alone and not long" $$(grep -rlF "@pytest.mark.alone" tests)

# That, and what takes hours: every attack, mutant and solution, graders that are killed, a class of 400, an empty
# environment. In pieces, one after another: `make test-long ONLY=tests/grading` runs a part of one.
test-all: test
	$(MAKE) test-solutions
	$(MAKE) test-alone
	$(MAKE) test-long

ONLY := tests

test-long:
	$(ONE_THREAD) .venv/bin/pytest $(SHARED) $(NO_NBVAL) -m "long and not alone" $(ONLY)

test-alone:
	.venv/bin/pytest $(NO_NBVAL) -m "long and alone" $(ONLY)

test-solutions:
	$(ONE_THREAD) .venv/bin/pytest $(SHARED) --nbval $(filter-out $(SOLUTIONS),$(wildcard solutions/*.ipynb))

# Build again what is stale: what was made from a source, a module or a record that has changed since.
notebooks:
	@./setup.sh dev,cluster
	set -e; for each in $(BUILDERS); do .venv/bin/python source/$$each.py; done

# The course as web pages, in site/: nothing is run.
site:
	@./setup.sh dev,cluster
	.venv/bin/python source/build_site.py

# Measure every kernel of the course on this machine.
bench:
	@./setup.sh
	.venv/bin/fusion bench

# Take every recorded figure again on this GPU, and build what shows it; FROM=step goes on where it stopped.
results:
	@./setup.sh dev
	@PYTHONPATH=. .venv/bin/python -m benchmarks.retake $(if $(FROM),--from $(FROM))

# Pin in requirements.lock what the packages of pyproject.toml need in turn. Versions already there stay, unless a pin
# forbids them; with OPTIONS=--upgrade, or --upgrade-package NAME, they become the newest.
lock:
	@./setup.sh dev,cluster
	.venv/bin/uv pip compile pyproject.toml --quiet --all-extras --universal --no-emit-index-url \
		--annotation-style line --custom-compile-command "make lock" --output-file requirements.lock $(OPTIONS)
