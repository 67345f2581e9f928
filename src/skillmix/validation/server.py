"""Serve the page on which raters answer, on this machine only.

Every path begins with a rater's secret token. The server rejects requests without a token, from another origin or host,
to another path or with another method, and requests that are too large or not in JSON. The page receives one text at a
time and no information about students, graders or other raters. It sets no cookies and loads nothing from other
servers, and its policy forbids inline scripts.

A restarted server uses the same addresses, so open pages reconnect and nobody needs a new link. Only the user who
started the server can read the file of links. Anyone who knows a link can answer for its rater on this machine.
"""

import asyncio
import json
import logging
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from hmac import compare_digest
from importlib import resources
from pathlib import Path
from secrets import token_urlsafe
from signal import SIGINT
from typing import Annotated, Any, Final

from aiohttp import web
from aiohttp.http import HttpProcessingError
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from skillmix.errors import Interrupted, UserError
from skillmix.files import located_fault
from skillmix.runs.people import HumanAnswer
from skillmix.runs.run import Run
from skillmix.runs.scheduler import StopReason, reacting_to_signals, signal_of
from skillmix.validation.task import AnnotationTask, AnswerStore, fault_of

_FILE: Final = "links.json"
"""The file of links in the folder of people's answers; only its owner can read it."""


@dataclass(frozen=True, slots=True)
class Link:
    """The address of one rater's page: a secret token and a port, which is 0 for any free port."""

    port: Annotated[int, Field(ge=0, lt=65536)]
    token: Annotated[str, Field(pattern="^[A-Za-z0-9_-]{32,100}$")]


def links_of(run: Run, raters: Sequence[str], *, new: bool = False) -> dict[str, Link]:
    """Return the raters' links: the stored links, or new tokens with the stored ports."""
    known = _read(run.people / _FILE)
    if new:
        known = {rater: Link(link.port, token_urlsafe(32)) for rater, link in known.items()}
    return {rater: known.get(rater) or Link(0, token_urlsafe(32)) for rater in raters}


def keep_links(run: Run, links: Mapping[str, Link]) -> None:
    """Store links, and keep the stored links of other raters."""
    file = run.people / _FILE
    file.parent.mkdir(exist_ok=True)
    content = {rater: asdict(link) for rater, link in {**_read(file), **links}.items()}
    partial = file.with_name(f"{file.name}.partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
        opened.write(json.dumps(content, indent=1) + "\n")
    partial.replace(file)


def _read(file: Path) -> dict[str, Link]:
    """Return the stored links; empty if the file is missing or damaged."""
    try:
        return TypeAdapter(dict[str, Link]).validate_json(file.read_bytes(), strict=True)
    except (OSError, ValidationError):
        return {}


HOST: Final = "127.0.0.1"
_LARGEST: Final = 64 * 1024
"""The largest size of a request, in bytes."""
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


class _SentAnswer(BaseModel):
    """The body of a request that stores an answer; `fault_of` checks the votes, the comment and the seconds."""

    model_config = ConfigDict(extra="forbid", strict=True)

    item: str
    id: Annotated[str, Field(min_length=1, max_length=100)]
    votes: dict[str, Any]
    comment: str
    seconds: Any


class RaterPage:
    """Handles the requests from one rater's page: for its state, for a text, or to store an answer."""

    def __init__(self, task: AnnotationTask, rater: str, store: AnswerStore) -> None:
        self._task = task
        self._rater = rater
        self._store = store
        self._items = task.texts(rater)
        self._by_id = {item.id: item for item in self._items}

    def state(self) -> dict[str, object]:
        """Return the rater's name, and which texts already have an answer."""
        done = "".join("1" if one else "0" for one in self._store.answered(self._items))
        return {"rater": self._rater, "done": done}

    def item(self, number: int) -> dict[str, object] | None:
        """Return one text with its questions and the current answer; None if there is no such text."""
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
        """Store the answer in a request, and return False if it is already stored; a ValueError describes a fault."""
        try:
            sent = _SentAnswer.model_validate_json(body)
        except ValidationError as error:
            raise ValueError(located_fault(error.errors()[0], _SentAnswer)) from None
        item = self._by_id.get(sent.item)
        if item is None:
            raise ValueError("this is not one of your texts")
        answer = HumanAnswer(sent.votes, sent.comment, sent.seconds, sent.id)
        fault = fault_of(item, answer)
        if fault is not None:
            raise ValueError(fault)
        return self._store.store(item, answer)


def application(pages: Mapping[str, RaterPage]) -> web.Application:
    """Make the server's application; `pages` maps each rater's token to the rater's page."""
    folder = resources.files("skillmix.validation") / "files"
    files = {path: ((folder / name).read_text(encoding="utf-8"), kind) for path, (name, kind) in _FILES.items()}
    secrets = {token.encode(): page for token, page in pages.items()}

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            response = await _respond(request, secrets, files)
        except web.HTTPException as refusal:
            response = web.Response(status=refusal.status, text=refusal.reason)
        except Exception:  # noqa: BLE001  # after a bug in this program, the page must remain usable
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
    # Another site can make a browser send requests; they have a different origin or host name.
    here = request.transport.get_extra_info("sockname")[1] if request.transport else 0
    if request.headers.get("Host") not in (f"{HOST}:{here}", f"localhost:{here}"):
        raise web.HTTPForbidden(reason="The server does not answer requests for this host name.")
    origin = request.headers.get("Origin")
    is_own = origin == f"http://{request.headers['Host']}"
    if not is_own and (origin is not None or request.method not in ("GET", "HEAD")):
        raise web.HTTPForbidden(reason="This origin is not allowed.")
    token, slash, path = request.path.removeprefix("/").partition("/")
    given = token.encode("utf-8", "surrogatepass")
    # `compare_digest` takes constant time, so that timing reveals no token.
    found = [page for secret, page in secrets.items() if compare_digest(secret, given)]
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
    except (OSError, web.RequestPayloadError, HttpProcessingError):  # incomplete, or in an unknown encoding
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

    `ready` receives the address of each rater as soon as the server accepts requests. If `port` is None, use the
    previous port or, if it is not free, any other port.
    """
    pages = {link.token: RaterPage(task, rater, stores[rater]) for rater, link in links.items()}
    # Discard this log, because broken requests would fill the terminal with tracebacks.
    log = logging.Logger("annotate")
    log.addHandler(logging.NullHandler())
    runner = web.AppRunner(application(pages), access_log=None, shutdown_timeout=1.0, logger=log)
    await runner.setup()
    try:
        number = await _listening(runner, port, [link.port for link in links.values()])
        keep_links(task.run, {rater: Link(number, link.token) for rater, link in links.items()})
        ready({rater: f"http://{HOST}:{number}/{link.token}/" for rater, link in links.items()})
        came: asyncio.Future[StopReason] = asyncio.get_running_loop().create_future()
        # Wait for the signal, because an error raised while an answer is processed would print a traceback.
        with reacting_to_signals(lambda reason: None if came.done() else came.set_result(reason)):
            reason = await came
    finally:
        await runner.cleanup()
    raise Interrupted(signal_of(reason) or SIGINT)


async def _listening(runner: web.AppRunner, port: int | None, earlier: Sequence[int]) -> int:
    """Listen on `port` or, if it is None, on a free earlier port or any free port, and return the port."""
    for number in [port] if port is not None else [*dict.fromkeys(one for one in earlier if one), 0]:
        with suppress(OSError, OverflowError):
            # Without `reuse_address`, the port of a killed server is blocked for a minute.
            await web.TCPSite(runner, HOST, number, reuse_address=os.name == "posix").start()
            return int(runner.addresses[0][1])
    raise UserError(f"Port {port or 0} cannot be used.", hint="Choose another --port, or omit it to use any free port.")
