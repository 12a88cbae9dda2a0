# Shorthands for what CMakePresets.json and scripts/ hold; nothing is decided here.
.PHONY: help setup build test test-torch test-long test-opinfo test-programs test-demo test-kill mutants demo finetune-demo parity digits fuzz asan tsan bench bench-peers bench-peers-python bench-shards bench-layouts bench-megatron bench-lora bench-ladder bench-long cuda-check gpu-check format clean
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Files that include LibTorch take up to 3 GiB of memory each to compile.
GIB_PER_JOB := 3
JOBS ?= $(shell awk -v cores="$$(nproc)" -v each=$(GIB_PER_JOB) '\
	/^MemAvailable/ { jobs = int($$2 / 1048576 / each) } \
	END { if (jobs > cores) jobs = cores; print (jobs < 1 ? 1 : jobs) }' /proc/meminfo)

# The command needs neither the tests' libraries nor the Python package; what a build folder once has stays.
COMMAND_ALONE := $(if $(wildcard build/release/CMakeCache.txt),,-DSNUG_BUILD_TESTS=OFF -DSNUG_BUILD_BENCHMARKS=OFF -DSNUG_BUILD_PYTHON=OFF)
WITH_TESTS := -DSNUG_BUILD_TESTS=ON -DSNUG_BUILD_PYTHON=ON
WITH_BENCHMARKS := -DSNUG_BUILD_BENCHMARKS=ON -DSNUG_BUILD_PYTHON=ON

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what is missing for everything: system packages and LibTorch
	@scripts/setup.sh tests benchmarks fuzzers

build: ## Build the command `snug` in build/release
	@scripts/setup.sh
	@cmake --preset release $(COMMAND_ALONE)
	@cmake --build --preset release -j $(JOBS) --target snug_cli

test: ## Build everything that tests need and run the tests
	@scripts/setup.sh tests
	@cmake --preset release $(WITH_TESTS)
	@cmake --build --preset release -j $(JOBS) --target tests
	@ctest --preset release -LE long -j$(JOBS) --no-tests=error

test-long: ## Run more of the same: all trials, fuzzers, 5,000 random programs, all architectures (15 min)
	@scripts/setup.sh tests fuzzers
	@cmake --preset release $(WITH_TESTS)
	@cmake --build --preset release -j $(JOBS) --target tests tests_long
	@JOBS=$(JOBS) ctest --preset release -L long -j1 --no-tests=error

test-torch: ## Run the tests with another PyTorch, TORCH=oldest or newest; ARGS=... for ctest
	@JOBS=$(JOBS) scripts/test_torch.sh "$(TORCH)" $(ARGS)

demo: build ## Train a small model inside a budget and show what happened
	@scripts/demo.sh

finetune-demo: build ## Fine-tune SmolLM2-135M with LoRA inside 1 GiB, and find the longest sequence that fits in 2 GiB
	@scripts/finetune_demo.sh

parity: ## Compare SmolLM2-135M, BERT, ViT and ResNet-50 in snug with transformers and PEFT
	@scripts/setup.sh tests
	@cmake --preset release $(WITH_TESTS)
	@cmake --build --preset release -j $(JOBS) --target smollm2_run full_size_run
	@tests/parity/run.sh build/release

digits: ## Train a residual network and a Vision Transformer on scikit-learn's digits, under half of their memory
	@scripts/setup.sh tests
	@cmake --preset release $(WITH_TESTS)
	@cmake --build --preset release -j $(JOBS) --target digits
	@tests/digits/run.sh build/release

fuzz: ## Run the fuzzers of the parsers of files (tests/fuzz), ten minutes each; ARGS="60 gguf" for other seconds and some of them
	@scripts/setup.sh tests fuzzers
	@cmake --preset release $(WITH_TESTS)
	@JOBS=$(JOBS) tests/fuzz/run.sh build/release $(or $(ARGS),600)

asan: ## Run the unit tests with the address and undefined-behaviour sanitizers
	@scripts/setup.sh tests
	@cmake --preset asan
	@cmake --build --preset asan -j $(JOBS)
	@ctest --preset asan -L unit -j$(JOBS) --no-tests=error

tsan: ## Run the thread tests, and those of the simulated device, with the thread sanitizer
	@scripts/setup.sh tests
	@cmake --preset tsan
	@cmake --build --preset tsan -j $(JOBS) --target replay_test memory_test device_test
	@ctest --preset tsan -R '^(replay_threads|replay_test_simulated|memory_test|device_test)$$' -j1 --no-tests=error

bench: ## Build and run the benchmarks
	@scripts/setup.sh tests benchmarks
	@cmake --preset release $(WITH_BENCHMARKS)
	@cmake --build --preset release -j $(JOBS) --target bench

bench-peers: ## Compare with other memory savers; ARGS=... as benchmarks/peers/methods.py has them
	@scripts/setup.sh tests benchmarks
	@cmake --preset release $(WITH_BENCHMARKS)
	@cmake --build --preset release -j $(JOBS) --target gpt_step snug_cli snug_python
	@benchmarks/peers/run.sh rotor build/release/snug examples/gpt-12x384.toml benchmarks/results
	@benchmarks/peers/run.sh methods build/release/benchmarks/gpt_step benchmarks/results --package build/release/python $(ARGS)

bench-shards: ## Compare weights in shards with FSDP2; ARGS=... as benchmarks/peers/shards.py has them
	@scripts/setup.sh tests benchmarks
	@cmake --preset release $(WITH_BENCHMARKS)
	@cmake --build --preset release -j $(JOBS) --target shards_step snug_python
	@benchmarks/peers/run.sh shards build/release/benchmarks/shards_step benchmarks/results $(ARGS)

bench-layouts: ## What snug plan --devices foretells beside runs of two processes; ARGS=... as benchmarks/layouts.py has them
	@scripts/setup.sh tests benchmarks
	@cmake --preset release $(WITH_BENCHMARKS)
	@cmake --build --preset release -j $(JOBS) --target snug_cli
	@OMP_WAIT_POLICY=passive python3 benchmarks/layouts.py build/release/snug examples/gpt-demo.toml $(ARGS)

bench-megatron: build ## What snug plan --devices --on foretells beside Megatron-LM's table; ARGS=... as benchmarks/megatron.py has them
	@python3 benchmarks/megatron.py build/release/snug examples/gpt-demo.toml $(ARGS)

bench-peers-python: ## Compare with gradient checkpointing in Python; ARGS=... as benchmarks/peers_python/peers.py has them
	@scripts/setup.sh tests benchmarks
	@cmake --preset release $(WITH_BENCHMARKS)
	@cmake --build --preset release -j $(JOBS) --target snug_python
	@benchmarks/peers_python/run.sh peers build/release benchmarks/results $(ARGS)

bench-lora: ## Compare LoRA on SmolLM2-135M with transformers and PEFT; ARGS=... as benchmarks/peers_python/lora.py has them
	@scripts/setup.sh tests benchmarks
	@cmake --preset release $(WITH_BENCHMARKS)
	@cmake --build --preset release -j $(JOBS) --target config_step snug_python
	@benchmarks/peers_python/run.sh lora build/release build/release/benchmarks/config_step examples/finetune-smollm2.toml benchmarks/results $(ARGS)

bench-ladder: ## What each way to save memory gives, added one to the other; ARGS=... as benchmarks/ladder/ladder.py has them
	@scripts/setup.sh tests benchmarks
	@cmake --preset release $(WITH_BENCHMARKS)
	@cmake --build --preset release -j $(JOBS) --target config_step snug_cli snug_python
	@benchmarks/ladder/run.sh build/release examples/gpt-12x384.toml benchmarks/results $(ARGS)

bench-long: build ## One step of LoRA on SmolLM2-135M at 16,384 tokens inside 1 GiB (hours); ARGS="TOKENS BUDGET" for others
	@benchmarks/long_sequence.sh build/release $(ARGS)

test-opinfo: ## PyTorch's own operator and module samples, all of them, and its non-contiguous ones, bitwise (15 min)
	@scripts/setup.sh tests
	@cmake --preset release $(WITH_TESTS)
	@cmake --build --preset release -j $(JOBS) --target snug_python
	@tests/opinfo/run.sh build/release --pin tests/opinfo/all.json $(ARGS)
	@tests/opinfo/run.sh build/release --noncontiguous --pin tests/opinfo/noncontiguous.json $(ARGS)

test-programs: ## 20,000 random programs, bitwise (10 min); ARGS="COUNT SEED" for others
	@scripts/setup.sh tests
	@cmake --preset release $(WITH_TESTS)
	@cmake --build --preset release -j $(JOBS) --target random_programs_test
	@build/release/tests/random_programs_test $(or $(ARGS),20000)

test-demo: build ## 300 steps of the demo, with and without what changes no bit, with 8-bit AdamW, with saved tensors in 4 bits, and in fp16 (70 min); ARGS as tests/demo/long_runs.py has them
	@python3 tests/demo/long_runs.py build/release/snug examples build/release/long_runs $(ARGS)

test-kill: build ## A run with everything on a disk, killed at 100 random moments, ends as one that is left alone (10 min); ARGS as tests/demo/killed_runs.py has them
	@python3 tests/demo/killed_runs.py build/release/snug examples build/release/killed_runs $(ARGS)

cuda-check: ## Compile the CUDA code against a CUDA build of LibTorch, without a GPU
	@scripts/setup.sh
	@scripts/cuda_check.sh

gpu-check: ## On a machine with a GPU: build for it, test on it, measure there, 25 minutes; ARGS=cuda:1 for another
	@scripts/gpu_check.sh $(ARGS)

mutants: ## Change the code in small ways and list what no test notices; ARGS="--sample 20 snug/plan/run" for other files
	@scripts/setup.sh tests
	@tests/mutants/run.sh build/mutants --jobs $(JOBS) $(or $(ARGS),--sample 20 snug/plan/run)

format: ## Format the C++ files
	@tests/architecture/clang_format.sh . -i

clean: ## Remove build/; .venv stays
	@rm -rf build
