"""Random sets of containers against the model; and that a database which breaks a rule is found out.

SHINE_PROPERTY_SETS: how many sets (200). tests/property/run.py does many thousands.
"""

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import harness as h  # noqa: E402
import run  # noqa: E402
import sets as generator  # noqa: E402
from support import pg  # noqa: E402

BUILD = Path(os.environ.get("SHINE_TEST_BIN", HERE.parent.parent / "build" / "san" / "bin")).parent
SETS = int(os.environ.get("SHINE_PROPERTY_SETS", "200"))
PARTS = 2
SEED = 1


@pytest.fixture(scope="module")
def harness():
    with pg.Cluster() as cluster:
        yield h.Harness(cluster, BUILD)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_result_depends_on_the_set_alone(harness, part):
    chosen = [generator.make(SEED, n) for n in range(part, SETS, PARTS)]
    reports = run.run_sets(harness, chosen)
    assert not reports, "\n".join(reports)


# Sabotage by trigger: what a wrong statement would do to rows.
BROKEN = {
    "the first of two equal revisions stays": (
        "signed_messages",
        "NEW.revision_time_ms = OLD.revision_time_ms AND NEW.digest <> OLD.digest"
        " AND NEW.reencrypted_at_ms = OLD.reencrypted_at_ms",
    ),
    "the first receipt counts": ("signed_messages", "NEW.read_at_ms < OLD.read_at_ms"),
    "unread messages are counted once": ("conversations", "NEW.unread_count > OLD.unread_count"),
    "the first tombstone of a conversation counts": (
        "conversation_tombstones",
        "NEW.both_until_ms > OLD.both_until_ms OR NEW.own_until_ms > OLD.own_until_ms",
    ),
}


@pytest.fixture
def sabotage(harness):
    cursor = harness.db.cursor()

    def begin(table, condition):
        cursor.execute(
            "CREATE FUNCTION sabotage() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
            f"CREATE TRIGGER sabotage BEFORE UPDATE ON {table} FOR EACH ROW WHEN ({condition})"
            " EXECUTE FUNCTION sabotage()"
        )

    yield begin
    cursor.execute("DROP FUNCTION sabotage CASCADE")


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_found(harness, sabotage, rule):
    sabotage(*BROKEN[rule])
    chosen = [generator.make(SEED, n) for n in range(30)]
    assert harness.check([r for s in chosen for r in h.variants(s)])
