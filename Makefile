# SHiNE message server. `make help` lists the targets; README.md explains the two that matter.
#
# VARIANT=gcc (default) builds with gcc -O2 into build/; VARIANT=san builds with
# clang + ASan/UBSan into build/san/. Sources are found by wildcard: a new file needs no entry here.

VARIANT ?= gcc
BUILD   := build
JOBS    := $(shell nproc)

# The packages come first, while this file is read: pkg-config below must already find them.
# Nothing is installed for `make clean`, `make help` and dry runs. SKIP_PACKAGES=1: see the script.
ifneq ($(filter-out clean help,$(or $(MAKECMDGOALS),all)),)
ifeq ($(SKIP_PACKAGES)$(findstring n,$(firstword -$(MAKEFLAGS))),)
packages := $(shell deploy/install-packages.sh >&2)
ifneq ($(.SHELLSTATUS),0)
$(error the packages of deploy/packages.txt are not all there)
endif
endif
endif
PKGS    := libuv openssl libpq libsodium jansson
WARN    := -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla \
           -Wpointer-arith -Wcast-qual -Wwrite-strings -Wformat=2 -Wundef -Werror
HARDEN  := -fstack-protector-strong -fPIE

ifeq ($(VARIANT),san)
CC      := clang
OUT     := $(BUILD)/san
OPT     := -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all -DSHINE_DEBUG=1
LDOPT   := -fsanitize=address,undefined
else
CC      := gcc
OUT     := $(BUILD)
OPT     := -O2 -g -D_FORTIFY_SOURCE=2
LDOPT   := -Wl,-z,relro,-z,now
endif

CPPFLAGS := -D_GNU_SOURCE -DHTTP_PARSER_STRICT=1 -I. -Icommon $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
CFLAGS   := -std=c17 $(WARN) $(HARDEN) $(OPT)
LDFLAGS  := -pie $(LDOPT)
LDLIBS   := $(shell pkg-config --libs $(PKGS) 2>/dev/null) -lwslay -lhttp_parser -lm -lpthread

LIB_SRC   := $(wildcard common/*/*.c)
LIB_OBJ   := $(LIB_SRC:%.c=$(OUT)/obj/%.o) $(if $(wildcard sql/embed.py),$(OUT)/obj/sql/embedded.o)
PROGRAMS  := $(foreach d,frontd deliveryd syncd,$(if $(wildcard $(d)/main.c),$(d))) $(if $(wildcard deploy/ctl/main.c),shinectl)
DIR_shinectl := deploy/ctl
UNIT_SRC  := $(wildcard tests/unit/test_*.c)
UNIT_BIN  := $(UNIT_SRC:tests/unit/%.c=$(OUT)/unit/%)
HELP_SRC  := $(wildcard tests/unit/support_*.c)
PROPERTY_BIN := $(patsubst tests/property/%.c,$(OUT)/property/%,$(wildcard tests/property/*.c))
BENCH_BIN := $(patsubst tests/bench/%.c,$(OUT)/bench/%,$(wildcard tests/bench/bench_*.c))
SQL_FILES := $(sort $(wildcard sql/migrations/*.sql sql/functions/*.sql sql/views/*.sql))

C_FILES   := $(shell find common frontd deliveryd syncd deploy tests -name '*.c' 2>/dev/null | sort)
FUZZ_BIN  := $(patsubst tests/fuzz/%.c,$(BUILD)/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_SECONDS ?= 30

.PHONY: all unit bench-bin property-bin clean help lint tidy check chaos demo bench property fuzz fuzz-bin
all: $(PROGRAMS:%=$(OUT)/bin/%)   ## build the programs (build/bin)
unit: $(UNIT_BIN)
bench-bin: $(BENCH_BIN)
property-bin: $(PROPERTY_BIN)

$(OUT)/libshine.a: $(LIB_OBJ)
	@rm -f $@
	@ar rcs $@ $^

# The modules of frontd, for their unit tests.
FRONTD_OBJ := $(patsubst %.c,$(OUT)/obj/%.o,$(filter-out frontd/main.c,$(wildcard frontd/*.c)))
$(OUT)/libfrontd.a: $(FRONTD_OBJ)
	@rm -f $@
	@ar rcs $@ $^

# Every SQL file travels inside the programs, so that a binary alone can create its schema.
$(OUT)/gen/sql/embedded.c: sql/embed.py $(SQL_FILES)
	@mkdir -p $(@D)
	@/usr/bin/python3 sql/embed.py $(SQL_FILES) > $@.tmp && mv $@.tmp $@
$(OUT)/obj/sql/embedded.o: $(OUT)/gen/sql/embedded.c
	@mkdir -p $(@D)
	@$(CC) $(CPPFLAGS) $(CFLAGS) -Wno-overlength-strings -c $< -o $@

$(OUT)/obj/%.o: %.c
	@mkdir -p $(@D)
	@echo "  CC $<"
	@$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

define program
$(OUT)/bin/$(1): $$(patsubst %.c,$(OUT)/obj/%.o,$$(wildcard $$(or $$(DIR_$(1)),$(1))/*.c)) $(OUT)/libshine.a
	@mkdir -p $$(@D)
	@echo "  LD $$@"
	@$(CC) $(LDFLAGS) -o $$@ $$^ $(LDLIBS)
endef
$(foreach p,$(PROGRAMS),$(eval $(call program,$(p))))

# What unit tests share, as a library: a test that stands in for a module must not get the real one by
# way of a helper that it does not use.
$(OUT)/libsupport.a: $(HELP_SRC:%.c=$(OUT)/obj/%.o)
	@rm -f $@
	@ar rcs $@ $^

$(OUT)/unit/%: $(OUT)/obj/tests/unit/%.o $(OUT)/libsupport.a $(OUT)/libfrontd.a $(OUT)/libshine.a
	@mkdir -p $(@D)
	@$(CC) $(LDFLAGS) -o $@ $^ -lcmocka $(LDLIBS)
$(OUT)/bench/%: $(OUT)/obj/tests/bench/%.o $(OUT)/obj/tests/bench/users.o $(OUT)/libshine.a
	@mkdir -p $(@D)
	@$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
$(OUT)/property/%: $(OUT)/obj/tests/property/%.o $(OUT)/libshine.a
	@mkdir -p $(@D)
	@$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

check:             ## build with gcc and with clang + sanitizers, run every test
	@/usr/bin/python3 tests/check.py

lint:              ## formatting, clang-tidy, layer order, contracts, syntax of scripts
	@tests/lint/run.sh && quick=fine; \
	    $(MAKE) --no-print-directory -k -j$(JOBS) tidy && [ "$$quick" ] && echo "lint: all fine"

# One stamp for each file, so that only what changed is looked at again.
tidy: $(C_FILES:%=$(BUILD)/tidy/%.ok)
$(BUILD)/tidy/%.ok: % .clang-tidy
	@mkdir -p $(@D)
	@echo "  TIDY $<"
	@clang-tidy --quiet $< -- $(CPPFLAGS) -std=c17 >$@.out 2>/dev/null || { cat $@.out; exit 1; }
	@$(CC) $(CPPFLAGS) -MM -MP -MT $@ -MF $(@:.ok=.d) $<
	@touch $@

# Fuzz targets are linked with a library of their own that is instrumented for coverage.
FUZZ_FLAGS := -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
fuzz-bin: $(FUZZ_BIN)
$(BUILD)/fuzz/obj/%.o: %.c
	@mkdir -p $(@D)
	@echo "  FUZZ-CC $<"
	@clang $(CPPFLAGS) -std=c17 $(WARN) $(FUZZ_FLAGS) -fsanitize=fuzzer-no-link -MMD -MP -c $< -o $@
$(BUILD)/fuzz/libshine.a: $(LIB_SRC:%.c=$(BUILD)/fuzz/obj/%.o)
	@rm -f $@
	@ar rcs $@ $^
$(BUILD)/fuzz/%: $(BUILD)/fuzz/obj/tests/fuzz/%.o $(BUILD)/fuzz/libshine.a
	@clang $(FUZZ_FLAGS) -fsanitize=fuzzer -o $@ $^ $(LDLIBS)

fuzz:              ## run every fuzz target for FUZZ_SECONDS (30) each
	@$(MAKE) --no-print-directory -j$(JOBS) fuzz-bin
	@tests/fuzz/run.sh $(FUZZ_SECONDS) $(FUZZ_BIN)

demo: all          ## two servers on loopback exchange messages
	@/usr/bin/python3 deploy/demo/demo.py

bench: all bench-bin ## throughput beside plain PostgreSQL
	@/usr/bin/python3 tests/bench/bench.py

property: all property-bin ## 10,000 random sets of containers in several orders against a model
	@/usr/bin/python3 tests/property/run.py --sets 10000

# The faults of make check for longer, with a seed of the day; a failure names it.
chaos:             ## kills, crashes and hostile connections for longer (about 7 minutes)
	@$(MAKE) --no-print-directory VARIANT=san all
	@cd tests && SHINE_CHAOS=5 SHINE_CRASH_SEED=$${SHINE_CRASH_SEED:-$$(date +%F)} PYTHONPATH=.:../docs \
	    PYTHONDONTWRITEBYTECODE=1 timeout 1500 /usr/bin/python3 -m pytest -q -p no:cacheprovider \
	    -o timeout=600 integration/test_kill.py integration/test_database_faults.py \
	    integration/test_hostile_connections.py integration/test_deliveryd_processes.py

clean:             ## remove everything that was built
	rm -rf $(BUILD)

help:              ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */ — /' | sort

.SECONDARY:
-include $(shell find $(OUT)/obj $(BUILD)/tidy $(BUILD)/fuzz/obj -name '*.d' 2>/dev/null)
