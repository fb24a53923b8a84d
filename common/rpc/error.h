/*
 * The error codes of the protocol and the status each is sent with. One table, so that a code never
 * travels with two statuses. docs/protocol.md lists when each is sent.
 */
#ifndef SHINE_RPC_ERROR_H
#define SHINE_RPC_ERROR_H

enum rpc_error {
    RPC_OK = 0,
    RPC_EMPTY_JSON,
    RPC_BAD_JSON,
    RPC_NO_OP,
    RPC_UNKNOWN_OP,
    RPC_NO_PAYLOAD,
    RPC_BAD_PAYLOAD,
    RPC_BAD_FIELDS,
    RPC_BAD_BLOB,
    RPC_PAIR_MISMATCH,
    RPC_BAD_MESSAGE_TYPE,
    RPC_BAD_LOGIN,
    RPC_BAD_KEY_FORMAT,
    RPC_TOO_MANY_ACCESS_SERVERS,
    RPC_TIME_SKEW,
    RPC_AUTH_NONCE_MISMATCH,
    RPC_EMPTY_MESSAGE_KEY,
    RPC_EMPTY_OWNER_LOGIN,
    RPC_NOT_AUTHENTICATED,
    RPC_LOCAL_SERVER_NOT_ACCESS_SERVER,
    RPC_PEER_NOT_ACCESS_SERVER,
    RPC_PEER_BLOCKED,
    RPC_WRONG_HOST,
    RPC_BAD_SERVER_PROOF,
    RPC_ADD_USER_DISABLED,
    RPC_TOO_MANY_SESSIONS,
    RPC_TOO_MANY_SETTINGS,
    RPC_USER_NOT_FOUND,
    RPC_USER_ALREADY_EXISTS,
    RPC_DELETED,
    RPC_PAYLOAD_TOO_LARGE,
    RPC_BAD_SIGNATURE,
    RPC_UNKNOWN_USER,
    RPC_CLIENT_KEY_NOT_ACTUAL,
    RPC_SESSION_NOT_FOUND,
    RPC_SESSION_OF_ANOTHER_USER,
    RPC_RATE_LIMITED,
    RPC_INTERNAL_ERROR,
    RPC_LOCAL_SERVER_NOT_CONFIGURED,
    RPC_DB_UNAVAILABLE,
    RPC_OVERLOADED,
    RPC_DIRECTORY_UNAVAILABLE,
    RPC_ERROR_COUNT
};

/* The status (200 for RPC_OK) and the name as sent ("" for RPC_OK). */
int rpc_error_status(enum rpc_error e);
const char *rpc_error_name(enum rpc_error e);

#endif
