/*
 * Every configuration key of the three daemons, in one table: they share one file.
 * docs/operations.md explains them; a test compares the two.
 */
#ifndef SHINE_DAEMON_SETTINGS_H
#define SHINE_DAEMON_SETTINGS_H

#include "util/config.h"

extern const struct config_key settings_keys[];

/* Rules between keys (what one key alone cannot show). NULL, or a new string with what is wrong
 * (freed with free()). */
char *settings_check(const struct config *c);

#endif
