"""The admin port: what an orchestrator hears from a frontd."""

import http.client
import json
import signal
import socket

import lab
import pytest
from support.waiting import eventually
from support.world import World


@pytest.fixture(scope="module")
def own_world():
    """A PostgreSQL that may be stopped."""
    w = World()
    yield w
    w.close()


def ask(port, path, method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode().strip()
    finally:
        connection.close()


def cut(s):
    """The other side ended the connection, politely or not."""
    try:
        return s.recv(100) == b""
    except ConnectionResetError:
        return True


@pytest.fixture(scope="module")
def admin(own_world):
    port = lab.free_port()
    server = own_world.server("watched", admin__listen=f"127.0.0.1:{port}", frontd__workers=1)
    return server, port


def test_health_and_readiness(admin):
    _, port = admin
    assert ask(port, "/healthz") == (200, "ok")
    assert ask(port, "/readyz") == (200, "ready")
    assert ask(port, "/readyz", "HEAD") == (200, "")
    assert ask(port, "/readyz", "POST")[0] == 405
    assert ask(port, "/")[0] == 404
    assert ask(port, "/readyz/more")[0] == 404


def test_shinectl_asks_it(admin):
    server, port = admin
    assert server.shinectl("ready").stdout == "ready\n"
    assert server.shinectl("ready", f"0.0.0.0:{port}").stdout == "ready\n"
    refused = server.shinectl("ready", f"127.0.0.1:{lab.free_port()}", check=False)
    assert refused.returncode == 5 and "connection refused" in refused.stderr
    assert server.shinectl("ready", "localhost", check=False).returncode == 2


def test_strangers_cannot_hold_it_up(admin):
    _, port = admin
    with socket.create_connection(("127.0.0.1", port), timeout=10) as s:
        s.sendall(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
        assert s.recv(100).startswith(b"HTTP/1.1 400")
    with socket.create_connection(("127.0.0.1", port), timeout=10) as s:
        s.sendall(b"GET /healthz HTTP/1.1\r\nX-Long: " + 5000 * b"x")
        assert s.recv(100).startswith(b"HTTP/1.1 431")
    silent = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(40)]
    try:
        assert cut(silent[-1])  # beyond the bound: at once
        assert cut(silent[0])  # the others by their deadline
        assert ask(port, "/healthz") == (200, "ok")
    finally:
        for s in silent:
            s.close()


async def test_it_is_not_ready_without_its_database(own_world, admin):
    server, port = admin
    server.expect("database|db_|lost|terminat|shutting down|starting up")
    server.forget_connection()
    own_world.postgres.stop()
    await eventually(lambda: ask(port, "/readyz")[0] == 503, "not ready")
    assert ask(port, "/readyz") == (503, "the database is not available")
    assert ask(port, "/healthz") == (200, "ok")
    refused = server.shinectl("ready", check=False)
    assert (refused.returncode, refused.stdout) == (1, "the database is not available\n")
    own_world.postgres.start()
    await eventually(lambda: ask(port, "/readyz") == (200, "ready"), "ready again")


def test_a_port_that_is_taken_is_said_plainly(admin, tmp_path):
    server, port = admin
    argv = [server.bin_dir / "frontd", "-c", server.config, "--set", "listen=127.0.0.1:0"]
    process = lab.Process([str(a) for a in argv], tmp_path / "log")
    try:
        lab.wait_until(lambda: "address_in_use" in (tmp_path / "log").read_text(), 30, "refusal")
        assert f"127.0.0.1 port {port}" in (tmp_path / "log").read_text()
    finally:
        process.stop(30)


def test_the_service_manager_hears_when_it_serves_and_when_it_stops(own_world, tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        server = own_world.server("told", start=False)
        server.start()
        assert manager.recv(100) == b"READY=1"
        with socket.create_connection(("127.0.0.1", server.port), timeout=10):
            pass  # not refused
        server.ready()
        assert server.stop()
        assert manager.recv(100) == b"STOPPING=1"
