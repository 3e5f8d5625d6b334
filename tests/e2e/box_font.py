"""A font whose glyphs are boxes: text takes the same room, to the pixel, on every machine.

A TrueType font with a glyph per shape and a table that leads many characters to one glyph (`cmap` of format 13).
"""

from __future__ import annotations

import struct
from itertools import groupby

_EM, _ASCENT, _DESCENT = 1000, 800, -200
_GLYPHS = [(550, 0, 500), (550, 0, 500), (280, 0, 0), (280, 0, 500), (850, 0, 500), (620, 0, 700)]
"""Advance, foot and head of each box. The first stands for characters that the font has not."""
_MIDDLE, _SPACE, _NARROW, _WIDE, _TALL = range(1, 6)
_CHARACTERS = {
    **dict.fromkeys("\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE} ", _SPACE),
    **dict.fromkeys("!'(),.:;I[]`fijlrt{|}·", _NARROW),
    **dict.fromkeys("%@MWmw…—", _WIDE),
    **dict.fromkeys("ABCDEFGHJKLNOPQRSTUVXYZbdhk", _TALL),
}
_LAST = 0x2FFF


def box_font() -> bytes:
    """The font's file."""
    outlines = [_outline(*shape) for shape in _GLYPHS]
    offsets = [sum(map(len, outlines[:index])) for index in range(len(outlines) + 1)]
    widest = max(advance for advance, _, _ in _GLYPHS)
    tables = {
        b"OS/2": _os2(),
        b"cmap": _cmap(),
        b"glyf": b"".join(outlines),
        b"head": struct.pack(
            ">HHIIIHHQQhhhhHHhhh",
            *(1, 0, 0x10000, 0, 0x5F0F3CF5, 3, _EM, 0, 0, 0, 0, widest, 700, 0, 8, 2, 1, 0),
        ),
        b"hhea": struct.pack(">HHhhhHhhhhhhhhhhhH", 1, 0, _ASCENT, _DESCENT, 0, widest, *([0] * 11), len(_GLYPHS)),
        b"hmtx": b"".join(struct.pack(">Hh", advance, 0) for advance, _, _ in _GLYPHS),
        b"loca": struct.pack(f">{len(offsets)}I", *offsets),
        b"maxp": struct.pack(">I14H", 0x10000, len(_GLYPHS), 4, 1, 0, 0, 2, *([0] * 8)),
        b"name": _name("Boxes"),
        b"post": struct.pack(">IIhhIIIII", 0x30000, 0, -100, 50, 0, 0, 0, 0, 0),
    }
    return _file(tables)


def _outline(advance: int, foot: int, head: int) -> bytes:
    """A rectangle with a gap before and after it; of a space nothing."""
    if foot == head:
        return b""
    left, right = 50, advance - 50
    glyph = struct.pack(">hhhhhHH", 1, left, foot, right, head, 3, 0) + bytes([1] * 4)
    glyph += struct.pack(">4h", left, right - left, 0, left - right) + struct.pack(">4h", foot, 0, head - foot, 0)
    return glyph + bytes(-len(glyph) % 4)


def _cmap() -> bytes:
    glyphs = [_CHARACTERS.get(chr(code), _MIDDLE) for code in range(ord(" "), _LAST + 1)]
    groups, begin = [], ord(" ")
    for glyph, run in groupby(glyphs):
        end = begin + len(list(run))
        groups.append(struct.pack(">III", begin, end - 1, glyph))
        begin = end
    table = struct.pack(">HHIII", 13, 0, 16 + 12 * len(groups), 0, len(groups)) + b"".join(groups)
    return struct.pack(">HHHHI", 0, 1, 3, 10, 12) + table


def _os2() -> bytes:
    head = struct.pack(">HhHHH10hh10s4I4s", 4, 550, 400, 5, 0, *([50] * 10), 0, bytes(10), 1, 0, 0, 0, b"TEST")
    return head + struct.pack(
        ">HHHhhhHHIIhhHHH", 0x40, 0x20, _LAST, _ASCENT, _DESCENT, 0, _ASCENT, -_DESCENT, 1, 0, 500, 700, 0, 32, 0
    )


def _name(family: str) -> bytes:
    texts = [(1, family), (2, "Regular"), (4, family), (6, family)]
    records, strings = b"", b""
    for number, text in texts:
        encoded = text.encode("utf-16-be")
        records += struct.pack(">6H", 3, 1, 0x409, number, len(encoded), len(strings))
        strings += encoded
    return struct.pack(">HHH", 0, len(texts), 6 + len(records)) + records + strings


def _file(tables: dict[bytes, bytes]) -> bytes:
    def checksum(data: bytes) -> int:
        padded = data + bytes(-len(data) % 4)
        return sum(struct.unpack(f">{len(padded) // 4}I", padded)) & 0xFFFFFFFF

    power = len(tables).bit_length() - 1
    header = struct.pack(">IHHHH", 0x10000, len(tables), 16 << power, power, 16 * (len(tables) - (1 << power)))
    directory, body = b"", b""
    begin = len(header) + 16 * len(tables)
    for tag, data in sorted(tables.items()):
        directory += struct.pack(">4sIII", tag, checksum(data), begin + len(body), len(data))
        body += data + bytes(-len(data) % 4)
    return header + directory + body
