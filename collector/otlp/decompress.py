"""Content encodings, decompressed with a limit: a small body may claim to be very large."""

from __future__ import annotations

import zlib
from io import BytesIO
from typing import Final

import zstandard

from collector.otlp.errors import BrokenEncodingError, TooLargeError, UnsupportedEncodingError

SUPPORTED: Final = ("identity", "gzip", "deflate", "zstd")
_ZLIB_WINDOW: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_MOST_MEMBERS: Final = 4096
"""Of a gzip body. Each costs time, also one of 20 bytes that is empty."""
_PIECE_BYTES: Final = 65_536
"""zlib copies what lies behind a member in the piece that it was given."""


def decompress(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """Undo the content encoding of a body; at most `max_bytes` are ever held.

    Raises `TooLargeError`, `UnsupportedEncodingError` or `BrokenEncodingError`, each with a message for the sender.
    """
    name = encoding.strip().lower() or "identity"
    if name == "identity":
        data = body
    elif name in _ZLIB_WINDOW:
        data = _inflate(body, name, max_bytes)
    elif name == "zstd":
        data = _unzstd(body, max_bytes)
    else:
        msg = f"content encoding {encoding!r} is not supported; send one of {', '.join(SUPPORTED)}"
        raise UnsupportedEncodingError(msg)
    _check_size(len(data), max_bytes)
    return data


def encoding_of_message(body: bytes) -> str:
    """Tell the encoding of a gRPC message by its first byte: no OTLP request starts with that of gzip or deflate."""
    return {b"\x1f": "gzip", b"\x78": "deflate"}.get(body[:1], "identity")


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        advice = "send smaller batches or raise TOKENTRAIL_MAX_DECOMPRESSED_BYTES"
        msg = f"the decompressed body is larger than {max_bytes} bytes; {advice}"
        raise TooLargeError(msg)


def _inflate(body: bytes, name: str, max_bytes: int) -> bytes:
    """Several gzip members, one behind the other, are one body (RFC 1952), with one limit for all of them."""
    view, at, data = memoryview(body), 0, BytesIO()
    try:
        for _ in range(_MOST_MEMBERS if name == "gzip" else 1):
            inflater = zlib.decompressobj(_ZLIB_WINDOW[name])
            while not inflater.eof and at < len(body) and data.tell() <= max_bytes:
                piece = view[at : at + _PIECE_BYTES]
                data.write(inflater.decompress(piece, max_bytes + 1 - data.tell()))
                at += len(piece) - len(inflater.unused_data)
            if at == len(body) or data.tell() > max_bytes:
                break
    except zlib.error as error:
        msg = f"the body is not {name}: {error}"
        raise BrokenEncodingError(msg) from error
    if data.tell() <= max_bytes and (not inflater.eof or at < len(body)):
        msg = f"the body is not one whole {name} stream, or one of more than {_MOST_MEMBERS} members"
        raise BrokenEncodingError(msg)
    return data.getvalue()


def _unzstd(body: bytes, max_bytes: int) -> bytes:
    decompressor = zstandard.ZstdDecompressor()  # refuses windows over 2^27 bytes
    try:
        size = zstandard.get_frame_parameters(body).content_size
        if size == zstandard.CONTENTSIZE_UNKNOWN:
            with decompressor.stream_reader(body) as reader:
                size = len(reader.read(max_bytes + 1))
        _check_size(size, max_bytes)
        # In one piece, because the stream reader accepts a truncated body.
        return decompressor.decompress(body, max_output_size=max(size, 1), allow_extra_data=False)
    except zstandard.ZstdError as error:
        msg = f"the body is not one whole zstd frame: {error}"
        raise BrokenEncodingError(msg) from error
