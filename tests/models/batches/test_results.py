"""Results of batches are read as a stream: what is no result of the batch never gathers in memory."""

import asyncio
import json
import tracemalloc

import pytest
from aiohttp import web

from skillmix.calls import CallProblem
from skillmix.models.batches.clients import BatchView, LineResult, open_batches
from skillmix.models.servers import http
from skillmix.models.specs import DIALECTS, ModelOptions, parse_spec

GOOD = [json.dumps({"custom_id": f"t-{n}", "response": {"status_code": 200, "body": {}}}).encode() for n in range(4)]


def read(parts: list[bytes], *, calls: int = 4) -> tuple[int | CallProblem, list[LineResult], int]:
    """What is returned for a file in parts, the results that were kept, and the most bytes of memory."""

    async def main() -> tuple[int | CallProblem, list[LineResult], int]:
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
        kept: list[LineResult] = []
        view = BatchView("b", "ended", "completed", results=("/files/f/content",))

        def keep(line: LineResult) -> bool:
            kept.append(line)
            return False

        tracemalloc.start()
        try:
            found = await client.results(view, calls, keep)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            await client.server.close()
            await runner.cleanup()
        return found, kept, peak

    return asyncio.run(main())


def test_a_file_of_strange_lines_takes_little_memory() -> None:
    strange = (b'{"other": "' + b"x" * 40 + b'"}\n') * 1000
    unreadable, kept, peak = read([GOOD[0] + b"\n", *[strange] * 80, b"\n".join(GOOD[1:])])

    assert unreadable == 80 * 1000
    assert [line.custom_id for line in kept] == ["t-0", "t-1", "t-2", "t-3"]
    assert peak < 3_000_000  # the file has 4.3 MB


def test_a_line_without_end_is_unreadable_and_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_LINE", 2**18)
    unreadable, kept, peak = read([GOOD[0] + b"\n", *[b"x" * 100_000] * 40, b"\n" + GOOD[1]])

    assert (unreadable, [line.custom_id for line in kept]) == (1, ["t-0", "t-1"])
    assert peak < 3_000_000


def test_a_file_that_is_too_long_is_unreadable_and_not_asked_for_ever() -> None:
    unreadable, kept, _ = read([GOOD[0] + b"\n", *[b"x" * 1_000_000] * 8], calls=1)

    assert isinstance(unreadable, int) and unreadable >= 1
    assert [line.custom_id for line in kept] == ["t-0"]
