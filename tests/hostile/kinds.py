"""Every kind of hostile reply, what it must end in, and the line that must say so."""

import base64
import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from tests.hostile.replies import ANSWER, SECRET, Endless, Protocol, Raw, Response, Slow, Web, as_json, error, good

End = Literal["missing", "one missing", "unreadable", "fatal", "outcome", "accepted", "passes"]
"""What a kind ends in.

- missing, one missing: exit status 1, and the next run asks again.
- unreadable: exit status 1, and again later, as all attempts are used.
- fatal: exit status 2.
- outcome: what the student itself did; exit status 0.
- accepted: a reply like any other; exit status 0.
- passes: the first try fails and a later one does not; exit status 0.
"""


@dataclass(frozen=True)
class Kind:
    """One kind of reply, and what becomes of it."""

    name: str
    end: End
    says: str = ""
    """In the line about it, or among the reasons of tries where nothing needs to be said."""
    reply: Callable[[Protocol], Response] | None = None
    probe: Callable[[Protocol], Response] | None = None
    calls: int | None = None
    """Only the first so many calls get it."""
    one_prompt: bool = False
    is_slow: bool = False
    """Whether timeouts are shortened for it."""
    role: str = "student"
    protocols: tuple[Protocol, ...] = ("openai", "anthropic")


BOMB: Final = gzip.compress(bytes(100_000_000), compresslevel=1)
"""100 MB of zeros in half a megabyte."""


def _fixed(response: Response) -> Callable[[Protocol], Response]:
    return lambda protocol: response


def _document(**changes: Any) -> Callable[[Protocol], Response]:
    return lambda protocol: as_json(good(protocol, **changes))


def _bodies() -> Iterator[Kind]:
    """Bodies that are not a reply at all."""
    invalid = {
        "empty": b"",
        "spaces": b" \n\t ",
        "null": b"null",
        "true": b"true",
        "a number": b"17",
        "a string": b'"Answer: hi"',
        "an array": b"[1, 2]",
        "half an object": b'{"choices": [{"message": {"content": "Ans',
        "something after the end": json.dumps(good("openai")).encode() + b"}}",
        "a page": b"<html><body>502 Bad Gateway</body></html>",
        "a stream of events": b'data: {"choices": []}\n\ndata: [DONE]\n\n',
        "bytes that are no text": b'{"choices": "\xff\xfe\xfa"}',
        "zeros": bytes(5000),
        "a picture": b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8,
        "arrays 100,000 deep": b"[" * 100_000 + b"]" * 100_000,
        "objects 100,000 deep": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        "an integer of 5,000 digits": b'{"choices": ' + b"9" * 5000 + b"}",
        "a key in broken JSON": f'{{"choices": "{SECRET}'.encode(),
        "a key in pieces in broken JSON": b"{'k': '" + "\\u".join(SECRET).encode(),
        "a key escaped in broken JSON": b"{" + "".join(f"\\u{ord(c):04x}" for c in SECRET).encode(),
        "a key at the cut": b"{" + b"x" * 195 + SECRET.encode(),
        "a key behind a page of spaces": b"{" + b" " * 19_980 + SECRET.encode(),
    }
    for name, body in invalid.items():
        yield Kind(name, "missing", "invalid JSON", _fixed(Web(body=body)))
    yield Kind(
        "a byte order mark", "accepted", reply=lambda p: Web(body=b"\xef\xbb\xbf" + json.dumps(good(p)).encode())
    )
    yield Kind("UTF-16", "accepted", reply=lambda p: Web(body=json.dumps(good(p)).encode("utf-16")))
    yield Kind(
        "an unknown charset",
        "accepted",
        reply=lambda p: Web(body=json.dumps(good(p)).encode(), headers={"Content-Type": "a/b; charset=klingon"}),
    )
    padded = b" " * 900_000
    yield Kind(
        "900 KB of spaces before it", "accepted", reply=lambda p: Web(body=padded + json.dumps(good(p)).encode())
    )


def _shapes() -> Iterator[Kind]:
    """Objects that do not fit the schema, for one protocol or the other."""
    choices: dict[str, object] = {
        "null": None,
        "an empty list": [],
        "an object": {},
        "a string": "x",
        "a number": 1,
        "a list of null": [None],
        "a list of lists": [[]],
        "a list of numbers": [1],
        "without a message": [{"finish_reason": "stop"}],
        "with a null message": [{"message": None}],
        "with a list as message": [{"message": []}],
        "with a string as message": [{"message": "hi"}],
        "with an empty message": [{"message": {}}],
    }
    for name, value in choices.items():
        says = (
            "no choices" if value in (None, []) else ("no content" if name == "with an empty message" else "unexpected")
        )
        yield Kind(f"choices: {name}", "missing", says, _fixed(as_json({"choices": value})), protocols=("openai",))
    blocks: dict[str, object] = {
        "null": None,
        "an object": {},
        "a string": "x",
        "a number": 1,
        "a list of null": [None],
        "a list of lists": [[]],
        "a list of strings": ["Answer: x"],
    }
    for name, value in blocks.items():
        says = "no content" if value is None else "unexpected"
        yield Kind(f"blocks: {name}", "missing", says, _fixed(as_json({"content": value})), protocols=("anthropic",))
    contents: dict[str, object] = {
        "a number": 17,
        "true": True,
        "an object": {"text": "x"},
        "a list of numbers": [1, 2],
        "a part whose text is a number": [{"type": "text", "text": 5}],
        "a part whose text is an object": [{"type": "text", "text": {"value": "x"}}],
        "a part whose type is a list": [{"type": [], "text": "x"}],
    }
    for name, value in contents.items():
        yield Kind(f"content: {name}", "missing", "unexpected", lambda p, value=value: as_json(good(p, value)))  # type: ignore[misc]
    for name, value in {"a number": 1, "an object": {"a": 1}}.items():
        yield Kind(f"finish: {name}", "missing", "unexpected", _document(finish=value))
    yield Kind("refusal: a list", "missing", "unexpected", _document(message={"refusal": [1]}), protocols=("openai",))
    yield Kind("no object at all", "missing", "no c", _fixed(as_json({})))
    yield Kind(
        "an error in a good status", "missing", "slow down", _fixed(as_json({"error": {"message": "slow down"}}))
    )
    yield Kind("an error string in a good status", "missing", "oh", _fixed(as_json({"error": f"oh {SECRET}"})))
    for reason in ("error", "abort", "network_error", "insufficient_system_resource"):
        yield Kind(f"finish {reason}", "missing", "aborted by the server", _document(text="", finish=reason))


def _oddities() -> Iterator[Kind]:
    """Replies that are odd, and replies all the same."""
    yield Kind("half a character in the text", "accepted", reply=_document(text=f"{ANSWER} \ud83d"))
    yield Kind("half a character as finish", "accepted", reply=_document(finish="st\udc00op"))
    yield Kind("zeros in the text", "accepted", reply=_document(text=f"{ANSWER} \0\0"))
    yield Kind("escape codes in the text", "accepted", reply=_document(text=f"{ANSWER} \x1b[2J\x1b]0;x\x07"))
    yield Kind("marks of direction in the text", "accepted", reply=_document(text=f"{ANSWER} \u202e\u2066"))
    yield Kind("a finish of 100,000 letters", "accepted", reply=_document(finish="s" * 100_000))
    yield Kind("no finish", "accepted", reply=_document(finish=None))
    for name, value in {"an object": {}, "a list": [[]], "beyond 64 bits": 2**80, "null": None}.items():
        yield Kind(f"id: {name}", "accepted", reply=_document(id=value, model=value, created=value, object=value))
    usages: dict[str, object] = {
        "missing": None,
        "a string": "many",
        "a list": [1, 2],
        "negative": (-1_000_000_000, -1_000_000_000),
        "zero": (0, 0),
        "half negative": (400, -10_000_000),
        "fractions": (4.5, 1e300),
        "true": (True, True),
        "beyond 64 bits": (2**70, 2**70),
        "beyond the worst case": (10**12, 10**12),
    }
    for name, value in usages.items():
        yield Kind(f"usage: {name}", "accepted", reply=_document(usage=value))
    yield Kind("usage: infinite", "accepted", reply=_document(usage=(float("inf"), float("nan"))))
    for name, shape in shapes_of_the_key().items():
        yield Kind(f"{name} in the text", "accepted", reply=_document(text=f"{ANSWER} {shape} so"))
    yield Kind("a key as finish", "accepted", reply=_document(finish=SECRET))
    yield Kind(
        "a text beyond what was asked for", "missing", "reply too long", _document(text="Answer: " + "x " * 200_000)
    )
    refusal = {"message": {"refusal": f"I can't \ud800\x1b[31m\u202e {SECRET}"}}
    yield Kind("a refusal", "outcome", reply=_document(text=None, **refusal), protocols=("openai",))
    yield Kind("a refusal ", "outcome", reply=_document(text="", finish="refusal"), protocols=("anthropic",))
    yield Kind("a filtered text", "outcome", reply=_document(text="", finish="content_filter"))
    yield Kind("an empty text", "outcome", reply=_document(text=""))


def shapes_of_the_key() -> dict[str, str]:
    return {
        "a key": SECRET,
        "a key in base64": base64.b64encode(SECRET.encode()).decode(),
        "a header with a key in base64": base64.b64encode(f"Bearer {SECRET}".encode()).decode(),
        "a key with invisible letters": "\u200b".join(SECRET),
    }


def _statuses() -> Iterator[Kind]:
    """Every status that is not 200."""
    for status in (201, 202, 206):
        yield Kind(f"status {status}", "missing", f"HTTP {status}", lambda p, s=status: as_json(good(p), s))  # type: ignore[misc]
    for status in (204, 205):
        yield Kind(f"status {status}", "missing", f"HTTP {status}", _fixed(Web(status)))
    for status in (300, 301, 302, 303, 307, 308):
        target = f"http://127.0.0.1:9/{status}?k=1"
        yield Kind(f"status {status}", "fatal", target, _fixed(Web(status, headers={"Location": target})))
    yield Kind("status 304", "fatal", "HTTP 304", _fixed(Web(304)))
    yield Kind("a redirect to nowhere", "fatal", "redirects to an unknown address", _fixed(Web(302)))
    yield Kind("a redirect to a path", "fatal", "/elsewhere", _fixed(Web(307, headers={"Location": "/elsewhere"})))
    key = f"http://127.0.0.1:9/{SECRET}"
    yield Kind("a redirect with a key", "fatal", "http://127.0.0.1:9/", _fixed(Web(302, headers={"Location": key})))
    for status in (401, 402, 404):
        yield Kind(f"status {status}", "fatal", f"HTTP {status}. no {status}", _fixed(error(status, f"no {status}")))
    refused = (400, 403, 405, 410, 418, 422, 431, 499)
    passing = (408, 409, 429, 500, 502, 503, 504, 520, 529, 999)
    for status in (*refused, *passing):
        says = f"HTTP {status}: no {status}"
        yield Kind(f"status {status}", "missing", says, _fixed(error(status, f"no {status}")))
    yield Kind("status 413", "missing", "prompt too long", _fixed(Web(413)))
    yield Kind("status 500 once", "passes", "HTTP 500", _fixed(error(500, "oh")), calls=2)


def _refusals() -> Iterator[Kind]:
    """What a 400 and its like can say."""
    yield Kind("a context length", "missing", "prompt too long", _fixed(error(400, "maximum context length is 10")))
    yield Kind("a filter", "missing", "prompt filtered", _fixed(error(400, "the content management policy")))
    yield Kind("an unknown model", "fatal", "HTTP 400", _fixed(error(400, "The model student does not exist")))
    yield Kind("no quota", "fatal", "HTTP 429", _fixed(error(429, "insufficient_quota")))
    flagged = error(400, "This prompt was flagged as potentially unsafe")
    yield Kind("one prompt flagged", "one missing", "flagged as potentially unsafe", _fixed(flagged), one_prompt=True)
    yield Kind("one prompt forbidden", "one missing", "HTTP 403", _fixed(error(403, "moderated")), one_prompt=True)
    yield Kind("one prompt too long", "one missing", "prompt too long", _fixed(Web(413)), one_prompt=True)
    echo = "the prompt says: seed, temperature, top_p"
    yield Kind("one prompt echoed", "one missing", "HTTP 400", _fixed(error(400, echo)), one_prompt=True)
    for name, shape in shapes_of_the_key().items():
        yield Kind(f"{name} in a refusal", "missing", "HTTP 400", _fixed(error(400, f"not with {shape} so")))
    yield Kind("a key as a plain body", "missing", "HTTP 418", _fixed(Web(418, f"{SECRET} so".encode())))
    yield Kind("a key in a server's error", "missing", "HTTP 500", _fixed(error(500, f"not with {SECRET}")))
    yield Kind("a key in another key's error", "fatal", "HTTP 401", _fixed(error(401, f"bad key {SECRET[:20]}")))
    yield Kind("half a character in an error", "missing", "HTTP 400", _fixed(error(400, "no \ud800 no")))
    yield Kind("escape codes in an error", "missing", "HTTP 400: [31m", _fixed(error(400, "\x1b[31m\x9b2J\x07\x00")))
    yield Kind(
        "marks of direction in an error", "missing", "HTTP 400: abc", _fixed(error(400, "a\u202eb\u2066c\u200f"))
    )
    yield Kind("lines in an error", "missing", "HTTP 400: a error: b", _fixed(error(400, "a\nerror: b\r\n\u2028")))
    yield Kind("an error of 5 MB", "missing", "HTTP 400: {", _fixed(error(400, "x" * 5_000_000)))
    yield Kind("an error 100,000 deep", "missing", "HTTP 400", _fixed(Web(400, b"[" * 100_000)))
    yield Kind("an error that is a list", "missing", "HTTP 400", _fixed(as_json({"error": [1, [2]]}, 400)))
    yield Kind("an error that is a number", "missing", "HTTP 400", _fixed(as_json({"error": 2**80}, 400)))
    yield Kind("an error whose message is an object", "missing", "HTTP 400", _fixed(error(400, {"a": {"b": 1}})))
    yield Kind("an error that is no text", "missing", "HTTP 400", _fixed(Web(400, b"\xff\xfe\x00")))
    yield Kind("an error without a body", "missing", "HTTP 422", _fixed(Web(422)))
    yield Kind("a key in the reason phrase", "missing", "HTTP 400", _fixed(Web(400, b"no", reason=f"no {SECRET}")))


def _waits() -> Iterator[Kind]:
    """How long a server asks to be left alone."""
    for asked in ("1e9", "99999999999999999999", "Fri, 31 Dec 2099 23:59:59 GMT", "9" * 300):
        reply = _fixed(error(429, "later", **{"Retry-After": asked}))
        yield Kind(f"a wait of {asked[:40]}", "passes", "requests a wait of", reply, calls=2)
    for asked in ("inf", "nan", "-1e9", "soon", "Mon, 99 Abc 99999999999999999999 00:00:00", "1" * 5000 + "d", ""):
        reply = _fixed(error(429, "later", **{"Retry-After": asked}))
        yield Kind(f"a wait of {asked[:20]!r}", "passes", "HTTP 429", reply, calls=2)
    reset = {"x-ratelimit-reset-requests": "9999999h", "anthropic-ratelimit-requests-reset": "2999-01-01T00:00:00Z"}
    yield Kind(
        "a limit that is lifted in a century",
        "passes",
        "HTTP 429",
        _fixed(error(429, "no", **reset)),
        calls=2,
    )


def _wires() -> Iterator[Kind]:
    """What goes wrong below a reply."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
    raw = {
        "nothing": b"",
        "a banner": b"SSH-2.0-OpenSSH_9.6\r\n",
        "no status": b"HTTP/1.1\r\n\r\n",
        "a status of letters": b"HTTP/1.1 abc OK\r\n\r\n",
        "a head without an end": head,
        "half a body": head + b"Content-Length: 1000\r\n\r\n{",
        "a negative length": head + b"Content-Length: -5\r\n\r\n{}",
        "a length of letters": head + b"Content-Length: many\r\n\r\n{}",
        "two lengths": head + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        "a broken chunk": head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        "half a chunk": head + b"Transfer-Encoding: chunked\r\n\r\nff\r\n{}",
        "a line of 100 KB": head + b"X: " + b"a" * 100_000 + b"\r\n\r\n{}",
        "a key in a broken head": head + f"{SECRET}\x00\r\n\r\n".encode(),
        "a key as status": f"HTTP/1.1 {SECRET} OK\r\n\r\n".encode(),
        "binary": bytes(range(256)) * 20,
    }
    for name, data in raw.items():
        yield Kind(f"wire: {name}", "missing", "", _fixed(Raw(data)))
    yield Kind("wire: a reset", "missing", "", _fixed(Raw(head, is_reset=True)))
    zipped = {"Content-Encoding": "gzip"}
    yield Kind("a bomb", "missing", "reply too long", _fixed(Web(body=BOMB, headers=zipped)))
    yield Kind("a bomb in a refusal", "missing", "HTTP 400", _fixed(Web(400, BOMB, zipped)))
    deflated = Web(body=zlib.compress(bytes(20_000_000), level=1), headers={"Content-Encoding": "deflate"})
    yield Kind("a bomb of another make", "missing", "reply too long", _fixed(deflated))
    yield Kind("a broken archive", "missing", "broken reply", _fixed(Web(body=b"\x1f\x8bxxxx", headers=zipped)))
    yield Kind(
        "half an archive",
        "missing",
        "invalid JSON",
        _fixed(Web(body=gzip.compress(b'{"a": 1}' * 99)[:40], headers=zipped)),
    )
    yield Kind(
        "an archive", "accepted", reply=lambda p: Web(body=gzip.compress(json.dumps(good(p)).encode()), headers=zipped)
    )
    for encoding in ("br", "zstd", "gzip, gzip", f"x-{SECRET}"):
        reply = _fixed(Web(body=b"xxxx", headers={"Content-Encoding": encoding}))
        yield Kind(f"encoded as {encoding[:12]}", "missing", "broken reply", reply)
    block = b"x" * 65_536
    yield Kind("an endless body", "missing", "reply too long", _fixed(Endless(head + b"\r\n", block)))
    chunk = b"10000\r\n" + block + b"\r\n"
    yield Kind(
        "endless chunks",
        "missing",
        "reply too long",
        _fixed(Endless(head + b"Transfer-Encoding: chunked\r\n\r\n", chunk)),
    )
    yield Kind("an endless refusal", "missing", "HTTP 400", _fixed(Endless(b"HTTP/1.1 400 No\r\n\r\n", block)))
    yield Kind("endless headers", "missing", "broken reply", _fixed(Endless(head, b"X-A: " + b"a" * 4000 + b"\r\n")))
    archive = head + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b"{}")
    yield Kind("something endless after an archive", "missing", "reply too long", _fixed(Endless(archive, block)))
    started = zlib.compressobj(wbits=31)
    hollow = head + b"Content-Encoding: gzip\r\n\r\n" + started.compress(b"") + started.flush(zlib.Z_SYNC_FLUSH)
    nothing = b"\x00\x00\x00\xff\xff" * 10_000
    yield Kind("an endless archive of nothing", "missing", "reply too long", _fixed(Endless(hollow, nothing)))
    interim = Endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100)
    yield Kind("endless interim replies", "passes", "timeout", _fixed(interim), calls=2, is_slow=True)
    extension = head + b"Transfer-Encoding: chunked\r\n\r\n2;"
    yield Kind(
        "an endless chunk extension", "passes", "", _fixed(Endless(extension, b"a" * 4000)), calls=2, is_slow=True
    )
    trailers = head + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    trailer = b"X: " + b"a" * 4000 + b"\r\n"
    yield Kind("endless trailers", "passes", "", _fixed(Endless(trailers, trailer)), calls=2, is_slow=True)
    yield Kind("wire: another protocol", "missing", "", _fixed(Raw(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")))
    place = b"HTTP/1.1 302 Found\r\nLocation: http://x/\xff\xfe\r\nContent-Length: 0\r\n\r\n"
    yield Kind("a redirect that is no text", "fatal", "http://x/", _fixed(Raw(place)))
    many = b'{"choices": [' + b"[]," * 100_000 + b'1], "content": [1]}'
    yield Kind("100,000 wrong choices", "missing", "unexpected", _fixed(Web(body=many)))
    parts = json.dumps([{}] * 200_000).encode()
    chat = b'{"choices": [{"message": {"content": ' + parts + b"}}]}"
    blocks = b'{"content": ' + parts + b"}"
    yield Kind("200,000 parts", "missing", "unexpected", lambda p: Web(body=chat if p == "openai" else blocks))
    yield Kind("a megabyte more than a reply may have", "missing", "reply too long", _fixed(Web(body=b" " * 2**21)))
    yield Kind(
        "cookies", "accepted", reply=lambda p: as_json(good(p), 200, **{"Set-Cookie": f"k={SECRET}; Domain=127.0.0.1"})
    )
    yield Kind("silence", "passes", "timeout", _fixed(Slow()), calls=2, is_slow=True)
    yield Kind(
        "a letter at a time", "passes", "timeout", _fixed(Slow(head + b"\r\n" + b" " * 500)), calls=2, is_slow=True
    )


def _graders() -> Iterator[Kind]:
    """The same from a grader, whose failures are never the student's."""
    yield Kind(
        "a grader that refuses",
        "missing",
        "refusal",
        _document(text=None, message={"refusal": "no"}),
        role="grader",
        protocols=("openai",),
    )
    yield Kind(
        "a grader that refuses ",
        "missing",
        "refusal",
        _document(text="", finish="refusal"),
        role="grader",
        protocols=("anthropic",),
    )
    yield Kind(
        "a filtered grade", "missing", "content filter", _document(text="", finish="content_filter"), role="grader"
    )
    yield Kind(
        "grades that cannot be read", "unreadable", "ungraded: 2 texts", _document(text="I like it."), role="grader"
    )
    yield Kind("empty grades", "unreadable", "ungraded: 2 texts", _document(text=""), role="grader")
    yield Kind("a grader with a short context", "missing", "prompt too long", _fixed(Web(413)), role="grader")
    yield Kind("a grader that is down", "missing", "HTTP 503", _fixed(error(503, "down")), role="grader")
    yield Kind("a grader whose key is wrong", "fatal", "HTTP 401", _fixed(error(401, f"bad {SECRET}")), role="grader")


def _probes() -> Iterator[Kind]:
    """What the question for a model's name can bring."""
    openai: tuple[Protocol, ...] = ("openai",)
    for status in (401, 402, 403):
        yield Kind(f"probe {status}", "fatal", f"HTTP {status}", probe=_fixed(error(status, f"no {SECRET}")))
    for status in (301, 302, 307, 308):
        target = {"Location": f"http://127.0.0.1:9/{status}"}
        yield Kind(
            f"probe {status}", "fatal", f"http://127.0.0.1:9/{status}", probe=_fixed(Web(status, headers=target))
        )
    for status in (204, 400, 404, 405, 418, 429, 500, 503):
        yield Kind(f"probe {status}", "accepted", probe=_fixed(error(status, "no")))
    yield Kind(
        "probe: names with a key",
        "fatal",
        "unknown model",
        probe=_fixed(as_json({"data": [{"id": SECRET}]})),
        protocols=openai,
    )
    halves = [{"id": SECRET[:18]}, {"id": SECRET[18:]}, {"id": "\x1b[31m\u202e"}, {"id": "x" * 5000}]
    yield Kind(
        "probe: names with halves of a key",
        "fatal",
        "unknown model",
        probe=_fixed(as_json({"data": halves})),
        protocols=openai,
    )
    odd: dict[str, object] = {
        "numbers": [1, 2],
        "ids of another type": [{"id": 5}, {"id": None}],
        "an object": {},
        "null": None,
    }
    for name, data in odd.items():
        yield Kind(f"probe: {name}", "accepted", probe=_fixed(as_json({"data": data})))
    yield Kind("probe: 100,000 deep", "accepted", probe=_fixed(Web(body=b"[" * 100_000)))
    wrong = b'{"data": [' + b"1," * 1_900_000 + b"1]}"
    yield Kind("probe: two million wrong names", "accepted", probe=_fixed(Web(body=wrong)))
    names = json.dumps({"data": [{"id": f"m{number}"} for number in range(19_000)]}).encode()
    yield Kind("probe: 19,000 names", "fatal", "unknown model", probe=_fixed(Web(body=names)), protocols=openai)
    yield Kind("probe: a page", "accepted", probe=_fixed(Web(body=b"<html>")))
    yield Kind("probe: an endless body", "accepted", probe=_fixed(Endless(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65_536)))
    bomb = Web(body=BOMB, headers={"Content-Encoding": "gzip"})
    yield Kind("probe: a bomb", "accepted", probe=_fixed(bomb))
    yield Kind("probe: silence", "fatal", "no connection", probe=_fixed(Slow()), is_slow=True)


def _named() -> dict[str, Kind]:
    parts = (_bodies, _shapes, _oddities, _statuses, _refusals, _waits, _wires, _graders, _probes)
    return {f"k{number}": kind for number, kind in enumerate(kind for part in parts for kind in part())}


KINDS: Final = _named()
"""By the name that a path can hold."""


def kinds_for(protocol: Protocol) -> dict[str, Kind]:
    """The kinds that a protocol meets, by name.

    Bytes that are the same in both protocols meet the same reader, so they go to one protocol, in turn; with
    SKILLMIX_LONG=1 to both. Each protocol has a probe of its own, which meets every kind of probe.
    """
    shared = [] if os.environ.get("SKILLMIX_LONG") else [name for name, kind in KINDS.items() if _is_shared(kind)]
    elsewhere = set(shared[1 if protocol == "openai" else 0 :: 2])
    return {name: kind for name, kind in KINDS.items() if protocol in kind.protocols and name not in elsewhere}


def _is_shared(kind: Kind) -> bool:
    """Whether both protocols get the same bytes in reply to a call."""
    if kind.probe is not None or kind.reply is None or len(kind.protocols) == 1:
        return False
    return kind.reply("openai") == kind.reply("anthropic")
