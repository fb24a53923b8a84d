/*
 * Finding the line of a statement in an SQL script, for messages. A statement ends at a semicolon
 * outside quotes, comments, parentheses and BEGIN ATOMIC bodies, as psql sees it.
 *
 * Raises: nothing.
 */
#include "db/schema.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

static bool is_ident(char c)
{
    return isalnum((unsigned char)c) || c == '_' || (unsigned char)c >= 0x80;
}

static size_t skip_line_comment(const char *s)
{
    return strcspn(s, "\n");
}

static size_t skip_block_comment(const char *s)
{
    size_t i = 2;
    for (int depth = 1; s[i] && depth > 0;) {
        bool open = s[i] == '/' && s[i + 1] == '*';
        bool close = s[i] == '*' && s[i + 1] == '/';
        depth += open - close;
        i += open || close ? 2 : 1;
    }
    return i;
}

/* From the opening quote to behind the closing one; a doubled quote is just two strings in a row.
 */
static size_t skip_quoted(const char *s, bool backslashes)
{
    size_t i = 1;
    while (s[i] && s[i] != s[0])
        i += backslashes && s[i] == '\\' && s[i + 1] ? 2 : 1;
    return s[i] ? i + 1 : i;
}

/* A dollar-quoted string, or 1 if this '$' begins none. */
static size_t skip_dollar(const char *s)
{
    size_t n = 1;
    while (is_ident(s[n]))
        n++;
    if (s[n] != '$' || isdigit((unsigned char)s[1]))
        return 1;
    n++;
    for (const char *end = s + n; (end = strchr(end, '$')); end++)
        if (strncmp(end, s, n) == 0)
            return (size_t)(end - s) + n;
    return strlen(s);
}

/* Length of what is at `s` and cannot hold a statement's end; 0 if it is plain text. */
static size_t skip_opaque(const char *s, bool after_e)
{
    if (s[0] == '-' && s[1] == '-')
        return skip_line_comment(s);
    if (s[0] == '/' && s[1] == '*')
        return skip_block_comment(s);
    if (s[0] == '\'' || s[0] == '"')
        return skip_quoted(s, s[0] == '\'' && after_e);
    if (s[0] == '$')
        return skip_dollar(s);
    return 0;
}

struct nesting {
    int parens;
    int blocks; /* BEGIN ATOMIC, and CASE inside it: each has an END */
    bool after_begin;
};

static void take_word(struct nesting *n, const char *word, size_t len)
{
    bool begin = len == 5 && strncasecmp(word, "begin", 5) == 0;
    if (n->after_begin && len == 6 && strncasecmp(word, "atomic", 6) == 0)
        n->blocks++;
    else if (n->blocks > 0 && len == 4 && strncasecmp(word, "case", 4) == 0)
        n->blocks++;
    else if (n->blocks > 0 && len == 3 && strncasecmp(word, "end", 3) == 0)
        n->blocks--;
    n->after_begin = begin;
}

int sql_line_of_statement(const char *script, int index)
{
    struct nesting n = {0};
    int line = 1;
    int found = 1; /* line of the first word of the current statement */
    bool begun = false;
    bool after_e = false;
    for (const char *s = script; *s;) {
        size_t len = skip_opaque(s, after_e);
        bool comment = len > 0 && (*s == '-' || *s == '/');
        if (!begun && !comment && !isspace((unsigned char)*s)) {
            begun = true;
            found = line;
        }
        after_e = false;
        if (len == 0 && is_ident(*s)) {
            while (is_ident(s[len]))
                len++;
            after_e = len == 1 && (*s == 'e' || *s == 'E');
            take_word(&n, s, len);
        } else if (len == 0) {
            len = 1;
            n.parens += (*s == '(') - (*s == ')');
            if (*s == ';' && n.parens <= 0 && n.blocks == 0) {
                if (index-- == 0)
                    return found;
                begun = false;
            }
        }
        for (size_t i = 0; i < len; i++)
            line += s[i] == '\n';
        s += len;
    }
    return found;
}

int sql_line_of_position(const char *script, int position)
{
    int line = 1;
    for (const char *s = script; *s && position > 1; s++) {
        line += *s == '\n';
        position -=
            ((unsigned char)s[1] & 0xc0) != 0x80; /* a code point ends before the next begins */
    }
    return line;
}
