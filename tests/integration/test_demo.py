"""`make demo` shows what README.md promises."""

import re

import demo
import pytest
from support.world import REPO, bin_dir


@pytest.fixture
def screen(monkeypatch, capsys):
    """What is on the screen after a run."""
    monkeypatch.setattr(demo, "BIN", bin_dir())
    run = demo.Demo(keep=False)
    try:
        run.start()
        run.run()
    finally:
        run.stop()
    assert not run.directory.exists()
    return capsys.readouterr().out


def comparable(text):
    """Lines without times, durations and what is left of them."""
    for pattern in (r"\d\d:\d\d:\d\d", r"\d+ ms", r"in \d+ s"):
        text = re.sub(pattern, "…", text)
    return [line.strip() for line in text.splitlines() if line.strip()]


def test_the_demo_shows_what_the_readme_says(screen):
    readme = (REPO / "README.md").read_text()
    expected = re.search(r"\n    1\. alice → bob.*?\n(?=\S)", readme, re.DOTALL).group()
    shown = comparable(screen)
    assert "\n".join(comparable(expected)) in "\n".join(shown)
    assert max(map(len, screen.splitlines())) <= demo.WIDTH
