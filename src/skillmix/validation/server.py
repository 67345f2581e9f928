"""Serve the page on which people answer, on this machine only.

Every address begins with the secret of one person, and everything else is refused: a request without a secret, from
another origin or host, to another path, with another method, too large, or not in JSON. The page gets one text at a
time. It learns nothing about students, graders or other people. It has no cookies, loads nothing from elsewhere, and
its policy forbids inline scripts.

A page that is open when the server dies finds the server again under the same address, and nobody needs a new link.
The file can be read by its owner only. Whoever has a link can answer in the name of its person, on this machine.
"""

import asyncio
import json
import logging
import os
import re
import socket
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hmac import compare_digest
from importlib import resources
from pathlib import Path
from secrets import token_urlsafe
from signal import SIGINT
from typing import Final

from aiohttp import web
from aiohttp.http import HttpProcessingError

from skillmix.errors import Interrupted, UserError
from skillmix.runs.people import HumanAnswer
from skillmix.runs.run import Run
from skillmix.runs.scheduler import StopReason, reacting_to_signals, signal_of
from skillmix.validation.task import AnnotationTask, AnswerStore, fault_of

_FILE: Final = "links.json"
"""In the folder of people's answers; only its owner can read it."""
_TOKEN = re.compile(r"[A-Za-z0-9_-]{32,100}")


@dataclass(frozen=True, slots=True)
class Link:
    """Where one person answers: a port, 0 for any free one, and a secret."""

    port: int
    token: str


def links_of(run: Run, raters: Sequence[str], *, new: bool = False) -> dict[str, Link]:
    """The links of people: those that were used before, or new ones with the port of before."""
    known = _read(run.people / _FILE)
    if new:
        known = {rater: Link(link.port, token_urlsafe(32)) for rater, link in known.items()}
    return {rater: known.get(rater) or Link(0, token_urlsafe(32)) for rater in raters}


def keep_links(run: Run, links: Mapping[str, Link]) -> None:
    """Store links beside those of other people of the run."""
    file = run.people / _FILE
    file.parent.mkdir(exist_ok=True)
    content = {rater: asdict(link) for rater, link in {**_read(file), **links}.items()}
    partial = file.with_name(f"{file.name}.partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
        opened.write(json.dumps(content, indent=1) + "\n")
    partial.replace(file)


def _read(file: Path) -> dict[str, Link]:
    """The stored links; none if the file is missing or damaged."""
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        links = {rater: Link(one["port"], one["token"]) for rater, one in stored.items()}
        is_whole = all(
            type(x.port) is int and 0 <= x.port < 65536 and _TOKEN.fullmatch(x.token) for x in links.values()
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}
    return links if is_whole else {}


HOST: Final = "127.0.0.1"
_LARGEST: Final = 64 * 1024
"""Bytes of a request."""
_LONGEST_ID: Final = 100
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_FILES: Final = {
    "": ("annotate.html", "text/html"),
    "annotate.js": ("annotate.js", "text/javascript"),
    "annotate.css": ("annotate.css", "text/css"),
    "annotate.svg": ("annotate.svg", "image/svg+xml"),
}


class RaterPage:
    """The requests that one person can make: the page, the state, one text, and storing an answer."""

    def __init__(self, task: AnnotationTask, rater: str, store: AnswerStore) -> None:
        self._task = task
        self._rater = rater
        self._store = store
        self._items = task.texts(rater)
        self._numbers = {item.id: number for number, item in enumerate(self._items)}

    def state(self) -> dict[str, object]:
        """Who answers, and which texts have an answer."""
        done = "".join("1" if one else "0" for one in self._store.answered(self._items))
        return {"rater": self._rater, "done": done}

    def item(self, number: int) -> dict[str, object] | None:
        """One text with its questions and the answer so far; None if there is no such text."""
        if not 0 <= number < len(self._items):
            return None
        item = self._items[number]
        answer = self._store.latest(item)
        return {
            "number": number,
            "id": item.id,
            "text": item.words,
            "topic": item.combination.topic,
            "questions": [asdict(question) for question in self._task.questions(item)],
            "answer": None if answer is None else {"votes": dict(answer.votes), "comment": answer.comment},
        }

    def answer(self, body: bytes) -> bool:
        """Store the answer in a request; a ValueError describes a fault in it."""
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            raise ValueError("the request is not JSON") from None
        if not isinstance(document, dict) or document.keys() != {"item", "id", "votes", "comment", "seconds"}:
            raise ValueError("the request has other fields")
        number, own_id, votes, comment = (document[name] for name in ("item", "id", "votes", "comment"))
        if not isinstance(number, str) or number not in self._numbers:
            raise ValueError("this is not one of your texts")
        if not isinstance(own_id, str) or not 0 < len(own_id) <= _LONGEST_ID:
            raise ValueError("the answer has no id")
        if not isinstance(votes, dict) or not isinstance(comment, str):
            raise ValueError("the votes or the comment have another form")
        item = self._items[self._numbers[number]]
        answer = HumanAnswer(votes, comment, document["seconds"], own_id)
        fault = fault_of(item, answer)
        if fault is not None:
            raise ValueError(fault)
        return self._store.store(item, answer)


def application(pages: Mapping[str, RaterPage]) -> web.Application:
    """The server's application; `pages` are by the secret of each person."""
    folder = resources.files("skillmix.validation") / "files"
    files = {path: ((folder / name).read_text(encoding="utf-8"), kind) for path, (name, kind) in _FILES.items()}
    secrets = {token.encode(): page for token, page in pages.items()}

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            response = await _respond(request, secrets, files)
        except web.HTTPException as refusal:
            response = web.Response(status=refusal.status, text=refusal.reason)
        except Exception:  # noqa: BLE001  # a fault of this program: the terminal shows it, and the page goes on
            traceback.print_exc()
            response = web.Response(status=500, text="The server failed; its terminal shows the error.")
        response.headers.update(_HEADERS)
        return response

    app = web.Application(client_max_size=_LARGEST)
    app.router.add_route("*", "/{path:.*}", handle)
    return app


async def _respond(
    request: web.Request, secrets: Mapping[bytes, RaterPage], files: Mapping[str, tuple[str, str]]
) -> web.StreamResponse:
    # Refuse what another site could make a browser send: its origin is another one, or its host name is not ours.
    here = request.transport.get_extra_info("sockname")[1] if request.transport else 0
    if request.headers.get("Host") not in (f"{HOST}:{here}", f"localhost:{here}"):
        raise web.HTTPForbidden(reason="This host name is not served here.")
    origin = request.headers.get("Origin")
    is_own = origin == f"http://{request.headers['Host']}"
    if not is_own and (origin is not None or request.method not in ("GET", "HEAD")):
        raise web.HTTPForbidden(reason="This origin is not allowed.")
    token, slash, path = request.path.removeprefix("/").partition("/")
    given = token.encode("utf-8", "surrogatepass")
    found = [page for secret, page in secrets.items() if compare_digest(secret, given)]  # every one, in constant time
    if not found:
        raise web.HTTPForbidden(reason="This link is not valid.")
    page = found[0]
    if not slash:
        raise web.HTTPNotFound
    method = "POST" if path == "answers" else "GET"
    if request.method != method:
        raise web.HTTPMethodNotAllowed(request.method, [method])
    if path == "answers":
        return await _stored(request, page)
    if path in files:
        text, kind = files[path]
        return web.Response(text=text, content_type=kind)
    if path == "state":
        return web.json_response(page.state())
    kind, _, number = path.partition("/")
    is_number = kind == "items" and number.isascii() and number.isdecimal() and len(number) < 10
    item = page.item(int(number)) if is_number else None
    if item is None:
        raise web.HTTPNotFound
    return web.json_response(item)


async def _stored(request: web.Request, page: RaterPage) -> web.Response:
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType
    try:
        body = await request.read()
    except (OSError, web.RequestPayloadError, HttpProcessingError):  # it breaks off, or its encoding is unreadable
        raise web.HTTPBadRequest(reason="The body of the request cannot be read.") from None
    try:
        is_new = page.answer(body)
    except ValueError as fault:
        return web.json_response({"error": str(fault)}, status=400)
    except UserError as problem:  # the journal cannot be written now; the page keeps the answer and sends it again
        return web.json_response({"error": problem.message}, status=503)
    return web.json_response({"stored": True, "is_new": is_new})


async def serve(
    task: AnnotationTask,
    stores: Mapping[str, AnswerStore],
    links: Mapping[str, Link],
    *,
    port: int | None,
    ready: Callable[[Mapping[str, str]], None],
) -> None:
    """Serve until a signal arrives or the task is cancelled.

    `ready` receives the address of each person once they can be opened. Without a port, the previous one is used, or
    any free one.
    """
    with _bound(port, [link.port for link in links.values()]) as listening:
        number = listening.getsockname()[1]
        used = {rater: Link(number, link.token) for rater, link in links.items()}
        pages = {link.token: RaterPage(task, rater, stores[rater]) for rater, link in used.items()}
        # A log without an end: whoever sends a broken request must not fill the terminal with traces.
        log = logging.Logger("annotate")
        log.addHandler(logging.NullHandler())
        runner = web.AppRunner(application(pages), access_log=None, shutdown_timeout=1.0, logger=log)
        await runner.setup()
        try:
            await web.SockSite(runner, listening).start()
            keep_links(task.run, used)
            ready({rater: f"http://{HOST}:{number}/{link.token}/" for rater, link in used.items()})
            came: asyncio.Future[StopReason] = asyncio.get_running_loop().create_future()
            # A signal that raised its error amid an answer would print a trace of that answer.
            with reacting_to_signals(lambda reason: None if came.done() else came.set_result(reason)):
                reason = await came
        finally:
            await runner.cleanup()
    raise Interrupted(signal_of(reason) or SIGINT)


def _bound(port: int | None, earlier: Sequence[int]) -> socket.socket:
    """A socket on this machine: on the given port, or on an earlier one if it is free, or on any."""
    for number in [port] if port is not None else [*dict.fromkeys(one for one in earlier if one), 0]:
        opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            if os.name == "posix":  # a killed server leaves its port in a state that would block it for a minute
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind((HOST, number))
        except (OSError, OverflowError):
            opened.close()
        else:
            return opened
    raise UserError(f"Port {port or 0} cannot be used.", hint="Choose another --port, or leave it out for a free one.")
