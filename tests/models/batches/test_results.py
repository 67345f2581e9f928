"""Result files of batches may contain anything, and may be far too long."""

import asyncio
import json

from aiohttp import web

from skillmix.calls import CallProblem
from skillmix.models.batches.clients import BatchView, LineResult, open_batches
from skillmix.models.specs import DIALECTS, ModelOptions, parse_spec

GOOD = [json.dumps({"custom_id": f"t-{n}", "response": {"status_code": 200, "body": {}}}).encode() for n in range(4)]


def read(parts: list[bytes], *, calls: int = 4) -> tuple[list[str], int]:
    """The ids of the results in a file that arrives in parts, and the number of unreadable lines."""

    async def main() -> tuple[list[LineResult], int] | CallProblem:
        async def content(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            try:
                for part in parts:
                    await response.write(part)
            except ConnectionError:
                pass
            return response

        application = web.Application()
        application.router.add_get("/v1/files/f/content", content)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        spec = parse_spec(f"openai:m@http://127.0.0.1:{runner.addresses[0][1]}/v1")
        client = open_batches(spec, ModelOptions(), DIALECTS["openai"])
        try:
            return await client.results(BatchView("b", "ended", "completed", results=("/files/f/content",)), calls)
        finally:
            await client.server.close()
            await runner.cleanup()

    found = asyncio.run(main())
    assert not isinstance(found, CallProblem)
    return [line.custom_id for line in found[0]], found[1]


def test_strange_lines_are_counted() -> None:
    strange = (b'{"other": "' + b"x" * 40 + b'"}\n') * 1000

    assert read([GOOD[0] + b"\n", *[strange] * 80, b"\n".join(GOOD[1:])]) == (["t-0", "t-1", "t-2", "t-3"], 80_000)


def test_a_long_line_is_one_unreadable_result() -> None:
    assert read([GOOD[0] + b"\n", *[b"x" * 100_000] * 40, b"\n" + GOOD[1]]) == (["t-0", "t-1"], 1)


def test_a_file_that_is_too_long_is_unreadable() -> None:
    assert read([GOOD[0] + b"\n", *[b"x" * 1_000_000] * 8], calls=1) == ([], 1)
