"""The test runner's own judgement: what counts as passed, and what must never look like it."""

import psycopg2
import pytest
import tap
from support import pg


@pytest.mark.parametrize(
    ("text", "passed", "skipped", "failures", "problem"),
    [
        ("1..2\nok 1 - a\nok 2 - b\n", 2, 0, [], None),
        ("ok 1 - a\n1..1\n", 1, 0, [], None),
        ("1..2\nok 1 - a\nnot ok 2 - b\n# why\n", 1, 0, ["b"], None),
        ("1..1\nnot ok 1\n", 0, 0, ["case 1"], None),
        ("1..2\nok 1 - a # SKIP no net\nnot ok 2 - b # TODO later\n", 0, 2, [], None),
        ("1..1\nok 1 - a\n1..1\nok 1 - b\n", 2, 0, [], None),
        ("1..2\nok 1 - a\n", 1, 0, [], "planned 2 cases, ran 1"),
        ("1..1\nok 1 - a\nok 2 - b\n", 2, 0, [], "planned 1 cases, ran 2"),
        ("ok 1 - a\n", 1, 0, [], "wrote no plan"),
        ("okay\nnothing ok 1\n", 0, 0, [], "wrote no plan"),
        ("", 0, 0, [], "wrote no plan"),
        ("1..0\n", 0, 0, [], "ran no case"),
        ("1..1\nok 1\nBail out! broken\n", 1, 0, [], "Bail out! broken"),
    ],
)
def test_tap_is_counted(text, passed, skipped, failures, problem):
    assert tap.count(text) == (passed, skipped, failures, problem)


def test_clusters_run_side_by_side_and_leave_nothing():
    with pg.Cluster() as one, pg.Cluster(durable=True) as two:
        folders = [one.directory, two.directory]
        assert folders[0] != folders[1]
        for cluster, fsync in ((one, "off"), (two, "on")):
            connection = psycopg2.connect(cluster.create_database("shine"))
            cursor = connection.cursor()
            cursor.execute("SHOW fsync")
            assert cursor.fetchone() == (fsync,)
            connection.close()
    assert not any(f.exists() for f in folders)


def test_cluster_keeps_its_data_over_a_restart():
    with pg.Cluster() as cluster:
        name = pg.dbname_of(cluster.create_database())
        cluster.execute("CREATE TABLE t AS SELECT 7 AS n", name)
        copy = pg.dbname_of(cluster.create_database(template=name))
        cluster.stop_server()
        cluster.start()
        connection = cluster.connect(copy)
        cursor = connection.cursor()
        cursor.execute("SELECT n FROM t")
        assert cursor.fetchone() == (7,)
        connection.close()
