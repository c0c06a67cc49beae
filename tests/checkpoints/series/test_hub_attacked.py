"""A hub that lies: nothing it says is believed beyond what was asked, and nothing it does has no end."""

from __future__ import annotations

import os
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from unittest.mock import patch

import pytest

pytest.importorskip("huggingface_hub")

import attacks
import hub_lies
from hub_server import Hub, serve
from joma.checkpoints.series.sources import transport
from joma.core.errors import UnfinishedError

Answer = Callable[[BaseHTTPRequestHandler, str, str], bool]


@pytest.mark.parametrize("number", range(24))
def test_a_false_answer(number: int, tmp_path: Path) -> None:
    """``make fuzz`` draws 200."""
    named, said = attacks.false_answer(number, tmp_path)
    assert not said, named


def lying(hub: Hub, lie: Answer | None, *, audit: bool = True) -> str:
    hub.lie = lie
    with patch.dict(os.environ, {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": ""}), attacks.impatient():
        return attacks.complaint("lab/tiny", audit=audit)


def shifted(handler: BaseHTTPRequestHandler, what: str, revision: str) -> bool:
    """Tensors eight bytes away from where they were asked for, as the answer itself says."""
    begin, _, last = handler.headers.get("Range", "bytes=0-0").removeprefix("bytes=").partition("-")
    if what != "file" or revision != "step2" or begin == "0":
        return False
    size = int(last) + 1 - int(begin)
    handler.send_response(206)
    handler.send_header("Content-Range", f"bytes {int(begin) + 8}-{int(last) + 8}/99999")
    handler.send_header("Content-Length", str(size))
    handler.end_headers()
    handler.wfile.write((b"\x00\x00\x80?" * size)[:size])
    return True


def test_other_bytes_than_were_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attacks.honest(tmp_path / "lab" / "tiny", (1, 2, 3))
    monkeypatch.setattr("joma.checkpoints.series.sources.hub.FIRST", 300)  # else one request brings all
    with serve(tmp_path) as hub:
        assert lying(hub, None) == ""
        assert lying(hub, shifted) == ""
        with monkeypatch.context() as believing:
            believing.setattr(transport, "_check_range", lambda *_: None)
            assert lying(hub, shifted, audit=False) != ""


def test_a_hub_that_sends_a_byte_a_second_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attacks.honest(tmp_path / "lab" / "tiny", (1, 2))
    monkeypatch.setattr(transport, "SLOWNESS_SECONDS", 0.8)

    def slow(handler: BaseHTTPRequestHandler, what: str, revision: str) -> bool:
        hub_lies._forever(handler, b" ", 0.3, {"Content-Range": "bytes 0-999/1000"})
        return True

    with serve(tmp_path) as hub:
        hub.lie = slow
        url = f"{hub.endpoint}/lab/tiny/resolve/step2/model.safetensors"
        with pytest.raises(UnfinishedError, match=r"at \d+ bytes a second, too slowly"):
            b"".join(transport.read_range("lab/tiny", "step2", url, 0, 1000))


def test_an_answer_without_end_is_not_read_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "LONGEST_PAGE", 10_000)
    attacks.honest(tmp_path / "lab" / "tiny", (1,))
    with serve(tmp_path) as hub:
        hub.lie = lambda handler, *_: hub_lies.endless(handler, None) or True  # type: ignore[func-returns-value,arg-type]
        with pytest.raises(UnfinishedError, match="has more than 10,000 bytes"):
            list(transport.listing("lab/tiny", None, f"{hub.endpoint}/api/models/lab/tiny/refs"))


@pytest.mark.parametrize("where", ["again", "elsewhere"])
def test_pages_without_end(where: str, tmp_path: Path) -> None:
    def more(handler: BaseHTTPRequestHandler, what: str, revision: str) -> bool:
        host = handler.headers["Host"] if where == "again" else "127.0.0.1:9"
        hub_lies._send(handler, 200, {"Link": f'<http://{host}{handler.path}>; rel="next"'}, b"[]")
        return True

    attacks.honest(tmp_path / "lab" / "tiny", (1,))
    with serve(tmp_path) as hub:
        hub.lie = more
        words = "does not end after 1 pages" if where == "again" else "goes on elsewhere"
        with pytest.raises(UnfinishedError, match=words):
            list(transport.listing("lab/tiny", None, f"{hub.endpoint}/api/models/lab/tiny/refs"))
