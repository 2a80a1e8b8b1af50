# The C tests: under sanitizers, fuzzed, and on NEON. Included by the Makefile; everything goes to build/c.
#
#   sanitize   ASan + UBSan, with each allocation failing once; TSan; a short fuzz. Needs gcc only; under two minutes
#   fuzz       a long fuzz of opening and searching arrays: libFuzzer for FUZZ_SECONDS, or FUZZ_RUNS inputs without clang
#   neon       cross-compile for AArch64 and run the tests under qemu

C_BUILD     := build/c
C_TESTS     := tests/native/c
ENGINE      := $(wildcard native/engine/*/*.c)
C_DEPENDS   := $(ENGINE) $(wildcard native/engine/*.h native/engine/*/*.h) $(wildcard $(C_TESTS)/*.h)
TEST_CFLAGS := -std=c11 -D_POSIX_C_SOURCE=200809L -g -O1 -Wall -Wextra -Wcast-qual -Werror -fno-omit-frame-pointer \
               -Inative/engine -pthread
ASAN        := -fsanitize=address,undefined -fno-sanitize-recover=all
TSAN        := -fsanitize=thread
LOADER_RUNS ?= 20000
FUZZ_RUNS   ?= 2000000
FUZZ_SECONDS ?= 600
CLANG       ?= $(firstword $(foreach name,clang clang-19 clang-18 clang-17 clang-16 clang-15 clang-14,$(shell command -v $(name))))
NEON_CC     ?= aarch64-linux-gnu-gcc
NEON_QEMU   ?= $(firstword $(foreach name,qemu-aarch64-static qemu-aarch64,$(shell command -v $(name))))

.PHONY: sanitize fuzz neon

sanitize: $(addprefix $(C_BUILD)/,engine_test units_test threads_test lab_test fuzz_open) ## C tests under ASan, UBSan and TSan
	$(C_BUILD)/engine_test
	$(C_BUILD)/units_test
	$(C_BUILD)/threads_test
	$(C_BUILD)/lab_test
	$(C_BUILD)/fuzz_open $(LOADER_RUNS)

ifneq ($(CLANG),)
fuzz: $(C_BUILD)/fuzz_libfuzzer ## a long fuzz of opening and searching arrays
	mkdir -p $(C_BUILD)/corpus
	$(C_BUILD)/fuzz_libfuzzer -max_total_time=$(FUZZ_SECONDS) -max_len=512 -len_control=0 -timeout=20 \
	    -artifact_prefix=$(C_BUILD)/ -print_final_stats=1 $(C_BUILD)/corpus
else
fuzz: $(C_BUILD)/fuzz_open ## a long fuzz of opening and searching arrays
	$(C_BUILD)/fuzz_open $(FUZZ_RUNS) $$(date +%s)
endif

neon: ## compile for AArch64 and run the C tests under qemu
	@if ! command -v $(NEON_CC) >/dev/null || [ -z "$(NEON_QEMU)" ]; then \
	    echo "neon: needs $(NEON_CC) and qemu-aarch64 (Debian: gcc-aarch64-linux-gnu, qemu-user-static); skipped"; \
	else \
	    mkdir -p $(C_BUILD) && \
	    $(NEON_CC) $(TEST_CFLAGS) -O2 -static -DWHAMMING_TEST_ALLOCATOR $(ENGINE) $(C_TESTS)/engine_test.c -lm \
	        -o $(C_BUILD)/engine_test_neon && \
	    $(NEON_QEMU) $(C_BUILD)/engine_test_neon; \
	fi

$(C_BUILD)/engine_test: $(C_TESTS)/engine_test.c $(C_DEPENDS)
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) $(ASAN) -DWHAMMING_TEST_ALLOCATOR $(ENGINE) $< -lm -o $@

$(C_BUILD)/units_test: $(C_TESTS)/units_test.c $(C_DEPENDS)
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) $(ASAN) $(ENGINE) $< -lm -o $@

$(C_BUILD)/threads_test: $(C_TESTS)/threads_test.c $(C_DEPENDS)
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) $(TSAN) $(ENGINE) $< -lm -o $@

$(C_BUILD)/fuzz_open: $(C_TESTS)/fuzz_open.c $(C_DEPENDS)
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) $(ASAN) -DFUZZ_MAIN $(ENGINE) $< -lm -o $@

$(C_BUILD)/fuzz_libfuzzer: $(C_TESTS)/fuzz_open.c $(C_DEPENDS)
	@mkdir -p $(@D)
	$(CLANG) $(TEST_CFLAGS) $(ASAN) -fsanitize=fuzzer $(ENGINE) $< -lm -o $@

# The laboratory's test makes allocations fail with the linker's --wrap.
$(C_BUILD)/lab_test: $(C_TESTS)/lab_test.c $(wildcard native/lab/*.[ch])
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) $(ASAN) -Inative/lab -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc \
	    $< $(wildcard native/lab/*.c) -lm -o $@
