"""Settings of users: UpsertUserSetting, GetUserSettings, their events."""

import pytest
from example_client import b64, now_ms, setting_payload
from support.refusals import code, refused


@pytest.fixture(scope="module")
def narrow(world):
    """A server that allows five settings and answers at most 64 KiB."""
    return world.server("narrow", limits__settingsPerUser=5, limits__maxAnswerBytes=65536)


async def settings(client, **ask):
    """Every page of GetUserSettings, as one list."""
    result = []
    while True:
        page = await client.call("GetUserSettings", ask)
        result += page["settings"]
        if not page["hasMore"]:
            return result
        assert page["settings"] and page["nextName"] == page["settings"][-1]["name"]
        ask["afterName"] = page["nextName"]


def brief(items):
    return [(s["name"], s["value"]) for s in items]


async def test_a_setting_is_kept_and_told_to_every_session(alpha, net):
    alice = await net.user("alice", alpha)
    phone, laptop = await net.spread_sessions(alice, alpha)
    payload = setting_payload(alice.login, alice.key, "ui/theme", "dark „ü“ \"quoted\"\n")
    assert await phone.call("UpsertUserSetting", payload) == {}
    want = {k: payload[k] for k in ("name", "value", "timeMs", "signatureB64")}
    assert await settings(phone) == [want] and await settings(laptop) == [want]
    for device in (phone, laptop):  # like messages: the asking session hears it, too
        event = await device.wait_event("UserSettingChanged")
        assert event.payload == {**want, "pts": 1}
    # A repeat and an older value are acknowledged and change nothing.
    await phone.call("UpsertUserSetting", payload)
    older = setting_payload(alice.login, alice.key, "ui/theme", "z", payload["timeMs"] - 1)
    await phone.call("UpsertUserSetting", older)
    assert await settings(laptop) == [want]
    newer = setting_payload(alice.login, alice.key, "ui/theme", "", payload["timeMs"] + 1)
    await laptop.call("UpsertUserSetting", newer)
    for device in (phone, laptop):
        event = await device.wait_event("UserSettingChanged")
        assert event["value"] == "" and event["pts"] == 2
        assert device.pts() == [1, 2]
    assert brief(await settings(phone)) == [("ui/theme", "")]  # deleted: kept, with its signature


async def test_values_and_names(alpha, net):
    alice = await net.user("alice", alpha)
    a = await net.session(alice)
    good = {"a": "x" * 65536, "n" * 128: "é" * 32768, "A.b_c/d-9": "\u0001\ud7ff\U0010ffff"}
    for name, value in good.items():
        await a.set_setting(name, value)
    assert dict(brief(await settings(a))) == good

    def with_(**fields):
        return {**setting_payload(alice.login, alice.key, "ok", "v"), **fields}

    for wrong in (
        setting_payload(alice.login, alice.key, "", "v"),
        setting_payload(alice.login, alice.key, "n" * 129, "v"),
        setting_payload(alice.login, alice.key, "with:colon", "v"),
        setting_payload(alice.login, alice.key, "with space", "v"),
        setting_payload(alice.login, alice.key, "ä", "v"),
        setting_payload(alice.login, alice.key, "ok", "x" * 65537),
        with_(value=None),
        with_(value=1),
        with_(timeMs=-1),
        with_(timeMs=None),
        with_(signatureB64="AAAA"),
    ):
        assert code(await refused(a, "UpsertUserSetting", wrong)) == (400, "BAD_FIELDS")
    nul = await a.raw_call(
        '{"op":"UpsertUserSetting","requestId":"","payload":{"name":"a","value":"\\u0000"}}'
    )
    assert (nul.status, nul.error) == (400, "BAD_JSON")
    assert len(await settings(a)) == 3


async def test_the_signature_covers_everything(alpha, net):
    alice, carol = await net.user("alice", alpha), await net.user("carol", alpha)
    a = await net.session(alice)
    good = setting_payload(alice.login, alice.key, "name", "value")
    for other in (
        setting_payload(carol.login, alice.key, "name", "value"),
        setting_payload(alice.login, carol.key, "name", "value"),
        {**good, "value": "other"},
        {**good, "name": "other"},
        {**good, "timeMs": good["timeMs"] + 1},
        {**good, "signatureB64": b64(bytes(64))},
    ):
        assert code(await refused(a, "UpsertUserSetting", other)) == (422, "BAD_SIGNATURE")
    assert await settings(a) == []
    stranger = await net.connect(alpha)
    for op in ("UpsertUserSetting", "GetUserSettings", "MarkAllUserSettingsUnsynced"):
        assert code(await refused(stranger, op, good)) == (401, "NOT_AUTHENTICATED")


async def test_a_clients_clock_may_be_a_quarter_of_an_hour_ahead(alpha, net):
    alice = await net.user("alice", alpha)
    a = await net.session(alice)
    await a.set_setting("soon", "v", now_ms() + 14 * 60_000)
    late = setting_payload(alice.login, alice.key, "late", "v", now_ms() + 16 * 60_000)
    assert code(await refused(a, "UpsertUserSetting", late)) == (400, "TIME_SKEW")


async def test_the_number_of_settings_is_bounded(narrow, net):
    alice = await net.user("alice", narrow)
    a = await net.session(alice)
    for n in range(5):
        await a.set_setting(f"s{n}", "v")
    sixth = setting_payload(alice.login, alice.key, "s5", "v")
    assert code(await refused(a, "UpsertUserSetting", sixth)) == (403, "TOO_MANY_SETTINGS")
    await a.set_setting("s0", "changed")
    await a.set_setting("s1", "")
    await a.call("UpsertUserSetting", sixth)
    assert len(await settings(a)) == 6


async def test_pages_stay_within_an_answer(narrow, net):
    alice = await net.user("alice", narrow)
    a = await net.session(alice)
    # 64 KiB of characters that take six bytes each in JSON: one such value is a page of its own.
    values = {"a": "x" * 20000, "b": '"' * 60000, "c": "y" * 30000, "d": "z" * 20000, "e": "ü"}
    for name, value in values.items():
        await a.set_setting(name, value)
    ask, pages = {}, []
    while True:
        page = await a.call("GetUserSettings", ask)
        pages.append([s["name"] for s in page["settings"]])
        if not page["hasMore"]:
            break
        ask = {"afterName": page["nextName"]}
    assert pages == [["a"], ["b"], ["c", "d", "e"]]
    assert dict(brief(await settings(a))) == values
    assert brief(await settings(a, names=["e", "nothing", "a"])) == [("a", "x" * 20000), ("e", "ü")]
    assert await settings(a, names=[]) == []
    assert brief(await settings(a, names=["a", "e"], afterName="a")) == [("e", "ü")]
    for wrong in ("a", ["a", 1], ["with:colon"], ["a"] * 1001):
        error = await refused(a, "GetUserSettings", {"names": wrong})
        assert code(error) == (400, "BAD_FIELDS")


async def test_devices_that_change_different_settings_keep_both(alpha, net):
    alice = await net.user("alice", alpha)
    phone, laptop = await net.session(alice), await net.session(alice)
    start = now_ms()
    for n in range(20):
        await (phone if n % 2 else laptop).set_setting(f"s{n % 4}", str(n), start + n)
    assert brief(await settings(phone)) == [(f"s{n % 4}", str(n)) for n in range(16, 20)]
