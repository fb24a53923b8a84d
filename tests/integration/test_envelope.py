"""The envelope: a malformed request gets its error and stores nothing, the connection stays."""

import asyncio
import json

import pytest
import websockets
from example_client import ConnectionClosed, ShineError, b64

PING = {"op": "Ping", "requestId": "x", "payload": {}}


def request(**changes):
    """A Ping with other members; a member of None is left out."""
    members = {**PING, **changes}
    return json.dumps({k: v for k, v in members.items() if v is not None})


def with_value(raw):
    """A Ping whose payload holds a value written exactly so."""
    return '{"op":"Ping","requestId":"x","payload":{"a":%s}}' % raw


BAD = [
    # text, error, requestId of the answer
    ("", "EMPTY_JSON", ""),
    (" \r\n\t ", "EMPTY_JSON", ""),
    ("{", "BAD_JSON", ""),
    ("null", "BAD_JSON", ""),
    ("[]", "BAD_JSON", ""),
    ('"Ping"', "BAD_JSON", ""),
    ("42", "BAD_JSON", ""),
    (request() + "x", "BAD_JSON", ""),
    (request() + request(), "BAD_JSON", ""),
    (request() + "\x00", "BAD_JSON", ""),
    ("\ufeff" + request(), "BAD_JSON", ""),
    (request().replace('"', "'"), "BAD_JSON", ""),
    (request()[:-1] + ",}", "BAD_JSON", ""),
    (with_value("NaN"), "BAD_JSON", ""),
    (with_value("Infinity"), "BAD_JSON", ""),
    (with_value("01"), "BAD_JSON", ""),
    (with_value("+1"), "BAD_JSON", ""),
    (with_value("-"), "BAD_JSON", ""),
    (with_value("1e400"), "BAD_JSON", ""),
    (with_value("9" * 400), "BAD_JSON", ""),
    (with_value(r'"\u0000"'), "BAD_JSON", ""),
    (with_value(r'"\ud800"'), "BAD_JSON", ""),
    (with_value(r'"\udc00x"'), "BAD_JSON", ""),
    (with_value(r'"\ud800\ud800"'), "BAD_JSON", ""),
    (with_value('"\t"'), "BAD_JSON", ""),
    (with_value(r'"\x41"'), "BAD_JSON", ""),
    (with_value('1,"a":2'), "BAD_JSON", ""),
    (with_value('1,"\\u0061":2'), "BAD_JSON", ""),
    (with_value("[" * 33 + "]" * 33), "BAD_JSON", ""),
    (with_value("[" * 100000), "BAD_JSON", ""),
    (r'{"op":"Ping\u0000","requestId":"x","payload":{}}', "BAD_JSON", ""),
    (r'{"op":"Ping","requestId":"\u0000","payload":{}}', "BAD_JSON", ""),
    (r'{"op":"Ping","requestId":"x","payload":{"\u0000":1}}', "BAD_JSON", ""),
    ('{"op":"Ping","op":"Ping","requestId":"x","payload":{}}', "BAD_JSON", ""),
    # The tree could be read, so that the answer still finds who asked.
    (with_value("1.0"), "BAD_JSON", "x"),
    (with_value("1e2"), "BAD_JSON", "x"),
    (with_value("9007199254740992"), "BAD_JSON", "x"),
    (with_value("-9007199254740992"), "BAD_JSON", "x"),
    (request(op=None), "NO_OP", "x"),
    (request(op=""), "NO_OP", "x"),
    (request(op=7), "NO_OP", "x"),
    (request(op="NoSuchOperation"), "UNKNOWN_OP", "x"),
    (request(op="ping"), "UNKNOWN_OP", "x"),
    (request(op="P" * 5000), "UNKNOWN_OP", "x"),
    (request(payload=None), "NO_PAYLOAD", "x"),
    ('{"op":"Ping","requestId":"x","payload":null}', "NO_PAYLOAD", "x"),
    (request(payload=[]), "BAD_PAYLOAD", "x"),
    (request(payload="{}"), "BAD_PAYLOAD", "x"),
    (request(requestId=5), "BAD_FIELDS", ""),
    (request(requestId="i" * 129), "BAD_FIELDS", ""),
    (request(requestId="é" * 65), "BAD_FIELDS", ""),
    (request(payload={"ts": "now"}), "BAD_FIELDS", "x"),
    (request(op="GetDirectMessages", payload={"withLogin": "a"}), "NOT_AUTHENTICATED", "x"),
]


async def test_every_malformed_request_is_refused_and_the_connection_stays(alpha, net):
    c = await net.connect(alpha)
    stored = "SELECT (SELECT count(*) FROM signed_messages) + (SELECT count(*) FROM users) AS n"
    before = alpha.value(stored)
    for text, error, request_id in BAD:
        answer = await c.raw_call(text, request_id)
        status = 401 if error == "NOT_AUTHENTICATED" else 400
        assert (answer.error, answer.status) == (error, status), text
        assert answer.message and len(answer.message) < 300
        assert (await c.call("Ping", {"ts": 1})) == {"ts": 1}, text
    assert not c.unmatched and not c.events
    assert alpha.value(stored) == before


async def test_what_looks_strange_but_is_right(alpha, net):
    c = await net.connect(alpha)
    for raw in (
        "9007199254740991",
        "-9007199254740991",
        r'"\ud83d\ude00"',
        '"😀 \u2028"',
        '{"deep":' * 20 + "1" + "}" * 20,
        "null",
        "true",
    ):
        answer = await c.raw_call(with_value(raw), "x")
        assert answer.ok and isinstance(answer.payload["ts"], int), raw
    answer = await c.raw_call(" \n" + request() + "\n", "x")
    assert answer.ok
    answer = await c.raw_call('{"op":"Ping","payload":{}}', "")
    assert answer.ok and answer.request_id == ""
    for request_id in ("i" * 128, "é" * 64, 'q"\\\n\u2028😀', " "):
        answer = await c.raw_call(request(requestId=request_id), request_id)
        assert answer.ok and answer.request_id == request_id


async def test_errors_carry_the_operation_back(alpha, net):
    c = await net.connect(alpha)
    answer = await c.raw_call(request(op="Nö\n😀"), "x")
    assert (answer.error, answer.op) == ("UNKNOWN_OP", "Nö\n😀")


async def test_pipelined_requests_are_all_answered(alpha, net):
    c = await net.connect(alpha)
    answers = await asyncio.gather(*(c.start("Ping", {"ts": n}) for n in range(500)))
    assert [a.payload["ts"] for a in answers] == list(range(500))


async def test_equal_request_ids_are_the_clients_business(alpha, net):
    c = await net.connect(alpha)
    answers = await asyncio.gather(*(c.raw_send(request(), "x") for _ in range(10)))
    assert all(a.ok for a in answers)


@pytest.mark.parametrize(
    "message,code", [(b"{}", 1003), (" " * (4 * 1024 * 1024 + 1), 1009)], ids=["binary", "too big"]
)
async def test_a_broken_stream_is_closed_with_its_code(alpha, net, message, code):
    c = await net.connect(alpha)
    pending = c.raw_send(message)
    assert (await c.wait_closed()).code == code
    with pytest.raises(ConnectionClosed):
        await pending


async def test_a_message_of_exactly_4_mib_is_read(alpha, net):
    c = await net.connect(alpha)
    text = request()
    answer = await c.raw_call(text + " " * (4 * 1024 * 1024 - len(text)), "x")
    assert answer.ok


async def test_large_requests_do_not_hold_up_small_ones_nor_mix_with_them(alpha, net):
    c = await net.connect(alpha)
    large = c.start("SendMessagePair", {"incomingBlobB64": b64(b"x" * 2_000_000)})
    small = await asyncio.gather(*(c.start("Ping", {"ts": n}) for n in range(20)))
    assert [a.payload["ts"] for a in small] == list(range(20))
    assert (await large).error == "BAD_FIELDS"


async def test_compression_is_not_negotiated(alpha, net):
    c = await net.connect(alpha, compression="deflate")
    assert not c.ws.extensions
    assert await c.call("Ping", {"ts": 5}) == {"ts": 5}


async def test_only_the_endpoint_is_upgraded(alpha, net):
    for path in ("/", "/other", "/ws/", "/ws2"):
        with pytest.raises(websockets.InvalidStatusCode) as e:
            await net.connect(alpha, path)
        assert e.value.status_code == 404


async def test_server_info(alpha, net):
    c = await net.connect(alpha)
    info = await c.call("GetServerInfo")
    assert info["serverLogin"] == "alpha" and info["url"] == alpha.url
    assert info["protocolVersion"] == 1 and info["version"] and isinstance(info["limits"], dict)
    assert all(isinstance(name, str) for name in info["capabilities"])
    with pytest.raises(ShineError) as e:
        await c.call("Ping", {"ts": -(2**53 - 1) - 1})
    assert e.value.error == "BAD_JSON"
