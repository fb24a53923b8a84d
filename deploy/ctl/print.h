/*
 * What shinectl prints. Everything that came over the wire goes to the terminal through
 * ctl_print_text(), so that nobody steers it from afar; JSON is printed as pure ASCII.
 */
#ifndef SHINE_CTL_PRINT_H
#define SHINE_CTL_PRINT_H

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>

/* Print `value` (consumed) as JSON on stdout. */
void ctl_print_json(json_t *value);
/* Print `n` bytes that a stranger wrote: control characters, and whatever is not UTF-8, are shown
 * as '?'. */
void ctl_print_text(FILE *to, const char *s, size_t n);
void ctl_print_string(FILE *to, const char *s);
/* "2026-11-30 20:18:29" in UTC. */
void ctl_time_text(int64_t unix_ms, char out[32]);
/* A string member of an answer, borrowed; "" if it is missing. */
const char *ctl_json_text(const json_t *object, const char *name);

/* What the container in an item's or event's `blobB64` says, in words, without a line's end. Texts
 * that are not plain are shown by their size. */
void ctl_print_body(const json_t *m);
/* An item or event as one line: when, who to whom, what, edited, read, how far. */
void ctl_print_message(const json_t *m);

#endif
