/*
 * The dispatch table of frontd.
 */
#include "frontd/ops.h"

const struct rpc_op frontd_ops[] = {
    {"Ping", 0, frontd_ping},
    {"GetServerInfo", 0, frontd_get_server_info},
    {"AddUser", 0, frontd_add_user},
    {"GetUser", 0, frontd_get_user},
    {"UpsertUserProfile", 0, frontd_upsert_user_profile},
    {"AuthChallenge", 0, frontd_auth_challenge},
    {"CreateAuthSession", 0, frontd_create_auth_session},
    {"SessionChallenge", 0, frontd_session_challenge},
    {"SessionLogin", 0, frontd_session_login},
    {"ListSessions", RPC_NEEDS_SESSION, frontd_list_sessions},
    {"CloseActiveSession", RPC_NEEDS_SESSION, frontd_close_active_session},
    {"SendMessagePair", 0, frontd_send_message_pair},
    {"ReceiveOutcomingMessage", 0, frontd_send_message_pair},
    {"ReceiveIncomingMessage", 0, frontd_receive_incoming_message},
    {"DeleteMessage", 0, frontd_delete_message},
    {"DeleteConversation", 0, frontd_delete_conversation},
    {"ListConversations", RPC_NEEDS_SESSION, frontd_list_conversations},
    {"GetDirectMessages", RPC_NEEDS_SESSION, frontd_get_direct_messages},
    {"GetDmDeliveryStatus", 0, frontd_get_dm_delivery_status},
    {"GetDmDeliveryStatuses", 0, frontd_get_dm_delivery_statuses},
    {"UpsertUserSetting", RPC_NEEDS_SESSION, frontd_upsert_user_setting},
    {"GetUserSettings", RPC_NEEDS_SESSION, frontd_get_user_settings},
    {"MarkAllUserSettingsUnsynced", RPC_NEEDS_SESSION, frontd_mark_all_user_settings_unsynced},
    {"DmSyncBatch", 0, frontd_dm_sync_batch},
    {"UserSettingsSyncBatch", 0, frontd_user_settings_sync_batch},
    {"ServerHello", 0, frontd_server_hello},
    {.name = 0},
};
