"""A provider of batches on loopback that keeps its rules, bills what it answers, and fails in every way it is asked to.

It speaks both shapes: files and batches of the OpenAI kind below `/v1`, and message batches of Anthropic's. The same
function answers calls in batches and calls outside, so that a run in batches can be compared with a direct one.
"""

import asyncio
import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any

from aiohttp import web

Body = dict[str, Any]
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
WRITTEN = ("completed", "cancelled", "expired")


@dataclass
class StubBatch:
    id: str
    calls: list[tuple[str, Body]]
    file: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    created: float = 0.0
    looks: int = 0
    state: str = "validating"
    lines: list[bytes] = field(default_factory=list)
    error_lines: list[bytes] = field(default_factory=list)
    downloads: int = 0
    looks_after_end: int = 0
    errors: list[dict[str, Any]] = field(default_factory=list)
    is_foreign: bool = False
    answered: int = 0
    number: int = 0


class StubProvider:
    """The provider; `faults` are names of ways to fail, and most of them befall its first batch only.

    A fifth of its gradings cannot be read, except where `readable` is among the names.
    """

    def __init__(self, faults: frozenset[str] = frozenset(), *, most_requests: int = 50) -> None:
        self.faults = faults
        self.most_requests = most_requests
        self.billed: Counter[str] = Counter()
        """By the hash in its custom id, how often a call in a batch was answered."""
        self.direct = 0
        self.asked: Counter[str] = Counter()
        self.batches: dict[str, StubBatch] = {}
        self.files: dict[str, tuple[str, bytes]] = {}
        self.uploads = 0
        self.creations = 0
        self.violations: list[str] = []
        self.is_finishing = "never finishes" not in faults
        self.address = ""
        self.searches = 0
        self.deleted: list[str] = []
        self.file_looks = 0
        self.headers: list[dict[str, str]] = []

    # What a model says

    def text(self, messages: list[Body]) -> str:
        prompt = messages[-1]["content"]
        mark = hashlib.sha256(json.dumps([m["content"] for m in messages if m["role"] != "system"]).encode()).digest()
        if "The criteria" not in prompt:
            return f"Answer: The needle, that patient fish, swims on ({mark.hex()[:6]}).\n\nExplanation: it is one."
        if mark[0] % 5 == 0 and "readable" not in self.faults:
            return "I like it."
        lines = [line[2:] for line in prompt.partition("The criteria")[2].splitlines() if line.startswith("- ")]
        rows = "".join(f"| {line} | {int(mark[1 + i] % 4 > 0)} |\n" for i, line in enumerate(lines))
        return f"Here's the grading table:\n\n| Criteria | Points Earned |\n|---|---|\n{rows}\nExplanation: so."

    def chat(self, body: Body) -> Body:
        usage = {} if "no usage" in self.faults else {"usage": {"prompt_tokens": 70, "completion_tokens": 30}}
        message = {"role": "assistant", "content": self.text(body["messages"])}
        return {"choices": [{"message": message, "finish_reason": "stop"}], **usage}

    def message(self, body: Body) -> Body:
        usage = {} if "no usage" in self.faults else {"usage": {"input_tokens": 70, "output_tokens": 30}}
        text = self.text(body["messages"])
        return {"type": "message", "content": [{"type": "text", "text": text}], "stop_reason": "end_turn", **usage}

    # Rules

    def check(self, calls: list[tuple[str, Body]], *, size: int) -> str | None:
        ids = [custom for custom, _ in calls]
        fault = None
        if not calls or len(calls) > self.most_requests or size > 200_000_000:
            fault = f"{len(calls)} requests of {size} bytes"
        elif len(set(ids)) < len(ids):
            fault = "custom ids are not unique"
        elif any(not _ID.fullmatch(custom) for custom in ids):
            fault = "a custom id has other characters or is too long"
        elif len({body.get("model") for _, body in calls}) > 1:
            fault = "several models"
        if fault:
            self.violations.append(fault)
        return fault

    # Working on a batch

    def look(self, batch: StubBatch) -> None:
        batch.looks += 1
        if batch.state in WRITTEN or batch.state in ("failed", "ended"):
            batch.looks_after_end += 1
            return
        if not self.is_finishing or batch.is_foreign:
            batch.state = "in_progress"
            return
        if batch.number == 1 and "unknown states" in self.faults and batch.looks < 3:
            batch.state = "dreaming"
            return
        if batch.looks < 2:
            batch.state = "in_progress"
            return
        self.finish(batch)

    def finish(self, batch: StubBatch) -> None:
        is_first = batch.number == 1
        if (is_first and "fails at validation" in self.faults) or "always fails at validation" in self.faults:
            batch.state, batch.errors = "failed", [{"code": "internal", "message": "validation went wrong"}]
            return
        if is_first and "fails on a line" in self.faults:
            batch.state, batch.errors = "failed", [{"code": "invalid_request", "message": "no", "line": 1}]
            return
        if "token limit" in self.faults and len(batch.calls) > 3:
            batch.state = "failed"
            batch.errors = [{"code": "token_limit_exceeded", "message": "Enqueued token limit reached", "line": None}]
            return
        if is_first and "completes without a file" in self.faults:
            batch.state = "completed"
            return
        ends_early = next((f for f in ("expires", "is cancelled") if f in self.faults), None) if is_first else None
        for place, (custom, body) in enumerate(batch.calls):
            self.work(batch, custom, body, is_left=bool(ends_early) and place % 2 == 1, place=place)
        batch.state = {"expires": "expired", "is cancelled": "cancelled", None: "completed"}[ends_early]

    def work(self, batch: StubBatch, custom: str, body: Body, *, is_left: bool, place: int) -> None:
        """Answer a call and bill it, unless it has to fail."""
        call = custom.partition("-")[2]
        self.asked[call] += 1
        if is_left:
            if place % 4 == 1 or self.is_anthropic:
                self.put_left(batch, custom)
        elif not self.fails(batch, custom, body, place=place, is_new=self.asked[call] == 1):
            self.billed[call] += 1
            batch.answered += 1
            batch.lines.append(json.dumps(self.result(custom, body)).encode())

    @property
    def is_anthropic(self) -> bool:
        return "anthropic" in self.faults

    def fails(self, batch: StubBatch, custom: str, body: Body, *, place: int, is_new: bool) -> bool:
        if "drops lines" in self.faults and batch.number == 1 and place == 0:
            return True
        if "refuses seeds" in self.faults and "seed" in body:
            self.put_error(batch, custom, 400, "Unsupported parameter: 'seed' is not supported")
            return True
        if not is_new or place % 2:
            return False
        for fault, status in (("lines with 429", 429), ("lines with 500", 500), ("lines with 400", 400)):
            if fault in self.faults:
                self.put_error(batch, custom, status, "not now")
                return True
        if "null lines" in self.faults:
            nothing = {"result": None} if self.is_anthropic else {"response": None, "error": None}
            batch.lines.append(json.dumps({"custom_id": custom, **nothing}).encode())
            return True
        return False

    def result(self, custom: str, body: Body) -> Body:
        if self.is_anthropic:
            return {"custom_id": custom, "result": {"type": "succeeded", "message": self.message(body)}}
        response = {"status_code": 200, "request_id": "r", "body": self.chat(body)}
        return {"id": "x", "custom_id": custom, "response": response, "error": None}

    def put_left(self, batch: StubBatch, custom: str) -> None:
        word = "expired" if "expires" in self.faults else "canceled"
        if self.is_anthropic:
            batch.lines.append(json.dumps({"custom_id": custom, "result": {"type": word}}).encode())
        else:
            error = {"code": "batch_expired" if word == "expired" else "batch_cancelled", "message": "left"}
            batch.error_lines.append(json.dumps({"custom_id": custom, "response": None, "error": error}).encode())

    def put_error(self, batch: StubBatch, custom: str, status: int, message: str) -> None:
        if self.is_anthropic:
            kind = {400: "invalid_request_error", 429: "rate_limit_error", 500: "api_error"}[status]
            error = {"type": "error", "error": {"type": kind, "message": message}}
            batch.lines.append(
                json.dumps({"custom_id": custom, "result": {"type": "errored", "error": error}}).encode()
            )
        else:
            body = {"error": {"message": message}}
            line = {"custom_id": custom, "response": {"status_code": status, "body": body}, "error": None}
            batch.error_lines.append(json.dumps(line).encode())

    def results(self, batch: StubBatch, lines: list[bytes]) -> bytes:
        """The lines in another order, twice where asked; the first download may be damaged."""
        batch.downloads += 1
        sent = sorted(lines, key=lambda line: hashlib.sha256(line).digest())
        if "unreadable results" in self.faults:
            return b"x" * 2000
        if "repeats lines" in self.faults:
            sent = [*sent, *sent[:3]]
        if "corrupts lines" in self.faults and batch.downloads == 1:
            sent = [line[: len(line) // 2] if place % 2 else line for place, line in enumerate(sent)]
            sent += [b"\xff\xfe{", b"[1]", b'{"custom_id": 7}', b'{"custom_id": "stranger", "response": {}}', b""]
        return b"\n".join(sent)

    # The OpenAI kind

    def shown(self, batch: StubBatch) -> Body:
        is_over = batch.state in WRITTEN
        output: str | None = f"{batch.id}-output" if is_over and batch.lines else None
        if is_over and batch.number == 1 and "late file" in self.faults and batch.looks_after_end < 2:
            output = None
        if is_over and batch.number == 1 and "empty file id" in self.faults and batch.looks_after_end < 2:
            output = ""
        word = batch.state.upper() if "upper-case states" in self.faults else batch.state
        metadata = {} if "forgets metadata" in self.faults else batch.metadata
        return {
            "id": batch.id,
            "object": "batch",
            "status": word,
            "input_file_id": batch.file,
            "output_file_id": output,
            "error_file_id": f"{batch.id}-errors" if is_over and batch.error_lines else None,
            "errors": {"object": "list", "data": batch.errors} if batch.errors else None,
            "request_counts": {"total": len(batch.calls), "completed": batch.answered, "failed": 0},
            "metadata": metadata or None,
            "created_at": int(batch.created),
        }

    async def upload(self, request: web.Request) -> web.Response:
        form = fields_of(request.headers["Content-Type"], await request.read())
        filename, content = form["file"]
        self.uploads += 1
        if "upload fails" in self.faults and self.uploads == 1:
            return web.json_response({"error": {"message": "oops"}}, status=500)
        if form["purpose"][1] != b"batch":
            self.violations.append("the purpose is not batch")
        name = f"file-{self.uploads}"
        self.files[name] = filename, content
        return web.json_response({"id": name, "filename": filename, "status": "processed"}, status=201)

    async def shown_file(self, request: web.Request) -> web.Response:
        self.file_looks += 1
        return web.json_response({"status": "pending" if self.file_looks < 2 else "processed"})

    async def listed_files(self, request: web.Request) -> web.Response:
        data = [{"id": file, "filename": name} for file, (name, _) in self.files.items()]
        return web.json_response({"data": data})

    async def delete_file(self, request: web.Request) -> web.Response:
        self.deleted.append(request.match_info["id"])
        self.files.pop(request.match_info["id"], None)
        return web.json_response({"deleted": True})

    async def create(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(dict(request.headers))
        body = await request.json()
        if body["input_file_id"] not in self.files:
            return web.json_response({"error": {"message": "no such file"}}, status=400)
        raw = self.files[body["input_file_id"]][1]
        lines = [json.loads(line) for line in raw.splitlines()]
        if any(line["url"] != body["endpoint"] or line["method"] != "POST" for line in lines):
            self.violations.append("another endpoint")
        calls = [(line["custom_id"], line["body"]) for line in lines]
        fault = self.check(calls, size=len(raw))
        if fault:
            return web.json_response({"error": {"message": fault}}, status=400)
        return await self.made(
            request, lambda: self.new(calls, file=body["input_file_id"], metadata=body.get("metadata") or {})
        )

    def new(self, calls: list[tuple[str, Body]], **more: Any) -> StubBatch:
        number = 1 + sum(not batch.is_foreign for batch in self.batches.values())
        batch = StubBatch(f"batch_{len(self.batches) + 1}", calls, created=datetime.now(UTC).timestamp(), **more)
        batch.number = number
        self.batches[batch.id] = batch
        return batch

    async def made(self, request: web.Request, make: Any) -> web.StreamResponse:
        """Create a batch, or fail before or after that; the answer is in the shape of the address."""
        self.creations += 1
        is_first = self.creations == 1
        if is_first and "429 at creation" in self.faults:
            return web.json_response({"error": {"message": "slow down"}}, status=429)
        if is_first and "500 before creation" in self.faults:
            return web.json_response({"error": {"message": "oops"}}, status=500)
        batch = make()
        if "every creation is lost" in self.faults:
            self.finish(batch)
            return web.json_response({"error": {"message": "oops"}}, status=500)
        if is_first and "500 after creation" in self.faults:
            return web.json_response({"error": {"message": "oops"}}, status=500)
        if is_first and "cut after creation" in self.faults:
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        answer = self.shown_message(batch) if "messages" in request.path else self.shown(batch)
        if (is_first and "wrong id" in self.faults) or "wrong ids" in self.faults:
            answer["id"] = f"batch_wrong_{self.creations}"
        return web.json_response(answer)

    async def listed(self, request: web.Request) -> web.Response:
        """Pages of two, the newest first, among them batches of other keys."""
        self.searches += 1
        is_message = "messages" in request.path
        hides = "hides batches" in self.faults or ("listed late" in self.faults and self.searches < 4)
        newest = sorted([] if hides else self.batches.values(), key=lambda b: int(b.id.split("_")[1]), reverse=True)
        after = request.query.get("after_id" if is_message else "after")
        ids = [batch.id for batch in newest]
        start = ids.index(after) + 1 if after in ids else 0
        page = newest[start : start + 2]
        for batch in page:
            if not batch.is_foreign:
                self.look(batch)  # time goes by
            elif batch.state == "in_progress":
                batch.looks += 1
                batch.state = "completed" if batch.looks > 4 else batch.state
        data = [self.shown_message(batch) if is_message else self.shown(batch) for batch in page]
        last = page[-1].id if page else None
        return web.json_response({"data": data, "has_more": start + 2 < len(newest), "last_id": last})

    async def view(self, request: web.Request) -> web.Response:
        batch = self.batches.get(request.match_info["id"])
        if batch is None:
            return web.json_response({"error": {"message": "no such batch"}}, status=404)
        self.look(batch)
        return web.json_response(self.shown_message(batch) if "messages" in request.path else self.shown(batch))

    async def content(self, request: web.Request) -> web.Response:
        batch_id, _, what = request.match_info["id"].rpartition("-")
        batch = self.batches.get(batch_id)
        if batch is None:
            return web.json_response({"error": {"message": "no such file"}}, status=404)
        lines = batch.error_lines if what == "errors" else batch.lines
        return web.Response(body=self.results(batch, lines), content_type="application/jsonl")

    # Anthropic's

    def shown_message(self, batch: StubBatch) -> Body:
        whole = self.whole_message(batch)
        return {**whole, "request_counts": None} if "no counts" in self.faults else whole

    def whole_message(self, batch: StubBatch) -> Body:
        is_over = batch.state in (*WRITTEN, "ended")
        word = "ended" if is_over else "in_progress" if batch.state in ("validating", "failed") else batch.state
        done = {"processing": 0 if is_over else len(batch.calls), "succeeded": batch.answered if is_over else 0}
        done["expired"] = len(batch.calls) - batch.answered if is_over else 0
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": word.upper() if "upper-case states" in self.faults else word,
            "request_counts": {**done, "errored": 0, "canceled": 0},
            "results_url": "https://elsewhere.example/results" if is_over else None,
            "created_at": datetime.fromtimestamp(batch.created, UTC).isoformat(),
        }

    async def create_messages(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        calls = [(one["custom_id"], one["params"]) for one in json.loads(raw)["requests"]]
        fault = self.check(calls, size=len(raw))
        if fault:
            return web.json_response({"error": {"message": fault}}, status=400)
        return await self.made(request, lambda: self.new(calls))

    async def message_results(self, request: web.Request) -> web.Response:
        batch = self.batches[request.match_info["id"]]
        if batch.is_foreign and batch.number == 0 and not batch.lines:
            return web.json_response({"error": {"message": "not yours"}}, status=403)
        if batch.number == 1 and "late file" in self.faults and batch.looks_after_end < 2:
            return web.json_response({"error": {"message": "not there yet"}}, status=404)
        return web.Response(body=self.results(batch, batch.lines), content_type="application/x-jsonl")

    # Outside batches

    async def direct_chat(self, request: web.Request) -> web.Response:
        self.direct += 1
        return web.json_response(self.chat(await request.json()))

    async def direct_message(self, request: web.Request) -> web.Response:
        self.direct += 1
        return web.json_response(self.message(await request.json()))

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": []})

    def add_foreign(self, count: int, size: int, *, state: str = "completed") -> None:
        """Batches of other keys: some have strange ids, and the results of some are nobody's business."""
        for number in range(count):
            batch = self.new([(f"other-{number}-{call}", {}) for call in range(size)])
            batch.is_foreign, batch.number, batch.state = True, 0, state
            if number % 2:
                batch.lines = [json.dumps({"custom_id": custom}).encode() for custom, _ in batch.calls]

    def application(self) -> web.Application:
        application = web.Application(client_max_size=2**28)
        add = application.router
        add.add_get("/v1/models", self.models)
        add.add_get("/v1/models/{name}", self.models)
        add.add_post("/v1/chat/completions", self.direct_chat)
        add.add_post("/v1/messages", self.direct_message)
        add.add_post("/v1/files", self.upload)
        add.add_get("/v1/files", self.listed_files)
        add.add_delete("/v1/files/{id}", self.delete_file)
        add.add_get("/v1/files/{id}", self.shown_file)
        add.add_get("/v1/files/{id}/content", self.content)
        add.add_post("/v1/batches", self.create)
        add.add_get("/v1/batches", self.listed)
        add.add_get("/v1/batches/{id}", self.view)
        add.add_post("/v1/messages/batches", self.create_messages)
        add.add_get("/v1/messages/batches", self.listed)
        add.add_get("/v1/messages/batches/{id}", self.view)
        add.add_get("/v1/messages/batches/{id}/results", self.message_results)
        return application


def fields_of(content_type: str, raw: bytes) -> dict[str, tuple[str, bytes]]:
    """The fields of a form, each with the name of its file; aiohttp's own reader warns about long forms."""
    form = BytesParser(policy=HTTP).parsebytes(b"Content-Type: " + content_type.encode() + b"\r\n\r\n" + raw)
    found = {}
    for part in form.iter_parts():
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        assert isinstance(name, str) and isinstance(content, bytes)
        found[name] = part.get_filename() or "", content
    return found


@contextmanager
def serving(stub: StubProvider) -> Iterator[StubProvider]:
    """Serve in a thread, so that commands and other processes can reach it."""
    loop = asyncio.new_event_loop()
    ready = threading.Event()

    async def start() -> web.AppRunner:
        runner = web.AppRunner(stub.application(), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        stub.address = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        return runner

    def work() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(start())
        ready.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield stub
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
