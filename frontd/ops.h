/*
 * Every operation of the protocol that frontd serves: the dispatch table and its handlers. What
 * each takes and answers stands in docs/protocol.md.
 */
#ifndef SHINE_FRONTD_OPS_H
#define SHINE_FRONTD_OPS_H

#include "rpc/dispatch.h"

extern const struct rpc_op frontd_ops[];

/* op_account.c */
void frontd_ping(struct rpc_call *call);
void frontd_get_server_info(struct rpc_call *call);
void frontd_add_user(struct rpc_call *call);
void frontd_get_user(struct rpc_call *call);

/* op_profile.c */
void frontd_upsert_user_profile(struct rpc_call *call);

/* op_auth.c */
void frontd_auth_challenge(struct rpc_call *call);
void frontd_create_auth_session(struct rpc_call *call);
void frontd_session_challenge(struct rpc_call *call);
void frontd_session_login(struct rpc_call *call);

/* op_devices.c */
void frontd_list_sessions(struct rpc_call *call);
void frontd_close_active_session(struct rpc_call *call);

/* op_messages.c */
void frontd_send_message_pair(struct rpc_call *call); /* also as ReceiveOutcomingMessage */
void frontd_receive_incoming_message(struct rpc_call *call);

/* op_delete.c */
void frontd_delete_message(struct rpc_call *call);
void frontd_delete_conversation(struct rpc_call *call);

/* op_conversations.c */
void frontd_list_conversations(struct rpc_call *call);

/* op_history.c */
void frontd_get_direct_messages(struct rpc_call *call);
void frontd_get_dm_delivery_status(struct rpc_call *call);

/* op_settings.c */
void frontd_upsert_user_setting(struct rpc_call *call);
void frontd_get_user_settings(struct rpc_call *call);
void frontd_mark_all_user_settings_unsynced(struct rpc_call *call);

/* op_sync.c */
void frontd_dm_sync_batch(struct rpc_call *call);
void frontd_user_settings_sync_batch(struct rpc_call *call);
void frontd_get_dm_delivery_statuses(struct rpc_call *call);

/* op_server.c */
void frontd_server_hello(struct rpc_call *call);

#endif
