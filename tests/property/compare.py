"""Expected and stored rows of one run, and what must hold for any rows."""

from typing import Any, Dict, List, Mapping

import model
import sets as generator

Rows = Mapping[str, List[Dict[str, Any]]]


def _differ(what: str, expected: Mapping, found: Mapping) -> List[str]:
    out = []
    for key in sorted(set(expected) | set(found)):
        want, got = expected.get(key), found.get(key)
        if want is None:
            out.append(f"{what} {key}: is there and should not be: {got}")
        elif got is None:
            out.append(f"{what} {key}: is missing, expected {want}")
        else:
            bad = [
                f"{name} {g!r}, expected {w!r}"
                for name, w, g in zip(want._fields, want, got)
                if w != g and not (w is None and name in ("revision", "synced"))  # order decides
            ]
            if bad:
                out.append(f"{what} {key}: {'; '.join(bad)}")
    return out


def compare(run, servers, expected: model.Expected, rows: Rows) -> List[str]:
    """`run` for its prefix and containers; `servers` of its users as they are now."""
    out = _differ(
        "message",
        expected.messages,
        {
            (r["owner_login"], r["message_key"]): model.Message(
                (r["revision_time_ms"], r["reencrypted_at_ms"]),
                bytes(r["digest"]),
                r["courier"],
                r["read_at_ms"],
            )
            for r in rows["signed_messages"]
        },
    )
    out += _differ(
        "delivery",
        expected.deliveries,
        {
            (r["from_login"], r["outgoing_key"]): model.Delivery(
                r["incoming_key"],
                r["to_login"],
                r["state"],
                (r["revision_time_ms"], r["reencrypted_at_ms"]),
            )
            for r in rows["dm_delivery_state"]
        },
    )
    out += _differ(
        "outbox",
        expected.outbox,
        {
            (r["owner_login"], r["primary_message_key"]): model.Item(r["sync_id"], r["synced"])
            for r in rows["dm_sync_outbox"]
        },
    )
    out += _conversations(expected, rows)
    out += _traces(servers, expected, rows)
    out += _invariants(run, servers, rows)
    return out


def _conversations(expected: model.Expected, rows: Rows) -> List[str]:
    found = {
        (r["owner_login"], r["with_login"]): model.Conversation(
            r["last_message_key"], r["last_time_ms"], r["unread_count"], r["last_read_at_ms"]
        )
        for r in rows["conversations"]
    }
    # One whose texts are all deleted may have a row or none.
    empty = model.Conversation(None, None, 0, None)
    return _differ(
        "conversation",
        expected.conversations,
        {k: c for k, c in found.items() if k in expected.conversations or c != empty},
    )


def _traces(servers, expected: model.Expected, rows: Rows) -> List[str]:
    """What tombstones and receipts leave behind for containers that are still to come."""

    def served(owner: str) -> bool:
        return generator.ME in servers[owner[-1]]

    def same(what: str, want: Mapping, got: Mapping) -> List[str]:
        keys = sorted(set(want) | set(got))
        return [
            f"{what} {key}: {got.get(key)}, expected {want.get(key)}"
            for key in keys
            if want.get(key) != got.get(key)
        ]

    marks = {
        (r["owner_login"], r["text_key"]): r["read_at_ms"]
        for r in rows["read_marks"]
        if served(r["owner_login"])
    }
    named = {
        (r["owner_login"], r["base_key"]): r["for_both"] for r in rows["message_tombstones"]
    }
    cleared = {
        (r["owner_login"], r["with_login"]): (r["both_until_ms"], r["own_until_ms"])
        for r in rows["conversation_tombstones"]
    }
    out = same("read mark", expected.marks, marks)
    out += same("message tombstone", expected.named, named)
    return out + same("conversation tombstone", expected.cleared, cleared)


def _invariants(run, servers, rows: Rows) -> List[str]:
    out = []
    blobs = {blob for op in run.ops for blob in op.blobs}
    for r in rows["signed_messages"]:
        blob = bytes(r["blob"])
        if blob not in blobs or model.hashlib.sha256(blob).digest() != bytes(r["digest"]):
            out.append(f"message {r['message_key']}: blob and digest do not belong together")
        c = model.dm.parse(blob)
        fields = (c.message_key(), c.base_key(), c.from_, c.to, c.type, *c.ref(), *c.revision())
        names = "message_key base_key from_login to_login message_type time_ms nonce"
        stored = [r[n] for n in (names + " revision_time_ms reencrypted_at_ms").split()]
        if list(fields) != stored:
            out.append(f"message {r['message_key']}: columns {stored} are not the container's")
    for r in rows["dm_delivery_state"]:
        waits = r["state"] == "accepted"
        hint = servers[r["to_login"][-1]][0]
        if waits != (r["next_attempt_at_ms"] is not None) or waits and r["route_hint"] != hint:
            out.append(f"delivery {r['outgoing_key']}: odd row {r}")
    for r in rows["dm_sync_outbox"]:
        if r["synced"] and r["push_due_at_ms"] is not None:
            out.append(f"outbox {r['primary_message_key']}: odd row {r}")
    for table in ("dm_delivery_state", "dm_sync_outbox"):
        for r in rows[table]:
            if r["lease_owner"] is not None or r["lease_until_ms"] is not None:
                out.append(f"{table}: a lease is held: {r}")
    out += _events(rows)
    return out


def _events(rows: Rows) -> List[str]:
    out = []
    heads = {r["owner_login"]: r["last_pts"] for r in rows["user_event_heads"]}
    logs: Dict[str, List[int]] = {owner: [] for owner in heads}
    for r in rows["user_events"]:
        logs.setdefault(r["owner_login"], []).append(r["pts"])
    for owner, positions in logs.items():
        if sorted(positions) != list(range(1, heads.get(owner, 0) + 1)):
            out.append(f"events of {owner}: {sorted(positions)}, head {heads.get(owner)}")
    told = {(r["owner_login"], r["message_key"]) for r in rows["user_events"]}
    for r in rows["signed_messages"]:
        if not r["courier"] and (r["owner_login"], r["message_key"]) not in told:
            out.append(f"no event for {r['owner_login']}'s {r['message_key']}")
    return out


def unchanged(expected: model.Expected, before: Rows, after: Rows) -> List[str]:
    """Handing over what is stored already changes nothing, not even a version."""
    # An item that lost its incoming copy may count as synced by its outgoing one alone, and the row
    # of a message whose recipient deleted his copy may learn of a revision that came before it.
    free = {("dm_sync_outbox", *key) for key, item in expected.outbox.items() if item.synced is None}
    free |= {
        ("dm_delivery_state", *key) for key, d in expected.deliveries.items() if d.revision is None
    }
    names = {
        "dm_sync_outbox": ("owner_login", "primary_message_key"),
        "dm_delivery_state": ("from_login", "outgoing_key"),
    }

    def judged(table: str, rows: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
        if table not in names:
            return rows
        return [r for r in rows if (table, *(r[n] for n in names[table])) not in free]

    out = []
    for table, rows in before.items():
        old, new = judged(table, rows), judged(table, after[table])
        for row in [r for r in old if r not in new]:
            out.append(f"{table} moved at the second pass, was {_show(row)}")
        for row in [r for r in new if r not in old]:
            out.append(f"{table} moved at the second pass, is {_show(row)}")
    return out


def _show(row: Dict[str, Any]) -> str:
    return ", ".join(f"{k} {v.hex()[:8] if isinstance(v, bytes) else v}" for k, v in row.items())
