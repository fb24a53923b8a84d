"""shinectl and configurations."""

import subprocess

import lab
from nacl.signing import SigningKey
from example_client import b64, text_of, unb64
from support.waiting import eventually


def key_file(server, tmp_path, name):
    path = tmp_path / f"{name}.key"
    path.write_text(server.shinectl("keygen").stdout)
    path.chmod(0o600)
    lines = dict(line.split(" ", 1) for line in path.read_text().splitlines())
    assert set(lines) == {"secret", "public"}
    key = SigningKey(unb64(lines["secret"]))
    assert b64(key.verify_key.encode()) == lines["public"]
    return path, key


async def test_keys_users_and_a_message_from_the_terminal(alpha, net, tmp_path):
    path, key = key_file(alpha, tmp_path, "ctl")
    access = [(alpha.login, alpha.url)]
    alpha.add_user("ctl_alice", b64(key.verify_key.encode()), access)
    carol = await net.user("carol", alpha)
    at_carol = await net.session(carol)
    send = ["send", "--key", path, "--from", "ctl_alice", "--to", carol.login]
    done = alpha.shinectl(*send, "hällo from the terminal")
    assert done.stdout.startswith("delivered")
    event = await at_carol.wait_event("IncomingDirectMessage")
    assert text_of(event) == "hällo from the terminal" and event["fromLogin"] == "ctl_alice"
    shown = alpha.shinectl("delivery", "show", event["messageKey"]).stdout
    assert "delivered" in shown


async def test_users_added_while_the_server_runs_and_moves_of_servers(alpha, net):
    key = SigningKey.generate()
    c = await net.connect(alpha)
    assert await c.call("GetUser", {"login": "ctl_late"}) == {"exists": False}
    alpha.add_user("ctl_late", b64(key.verify_key.encode()), [(alpha.login, alpha.url)])
    await eventually(lambda: c.call("GetUser", {"login": "ctl_late"}), "the user")
    moved = "gamma=wss://gamma.example/ws"
    alpha.shinectl("user", "set-servers", "ctl_late", "--access", moved)
    shown = (await c.call("GetUser", {"login": "ctl_late"}))["accessServers"]
    assert shown == [{"serverLogin": "gamma", "url": "wss://gamma.example/ws"}]
    other = b64(SigningKey.generate().verify_key.encode())
    add = ["user", "add", "ctl_late", "--client-key", other, "--access", moved]
    done = alpha.shinectl(*add, check=False)
    assert done.returncode == 1
    alpha.shinectl("server", "add", "gamma", "--url", "wss://gamma.example/ws")
    # A partner that does not exist would hold up every AddUser of the other tests.
    rows = alpha.rows("DELETE FROM sync_servers WHERE server_login = 'gamma' RETURNING url")
    assert [r["url"] for r in rows] == ["wss://gamma.example/ws"]


def test_migrate_may_be_repeated(alpha):
    again = alpha.shinectl("migrate").stdout
    assert "applied" not in again and "version" in again


def test_configurations_that_cannot_be(alpha, tmp_path):
    def run(*lines):
        path = tmp_path / "bad.conf"
        path.write_text("".join(f"{line}\n" for line in lines))
        argv = [alpha.bin_dir / "frontd", "-c", path, "--check-config"]
        return subprocess.run(
            argv, capture_output=True, text=True, timeout=20, check=False, env=lab.environment()
        )

    done = run("listen = 127.0.0.1:443", "server.pool.pingIdelSeconds = 5")
    assert done.returncode != 0
    assert "bad.conf:2" in done.stderr and "server.pool.pingIdleSeconds" in done.stderr
    assert run("frontd.workers = many").returncode != 0
    done = run(*(f"{k} = {v}" for k, v in alpha.configuration().items()))
    assert done.returncode == 0, done.stderr
