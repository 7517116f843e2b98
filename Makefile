# make [CONFIG=release|debug|asan|tsan] [OUT_ROOT=build] [WERROR=1]
#      [all|install|core|tests|test|test-core|cuda|cuda-host|cuda-host-so|test-cuda-host]
#
# Everything built lands under $(OUT_ROOT)/$(CONFIG)/: the binary is build/release/kvasir, tests lie in
# build/release/tests/. `core` is config + kernels + engine + scheduler and their tests: it needs no HTTP,
# JSON or image library (a bare GPU machine builds it).
CONFIG   ?= release
# ARCH=aarch64 on an x86-64 machine is a cross build, into build/aarch64/.
HOST_ARCH := $(shell uname -m)
ARCH     ?= $(HOST_ARCH)
ifneq ($(ARCH),$(HOST_ARCH))
CC       := $(ARCH)-linux-gnu-gcc
OUT_ROOT ?= build/$(ARCH)
export PKG_CONFIG_LIBDIR ?= /usr/lib/$(ARCH)-linux-gnu/pkgconfig:/usr/share/pkgconfig
endif
OUT_ROOT ?= build
OUT      := $(OUT_ROOT)/$(CONFIG)
MODE_release := -O3
MODE_debug   := -O0 -g -DSLOW_ASSERTS
# Kernels that are written out for each of their shapes take minutes to instrument: under a sanitizer each is
# a function. There all but what calculates is compiled at -Og, twice as fast as at -O1.
ONE_OF_EACH  := -Dalways_inline=unused
SANITIZE     := -Og -fno-omit-frame-pointer $(ONE_OF_EACH)
MODE_asan    := $(SANITIZE) -DSLOW_ASSERTS -fsanitize=address,undefined -fno-sanitize-recover=undefined
MODE_tsan    := $(SANITIZE) -fsanitize=thread
MODE_fuzz    := $(SANITIZE) -DSLOW_ASSERTS -fsanitize=fuzzer-no-link,address,undefined \
	-fno-sanitize-recover=undefined
MODE     := $(or $(MODE_$(CONFIG)),$(error unknown CONFIG=$(CONFIG)))
CC       ?= gcc

# Required libraries; a missing one is named. Image decoders: libjpeg-turbo, libwebp, giflib, stb_image (a
# header); zlib: PNG checksums, texts; libcurl: images from URLs, models of the hub; gnutls: TLS; wslay, libmd
# (SHA-1): WebSockets.
PKGS      := libmicrohttpd libuv jansson libjpeg libwebp libwebpdemux libgif libsodium libutf8proc zlib \
	libcurl libmd gnutls
# Cache events (server/kv_events) need two more; a build without them has no --kv-events.
KV_PKGS   := libzmq $(if $(shell pkg-config --exists msgpack-c && echo 1),msgpack-c,msgpack)
KV_EVENTS ?= $(if $(shell pkg-config --exists $(KV_PKGS) 2>/dev/null && echo 1),1,0)
PKGS      += $(if $(filter 1,$(KV_EVENTS)),$(KV_PKGS))
# The tests use cmocka. A machine without it, as one with a GPU may be, still builds those of the core
# (tests/lib/cmocka); CMOCKA=none asks for that.
CMOCKA    ?= $(if $(shell $(CC) -E $(foreach h,setjmp stdarg stddef stdint cmocka,-include $(h).h) \
	-x c /dev/null >/dev/null 2>&1 && echo 1),cmocka,none)
# Wrapped by tests/lib/selectors.c: TEST_ONLY. Some hundred programs are linked: gold takes half as long.
LD_CMOCKA := $(if $(shell command -v ld.gold),-fuse-ld=gold) $(if $(filter none,$(CMOCKA)),, \
	-Wl,--wrap=_cmocka_run_group_tests,--wrap=_assert_memory_equal -lcmocka)

# char is signed on x86-64; ARM64 follows.
BASE_CFLAGS := $(if $(filter aarch64,$(ARCH)),-fsigned-char) -std=c11 -D_GNU_SOURCE -g1 -Wall -Wextra \
	-Wshadow -Wconversion -ffp-contract=off -fno-math-errno \
	$(if $(filter none,$(CMOCKA)),-isystem tests/lib/cmocka)
CFLAGS   += $(if $(WERROR),-Werror)
CPPFLAGS += $(if $(filter 1,$(KV_EVENTS)),-DKVASIR_KV_EVENTS)
DEPS     := -I. -MMD -MP
STAMP    := $(CC) $(CPPFLAGS) $(BASE_CFLAGS) $(CFLAGS) $(MODE)
$(shell mkdir -p $(OUT)/tests; printf '%s\n' '$(STAMP)' | cmp -s - $(OUT)/flags || printf '%s\n' '$(STAMP)' \
	> $(OUT)/flags)

CORE_SRC := $(wildcard config/*.c config/*/*.c kernels/*.c kernels/cpu/*.c kernels/cpu/*/*.c engine/*.c \
	engine/*/*.c engine/*/*/*.c scheduler/*.c scheduler/*/*.c bench/*.c)
# The tokenizer normalises with utf8proc, so it is not part of the bare core.
NEEDS_LIBS := $(wildcard engine/tokenizer/*.c engine/prompt/prompt*.c engine/families/tokenizer.c)
CORE_SRC := $(filter-out $(NEEDS_LIBS) $(if $(filter aarch64,$(ARCH)),%avx512.c %amx.c),$(CORE_SRC))
SRV_SRC  := $(filter-out server/main.c $(if $(filter 1,$(KV_EVENTS)),,server/kv_events/%), \
	$(wildcard server/*.c server/*/*.c server/*/*/*.c)) $(NEEDS_LIBS)
CORE_OBJ := $(CORE_SRC:%=$(OUT)/%.o)
SRV_OBJ  := $(SRV_SRC:%=$(OUT)/%.o)
# Programs of tests stand by topic: tests/unit/FOLDER/ for that folder, tests/sim/, tests/bench/. What is not
# the server's is linked with the core alone. Their names are unique: test_NAME, sim_NAME, bench_NAME.
CORE_TEST_SRC := $(wildcard $(addprefix tests/,$(addsuffix /*.c,unit/config unit/kernels unit/engine \
	unit/scheduler sim bench)))
FULL_TEST_SRC := $(wildcard tests/unit/server/*.c tests/unit/server/*/*.c)
# ONLY="test_NAME ..." leaves the others out; with a sanitizer nothing is measured.
ifdef ONLY
CORE_TEST_SRC := $(filter $(ONLY:%=\%/%.c),$(CORE_TEST_SRC))
FULL_TEST_SRC := $(filter $(ONLY:%=\%/%.c),$(FULL_TEST_SRC))
else ifneq ($(filter asan tsan,$(CONFIG)),)
CORE_TEST_SRC := $(filter-out tests/bench/%,$(CORE_TEST_SRC))
FULL_TEST_SRC := $(filter-out %/bench_grammar.c,$(FULL_TEST_SRC))
endif
CORE_TESTS := $(patsubst %.c,$(OUT)/tests/%,$(notdir $(CORE_TEST_SRC)))
FULL_TESTS := $(patsubst %.c,$(OUT)/tests/%,$(notdir $(FULL_TEST_SRC)))
test_obj = $(patsubst %,$(OUT)/%.o,$(filter %/$(1).c,$(CORE_TEST_SRC) $(FULL_TEST_SRC)))
# The amx set once more, with tiles in plain C, for machines that have none: tests/lib/tiles/tiles.h.
TILES_OBJ   := $(patsubst %,$(OUT)/%.o,$(wildcard tests/lib/tiles/*.c))
TILES_TESTS := $(patsubst %,$(OUT)/tests/%_tiles,$(filter \
	test_backend_linear test_backend_quant test_backend_attn test_backend_experts,$(notdir $(CORE_TESTS))))
TILES_RUN   := $(if $(filter asan tsan,$(CONFIG))$(filter-out x86_64,$(ARCH)),,$(TILES_TESTS))
TEST_LIB_OBJ := $(patsubst %.c,$(OUT)/%.c.o,$(wildcard tests/lib/*.c))
TEST_LIB := $(OUT)/libtest.a
# What needs the server's libraries: they are missing where devices are checked.
SRV_TEST_OBJ := $(patsubst %.c,$(OUT)/%.c.o,$(wildcard tests/lib/server/*.c))

all: $(OUT)/kvasir
core: $(CORE_TESTS)
tests: all $(CORE_TESTS) $(FULL_TESTS) $(TILES_RUN)

ifeq ($(CONFIG),fuzz) # kernels are not what is fuzzed
$(OUT)/kernels/%.c.o: MODE := -O0 -g0 $(ONE_OF_EACH)
else ifneq ($(filter asan tsan,$(CONFIG)),)
CALCULATES := kernels scheduler tests/unit/kernels tests/sim tests/lib
$(CALCULATES:%=$(OUT)/%/%.c.o): MODE := $(MODE:-Og=-O1)
endif
ifeq ($(ARCH),x86_64)
$(OUT)/kernels/cpu/%avx2.c.o:   ISA := -mavx2 -mfma -mf16c
$(OUT)/kernels/cpu/%avx512.c.o: ISA := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16 -mavx512vnni \
	-mavx2 -mfma -mf16c
$(OUT)/kernels/cpu/%amx.c.o $(OUT)/tests/lib/tiles/%amx.c.o: ISA := -mamx-tile -mamx-bf16 -mamx-int8 \
	-mprfchw -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16 -mavx512vbmi -mavx512vnni -mavx2 \
	-mfma -mf16c
else
$(OUT)/kernels/cpu/%_dot.c.o: ISA := -march=armv8.2-a+dotprod
endif

$(OUT)/tests/lib/tiles/%.c.o: MODE := $(patsubst -O3,-O2 $(ONE_OF_EACH),$(MODE))

LIB_CFLAGS = $(shell pkg-config --cflags $(PKGS))
# scripts/package.sh links it statically: its soname differs between Debian's releases.
UTF8PROC ?= -lutf8proc
LIB_LDLIBS = $(subst -lutf8proc,$(UTF8PROC),$(shell pkg-config --libs $(PKGS))) -lwslay
$(OUT)/server/%.c.o: EXTRA = $(LIB_CFLAGS)
$(OUT)/tests/unit/server/%.c.o $(OUT)/tests/lib/server/%.c.o: EXTRA = $(LIB_CFLAGS)
# Tests spend their time in what they call; compiled at -O1 they build twice as fast.
$(OUT)/tests/unit/%.c.o $(OUT)/tests/sim/%.c.o: MODE := $(patsubst -O3,-O1,$(MODE))

# `kvasir version` names the commit that was built, or COMMIT (of a source archive).
COMMIT ?= $(if $(wildcard .git),$(shell git rev-parse --short=12 HEAD 2>/dev/null))
$(shell printf '%s\n' '$(COMMIT)' | cmp -s - $(OUT)/commit || printf '%s\n' '$(COMMIT)' > $(OUT)/commit)
$(OUT)/server/main.c.o: $(OUT)/commit
$(OUT)/server/main.c.o: EXTRA = $(LIB_CFLAGS) $(if $(COMMIT),-DKVASIR_COMMIT='" ($(COMMIT))"')

# The page: each file of server/page/ and each library, compressed. Its libraries are Debian's packages of
# JavaScript; without one of them the page shows that part as plain text.
PAGE_PACKAGES := libjs-marked node-dompurify libjs-highlight.js libjs-katex fonts-katex libjs-pdf
JS_DIR   ?= /usr/share/javascript
NODE_DIR ?= /usr/share/nodejs
PAGE_LIB := lib/marked.js=$(JS_DIR)/marked/marked.min.js \
	lib/purify.js=$(NODE_DIR)/dompurify/dist/purify.min.js \
	lib/highlight.js=$(JS_DIR)/highlight.js/highlight.min.js \
	lib/katex.js=$(JS_DIR)/katex/katex.min.js lib/katex.css=$(JS_DIR)/katex/katex.min.css \
	lib/pdf.js=$(JS_DIR)/pdf/build/pdf.js lib/pdf.worker.js=$(JS_DIR)/pdf/build/pdf.worker.js \
	$(foreach f,$(wildcard /usr/share/fonts/truetype/katex/*.woff2),lib/fonts/$(notdir $(f))=$(f))
PAGE_JS  := $(patsubst server/page/%,%,$(wildcard server/page/js/*.js))
PAGE_ALL := $(foreach f,$(PAGE_JS),$(f)=server/page/$(f)) style.css=$(OUT)/page/style.css \
	index.html=$(OUT)/page/index.html \
	sample.png=models/demo/sample.png \
	$(foreach p,$(PAGE_LIB),$(if $(wildcard $(lastword $(subst =, ,$(p)))),$(p)))
PAGE_GZ  := $(foreach p,$(PAGE_ALL),$(OUT)/page/$(firstword $(subst =, ,$(p))).gz)
$(OUT)/page/style.css: $(sort $(wildcard server/page/css/*.css)) $(OUT)/page/list
	@mkdir -p $(@D)
	cat $(filter %.css,$^) > $@
# A browser asks for all modules at once, not for each when another names it.
$(OUT)/page/index.html: server/page/index.html $(OUT)/page/list
	@mkdir -p $(@D)
	@sed 's|<!-- modules -->|$(foreach f,$(filter-out %/theme.js %/worker.js,$(PAGE_JS)), \
		<link rel="modulepreload" href="page/$(f)">)|' $< > $@
define PAGE_RULE
$(OUT)/page/$(firstword $(subst =, ,$(1))).gz: $(lastword $(subst =, ,$(1)))
	@mkdir -p $$(@D)
	@gzip -9nc $$< > $$@
endef
$(foreach p,$(PAGE_ALL),$(eval $(call PAGE_RULE,$(p))))
$(shell mkdir -p $(OUT)/page; printf '%s\n' '$(PAGE_ALL)' | cmp -s - $(OUT)/page/list || \
	printf '%s\n' '$(PAGE_ALL)' > $(OUT)/page/list)
# ASSET(number, name, compressed file, hash) for each.
$(OUT)/page/page_assets.inc: $(PAGE_GZ) $(OUT)/page/list
	@n=0; for f in $(PAGE_GZ); do n=$$((n + 1)); name=$${f#$(OUT)/page/}; \
		echo "ASSET($$n, \"$${name%.gz}\", \"$$f\", \"$$(sha256sum < $$f | cut -c1-20)\")"; done > $@
	@for p in $(PAGE_LIB); do [ -e "$${p#*=}" ] || \
		echo "page: $${p#*=} is missing, its part is shown as plain text (scripts/deps.sh)"; done
$(OUT)/server/page/page.c.o: $(OUT)/page/page_assets.inc
$(OUT)/server/page/page.c.o: EXTRA = $(LIB_CFLAGS) -I$(OUT)/page
$(OUT)/server/api/openapi.c.o: server/api/openapi.json
$(OUT)/%.c.o: %.c $(OUT)/flags
	@mkdir -p $(@D)
	$(CC) $(DEPS) $(CPPFLAGS) $(BASE_CFLAGS) $(CFLAGS) $(EXTRA) $(MODE) $(ISA) -c $< -o $@

# Objects go into archives so that a test links only what it uses; $(file) keeps the command line short.
$(OUT)/libcore.a: $(CORE_OBJ)
	@rm -f $@
	ar qcs $@ $^
$(OUT)/libserver.a: $(SRV_OBJ)
	@rm -f $@
	ar qcs $@ $^
$(TEST_LIB): $(TEST_LIB_OBJ)
	@rm -f $@
	ar rcs $@ $^

$(OUT)/kvasir: $(OUT)/server/main.c.o $(OUT)/libserver.a $(OUT)/libcore.a | check-libs
	$(CC) $(MODE) $(OUT)/server/main.c.o $(OUT)/libserver.a $(OUT)/libcore.a $(LDFLAGS) $(LIB_LDLIBS) -lm \
		-lpthread -ldl -o $@
.SECONDEXPANSION:
$(CORE_TESTS): $(OUT)/tests/%: $$(call test_obj,$$*) $(TEST_LIB) $(OUT)/libcore.a
	$(CC) $(MODE) $< $(TEST_LIB) $(OUT)/libcore.a $(LDFLAGS) $(LD_CMOCKA) -lm -lpthread -ldl -o $@
$(TILES_TESTS): $(OUT)/tests/%_tiles: $$(call test_obj,$$*) $(TILES_OBJ) $(TEST_LIB) $(OUT)/libcore.a
	$(CC) $(MODE) $^ $(LDFLAGS) $(LD_CMOCKA) -lm -lpthread -ldl -o $@
$(FULL_TESTS): $(OUT)/tests/%: $$(call test_obj,$$*) $(SRV_TEST_OBJ) $(TEST_LIB) $(OUT)/libserver.a \
		$(OUT)/libcore.a
	$(CC) $(MODE) $< $(SRV_TEST_OBJ) $(TEST_LIB) $(OUT)/libserver.a $(OUT)/libcore.a $(LDFLAGS) \
		$(LIB_LDLIBS) $(LD_CMOCKA) -lm -lpthread -ldl -o $@

# Tests, or kvasir, with a known bug put in: MUTANTS="NAME/PROGRAM ...". tests/mutants/run.py has written the
# changed sources of each; a linker takes them before those in the archives.
$(OUT)/mutants/%.c.o: $(OUT)/mutants/%.c $(OUT)/flags
	$(CC) $(DEPS) $(CPPFLAGS) $(BASE_CFLAGS) $(CFLAGS) -w $(MODE:-O3=-O0) -c $< -o $@
MUTANT_FULL := kvasir $(notdir $(FULL_TESTS))
define MUTANT_RULE
$(OUT)/mutants/$(1): $(or $(call test_obj,$(notdir $(1))),$(OUT)/server/main.c.o) $(patsubst %,%.o,$(shell \
	find $(OUT)/mutants/$(dir $(1)) -name '*.c')) $(if $(filter $(MUTANT_FULL),$(notdir $(1))),$(SRV_TEST_OBJ)) \
	$(TEST_LIB) $(if $(filter $(MUTANT_FULL),$(notdir $(1))),$(OUT)/libserver.a) $(OUT)/libcore.a
	$(CC) $(MODE) $$^ $(LDFLAGS) $(if $(filter $(MUTANT_FULL),$(notdir $(1))),$(LIB_LDLIBS)) $(LD_CMOCKA) -lm \
		-lpthread -ldl -o $$@
endef
$(foreach m,$(MUTANTS),$(eval $(call MUTANT_RULE,$(m))))
mutants: $(MUTANTS:%=$(OUT)/mutants/%)

# libFuzzer's programs, by clang: build/fuzz/fuzz_NAME. In other builds tests/lib/fuzz_replay.c drives them.
CLANG ?= clang
FUZZ  := $(patsubst tests/fuzz/%.c,$(OUT)/%,$(wildcard tests/fuzz/*.c))
fuzz:
	@$(MAKE) --no-print-directory CONFIG=fuzz CC=$(CLANG) fuzz-programs
fuzz-programs: $(FUZZ)
$(OUT)/tests/fuzz/%.c.o: EXTRA = $(LIB_CFLAGS)
FUZZ_MAIN := $(if $(filter fuzz,$(CONFIG)),-fsanitize=fuzzer,$(TEST_LIB))
$(FUZZ): $(OUT)/%: $(OUT)/tests/fuzz/%.c.o $(OUT)/libserver.a $(OUT)/libcore.a $(filter %.a,$(FUZZ_MAIN))
	$(CC) $(MODE) $< $(FUZZ_MAIN) $(OUT)/libserver.a $(OUT)/libcore.a $(LDFLAGS) $(LIB_LDLIBS) -lm -lpthread \
		-ldl -o $@

check-libs:
	@pkg-config --print-errors --exists $(PKGS) || \
		{ echo "libraries are missing: scripts/deps.sh installs them"; exit 1; }

# The program looks for the demo model in ../share/kvasir/models beside it.
PREFIX ?= /usr/local
install: all
	install -D -m 755 $(OUT)/kvasir $(DESTDIR)$(PREFIX)/bin/kvasir
	install -d $(DESTDIR)$(PREFIX)/share/kvasir/models/demo
	install -m 644 models/demo/* $(DESTDIR)$(PREFIX)/share/kvasir/models/demo
	for p in $(PAGE_PACKAGES); do [ ! -e /usr/share/doc/$$p/copyright ] || install -D -m 644 \
		/usr/share/doc/$$p/copyright $(DESTDIR)$(PREFIX)/share/doc/kvasir/licenses/$$p; done
	[ ! -e $(OUT)/kvasir-cuda.so ] || install -m 755 $(OUT)/kvasir-cuda.so $(DESTDIR)$(PREFIX)/bin
uninstall:
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/bin/,kvasir kvasir-cuda.so)
	rm -rf $(addprefix $(DESTDIR)$(PREFIX)/share/,kvasir doc/kvasir)

test: tests
	@sh scripts/run_tests.sh $(OUT) $(filter-out $(OUT)/tests/bench_%,$(CORE_TESTS) $(FULL_TESTS)) $(TILES_RUN)
test-core: core
	@sh scripts/run_tests.sh $(OUT) $(filter-out $(OUT)/tests/bench_%,$(CORE_TESTS))

# ---- CUDA. `make cuda`: kernels/cuda/*.cu by nvcc into kvasir-cuda.so (sm_80, sm_90, PTX for what comes
# after). Nothing else needs nvcc. -fmad=false: products are fused where the source says fmaf, so that the
# emulated build and the device round alike.
NVCC     ?= $(firstword $(wildcard /usr/local/cuda/bin/nvcc) nvcc)
CUDA_SRC := $(wildcard kernels/cuda/*.cu)
# CUDA_CHECK=1: to see that all of it compiles: for one architecture each, not optimised, and the sources of
# each as one, which reads CUDA's headers once.
NVCC_ARCH  = -gencode arch=compute_80,code=sm_80 \
	$(if $(CUDA_CHECK),,-gencode arch=compute_90,code=[sm_90,compute_90])
NVCC_FLAGS = -std=c++17 -O3 $(if $(CUDA_CHECK),-Xcicc -O0 -Xptxas -O0) -fmad=false -lineinfo -I. \
	-Xcompiler -fPIC,-Wall,-Wextra --threads 2 $(NVCC_ARCH) $(if $(WERROR),-Werror all-warnings) $(NVCC_EXTRA)
# NVCC_EXTRA: more flags, as -DCU_JITTER (hopper.cuh). NVCC_CACHE=ccache: compile what has changed.
# Hopper's own instructions exist for sm_90a alone; elsewhere those kernels are empty and never launched.
$(OUT)/cuda/%_sm90.cu.o $(OUT)/cuda/tests/cuda-emulator/selftest/hopper.cu.o: NVCC_ARCH = \
	-gencode arch=compute_90a,code=sm_90a $(if $(CUDA_CHECK),, \
	-gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=compute_90)
CUDA_BACKEND := $(wildcard kernels/cuda/cuda_backend.cu)
cuda: $(if $(CUDA_BACKEND),$(OUT)/kvasir-cuda.so) $(OUT)/cuda/test_emu $(OUT)/cuda/hopper
CUDA_OBJ := $(if $(CUDA_CHECK),$(addprefix $(OUT)/cuda/all,.cu.o _sm90.cu.o),$(CUDA_SRC:%=$(OUT)/cuda/%.o))
$(OUT)/cuda/all.cu: $(filter-out %_sm90.cu,$(CUDA_SRC))
$(OUT)/cuda/all_sm90.cu: $(filter %_sm90.cu,$(CUDA_SRC))
$(OUT)/cuda/all.cu $(OUT)/cuda/all_sm90.cu:
	@mkdir -p $(@D)
	@printf '#include "%s"\n' $^ > $@
define NVCC_COMPILE
	@command -v $(NVCC) >/dev/null || \
		{ echo "make cuda needs nvcc (CUDA Toolkit 12.4 or later), or NVCC=PATH"; exit 1; }
	@mkdir -p $(@D)
	$(NVCC_CACHE) $(NVCC) $(NVCC_FLAGS) -MD -MP -MF $(@:.o=.d) -c $< -o $@
endef
$(OUT)/cuda/all%.o: $(OUT)/cuda/all%
	$(NVCC_COMPILE)
$(OUT)/cuda/%.cu.o: %.cu
	$(NVCC_COMPILE)
$(OUT)/kvasir-cuda.so: $(CUDA_OBJ)
	$(NVCC) -shared $^ -o $@ -lcublas -lcublasLt -Xlinker \
		-rpath,$(abspath $(dir $(shell command -v $(NVCC)))../lib64)
# The wrappers of device.cuh and the right kernels of the emulator's self-test, as a program for a machine
# with a GPU.
$(OUT)/cuda/test_emu $(OUT)/cuda/hopper: $(OUT)/cuda/%: $(OUT)/cuda/tests/cuda-emulator/selftest/%.cu.o
	$(NVCC) $^ -o $@ -lcublas -lcublasLt -Xlinker -rpath,$(abspath $(dir $(shell command -v $(NVCC)))../lib64)

# ---- The same .cu sources on the CPU: tests/cuda-emulator is a CUDA runtime for a host compiler. Builds:
# plain and race, or asan when CONFIG=asan. A test program that has it linked in finds it as the device
# (kernels/cuda_loader.c); the backend tests reach it through tests/lib/staged_ops.c, as they do a real device
# with --backend cuda.
HOST_MODES := $(if $(filter asan,$(CONFIG)),asan,$(if $(filter tsan,$(CONFIG)),,plain race))
HOST_OUT   := $(OUT)/cuda-host
HOST_ISA   := $(if $(shell grep -m1 -ow avx2 /proc/cpuinfo 2>/dev/null),-mavx2 -mfma)
HOST_SAN   := $(ONE_OF_EACH) -fsanitize=address,undefined -fno-sanitize-recover=undefined \
	-fno-omit-frame-pointer
HOST_CXX   := $(CXX) -std=c++17 -g1 -DCUEMU -I. -MMD -MP -Wall -Wextra -Wshadow -ffp-contract=off -fno-pie \
	$(if $(WERROR),-Werror)
# The library has the plain build's objects, but for the one that has the entry's name.
HOST_PIC      := -fPIC -ftls-model=initial-exec
HOST_RT_plain := -O2 $(HOST_PIC)
HOST_RT_race  := -O3 $(HOST_ISA) -DCUEMU_RACE
HOST_RT_asan  := -O1 $(HOST_SAN)
HOST_KN_plain := -O2 $(HOST_ISA) $(HOST_PIC)
HOST_KN_pic   := $(HOST_KN_plain) -DCU_BACKEND_ENTRY=be_cuda_ops
HOST_KN_race  := -O1 $(HOST_ISA) -fsanitize=thread
HOST_KN_asan  := -O0 $(HOST_SAN)
HOST_LD_asan  := -fsanitize=address,undefined
EMU_SRC := $(addprefix tests/cuda-emulator/emu_,core.cpp sync.cpp hopper.cpp host.cpp blas.cpp gemm.cpp)
define HOST_RULES
$(HOST_OUT)/$(1)/tests/cuda-emulator/emu_gemm.cpp.o: tests/cuda-emulator/emu_gemm.cpp
	@mkdir -p $$(@D)
	$(HOST_CXX) -O3 $(HOST_ISA) -Wno-psabi $(if $(filter plain,$(1)),-fPIC) -c $$< -o $$@
$(HOST_OUT)/$(1)/%.cpp.o: %.cpp
	@mkdir -p $$(@D)
	$(HOST_CXX) -Wconversion $(HOST_RT_$(1)) -c $$< -o $$@
$(HOST_OUT)/$(1)/%.cu.o: %.cu
	@mkdir -p $$(@D)
	$(HOST_CXX) -include tests/cuda-emulator/emu_device.h -fstack-clash-protection -fno-threadsafe-statics \
		$(HOST_KN_$(1)) -x c++ -c $$< -o $$@
$(HOST_OUT)/$(1)/libcuemu.a: $(EMU_SRC:%=$(HOST_OUT)/$(1)/%.o) \
	$(if $(filter race,$(1)),$(HOST_OUT)/race/tests/cuda-emulator/emu_race.cpp.o)
	@rm -f $$@
	ar rcs $$@ $$^
$(HOST_OUT)/$(1)/test_emu $(HOST_OUT)/$(1)/bugs $(HOST_OUT)/$(1)/hopper: $(HOST_OUT)/$(1)/%: \
	$(HOST_OUT)/$(1)/tests/cuda-emulator/selftest/%.cu.o $(HOST_OUT)/$(1)/libcuemu.a
	$(CXX) -no-pie $(HOST_LD_$(1)) $$^ -lpthread -o $$@
endef
$(foreach m,$(HOST_MODES) pic,$(eval $(call HOST_RULES,$(m))))
HOST_SELFTEST := $(foreach m,$(HOST_MODES),$(addprefix $(HOST_OUT)/$(m)/,test_emu bugs hopper))
test-cuda-emu: $(HOST_SELFTEST)
	@sh tests/cuda-emulator/selftest/run.sh $(HOST_OUT) $(HOST_MODES)

HOST_NAMES := $(if $(CUDA_BACKEND),test_backend_linear test_backend_ops test_backend_attn \
	test_backend_states test_backend_experts test_cuda_faults test_cuda_gemm test_engine_golden \
	test_engine_draft test_engine_invariance test_engine_lora test_engine_overlap test_engine_recurrent \
	test_engine_tiers test_cuda_graphs test_cuda_cpu)
ifeq ($(CONFIG)$(ALL_HOST),asan)
HOST_NAMES := $(filter test_backend_ops test_cuda_gemm test_engine_golden,$(HOST_NAMES))
endif
define HOST_TEST_RULES
$(HOST_NAMES:%=$(HOST_OUT)/$(1)/tests/%): $(HOST_OUT)/$(1)/tests/%: \
	$$$$(call test_obj,$$$$*) $(CUDA_SRC:%=$(HOST_OUT)/$(1)/%.o) $(TEST_LIB) \
	$(OUT)/libcore.a $(HOST_OUT)/$(1)/libcuemu.a
	@mkdir -p $$(@D)
	$(CXX) -no-pie $(MODE) $$(filter %.o,$$^) $(TEST_LIB) $(OUT)/libcore.a $(HOST_OUT)/$(1)/libcuemu.a \
		$(LDFLAGS) $(LD_CMOCKA) -lm -lpthread -ldl -o $$@
endef
$(foreach m,$(HOST_MODES),$(eval $(call HOST_TEST_RULES,$(m))))
# The access checker's are few in CI: tests/cuda-emulator/test.sh.
HOST_TESTS := $(foreach m,$(HOST_MODES),$(addprefix $(HOST_OUT)/$(m)/tests/,$(if \
	$(filter race$(HOST_FULL),$(m)),$(filter %_ops %_gemm %_golden,$(HOST_NAMES)),$(HOST_NAMES))))
# The emulated device as a library that the server loads like the real one.
cuda-host-so: $(HOST_OUT)/kvasir-cuda.so
$(HOST_OUT)/kvasir-cuda.so: $(patsubst %,$(HOST_OUT)/plain/%.o,$(filter-out %/cuda_backend.cu,$(CUDA_SRC))) \
	$(HOST_OUT)/pic/kernels/cuda/cuda_backend.cu.o $(HOST_OUT)/plain/libcuemu.a
	$(CXX) -shared -Wl,-z,defs $^ -lm -lpthread -o $@
cuda-host: $(HOST_SELFTEST) $(HOST_TESTS)
test-cuda-host: cuda-host
	@bash tests/cuda-emulator/test.sh $(HOST_OUT) $(HOST_MODES)

-include $(shell find $(OUT) -name '*.d' 2>/dev/null)
.PHONY: mutants fuzz fuzz-programs install uninstall all core tests test test-core check-libs cuda cuda-host \
	cuda-host-so test-cuda-emu test-cuda-host
.SECONDARY:
