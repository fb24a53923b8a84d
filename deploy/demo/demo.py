#!/usr/bin/python3
"""`make demo`: two complete SHiNE servers on loopback, and what happens to messages between them.

Everything lives in a temporary directory and is gone afterwards, also after Ctrl-C. DEMO_KEEP=1
leaves it running, tells how to use it, and describes it in build/demo/demo.json; `demo.py --stop`
ends that.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

REPO = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import lab  # noqa: E402

BIN = Path(os.environ.get("SHINE_BIN", REPO / "build/bin")).resolve()
DESCRIPTION = REPO / "build/demo/demo.json"
WIDTH = 100
COLOUR = sys.stdout.isatty() and "NO_COLOR" not in os.environ
STYLES = {"head": "1", "dim": "2", "delivered": "1;32", "accepted": "1;33", "failed": "1;31"}


def paint(text: str, style: str) -> str:
    return f"\033[{STYLES[style]}m{text}\033[0m" if COLOUR and style in STYLES else text


def say(text: str = "", style: str = "") -> None:
    print(paint(text if len(text) <= WIDTH else text[: WIDTH - 1] + "…", style), flush=True)


def line(label: str, text: str) -> None:
    """One fact, with its source before it."""
    room = WIDTH - 24
    cut = text if len(text) <= room else text[: room - 1] + "…"
    print(f"   {paint(f'{label:<20}', 'dim')} {cut}", flush=True)


class Demo:
    """The two servers and their users."""

    def __init__(self, keep: bool):
        self.keep = keep
        self.number = 0  # of the last step
        self.directory = Path(tempfile.mkdtemp(prefix="shine-demo-"))
        self.directory.chmod(0o755)  # PostgreSQL runs as another user
        self.postgres = lab.Postgres(self.directory / "pg", tied=not keep)
        self.servers: Dict[str, lab.Server] = {}
        self.homes: Dict[str, Tuple[str, ...]] = {
            "alice": ("alpha",),
            "bob": ("beta",),
            "carol": ("alpha", "beta"),
        }

    # -- setting up --

    def start(self) -> None:
        self.postgres.start()
        authority = lab.Authority(self.directory / "ca", "SHiNE demo CA")
        for name in ("alpha", "beta"):
            server = lab.Server(
                name,
                self.directory / name,
                self.postgres,
                authority,
                BIN,
                # One worker, so that one process has alpha's connection to beta.
                {"frontd.workers": 1, "directory.addUser": "open"},
                tied=not self.keep,
            )
            # beta's database is a copy of alpha's while that is new: quicker than a second migrate.
            server.prepare(template="alpha" if self.servers else None)
            self.servers[name] = server
        for server in self.servers.values():
            server.start()
        for server in self.servers.values():
            server.ready()
            server.start_deliveryd()
        for login, homes in self.homes.items():
            self._add_user(login, homes)

    def key_file(self, login: str) -> Path:
        return self.directory / f"{login}.key"

    def _add_user(self, login: str, homes: Tuple[str, ...]) -> None:
        any_server = self.servers["alpha"]
        keys = any_server.shinectl("keygen").stdout
        path = self.key_file(login)
        path.touch(mode=0o600)
        path.write_text(keys)
        public = dict(text.split(" ", 1) for text in keys.splitlines())["public"]
        access = [(home, self.servers[home].url) for home in homes]
        for server in self.servers.values():  # both sides must know who signs
            server.add_user(login, public, access)

    # -- what is shown --

    def ask(self, server: str, who: str, command: str, *words: str) -> Tuple[Dict[str, Any], int]:
        """A command of somebody's client; the answer and the milliseconds it took."""
        key = str(self.key_file(who))
        began = time.monotonic()
        done = self.servers[server].shinectl("--json", command, "--key", key, *words)
        return json.loads(done.stdout), round((time.monotonic() - began) * 1000)

    def delivery(self, key: str) -> str:
        """The line of v_delivery on alice's server."""
        query = "SELECT * FROM v_delivery WHERE from_login = 'alice' AND outgoing_key = %s"
        (row,) = self.servers["alpha"].rows(query, [key])
        words = [f"{row['from_login']} → {row['to_login']}", row["state"]]
        if row["state"] == "delivered":
            words += [f"via {row['delivered_via']}"]
            words += [f"at attempt {row['attempt']}"] if row["attempt"] > 1 else []
        else:
            words += [f"attempt {row['attempt']} {row['next_attempt']}", row["last_error"]]
        return " | ".join(words)

    def stored(self, server: str, owner: str) -> str:
        """What a server's database holds for a user."""
        query = """SELECT count(*) FILTER (WHERE message_type IN (1, 2)) AS texts,
                          count(*) FILTER (WHERE message_type = 5) AS deletions
                     FROM signed_messages WHERE owner_login = %s AND NOT courier"""
        (row,) = self.servers[server].rows(query, [owner])
        texts = "1 message" if row["texts"] == 1 else f"{row['texts'] or 'no'} messages"
        return f"{texts} of {owner}" + (", one signed deletion" if row["deletions"] else "")

    def history(self, server: str, reader: str, other: str) -> str:
        """The newest message as its reader's client sees it, without dates."""
        key = str(self.key_file(reader))
        done = self.servers[server].shinectl(
            "history", "--key", key, "--login", reader, "--with", other, "--limit", "1"
        )
        return re.sub(r"\d{4}-\d\d-\d\d (\d\d:\d\d)", r"\1", done.stdout.strip())

    def way(self, author: str, home: str, base_key: str) -> str:
        """How a pair travelled, told by what the two databases have of it."""
        query = "SELECT courier FROM signed_messages WHERE base_key = %s AND from_login = %s"
        other = "beta" if home == "alpha" else "alpha"
        (here, there) = (self.servers[s].rows(query, [base_key, author]) for s in (home, other))
        way = f"{author} → {home} ({len(here)} copies committed)"
        if not any(row["courier"] for row in here):
            return way + ", the recipient's own server"
        return way + (f" → {other} ({len(there)} copy committed)" if there else " → no answer")

    def step(self, what: str, answer: Dict[str, Any], ms: int) -> None:
        self.number += 1
        state = answer["deliveryState"]
        say()
        print(
            paint(f"{self.number}. {what}", "head")
            + f"   {paint(state, state)}"
            + paint(f"   ({ms} ms)", "dim")
        )

    def message(self, to: str, text: str) -> Dict[str, Any]:
        """alice writes."""
        answer, ms = self.ask("alpha", "alice", "send", "--from", "alice", "--to", to, text)
        self.step(f"alice → {to}   “{text}”", answer, ms)
        line("how it travelled", self.way("alice", "alpha", answer["baseKey"]))
        line("alpha, v_delivery", self.delivery(answer["outgoingKey"]))
        return answer

    def run(self) -> None:
        say("Two SHiNE servers, alpha and beta, each with its own database, talk TLS on loopback.")
        say("alice is at home on alpha, bob on beta, carol on both. They sign what they write;")
        say("servers keep it, hand it on, and tell how far it got.")

        hello = self.message("bob", "Hello Bob")
        line("bob reads on beta", self.history("beta", "bob", "alice"))
        self.read_edit_and_delete(hello)

        both = self.message("carol", "Hello Carol")
        line("carol reads on alpha", self.history("alpha", "carol", "alice"))
        self.wait_for_copy("beta", "carol", both["incomingKey"])
        line("… and on beta", self.history("beta", "carol", "alice"))

        if not self.servers["beta"].stop():
            raise lab.LabError("beta did not stop in order")
        say()
        say("   … now beta is stopped …", "dim")
        waiting = self.message("bob", "Still there?")

        self.servers["beta"].start().ready()
        self.servers["beta"].start_deliveryd()
        lab.wait_until(self.redials, 30, "alpha does not dial beta again")
        say()
        say("   … beta is back …", "dim")
        self.message("bob", "Welcome back")
        line("bob reads on beta", self.history("beta", "bob", "alice"))
        say()
        say("   … “Still there?” is due again 30 s after it was sent …", "dim")
        self.wait_for_delivery(waiting["outgoingKey"])
        line("alpha, v_delivery", self.delivery(waiting["outgoingKey"]))
        say()
        say("delivered: a server of the recipient has it. accepted: alpha has it, and its deliveryd goes on")
        say("trying for an hour. deliveryd also hands everything to the second server of who has two.")

    def read_edit_and_delete(self, text: Dict[str, Any]) -> None:
        answer, ms = self.ask("beta", "bob", "read", text["incomingKey"])
        self.step("bob has read it", answer, ms)
        line("how it travelled", self.way("bob", "beta", answer["baseKey"]))
        line("alice reads on alpha", self.history("alpha", "alice", "bob"))

        answer, ms = self.ask("alpha", "alice", "edit", text["outgoingKey"], "Hello Bob!")
        self.step("alice edits it   “Hello Bob!”", answer, ms)
        line("bob reads on beta", self.history("beta", "bob", "alice"))

        answer, ms = self.ask("alpha", "alice", "delete", "--from", "alice", text["outgoingKey"])
        self.step("alice deletes it for both", answer, ms)
        line("alpha's database", self.stored("alpha", "alice"))
        line("beta's database", self.stored("beta", "bob"))

    def wait_for_copy(self, server: str, owner: str, key: str) -> None:
        query = "SELECT 1 FROM signed_messages WHERE owner_login = %s AND message_key = %s"
        rows = self.servers[server].rows
        lab.wait_until(lambda: rows(query, [owner, key]), 30, f"{server} gets no copy for {owner}")

    def wait_for_delivery(self, key: str) -> None:
        query = "SELECT 1 FROM v_delivery WHERE outgoing_key = %s AND state = 'delivered'"
        rows = self.servers["alpha"].rows
        lab.wait_until(lambda: rows(query, [key]), 60, "the message is not delivered")

    def redials(self) -> bool:
        """True if alpha would dial beta for the next message: after a failed dial it pauses, and
        until then what is sent waits for the schedule. SIGUSR1 makes it tell."""
        alpha = self.servers["alpha"]
        assert alpha.frontd is not None
        told = alpha.log.stat().st_size
        alpha.frontd.signal(signal.SIGUSR1)
        report = re.compile(rb" event=peer peer=beta .* state=(\w+)")

        def states() -> List[bytes]:
            with open(alpha.log, "rb") as log:
                log.seek(told)
                return report.findall(log.read())

        return lab.wait_until(states, 10, "alpha says nothing of beta") != [b"backoff"]

    # -- the end --

    def stop(self) -> None:
        for server in self.servers.values():
            server.stop()
        self.postgres.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def describe(self) -> None:
        """Leave it running: demo.json and the words that go with it."""
        stop = f"/usr/bin/python3 {Path(__file__).resolve()} --stop"
        servers: List[Dict[str, Any]] = []
        for server in self.servers.values():
            assert server.frontd is not None
            servers.append(
                {
                    "login": server.login,
                    "url": server.url,
                    "config": str(server.config),
                    "caFile": str(server.cafile),
                    "conninfo": server.conninfo,
                    "pids": [server.frontd.pid, *(p.pid for p in server.deliveryds)],
                }
            )
        assert self.postgres.process is not None
        description = {
            "servers": servers,
            "users": [{"login": u, "keyFile": str(self.key_file(u))} for u in self.homes],
            "stop": stop,
            "directory": str(self.directory),
            "postgresPid": self.postgres.process.pid,
        }
        DESCRIPTION.parent.mkdir(parents=True, exist_ok=True)
        DESCRIPTION.write_text(json.dumps(description, indent=1) + "\n")
        self._explain(stop)

    def _explain(self, stop: str) -> None:
        alpha, beta = self.servers["alpha"], self.servers["beta"]
        keys = {login: self.key_file(login) for login in self.homes}
        ctl = BIN / "shinectl"
        words = f"""
            Both servers go on running; everything is in {self.directory}
            and in {DESCRIPTION}. Try:

              {ctl} -c {beta.config} watch --key {keys["bob"]} --login bob
              {ctl} -c {alpha.config} send --key {keys["alice"]} --from alice --to bob "hello"
              {ctl} -c {alpha.config} history --key {keys["alice"]} --login alice --with bob
              psql "{alpha.conninfo}" -c "SELECT * FROM v_delivery"

            Stop it with
              {stop}"""
        print(textwrap.dedent(words), flush=True)


# ---- ending a demo that was left running ----


def is_ours(pid: int, directory: str) -> bool:
    """True if `pid` still is the process that a demo in `directory` started."""
    try:
        return directory.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def stop_kept(quiet: bool = False) -> int:
    if not DESCRIPTION.exists():
        if not quiet:
            print("no demo is running")
        return 0 if quiet else 1
    kept = json.loads(DESCRIPTION.read_text())
    directory = kept["directory"]
    pids = [(pid, signal.SIGTERM) for s in kept["servers"] for pid in s["pids"]]
    for group in (pids, [(kept["postgresPid"], signal.SIGINT)]):  # servers first
        for pid, number in group:
            if is_ours(pid, directory):
                os.kill(pid, number)
        lab.wait_until(
            lambda: not any(is_ours(pid, directory) for pid, _ in group), 30, "the demo's end"
        )
    if Path(directory).name.startswith("shine-demo-"):
        shutil.rmtree(directory, ignore_errors=True)
    DESCRIPTION.unlink()
    if not quiet:
        print("the demo is stopped and removed")
    return 0


# ---- main ----


def interrupted(number: int, _: Any) -> None:
    for again in (signal.SIGTERM, signal.SIGINT):  # cleaning up is not interrupted again
        signal.signal(again, lambda *_: None)
    raise SystemExit(128 + number)


def main() -> int:
    if sys.argv[1:] == ["--stop"]:
        return stop_kept()
    if sys.argv[1:]:
        print(__doc__)
        return 2
    for program in ("frontd", "deliveryd", "shinectl"):
        if not (BIN / program).exists():
            print(f"{BIN / program} is missing: run `make` first", file=sys.stderr)
            return 1
    signal.signal(signal.SIGTERM, interrupted)
    signal.signal(signal.SIGINT, interrupted)
    keep = os.environ.get("DEMO_KEEP", "") not in ("", "0")
    stop_kept(quiet=True)
    with contextlib.ExitStack() as cleanup:
        demo = Demo(keep)
        cleanup.callback(demo.stop)
        try:
            demo.start()
            demo.run()
            if keep:
                demo.describe()
                cleanup.pop_all()
        except lab.LabError as e:
            print(f"the demo failed: {e}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
