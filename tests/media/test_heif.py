"""HEIF pictures, which an optional package reads."""

from __future__ import annotations

import base64
import io
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from fastcar_cli.errors import RequestError
from fastcar_cli.media import read_frames

STICKER = zlib.decompress(
    base64.b85decode(
        "c-muNV30{GsVvAy%}izhg51nBLl8SRGck>UfhjvTwIq=N0u(b+a*CjAhJwuG5(YG2l9`haHpIn&fr)_;#A51)&_FN=C<X+~ig1xkAhyWN%u56F"
        "K(eAhPAXU#P)$ZzvLOSCAQM86uOPD|mjSAhaaCqPQ2~%{$}C9E2a1&fl{qsq1BDnSfECGoVEFU*#}5Vue&z(A4haWF9>)LwK?;~bDwsh?ZWoh7"
        "B2ZG(iIEXaW`RN@>$F$vW<7hLxZpqo0|QS3NVp{lsG7}%@nG@6PM{sa$@w`&dC55yKv7->HlPv)k<8+PRH$zqpjab0ClTZ@0f^fn^#A|=FMvD<"
        "qe0>YnH8Df5aZzB08)iuKe2$A^MAnn^atT5afqKl3YftvfKG>bNe$>FREYykEMn2Cc4g0I0`ZMN1d{-&fB0YyU<BEzo>*Gp4C0j*<yqwxq^4VC"
        "q?RRH85tOwS^=dpQ>?)8qL5jT3rjG-G{D-(#LU{lz{J|d%-+!g6qCv<N=<{x^8xkcfKv)64w-XP5<y9-PlItin~~Jbu7+6W_Sswizpv4<|G#mI"
        "cX+e$|8IZy|J%LR|53KGLuA}#@spvypDeXA+kgMxl!d=mNNkCbn)v6L-(3Ob6^|Jil-^Hf6WHIEbIbJ0(ic<DcI9?PxF{%PWYkZ&6E3XGYqz9m"
        "e$&IhxBJg--q$2ubn8W$?EaiZua`TVRmhY`tGd~~IOndx%gM?>7o}=2uH#8DvEVE{qxS6g{f%?~9TsCqZC?H5<|KYzuI_$o8Kx<r;itYvuXb3r"
        "!R!EgZtwDayN<DjC4c<*t>*t8zS#3^GlZBpuO?)D-*c_&(X>m(ZubQD@ju<9zpSDC$~UP~T_%6n3jnU|`G^"
    )
)
"""16 x 16 pixels, the left half blue, the right one transparent over green, as libheif 1.20 writes it."""


def _box(kind: bytes, *data: bytes) -> bytes:
    whole = b"".join(data)
    return struct.pack(">I4s", 8 + len(whole), kind) + whole


def _full(kind: bytes, version: int, *data: bytes) -> bytes:
    return _box(kind, struct.pack(">I", version << 24), *data)


def _tile(colour: tuple[int, int, int]) -> tuple[bytes, bytes]:
    """The configuration and the data of one HEVC picture of 64 x 64."""
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as target:  # FFmpeg 8's MP4 muxer refuses such a stream at random
        stream: Any = target.add_stream("libx265", rate=1, options={"x265-params": "log-level=none"})
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        target.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((64, 64, 3), colour, np.uint8), format="rgb24")))
        target.mux(stream.encode())
    with av.open(io.BytesIO(file.getvalue()), "r") as source:
        [packet] = [bytes(packet) for packet in source.demux(video=0) if packet.size]
        return _box(b"hvcC", bytes(source.streams.video[0].codec_context.extradata or b"")), packet


def _heic(*colours: tuple[int, int, int], turned: int = 0) -> bytes:
    """A HEIC picture: of one tile, turned by so many quarters to the left, or of several in a row."""
    tiles, many = [_tile(c) for c in colours], len(colours) > 1
    count, items = len(tiles), len(tiles) + many
    grid = struct.pack(">BBBBHH", 0, 0, 0, count - 1, 64 * count, 64) if many else b""
    sizes = [_full(b"ispe", 0, struct.pack(">II", width, 64)) for width in (64, 64 * count)]
    infe = [_full(b"infe", 2, struct.pack(">HH", i + 1, 0), b"hvc1\0") for i in range(count)]
    infe += [_full(b"infe", 2, struct.pack(">HH", items, 0), b"grid\0")] if many else []
    parts = struct.pack(f">HH{count}H", items, count, *range(1, count + 1))
    owned = b"".join(struct.pack(">HBBBB", i + 1, 3, 0x81, 2, 0x84) for i in range(count))
    owned += struct.pack(">HBBB", items, 2, 3, 0x84) if many else b""
    properties = _box(b"ipco", tiles[0][0], *sizes, _box(b"irot", bytes([turned])))
    ftyp, data = _box(b"ftyp", b"heic", b"\0" * 4, b"mif1heic"), [*(tile[1] for tile in tiles), *([grid] * many)]

    def meta(at: int) -> bytes:
        places = b""
        for i, item in enumerate(data):
            places += struct.pack(">HHHII", i + 1, 0, 1, at, len(item))
            at += len(item)
        return _full(
            b"meta", 0,
            _full(b"hdlr", 0, b"\0" * 4, b"pict", b"\0" * 13), _full(b"pitm", 0, struct.pack(">H", items)),
            _full(b"iloc", 0, struct.pack(">BBH", 0x44, 0, len(data)), places),
            _full(b"iinf", 0, struct.pack(">H", items), *infe),
            _full(b"iref", 0, _box(b"dimg", parts)) if many else b"",
            _box(b"iprp", properties, _full(b"ipma", 0, struct.pack(">I", items), owned)),
        )  # fmt: skip

    return ftyp + meta(len(ftyp) + len(meta(0)) + 8) + _box(b"mdat", *data)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyAV alone reads HEIF."""
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.delitem(Image.OPEN, "HEIF", raising=False)


@pytest.mark.usefixtures("plain")
def test_a_heic_is_refused_without_the_package_for_it(tmp_path: Path) -> None:
    path = tmp_path / "a.heic"
    for data in (_heic((250, 30, 30), turned=1), _heic((250, 30, 30), (30, 250, 30)), STICKER):
        path.write_bytes(data)
        with pytest.raises(RequestError, match="is HEIF, which PyAV supports only in part") as error:
            read_frames(path)
        assert error.value.hint == "save it as JPEG or PNG, or pip install 'fastcar[heif]'"


def test_a_heic_of_parts_is_read_by_the_package_for_it(tmp_path: Path) -> None:
    pytest.importorskip("pillow_heif")
    path = tmp_path / "a.heic"
    path.write_bytes(_heic((250, 30, 30), (30, 250, 30)))
    [shown] = read_frames(path)
    assert shown.shape == (64, 128, 3)
    assert abs(shown[32, [32, 96]].astype(int) - [(250, 30, 30), (30, 250, 30)]).max() < 8
    path.write_bytes(STICKER)
    assert abs(read_frames(path)[0, 8, [4, 12]].astype(int) - [(90, 160, 230), (255, 255, 255)]).max() < 8
