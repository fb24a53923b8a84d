"""Fixtures of the black-box tests. `alpha` and `beta` are two complete servers that live as long as
the test run; `net` makes users and connections for one test. After each test the servers' logs and
leases are checked, so a test also fails for what it did not look at."""

import asyncio
import sys
from pathlib import Path

import pytest

# tests/ and docs/ are put on the path by pytest.ini.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "deploy" / "demo"))

from support.net import Net  # noqa: E402
from support.world import World  # noqa: E402


@pytest.fixture(scope="session")
def world():
    w = World()
    yield w
    w.close()
    assert not [line for server in w.servers for line in server.complaints()]


@pytest.fixture(scope="session")
def alpha(world):
    return world.server("alpha")


@pytest.fixture(scope="session")
def beta(world):
    return world.server("beta")


@pytest.fixture(autouse=True)
def clean_logs(request):
    """Fails the test if a server that it may have used complained, or holds a lease for nothing."""
    yield
    if "world" not in request.fixturenames:
        return
    servers = request.getfixturevalue("world").servers
    held = [row for s in servers if s.frontd for row in asyncio.run(s.settled())]
    assert not [line for s in servers for line in s.complaints()]
    assert not held


@pytest.fixture
async def net():
    n = Net()
    yield n
    await n.close()
