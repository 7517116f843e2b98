# make [CONFIG=release|debug|asan|tsan] [OUT_ROOT=build] [WERROR=1] [all|core|tests|test|test-core]
#
# Everything built lands under $(OUT_ROOT)/$(CONFIG)/: the binary is build/release/kvasir, tests lie in build/release/tests/.
# `core` is config + kernels + engine + scheduler and their tests: it needs no HTTP, JSON or image library (a bare GPU machine builds it).
CONFIG   ?= release
OUT_ROOT ?= build
OUT      := $(OUT_ROOT)/$(CONFIG)
MODE_release := -O3
MODE_debug   := -O0 -DSLOW_ASSERTS
MODE_asan    := -O1 -DSLOW_ASSERTS -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
MODE_tsan    := -O1 -fsanitize=thread
MODE     := $(or $(MODE_$(CONFIG)),$(error unknown CONFIG=$(CONFIG)))
CC       ?= gcc

# Required libraries; a missing one is named. The image decoders: libjpeg-turbo, libwebp; stb_image comes as a header of Debian's libstb-dev.
PKGS      := libmicrohttpd libuv jansson libjpeg libwebp libwebpdemux libsodium libutf8proc
CORE_PKGS := cmocka

BASE_CFLAGS := -std=c11 -D_GNU_SOURCE -g -Wall -Wextra -Wshadow -Wconversion -ffp-contract=off -fno-math-errno
CFLAGS   += $(if $(WERROR),-Werror)
DEPS     := -I. -MMD -MP
STAMP    := $(CC) $(CPPFLAGS) $(BASE_CFLAGS) $(CFLAGS) $(MODE)
$(shell mkdir -p $(OUT)/tests; printf '%s\n' '$(STAMP)' | cmp -s - $(OUT)/flags || printf '%s\n' '$(STAMP)' > $(OUT)/flags)

CORE_SRC := $(wildcard config/base/*.c config/*.c kernels/*.c kernels/cpu/*.c engine/*.c engine/models/*.c scheduler/*.c)
# The tokenizer normalises with utf8proc, so it is not part of the bare core.
NEEDS_LIBS := $(wildcard engine/tokenizer*.c engine/prompt*.c)
CORE_SRC := $(filter-out $(NEEDS_LIBS),$(CORE_SRC))
SRV_SRC  := $(filter-out server/main.c,$(wildcard server/*.c)) $(NEEDS_LIBS)
CORE_OBJ := $(CORE_SRC:%=$(OUT)/%.o)
SRV_OBJ  := $(SRV_SRC:%=$(OUT)/%.o)
# A test is tests/test_NAME.c. Tests of the core stand in tests/core/, all others may use everything.
CORE_TESTS := $(patsubst tests/core/%.c,$(OUT)/tests/%,$(wildcard tests/core/test_*.c tests/core/sim_*.c tests/core/bench_*.c))
FULL_TESTS := $(patsubst tests/%.c,$(OUT)/tests/%,$(wildcard tests/test_*.c tests/fuzz_*.c))
TEST_LIB_OBJ := $(patsubst %.c,$(OUT)/%.c.o,$(wildcard tests/lib/*.c))
TEST_LIB := $(OUT)/libtest.a

all: $(OUT)/kvasir
core: $(CORE_TESTS)
tests: all $(CORE_TESTS) $(FULL_TESTS)

$(OUT)/kernels/cpu/%_avx2.c.o:   ISA := -mavx2 -mfma -mf16c
$(OUT)/kernels/cpu/%_avx512.c.o: ISA := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16 -mavx2 -mfma -mf16c
$(OUT)/kernels/cpu/%_amx.c.o:    ISA := -mamx-tile -mamx-bf16 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16 -mavx2 -mfma -mf16c

LIB_CFLAGS = $(shell pkg-config --cflags $(PKGS))
LIB_LDLIBS = $(shell pkg-config --libs $(PKGS))
$(OUT)/server/%.c.o: EXTRA = $(LIB_CFLAGS)
$(OUT)/tests/test_%.c.o: EXTRA = $(LIB_CFLAGS)

$(OUT)/%.c.o: %.c $(OUT)/flags
	@mkdir -p $(@D)
	$(CC) $(DEPS) $(CPPFLAGS) $(BASE_CFLAGS) $(CFLAGS) $(EXTRA) $(MODE) $(ISA) -c $< -o $@

# Objects go into archives so that a test links only what it uses; $(file) keeps the command line short.
$(OUT)/libcore.a: $(CORE_OBJ)
	@rm -f $@
	ar rcs $@ $^
$(OUT)/libserver.a: $(SRV_OBJ)
	@rm -f $@
	ar rcs $@ $^
$(TEST_LIB): $(TEST_LIB_OBJ)
	@rm -f $@
	ar rcs $@ $^

$(OUT)/kvasir: $(OUT)/server/main.c.o $(OUT)/libserver.a $(OUT)/libcore.a | check-libs
	$(CC) $(MODE) $(OUT)/server/main.c.o $(OUT)/libserver.a $(OUT)/libcore.a $(LDFLAGS) $(LIB_LDLIBS) -lm -lpthread -ldl -o $@
$(CORE_TESTS): $(OUT)/tests/%: $(OUT)/tests/core/%.c.o $(TEST_LIB) $(OUT)/libcore.a
	$(CC) $(MODE) $< $(TEST_LIB) $(OUT)/libcore.a $(LDFLAGS) -lcmocka -lm -lpthread -ldl -o $@
$(FULL_TESTS): $(OUT)/tests/%: $(OUT)/tests/%.c.o $(TEST_LIB) $(OUT)/libserver.a $(OUT)/libcore.a
	$(CC) $(MODE) $< $(TEST_LIB) $(OUT)/libserver.a $(OUT)/libcore.a $(LDFLAGS) $(LIB_LDLIBS) -lcmocka -lm -lpthread -ldl -o $@

check-libs:
	@pkg-config --print-errors --exists $(PKGS) cmocka || { echo "missing libraries: run scripts/run.sh or install the -dev packages named in README.md"; exit 1; }

test: tests
	@sh scripts/run_tests.sh $(OUT) $(filter-out $(OUT)/tests/bench_%,$(CORE_TESTS)) $(FULL_TESTS)
test-core: core
	@sh scripts/run_tests.sh $(OUT) $(filter-out $(OUT)/tests/bench_%,$(CORE_TESTS))

-include $(shell find $(OUT) -name '*.d' 2>/dev/null)
.PHONY: all core tests test test-core check-libs
.SECONDARY:
