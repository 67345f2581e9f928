"""A server on loopback that speaks the chat protocols, well or badly."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from skillmix.calls import Decoding, GenerateKey, Message, Model, Outcome, Request

DROP, HALF, SILENCE = web.Response(), web.Response(), web.Response()
"""In place of an answer: the connection is dropped, half a body is sent, nothing is."""

Handler = Callable[[dict[str, Any]], Awaitable[web.StreamResponse] | web.StreamResponse]


@dataclass
class Stub:
    """What was asked, and how to answer."""

    handler: Handler
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    probes: list[dict[str, str]] = field(default_factory=list)
    """The headers of questions for the list of models."""
    address: str = ""
    most_at_once: int = 0
    stop: Callable[[], Awaitable[None]] | None = None
    """Ends the server as a kill does: its connections are dropped at once."""
    now: int = 0
    is_frozen: bool = False
    """Whether it takes calls and answers none."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self.now += 1
        self.most_at_once = max(self.most_at_once, self.now)
        try:
            answer = self.handler(body)
            if answer is DROP:
                assert request.transport is not None
                request.transport.close()
                return web.Response()
            if answer is HALF:
                response = web.StreamResponse(headers={"Content-Length": "1000", "Content-Type": "application/json"})
                await response.prepare(request)
                await response.write(b'{"choices": [')
                assert request.transport is not None
                request.transport.close()
                return response
            if answer is SILENCE:
                await asyncio.sleep(10)
            response = await answer if isinstance(answer, Awaitable) else answer
            while self.is_frozen:
                await asyncio.sleep(0.01)
            return response
        finally:
            self.now -= 1


@asynccontextmanager
async def serving(
    handler: Handler,
    *,
    models: list[str] | None = None,
    models_status: int = 404,
    details: dict[str, object] | None = None,
    port: int = 0,
) -> AsyncIterator[Stub]:
    stub = Stub(handler)
    application = web.Application()

    async def listed(request: web.Request) -> web.Response:
        stub.probes.append(dict(request.headers))
        data = [{"id": name, **(details or {})} for name in models or []]
        return web.json_response({"data": data}, status=models_status)

    application.router.add_get("/v1/models", listed)
    application.router.add_post("/v1/chat/completions", stub.handle)
    application.router.add_post("/v1/messages", stub.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    stub.address = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"

    async def stop() -> None:
        assert runner.server is not None
        for connection in runner.server.connections:
            if connection.transport is not None:
                connection.transport.abort()
        await runner.cleanup()

    stub.stop = stop
    try:
        yield stub
    finally:
        await runner.cleanup()


def chat(text: str | None, **changes: Any) -> web.Response:
    """A good reply of the OpenAI kind."""
    message = {"role": "assistant", "content": text} | changes.pop("message", {})
    usage = {"usage": {"prompt_tokens": 7, "completion_tokens": 3}}
    return web.json_response({"choices": [{"message": message, "finish_reason": "stop"} | changes], **usage})


def error(status: int, message: str, **more: str) -> web.Response:
    return web.json_response({"error": {"message": message, **more}}, status=status)


def request(number: int = 0, decoding: Decoding | None = None) -> Request:
    key = GenerateKey("s", "c", number, 1)
    return Request(
        key, "m", (Message("system", "Be brief"), Message("user", f"Hi {number}")), decoding or Decoding(), 7
    )


async def ask(model: Model, *requests: Request) -> list[tuple[Request, Outcome]]:
    async def stream() -> AsyncIterator[Request]:
        for item in requests:
            yield item
            await asyncio.sleep(0)

    try:
        return [result async for result in model.serve(stream())]
    finally:
        await model.close()
