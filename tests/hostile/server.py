"""One server on loopback that answers every kind of path with that kind of reply."""

import asyncio
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from aiohttp import web

from tests.hostile.kinds import KINDS, Kind
from tests.hostile.replies import ANSWER, Endless, Protocol, Raw, Response, Slow, Web, as_json, good, grades

_LONGEST_SILENCE = 5.0


class HostileServer:
    """Answers `/openai/KIND/v1/…` and `/anthropic/KIND/v1/…`; the kind `good` is a server as it should be."""

    def __init__(self) -> None:
        self.address = ""
        self.seen: Counter[str] = Counter()
        """Calls by path of the kind; probes are not counted."""
        self.strangers: list[str] = []
        """Requests for paths that nobody was sent to, as a redirect would make them."""
        self._victims: dict[str, str] = {}

    async def handle(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.split("/")
        if len(parts) < 5 or parts[1] not in ("openai", "anthropic") or parts[3] != "v1":
            self.strangers.append(f"{request.method} {request.path_qs} {dict(request.headers)}")
            return web.Response(status=404)
        protocol: Protocol = "openai" if parts[1] == "openai" else "anthropic"
        kind = KINDS.get(parts[2])
        if request.method == "GET":
            reply = kind.probe(protocol) if kind and kind.probe else None
            return await _sent(request, reply or as_json({"data": [{"id": "student"}, {"id": "grader"}]}))
        body = await request.json()
        place = f"{parts[1]}/{parts[2]}"
        self.seen[place] += 1
        if kind is None or not self._is_hit(kind, place, body):
            return await _sent(request, _good_reply(protocol, body))
        return await _sent(request, kind.reply(protocol) if kind.reply else _good_reply(protocol, body))

    def _is_hit(self, kind: Kind, place: str, body: dict[str, Any]) -> bool:
        """Whether this call gets the hostile reply: calls of the kind's role, all, the first few or one prompt's."""
        if body["model"] != kind.role:
            return False
        if kind.one_prompt:
            prompt = body["messages"][0]["content"]
            return bool(self._victims.setdefault(place, prompt) == prompt)
        return kind.calls is None or self.seen[place] <= kind.calls


def _good_reply(protocol: Protocol, body: dict[str, Any]) -> Web:
    prompt = body["messages"][-1]["content"]
    return as_json(good(protocol, grades(prompt) if body["model"] == "grader" else ANSWER))


async def _sent(request: web.Request, reply: Response) -> web.StreamResponse:
    if isinstance(reply, Web):
        return web.Response(status=reply.status, body=reply.body, headers=dict(reply.headers), reason=reply.reason)
    transport = request.transport
    assert isinstance(transport, asyncio.Transport)
    with suppress(ConnectionError):
        await _sent_raw(transport, reply)
    transport.abort()
    return web.Response()  # nobody is left to get it


async def _sent_raw(transport: asyncio.Transport, reply: Raw | Endless | Slow) -> None:
    if isinstance(reply, Raw):
        transport.write(reply.data)
        if reply.is_reset:
            raw = transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            await asyncio.sleep(0.02)
    elif isinstance(reply, Endless):
        transport.write(reply.head)
        while not transport.is_closing():
            if transport.get_write_buffer_size() < 2**18:
                transport.write(reply.chunk)
            await asyncio.sleep(0.001 if transport.get_write_buffer_size() else 0)
    else:
        await _sent_slowly(transport, reply)


async def _sent_slowly(transport: asyncio.Transport, reply: Slow) -> None:
    for letter in reply.data:
        if transport.is_closing():
            return
        transport.write(bytes([letter]))
        await asyncio.sleep(0.01)
    loop = asyncio.get_running_loop()
    end = loop.time() + _LONGEST_SILENCE
    while not transport.is_closing() and loop.time() < end:
        await asyncio.sleep(0.02)


@contextmanager
def hostile_server() -> Iterator[HostileServer]:
    """The server, in a thread of its own."""
    server = HostileServer()
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    stop = asyncio.Event()

    async def main() -> None:
        application = web.Application(client_max_size=2**24)
        application.router.add_route("*", "/{rest:.*}", server.handle)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.address = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()
        await stop.wait()
        await runner.cleanup()

    def serve() -> None:
        loop.run_until_complete(main())
        loop.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    ready.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
