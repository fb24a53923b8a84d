"""shinectl and the life of the processes."""

import os
import signal
import subprocess

import lab
from nacl.signing import SigningKey
from shine_client import b64, text_of, unb64
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
    rows = alpha.rows("SELECT url FROM sync_servers WHERE server_login = 'gamma'")
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


async def test_sigterm_closes_with_1001_and_frees_everything(world, net):
    server = world.server("stopping")
    alice, carol = await net.user("alice", server), await net.user("carol", server)
    a = await net.session(alice)
    assert (await a.send_text(carol.login, "x"))["deliveryState"] == "delivered"
    pid = server.frontd.pid
    workers = server.workers()
    assert len(workers) == 2
    os.kill(pid, signal.SIGTERM)
    assert (await a.wait_closed()).code == 1001
    assert server.stop()
    assert all(not os.path.exists(f"/proc/{w}") for w in workers)
    assert server.rows("SELECT 1 FROM processes") == []
    assert server.rows("SELECT 1 FROM active_sessions WHERE connected_to IS NOT NULL") == []


async def test_a_killed_worker_is_replaced_and_its_sessions_are_let_go(world, net):
    server = world.server("crashing")
    server.expect("worker")
    alice = await net.user("alice", server)
    one, two = await net.spread_sessions(alice, server)
    before = server.workers()
    killed = server.kill_worker()
    done = [s for s in (one, two) if await lost(s)]
    assert len(done) == 1
    other = two if done[0] is one else one
    await eventually(lambda: len(server.workers()) == 2, "a new worker")
    assert killed not in server.workers() and len(set(before) & set(server.workers())) == 1
    again = await net.connect(server)
    await again.session_login(done[0].session_id, done[0].session_key, alice.key)
    sent = await again.send_text(alice.login, "on a new worker")
    for session in (again, other):
        await session.wait_event(
            "IncomingDirectMessage", lambda p: p["messageKey"] == sent["outgoingKey"]
        )
    await net.close()
    assert server.stop()


async def lost(session):
    try:
        await session.wait_closed(timeout=3)
        return True
    except TimeoutError:
        return False


async def test_workers_end_with_their_master(world, net):
    server = world.server("headless")
    workers = server.workers()
    server.kill_master()
    await eventually(
        lambda: all(not os.path.exists(f"/proc/{w}") for w in workers), "the workers to stop"
    )
    server.start().ready()
    assert (await (await net.connect(server)).call("Ping", {"ts": 1})) == {"ts": 1}
    await net.close()
    assert server.stop()


def test_a_database_without_schema_is_refused_with_the_way_out(world):
    server = world.server("bare", start=False)
    server.forget_connection()
    world.postgres.sql(f'DROP DATABASE "{server.database}"')
    world.postgres.create_database(server.database)
    server.start()
    lab.wait_until(lambda: server.frontd.returncode is not None, 20, "the refusal")
    assert server.frontd.returncode != 0
    assert "shinectl" in server.log.read_text() and "migrate" in server.log.read_text()
    server.frontd = None
    server.expect("schema")
    world.servers.remove(server)
    world.postgres.sql(f'DROP DATABASE "{server.database}"')
