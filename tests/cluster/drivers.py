"""Do the commands that come on standard input, one after the other, with Ray workers that stay for all of them.

Starting workers for each command would take most of the time of short tests. Leases are small, so that short runs have
several, and few texts are enough for verdicts on other nodes. With `pages`, the journal may have no more pages than
that, so that SQLite itself reports a full disk.
"""

import json
import os
import sqlite3
import sys
from contextlib import ExitStack, nullcontext, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

from skillmix.commands import main as command
from skillmix.runs.leases import owner


def main() -> None:
    import ray

    from skillmix.cluster.ray_workers import RayWorkers

    mock.patch.object(owner, "_FEWEST", 4).start()
    workers = RayWorkers(ray)
    answers = sys.stdout
    for line in sys.stdin:
        wanted = json.loads(line)
        os.chdir(wanted["at"])
        out, messages = StringIO(), StringIO()
        with ExitStack() as stack:
            stack.enter_context(mock.patch("skillmix.cluster.ray_workers.ray_workers", lambda: nullcontext(workers)))
            if wanted["pages"]:
                stack.enter_context(mock.patch("sqlite3.connect", small_disk(wanted["pages"])))
            stack.enter_context(redirect_stdout(out))
            stack.enter_context(redirect_stderr(messages))
            code = command(wanted["arguments"])
        answer = {"number": wanted["number"], "code": code, "out": out.getvalue(), "messages": messages.getvalue()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    workers.close()


def small_disk(pages: int) -> Any:
    connect = sqlite3.connect

    def connect_small(path: Any, *arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(path, *arguments, **options)
        if isinstance(path, Path) and path.parent.name == "journal":
            connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    return connect_small


if __name__ == "__main__":
    main()
