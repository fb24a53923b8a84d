# SHiNE message server. `make help` lists the targets; README.md explains the two that matter.
#
# VARIANT=gcc (default) builds with gcc -O2 into build/; VARIANT=san builds with
# clang + ASan/UBSan into build/san/. Sources are found by wildcard: a new file needs no entry here.

VARIANT ?= gcc
BUILD   := build
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
BENCH_BIN := $(patsubst tests/bench/%.c,$(OUT)/bench/%,$(wildcard tests/bench/bench_*.c))
SQL_FILES := $(sort $(wildcard sql/migrations/*.sql sql/functions/*.sql sql/views/*.sql))

.PHONY: all unit bench-bin clean help lint check demo bench fuzz deps
all: $(PROGRAMS:%=$(OUT)/bin/%)   ## build the programs (build/bin)
unit: $(UNIT_BIN)
bench-bin: $(BENCH_BIN)

$(OUT)/libshine.a: $(LIB_OBJ)
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

$(OUT)/unit/%: $(OUT)/obj/tests/unit/%.o $(HELP_SRC:%.c=$(OUT)/obj/%.o) $(OUT)/libshine.a
	@mkdir -p $(@D)
	@$(CC) $(LDFLAGS) -o $@ $^ -lcmocka $(LDLIBS)
$(OUT)/bench/%: $(OUT)/obj/tests/bench/%.o $(OUT)/libshine.a
	@mkdir -p $(@D)
	@$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

clean:             ## remove everything that was built
	rm -rf $(BUILD)

help:              ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/ —/' | sort

.SECONDARY:
-include $(shell find $(OUT)/obj -name '*.d' 2>/dev/null)
