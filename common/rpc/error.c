/*
 * Names and statuses of the error codes, in one table indexed by code.
 *
 * Grades of failure: a code outside the table is our bug.
 */
#include "rpc/error.h"

#include "util/mem.h"

static const struct {
    int status;
    const char *name;
} errors[RPC_ERROR_COUNT] = {
    [RPC_OK] = {200, ""},
    [RPC_EMPTY_JSON] = {400, "EMPTY_JSON"},
    [RPC_BAD_JSON] = {400, "BAD_JSON"},
    [RPC_NO_OP] = {400, "NO_OP"},
    [RPC_UNKNOWN_OP] = {400, "UNKNOWN_OP"},
    [RPC_NO_PAYLOAD] = {400, "NO_PAYLOAD"},
    [RPC_BAD_PAYLOAD] = {400, "BAD_PAYLOAD"},
    [RPC_BAD_FIELDS] = {400, "BAD_FIELDS"},
    [RPC_BAD_BLOB] = {400, "BAD_BLOB"},
    [RPC_PAIR_MISMATCH] = {400, "PAIR_MISMATCH"},
    [RPC_BAD_MESSAGE_TYPE] = {400, "BAD_MESSAGE_TYPE"},
    [RPC_BAD_LOGIN] = {400, "BAD_LOGIN"},
    [RPC_BAD_KEY_FORMAT] = {400, "BAD_KEY_FORMAT"},
    [RPC_TOO_MANY_ACCESS_SERVERS] = {400, "TOO_MANY_ACCESS_SERVERS"},
    [RPC_TIME_SKEW] = {400, "TIME_SKEW"},
    [RPC_AUTH_NONCE_MISMATCH] = {400, "AUTH_NONCE_MISMATCH"},
    [RPC_EMPTY_MESSAGE_KEY] = {400, "EMPTY_MESSAGE_KEY"},
    [RPC_EMPTY_OWNER_LOGIN] = {400, "EMPTY_OWNER_LOGIN"},
    [RPC_NOT_AUTHENTICATED] = {401, "NOT_AUTHENTICATED"},
    [RPC_LOCAL_SERVER_NOT_ACCESS_SERVER] = {403, "LOCAL_SERVER_NOT_ACCESS_SERVER"},
    [RPC_PEER_NOT_ACCESS_SERVER] = {403, "PEER_NOT_ACCESS_SERVER"},
    [RPC_PEER_BLOCKED] = {403, "PEER_BLOCKED"},
    [RPC_WRONG_HOST] = {403, "WRONG_HOST"},
    [RPC_BAD_SERVER_PROOF] = {403, "BAD_SERVER_PROOF"},
    [RPC_ADD_USER_DISABLED] = {403, "ADD_USER_DISABLED"},
    [RPC_TOO_MANY_SESSIONS] = {403, "TOO_MANY_SESSIONS"},
    [RPC_TOO_MANY_SETTINGS] = {403, "TOO_MANY_SETTINGS"},
    [RPC_USER_NOT_FOUND] = {404, "USER_NOT_FOUND"},
    [RPC_USER_ALREADY_EXISTS] = {409, "USER_ALREADY_EXISTS"},
    [RPC_DELETED] = {410, "DELETED"},
    [RPC_PAYLOAD_TOO_LARGE] = {413, "PAYLOAD_TOO_LARGE"},
    [RPC_BAD_SIGNATURE] = {422, "BAD_SIGNATURE"},
    [RPC_UNKNOWN_USER] = {422, "UNKNOWN_USER"},
    [RPC_CLIENT_KEY_NOT_ACTUAL] = {422, "CLIENT_KEY_NOT_ACTUAL"},
    [RPC_SESSION_NOT_FOUND] = {422, "SESSION_NOT_FOUND"},
    [RPC_SESSION_OF_ANOTHER_USER] = {422, "SESSION_OF_ANOTHER_USER"},
    [RPC_RATE_LIMITED] = {429, "RATE_LIMITED"},
    [RPC_INTERNAL_ERROR] = {500, "INTERNAL_ERROR"},
    [RPC_LOCAL_SERVER_NOT_CONFIGURED] = {500, "LOCAL_SERVER_NOT_CONFIGURED"},
    [RPC_DB_UNAVAILABLE] = {503, "DB_UNAVAILABLE"},
    [RPC_OVERLOADED] = {503, "OVERLOADED"},
    [RPC_DIRECTORY_UNAVAILABLE] = {503, "DIRECTORY_UNAVAILABLE"},
};

int rpc_error_status(enum rpc_error e)
{
    shine_assert((unsigned)e < RPC_ERROR_COUNT && errors[e].name);
    return errors[e].status;
}

const char *rpc_error_name(enum rpc_error e)
{
    shine_assert((unsigned)e < RPC_ERROR_COUNT && errors[e].name);
    return errors[e].name;
}
