"""Damage to files, drawn from a seed: cut short, bits flipped, parts overwritten, other kinds, headers that lie."""

from __future__ import annotations

import json
import random
from pathlib import Path

__all__ = ["damaged", "victim"]


def victim(path: Path, draw: random.Random) -> Path:
    """Return the file to damage: `path` itself, or one in that folder."""
    return path if path.is_file() else draw.choice(sorted(each for each in path.rglob("*") if each.is_file()))


def damaged(content: bytes, draw: random.Random) -> bytes:
    """Return a file's content, damaged."""
    if content.startswith(b"{") and draw.random() < 0.5:
        return _lying_json(content, draw)
    return draw.choice((_cut, _flipped, _flipped, _flipped_in_front, _overwritten, _grown, _other, _lying_text))(
        content, draw
    )


def _cut(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.choice((0, 1, draw.randrange(len(content) + 1), max(0, len(content) - 1)))]


def _flipped(content: bytes, draw: random.Random) -> bytes:
    return _flip(content, draw, len(content))


def _flipped_in_front(content: bytes, draw: random.Random) -> bytes:
    start = draw.choice((0, 3200))  # the binary header of SEG-Y
    return content[:start] + _flip(content[start:], draw, 400)


def _flip(content: bytes, draw: random.Random, within: int) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 3, 20))):
        if changed:
            changed[draw.randrange(min(within, len(changed)))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _overwritten(content: bytes, draw: random.Random) -> bytes:
    start, length = draw.randrange(len(content) + 1), draw.choice((1, 4, 64, 1000))
    filler = draw.choice((b"\0", b"\xff", b"9", b"\n"))
    return content[:start] + filler * len(content[start : start + length]) + content[start + length :]


def _grown(content: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(content) + 1)
    return content[:place] + draw.randbytes(draw.choice((1, 4, 1000))) + content[place:]


def _other(content: bytes, draw: random.Random) -> bytes:
    return draw.choice(
        (b"", b"no such file\n", b"\x80\x04\x95cos\nsystem\n.", b"PK\3\4" + content, draw.randbytes(5000))
    )


def _lying_text(content: bytes, draw: random.Random) -> bytes:
    """Replace a number near the start by another."""
    import re

    found = list(re.finditer(rb"\d+", content[:400]))
    if not found:
        return _flipped(content, draw)
    match = draw.choice(found)
    return content[: match.start()] + draw.choice(_LIES) + content[match.end() :]


_LIES = (b"0", b"-1", b"1", b"7", b"999", b"4611686018427387904", b"10000000000000", b"1e9", b"nan", b"")


def _lying_json(content: bytes, draw: random.Random) -> bytes:
    """Replace a value somewhere in a document of JSON by another, or leave it out."""
    try:
        document = json.loads(content)
    except ValueError:
        return _flipped(content, draw)
    if not document:
        return draw.choice((b"", b"[]", b"null", b'"nonsense"', b'{"units": 7}'))
    node = document
    while True:
        key = draw.choice(sorted(node) if isinstance(node, dict) else range(len(node)))
        if not isinstance(node[key], dict | list) or not node[key] or draw.random() < 0.25:
            break
        node = node[key]
    if draw.random() < 0.2:
        del node[key]
    else:
        node[key] = draw.choice((None, -1, 0, 2**62, 10**13, 1.5, "", "nonsense", [], {}, [0], [2**40, 2**40], True))
    return json.dumps(document).encode()
