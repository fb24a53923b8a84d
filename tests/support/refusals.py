"""What a refused request must leave behind: nothing, and a connection that goes on working."""

from typing import Any

import pytest
from example_client import Client, Payload, ShineError

from .server import WatchedServer

# Every table that an operation could have written to.
TABLES = (
    "signed_messages",
    "dm_delivery_state",
    "dm_sync_outbox",
    "user_events",
    "message_tombstones",
    "conversation_tombstones",
    "read_marks",
    "conversations",
)


def content(server: WatchedServer) -> Any:
    """What is stored, so that before and after can be compared."""
    counts = ", ".join(f"(SELECT count(*) FROM {table}) AS {table}" for table in TABLES)
    marks = "(SELECT count(*) FROM signed_messages WHERE read_at_ms IS NOT NULL) AS read"
    unread = "(SELECT sum(unread_count) FROM conversations) AS unread"
    return server.rows(f"SELECT {counts}, {marks}, {unread}")


async def refused(client: Client, op: str, payload: Payload) -> ShineError:
    """The refusal of a request; the connection is usable afterwards."""
    with pytest.raises(ShineError) as e:
        await client.call(op, payload)
    assert await client.call("Ping", {"ts": 1}) == {"ts": 1}
    return e.value


def code(e: ShineError) -> Any:
    return e.status, e.error
