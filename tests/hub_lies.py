"""False answers of a hub, drawn from a seed: other bytes than were asked for, no end, no sense."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

Handler = BaseHTTPRequestHandler
Lie = Callable[[Handler, random.Random], None]
LONGEST = 8.0
"""Seconds after which an endless answer ends: its reader should have left long before."""


def _send(handler: Handler, status: int, headers: dict[str, str], body: bytes) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    if "Content-Length" not in headers and "Transfer-Encoding" not in headers:
        handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def _asked(handler: Handler) -> tuple[int, int]:
    first, _, last = handler.headers.get("Range", "bytes=0-99").removeprefix("bytes=").partition("-")
    return int(first), int(last) + 1


def other_range(handler: Handler, chance: random.Random) -> None:
    """Numbers of another place, and the answer says so, or says what makes no sense."""
    begin, end = _asked(handler)
    moved = begin + chance.choice([-8, 4, 1000])
    said = chance.choice(
        [
            f"bytes {moved}-{moved + end - begin - 1}/99999",
            f"bytes {begin}-{end}/*",
            "bytes */0",
            "",
            "x" * 999,
        ]
    )
    body = chance.randbytes(min(end - begin, 1 << 16))
    _send(handler, 206, {"Content-Range": said, "Content-Length": str(end - begin)}, body)


def encoded(handler: Handler, chance: random.Random) -> None:
    begin, end = _asked(handler)
    told = {"Content-Range": f"bytes {begin}-{end - 1}/99999", "Content-Encoding": "gzip"}
    _send(handler, 206, told, chance.randbytes(min(end - begin, 1 << 16)))


def whole_for_a_part(handler: Handler, chance: random.Random) -> None:
    begin, end = _asked(handler)
    if begin == 0:
        status(handler, chance)
        return
    _send(handler, 200, {}, chance.randbytes(min(end - begin, 1 << 16)))


def status(handler: Handler, chance: random.Random) -> None:
    code = chance.choice([204, 301, 302, 400, 403, 404, 416, 418, 500, 503, 599])
    headers = {"Location": handler.path} if code in (301, 302) else {}
    headers |= (
        {"Retry-After": chance.choice(["0", "\u00b2", "9" * 5000, "-1", "soon"])} if code == 503 else {}
    )
    _send(handler, code, headers, b"" if code == 204 else chance.randbytes(50))


def _forever(handler: Handler, piece: bytes, pause: float, headers: dict[str, str]) -> None:
    handler.send_response(206 if "Content-Range" in headers else 200)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("Connection", "close")
    handler.close_connection = True
    handler.end_headers()
    began = time.monotonic()
    while time.monotonic() - began < LONGEST:
        handler.wfile.write(piece)
        handler.wfile.flush()
        time.sleep(pause)


def _range_headers(handler: Handler) -> dict[str, str]:
    begin, end = _asked(handler)
    return {"Content-Range": f"bytes {begin}-{end - 1}/99999999"} if handler.headers.get("Range") else {}


def drip(handler: Handler, chance: random.Random) -> None:
    _forever(handler, b" ", 0.5, _range_headers(handler))


def endless(handler: Handler, chance: random.Random) -> None:
    _forever(handler, b"[" * (1 << 16), 0.0, _range_headers(handler))


def endless_refusal(handler: Handler, chance: random.Random) -> None:
    handler.send_response(404)
    handler.close_connection = True
    handler.end_headers()
    for _ in range(2000):
        handler.wfile.write(b"x" * (1 << 16))


def endless_pages(handler: Handler, chance: random.Random) -> None:
    host = handler.headers["Host"]
    where = chance.choice(
        [f"http://{host}{handler.path}", f"http://{host}{handler.path}&page={chance.random()}"]
    )
    where = chance.choice([where, "http://127.0.0.1:9/elsewhere", "file:///etc/passwd"])
    _send(handler, 200, {"Link": f'<{where}>; rel="next"'}, b"[]")


def nonsense(handler: Handler, chance: random.Random) -> None:
    body = chance.choice(
        [
            b"",
            b"{}",
            b"null",
            b"[1]",
            b"[" * 5000,
            b"[{}]",
            b'{"branches": 3}',
            chance.randbytes(99),
            b"[1e999]",
        ]
    )
    _send(handler, 200, {}, body)


def false_tree(handler: Handler, chance: random.Random) -> None:
    """A listing with one entry that is none."""
    entry = {"type": "file", "path": "model.safetensors", "size": 2000, "oid": "0" * 40}
    entry |= {"lfs": {"oid": "0" * 64, "size": 2000, "pointerSize": 130}}
    key, value = chance.choice(
        [
            *(("size", size) for size in (10**30, -1, 1.5, "12", None, True, 2**62)),
            *(("oid", oid) for oid in (None, "../x", "0" * 10**5, 3)),
            *(("lfs", lfs) for lfs in (3, {}, {"oid": None}, [], {"oid": "g" * 64})),
            *(("path", path) for path in ("../../x", "/etc/passwd", "a\0b", 3, None, "x" * 10**5)),
            *(("type", kind) for kind in ("directory", None, 3)),
            *(("lastCommit", commit) for commit in (3, {"date": "9" * 99}, {"date": 7}, {})),
        ]
    )
    _send(handler, 200, {}, json.dumps([{**entry, key: value}]).encode())


LIES: dict[str, tuple[Lie, ...]] = {
    "refs": (nonsense, status, endless, endless_pages, endless_refusal, drip),
    "tree": (nonsense, status, endless, endless_pages, endless_refusal, drip, *[false_tree] * 6),
    "file": (*[other_range] * 4, encoded, whole_for_a_part, status, endless, endless_refusal, drip),
}


def drawn(number: int) -> tuple[str, Callable[[Handler, str, str], bool]]:
    """A lie by its number, in words and as ``hub_server.Hub.lie``; it is about the revision step2."""
    chance = random.Random(f"lie {number}")
    what = chance.choice(["refs", "tree", "tree", "file", "file", "file"])
    lie, seed, once = chance.choice(LIES[what]), chance.random(), chance.random() < 0.3
    told = []

    def answer(handler: Handler, asked: str, revision: str) -> bool:
        if asked != what or revision not in ("", "step2") or (once and told):
            return False
        told.append(asked)
        lie(handler, random.Random(seed))
        return True

    return f"{what}: {lie.__name__}{' once' * once}", answer
