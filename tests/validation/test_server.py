"""The server of the page: what it serves, stores and rejects."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from time import process_time
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from skillmix.runs.run import open_run
from skillmix.runs.texts import run_records
from skillmix.validation.server import Link, RaterPage, application, keep_links, links_of
from skillmix.validation.task import AnnotationTask, TaskSettings, make_task
from tests.validation.run_for_people import copied_run, make_run

TOKENS = {"ann": "a" * 43, "bo": "b" * 43}


@pytest.fixture
def task(in_folder: Path) -> AnnotationTask:
    return make_task(copied_run(texts=12), TaskSettings(("ann", "bo"), n=6, overlap=0.5))


@pytest.fixture
def server(task: AnnotationTask) -> Iterator[TestServer]:
    with ExitStack() as opened:
        stores = {rater: opened.enter_context(task.answering(rater)) for rater in TOKENS}
        yield TestServer(application({TOKENS[r]: RaterPage(task, r, store) for r, store in stores.items()}))


class Reply:
    def __init__(self, status: int, text: str, headers: Any) -> None:
        self.status, self.text, self.headers = status, text, headers

    def json(self) -> Any:
        return json.loads(self.text)


Ask = Callable[..., Awaitable[Reply]]


def visit(server: TestServer, talk: Callable[[Ask], Awaitable[Any]]) -> Any:
    """Start the server, and let `talk` send requests like the page of ann."""

    async def main() -> Any:
        async with server, aiohttp.ClientSession() as session:
            home = f"http://127.0.0.1:{server.port}"

            async def ask(path: str, method: str = "GET", *, headers: Any = None, **more: Any) -> Reply:
                own = {"Origin": home} if method != "GET" else {}
                async with session.request(method, home + path, headers={**own, **(headers or {})}, **more) as reply:
                    return Reply(reply.status, await reply.text(), reply.headers)

            return await talk(ask)

    return asyncio.run(main())


def answer_to(item: dict[str, Any], vote: Any = 1, **changes: Any) -> dict[str, Any]:
    votes = {question["name"]: vote for question in item["questions"]}
    return {"item": item["id"], "id": "one", "votes": votes, "comment": "", "seconds": 1.5, **changes}


def human_points(grader: str = "human:ann") -> list[Any]:
    ballots = [b for b in run_records(open_run("people")).ballots if b.grader == grader]
    return [reading.points for ballot in ballots for reading in ballot.readings if reading]


ANN = f"/{TOKENS['ann']}/"


def test_the_page_gets_one_text_at_a_time_and_nothing_about_its_student(
    server: TestServer, task: AnnotationTask
) -> None:
    async def talk(ask: Ask) -> Any:
        return [await ask(ANN + path) for path in ("state", "items/0", "items/5", "items/6")]

    state, first, last, beyond = visit(server, talk)

    assert state.json() == {"rater": "ann", "done": "000000"}
    assert (first.status, last.status, beyond.status) == (200, 200, 404)
    assert first.json().keys() == {"number", "id", "text", "topic", "questions", "answer"}
    assert first.json()["id"] == task.texts("ann")[0].id
    everything = state.text + first.text + last.text
    assert not any(word in everything for word in ("littlebird", "bigbird", "juror", "full_marks", 'bo"'))
    kinds = [question["name"] for question in first.json()["questions"]][-2:]
    assert kinds == ["topic", "sense"] and "length" not in first.text  # code counts the length


MANY = 20_000 if os.environ.get("SKILLMIX_LONG") else 500


def test_many_texts_are_as_quick_as_few_once_they_are_chosen(in_folder: Path) -> None:
    task = make_task(make_run(texts=MANY, k=(2, 3)), TaskSettings(("ann",), n=MANY))
    with task.answering("ann") as store:
        page = RaterPage(task, "ann", store)
        before = process_time()
        items = [page.item(number) for number in range(0, MANY, MANY // 100)]

        assert (process_time() - before) / len(items) < 0.05
        assert len({item["id"] for item in items if item}) == 100
        assert page.state()["done"] == "0" * MANY


def test_an_answer_is_stored_before_it_is_confirmed_and_once_only(server: TestServer) -> None:
    async def talk(ask: Ask) -> Any:
        item = (await ask(ANN + "items/0")).json()
        replies = [await ask(ANN + "answers", "POST", json=answer_to(item)) for _ in range(2)]
        points = human_points()
        changed = await ask(ANN + "answers", "POST", json=answer_to(item, None, id="two"))
        return replies, points, changed, (await ask(ANN + "state")).json(), (await ask(ANN + "items/0")).json()

    replies, points, changed, state, again = visit(server, talk)

    assert [reply.json() for reply in replies] == [{"stored": True, "is_new": True}, {"stored": True, "is_new": False}]
    assert len(points) == 1 and set(points[0][:-1]) == {1.0}
    assert changed.json()["is_new"] and set(human_points()[0]) == {None}
    assert state["done"] == "100000" and set(again["answer"]["votes"].values()) == {None}


FOREIGN = [
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Host": "evil.example"},
    {"Host": "evil.example", "Origin": "http://evil.example"},  # a foreign name that resolves to this machine
    {"Host": ""},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_a_request_from_another_origin_or_host_is_refused(server: TestServer, headers: dict[str, str]) -> None:
    async def talk(ask: Ask) -> Any:
        item = (await ask(ANN + "items/0")).json()
        paths = [await ask(ANN + path, headers=headers) for path in ("", "state", "items/0")]
        return [*paths, await ask(ANN + "answers", "POST", json=answer_to(item), headers=headers)]

    assert [reply.status for reply in visit(server, talk)] == [403] * 4
    assert human_points() == []


def test_an_answer_without_an_origin_is_refused(server: TestServer) -> None:
    async def talk(ask: Ask) -> Any:
        item = (await ask(ANN + "items/0")).json()
        return await ask(ANN + "answers", "POST", json=answer_to(item), skip_auto_headers=(), headers={"Origin": ""})

    assert visit(server, talk).status == 403


NO_TOKEN = ["/", "/state", "/items/0", "/annotate.js", "/" + "a" * 42 + "/", "/" + "A" * 43 + "/", "//", "/%00/state"]


@pytest.mark.parametrize("path", NO_TOKEN)
def test_a_request_without_the_token_is_refused(server: TestServer, path: str) -> None:
    async def talk(ask: Ask) -> Any:
        return await ask(path), await ask(path, "POST", json={})

    assert [reply.status for reply in visit(server, talk)] == [403, 403]


OTHER_PATHS = [
    "x", "items/", "items/-1", "items/1e3", "items/٣", "items/99999999999999999999", "items/0/", "../../etc/passwd",
    "people/links.json", "%2e%2e/state", "run.sqlite", "state/",
]  # fmt: skip


@pytest.mark.parametrize("path", OTHER_PATHS)
def test_another_path_is_not_there(server: TestServer, path: str) -> None:
    async def talk(ask: Ask) -> Any:
        return await ask(ANN + path)

    assert visit(server, talk).status in (403, 404)  # a client may remove "..", and the token with it


def test_other_methods_are_refused(server: TestServer) -> None:
    async def talk(ask: Ask) -> Any:
        return [await ask(ANN + path, how) for path, how in (("state", "POST"), ("answers", "PUT"), ("", "DELETE"))]

    assert [reply.status for reply in visit(server, talk)] == [405] * 3


def test_a_body_that_is_too_large_or_not_json_is_refused(server: TestServer) -> None:
    async def talk(ask: Ask) -> Any:
        item = (await ask(ANN + "items/0")).json()
        large = json.dumps(answer_to(item, comment="x" * 70_000))
        kind = {"Content-Type": "application/json"}
        return [
            await ask(ANN + "answers", "POST", data=large, headers=kind),
            await ask(
                ANN + "answers", "POST", data=json.dumps(answer_to(item)), headers={"Content-Type": "text/plain"}
            ),
            await ask(ANN + "answers", "POST", data="{", headers=kind),
            await ask(ANN + "answers", "POST", data="[" * 60_000, headers=kind),
            await ask(ANN + "answers", "POST", data=b"\xff\xfe", headers=kind),
        ]

    assert [reply.status for reply in visit(server, talk)] == [413, 415, 400, 400, 400]
    assert human_points() == []


WRONG = [
    {"item": "nothing"},
    {"item": None},
    {"id": ""},
    {"id": "x" * 101},
    {"id": 7},
    {"votes": []},
    {"votes": {}},
    {"votes": {"__proto__": 1}},
    {"comment": None},
    {"comment": "x" * 5001},
    {"seconds": -1},
    {"seconds": "1"},
    {"seconds": True},
    {"seconds": 10**400},
    {"more": 1},
]


@pytest.mark.parametrize("changes", WRONG, ids=lambda changes: str(changes)[:30])
def test_an_answer_of_another_form_is_refused(server: TestServer, changes: dict[str, Any]) -> None:
    async def talk(ask: Ask) -> Any:
        item = (await ask(ANN + "items/0")).json()
        return await ask(ANN + "answers", "POST", json={**answer_to(item), **changes})

    assert visit(server, talk).status == 400
    assert human_points() == []


@pytest.mark.parametrize("vote", [2, -1, True, 1.0, "1", [1]])
def test_a_vote_is_1_or_0_or_null(server: TestServer, vote: Any) -> None:
    async def talk(ask: Ask) -> Any:
        item = (await ask(ANN + "items/0")).json()
        return await ask(ANN + "answers", "POST", json=answer_to(item, vote))

    assert visit(server, talk).status == 400


def test_nobody_answers_the_texts_of_others(server: TestServer, task: AnnotationTask) -> None:
    own = {item.id for item in task.texts("ann")}
    number = next(n for n, item in enumerate(task.texts("bo")) if item.id not in own)

    async def talk(ask: Ask) -> Any:
        item = (await ask(f"/{TOKENS['bo']}/items/{number}")).json()
        return await ask(ANN + "answers", "POST", json=answer_to(item))

    assert visit(server, talk).status == 400


def test_every_response_forbids_foreign_and_inline_code(server: TestServer) -> None:
    async def talk(ask: Ask) -> Any:
        return [await ask(path) for path in (ANN, ANN + "annotate.js", ANN + "state", ANN + "x", "/")]

    replies = visit(server, talk)

    for reply in replies:
        policy = reply.headers["Content-Security-Policy"]
        assert (
            policy.startswith("default-src 'none';") and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        )
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert reply.headers["Referrer-Policy"] == "no-referrer" and reply.headers["Cache-Control"] == "no-store"
        assert "Set-Cookie" not in reply.headers and "Access-Control-Allow-Origin" not in reply.headers
    page, script = replies[0].text, replies[1].text
    assert "http" not in page.replace("http-equiv", "") and " on" not in page.split("<body>")[0]
    assert not any(
        word in script for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "document.write")
    )


def test_a_fault_of_the_server_itself_is_shown_in_the_terminal(
    server: TestServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: RaterPage) -> dict[str, Any]:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(RaterPage, "state", broken)

    async def talk(ask: Ask) -> Any:
        return [await ask(ANN + "state"), await ask(ANN + "items/0")]

    failed, next_one = visit(server, talk)

    assert (failed.status, next_one.status) == (500, 200)
    assert "a fault of ours" not in failed.text
    assert "RuntimeError: a fault of ours" in capsys.readouterr().err


def test_a_journal_that_cannot_be_written_makes_the_page_try_again(server: TestServer) -> None:
    async def talk(ask: Ask) -> Any:
        item = (await ask(ANN + "items/0")).json()
        file = Path("runs/people/people/ann.sqlite")
        file.rename("elsewhere")
        refused = await ask(ANN + "answers", "POST", json=answer_to(item))
        Path("elsewhere").rename(file)
        return refused, await ask(ANN + "answers", "POST", json=answer_to(item))

    refused, stored = visit(server, talk)

    assert refused.status == 503 and "deleted or replaced" in refused.json()["error"]
    assert stored.status == 200 and len(human_points()) == 1


def test_links_stay_the_same_and_only_their_owner_can_read_them(in_folder: Path) -> None:
    run = make_run(texts=2)
    first = links_of(run, ("ann",))
    keep_links(run, {"ann": Link(1234, first["ann"].token)})
    keep_links(run, {"bo": Link(99, links_of(run, ("bo",))["bo"].token)})
    file = run.people / "links.json"

    assert file.stat().st_mode & 0o077 == 0
    assert links_of(run, ("ann",)) == {"ann": Link(1234, first["ann"].token)} and len(first["ann"].token) >= 43
    assert links_of(run, ("ann",), new=True)["ann"].token != first["ann"].token

    for damage in ("", "{", "[]", '{"ann": {"port": 70000, "token": "x"}}', '{"ann": 1}'):
        file.write_text(damage, encoding="utf-8")
        assert links_of(run, ("ann",))["ann"].port == 0


def test_new_links_keep_the_port(in_folder: Path) -> None:
    run = copied_run(texts=12)
    keep_links(run, {"ann": Link(1234, "a" * 43)})

    new = links_of(run, ("ann",), new=True)["ann"]

    assert new.port == 1234 and new.token != "a" * 43


def test_an_answer_in_an_encoding_that_cannot_be_read_is_refused(server: TestServer) -> None:
    async def talk(ask: Ask) -> Any:
        headers = {"Content-Type": "application/json", "Content-Encoding": "deflate"}
        return await ask(ANN + "answers", "POST", data=b"not deflated", headers=headers)

    assert visit(server, talk).status == 400
