#!/usr/bin/env python3
"""Stands for `vllm` or `llama-server` in tests: it serves the scripted student, and fails as STUB_FAULT says."""

import json
import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FAULT = os.environ.get("STUB_FAULT", "")
NOTES = Path(os.environ.get("STUB_NOTES", "."))
"""The folder in which it notes what happens to it."""


def note(name: str, text: str) -> None:
    with (NOTES / name).open("a", encoding="utf-8") as file:
        file.write(text + "\n")


class Handler(BaseHTTPRequestHandler):
    def reply(self, status: int, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        is_ready = time.monotonic() - BEGUN > 0.3
        self.reply(200 if is_ready else 503, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/v1/load_lora_adapter":
            note("adapters", body["lora_path"])
            return self.reply(400 if FAULT == "adapter" else 200, {})
        note("calls", body["model"])
        if FAULT == "dies" and len((NOTES / "calls").read_text().splitlines()) > 2:
            sys.stderr.write("out of memory with sk-0123456789abcdef\n")
            os._exit(9)
        message = {"role": "assistant", "content": f"Answer: a text of {body['model']}."}
        return self.reply(200, {"choices": [{"message": message, "finish_reason": "stop"}]})

    def log_message(self, *_: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    note("starts", " ".join(sys.argv[1:]))
    note("variables", " ".join(sorted(os.environ)))
    note("pids", str(os.getpid()))
    note("pids", str(subprocess.Popen(["sleep", "600"]).pid))
    if FAULT == "start":
        sys.exit("no kernel for this GPU")
    BEGUN = time.monotonic()
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
