"""shinectl as a client: edits, receipts, deletions, conversations, strangers' texts."""

import json
import stat
import subprocess
import unicodedata

import lab
import pytest
import shine_dm as dm
from example_client import b64, text_of

TOLD = 60


class Terminal:
    """A user at a terminal: shinectl with a key file."""

    def __init__(self, server, user, tmp_path):
        self.server, self.user = server, user
        self.key_file = tmp_path / f"{user.login}.key"
        seed, public = b64(bytes(user.key)), b64(user.key.verify_key.encode())
        self.key_file.write_text(f"secret {seed}\npublic {public}\n")

    def run(self, command, *args, check=True):
        return self.server.shinectl(*command.split(), "--key", self.key_file, *args, check=check)

    def read(self, command, *args):
        return self.run(command, "--login", self.user.login, *args).stdout.splitlines()

    def send(self, to, text):
        """The outgoing key of a text."""
        done = self.run("send", "--from", self.user.login, "--to", to.login, text)
        state, key = done.stdout.split()
        assert state == "delivered"
        return key

    def delete(self, *args, check=True):
        return self.run("delete", "--from", self.user.login, *args, check=check)


@pytest.fixture
async def both(alpha, net, tmp_path):
    """alice and bob, each at a terminal and with a session."""
    alice, bob = await net.user("alice", alpha), await net.user("bob", alpha)
    ends = Terminal(alpha, alice, tmp_path), Terminal(alpha, bob, tmp_path)
    return *ends, await net.session(alice), await net.session(bob)


async def test_edits_receipts_and_what_history_shows_of_them(both):
    alice, bob, _, at_bob = both
    key = alice.send(bob.user, "helo")
    assert alice.run("edit", key, "hello again").stdout.split() == ["delivered", key]
    (line,) = bob.read("history", "--with", alice.user.login)
    assert "hello again" in line and "(edited 20" in line and "(read" not in line
    await at_bob.wait_event(predicate=lambda p: p["revisionTimeMs"] > 0, timeout=TOLD)
    state, receipt = bob.run("read", key).stdout.split()
    assert state == "delivered" and receipt.endswith("|4")
    for end, other in ((alice, bob), (bob, alice)):
        (line,) = end.read("history", "--with", other.user.login)
        assert "(read 20" in line
    # Either copy's key names the text, and the text may begin with dashes.
    assert alice.run("edit", key[:-1] + "1", "--", "--bare").returncode == 0
    assert "--bare" in bob.read("history", "--with", alice.user.login)[0]


async def test_deleting_from_the_terminal(both):
    alice, bob, at_alice, at_bob = both
    first, second = alice.send(bob.user, "first"), bob.send(alice.user, "second")
    state, key = alice.delete("--for-me", second).stdout.split()
    assert state == "accepted" and key.endswith("|6")
    assert [text_of(i) async for i in at_alice.history(bob.user.login)] == ["first"]
    assert len([i async for i in at_bob.history(alice.user.login)]) == 2
    state, key = alice.delete("--to", bob.user.login, second).stdout.split()  # bob wrote it
    assert state == "delivered" and key.endswith("|5")
    assert [text_of(i) async for i in at_bob.history(alice.user.login)] == ["first"]
    state, key = bob.delete("--conversation", "--to", alice.user.login, "--for-me").stdout.split()
    assert state == "accepted" and key.endswith("|8")
    assert bob.read("history", "--with", alice.user.login) == []
    assert len([i async for i in at_alice.history(bob.user.login)]) == 1
    when = dm.parse_key(first).time_ms
    until = ["--conversation", "--to", alice.user.login, "--until"]
    bob.delete(*until, str(when - 1))
    assert len([i async for i in at_alice.history(bob.user.login)]) == 1
    state, key = bob.delete(*until, str(when)).stdout.split()
    assert state == "delivered" and key.endswith("|7")
    assert [i async for i in at_alice.history(bob.user.login)] == []


async def test_conversations_and_the_kept_session(both):
    alice, bob, *_ = both
    assert bob.read("conversations") == []
    keys = [alice.send(bob.user, text) for text in ("one", "two")]
    (line,) = bob.read("conversations")
    assert f"{alice.user.login}  2 unread  {alice.user.login}: two" in line
    bob.run("read", keys[0])
    (line,) = bob.read("conversations", "--limit", "5")
    assert "1 unread" in line
    (session,) = bob.read("login")
    assert len(session) == 43 and bob.read("login") == [session]  # the kept one
    kept = bob.key_file.with_name(bob.key_file.name + ".history.session")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert json.loads(kept.read_text())["sessionId"] == session
    kept.unlink()
    (other,) = bob.read("login")
    assert other != session
    page = json.loads(bob.run("conversations", "--login", bob.user.login, "--json").stdout)
    assert page["items"][0]["unreadCount"] == 1 and page["hasMore"] is False


def test_command_lines_that_cannot_be(both_keys):
    end, other = both_keys
    mine, theirs = f"{end.user.login}|{other}|5|6|2", f"eve|{other}|5|6|1"
    for args in (
        ("edit", "not-a-key", "text"),
        ("edit", mine[:-1] + "4", "text"),
        ("edit", mine),
        ("edit", mine, ""),
        ("read", mine[:-1] + "7"),
        ("read",),
        ("delete", mine),
        ("delete", "--from", end.user.login),
        ("delete", "--from", end.user.login, theirs),
        ("delete", "--from", end.user.login, "--to", "carol", mine),
        ("delete", "--from", end.user.login, "--until", "5", mine),
        ("delete", "--from", end.user.login, "--conversation"),
        ("delete", "--from", end.user.login, "--conversation", "--to", other, mine),
        ("delete", "--from", end.user.login, "--conversation", "--to", other, "--until", "x"),
        ("delete", "--for-me", "--for-you", mine),
        ("conversations", "--login", end.user.login, "--limit", "0"),
    ):
        done = end.run(*args, check=False)
        assert done.returncode == 2 and done.stderr.startswith("shinectl: "), (args, done)
        assert done.stdout == ""


@pytest.fixture
async def both_keys(alpha, net, tmp_path):
    return Terminal(alpha, await net.user("alice", alpha), tmp_path), "bob"


async def test_what_the_server_refuses_is_told(both):
    alice, bob, *_ = both
    key = alice.send(bob.user, "gone")
    alice.delete(key)
    done = alice.run("edit", key, "back?", check=False)
    assert done.returncode == 1 and "410 DELETED" in done.stderr
    done = bob.run("edit", key, "not mine", check=False)
    assert done.returncode == 1 and "422 BAD_SIGNATURE" in done.stderr


NASTY = {
    "escape": b"\x1b]0;title\x07\x1b[2Jx",
    "C1": "\u009b31mx".encode(),
    "raw C1": b"\x9b31mx",
    "overlong": b"\xc0\x9bx",
    "cut short": b"x\xe2\x82",
    "lines": "x\ny\r\u2028z".encode(),
    "directions": "\u202ex\u2066".encode(),
    "zero": b"x\0y",
}


async def test_a_strangers_text_does_not_steer_the_terminal(both):
    alice, bob, at_alice, _ = both
    for name, text in NASTY.items():
        await at_alice.send_text(bob.user.login, b"\0" + text)
        for lines in (
            bob.read("history", "--with", alice.user.login, "--limit", "1"),
            bob.read("conversations"),
        ):
            (line,) = lines
            assert "?" in line, name
            assert not [c for c in line if unicodedata.category(c) in ("Cc", "Zl", "Zp")], name
            assert not set(line) & set("\u202e\u2066\ufffd"), name
    fine = "grüße 😀 «מה שלומך»"
    await at_alice.send_text(bob.user.login, fine)
    assert fine in bob.read("history", "--with", alice.user.login, "--limit", "1")[0]


async def test_watch_tells_what_happens(both):
    alice, bob, at_alice, at_bob = both
    text = await at_alice.send_text(bob.user.login, "hello", time_ms=1_774_700_000_123, nonce=7)
    key = text["baseKey"]
    watching = subprocess_watch(bob, count=6)
    try:
        assert watching.stderr.readline().startswith("watching ")
        await at_bob.send_receipt({"messageKey": text["incomingKey"]}, read_at_ms=1_774_700_060_000)
        stamps = {"time_ms": 1_774_700_000_123, "nonce": 7, "revision": 1_774_700_090_000}
        await at_alice.send_text(bob.user.login, "hallo", **stamps)
        await at_alice.send_text(bob.user.login, b"\x01sealed")
        await at_bob.delete_message({"messageKey": text["incomingKey"]}, for_both=False)
        await at_alice.delete_message({"messageKey": text["outgoingKey"]})
        await at_bob.delete_conversation(alice.user.login, 1_774_700_100_000)
        out, _ = watching.communicate(timeout=TOLD)
    finally:
        watching.kill()
        watching.wait()
    lines = out.splitlines()
    assert len(lines) == 6 and watching.returncode == 0, out
    b = bob.user.login
    # What was deleted meanwhile shows as that.
    assert f"(has read {key} at 2026-03-28 12:14:20)" in lines[0] or "(deleted)" in lines[0]
    assert "hallo  (edited 2026-03-28 12:14:50)" in lines[1] or "(deleted)" in lines[1]
    assert "(encrypted, 7 bytes)" in lines[2]
    assert f"(deleted {key}, for {b} only)" in lines[3]
    assert f"(deleted {key}, for both)" in lines[4]
    assert "(deleted the conversation up to 2026-03-28 12:15:00, for both)" in lines[5]


def subprocess_watch(end, count):
    argv = [end.server.bin_dir / "shinectl", "-c", end.server.config, "watch", "--key"]
    argv += [end.key_file, "--login", end.user.login, "--count", str(count), "--timeout", "60"]
    return subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=lab.environment()
    )


async def test_a_profile_from_the_terminal(alpha, net, tmp_path):
    bob = await net.user("bob", alpha)
    terminal = Terminal(alpha, bob, tmp_path)
    servers = [(alpha.login, alpha.url), ("gamma", "wss://gamma.example/ws")]
    access = [word for name, url in servers for word in ("--access", f"{name}={url}")]
    said = terminal.run("user profile", bob.login, *access).stdout
    assert said == f"{bob.login} is served by alpha and gamma\n"
    enc_key = b64(bytes(32))
    published = json.loads(
        terminal.run("user profile", bob.login, *access, "--enc-key", enc_key, "--json").stdout
    )
    c = await net.connect(alpha)
    user = await c.call("GetUser", {"login": bob.login})
    assert user["profile"] == published and user["encKey"] == enc_key
    assert [s["serverLogin"] for s in user["accessServers"]] == ["alpha", "gamma"]
    lines = alpha.shinectl("user", "show", bob.login).stdout.splitlines()
    assert f"enc key     {enc_key}" in lines and lines[-1].startswith("profile     20")
    assert lines[-1].endswith(" UTC  alpha gamma")
    shown = json.loads(alpha.shinectl("user", "show", bob.login, "--json").stdout)
    assert shown["profile"] == published
    # Refused by the server, and by shinectl itself.
    other = Terminal(alpha, await net.user("other", alpha), tmp_path)
    done = other.run("user profile", bob.login, *access, check=False)
    assert done.returncode == 1 and "CLIENT_KEY_NOT_ACTUAL" in done.stderr
    for wrong in (["UPPER", *access], [bob.login], [bob.login, *access, "--enc-key", "short"]):
        assert terminal.run("user profile", *wrong, check=False).returncode == 2
    assert alpha.shinectl("user", "profile", bob.login, *access, check=False).returncode == 2
