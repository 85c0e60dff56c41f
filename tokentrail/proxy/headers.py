"""Headers that a proxy hands on, and the tenant and SLO class that it reads from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Final

from multidict import CIMultiDict, CIMultiDictProxy

HOP_BY_HOP: Final = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
     "transfer-encoding", "upgrade"}
)  # fmt: skip
"""RFC 9110, 7.6.1: they belong to one connection. Names that `Connection` lists belong to it too."""
SECRETS: Final = frozenset({"authorization", "x-api-key", "api-key", "cookie", "x-goog-api-key"})
"""Headers with keys. A tenant that is read from one of them is a hash of its value."""
MAX_LABEL: Final = 128
READ_ENCODINGS: Final = frozenset({"identity", "gzip", "x-gzip", "deflate"})
"""Content encodings of answers that the proxy reads."""

RawHeaders = Iterable[tuple[bytes, bytes]]


def end_to_end(raw: RawHeaders, *without: str) -> CIMultiDict[str]:
    """The headers to hand on, in their order. A repeated name keeps its first spelling, since aiohttp's client would
    take two spellings for one header that changed.

    [(b"X-A", b"1"), (b"Connection", b"x-b"), (b"x-b", b"2"), (b"x-a", b"3")] gives X-A: 1 and X-A: 3
    """
    pairs = [(name.decode("latin-1"), _text(value)) for name, value in raw]
    dropped = HOP_BY_HOP.union(without)
    for name, value in pairs:
        if name.lower() == "connection":
            dropped |= {word.strip().lower() for word in value.split(",")}
    spelled: dict[str, str] = {}
    return CIMultiDict(
        (spelled.setdefault(name.lower(), name), value) for name, value in pairs if name.lower() not in dropped
    )


def unread_codings(headers: CIMultiDictProxy[str]) -> str:
    """The transfer codings of a message besides `chunked`: `gzip, chunked` gives `gzip`. "" is without any.

    aiohttp undoes `chunked` alone. Without the header, which belongs to one connection, nobody could undo the others.
    """
    named = [one.strip() for value in headers.getall("Transfer-Encoding", ()) for one in value.split(",")]
    return ", ".join(one for one in named if one.lower() not in ("", "chunked", "identity"))[:MAX_LABEL]


def ask_readable(headers: CIMultiDict[str]) -> None:
    """Asks for no encoding that the proxy does not read: `gzip, br;q=0.9, *` becomes `gzip`, `br` alone `identity`."""
    asked = [one.strip() for value in headers.getall("Accept-Encoding", ()) for one in value.split(",")]
    kept = [one for one in asked if one.partition(";")[0].rstrip().lower() in READ_ENCODINGS]
    if len(kept) < len(asked):
        headers["Accept-Encoding"] = ", ".join(kept) or "identity"


def label(headers: Mapping[str, str], name: str, salt: str) -> str:
    """A tenant or class from the header `name`; "" without one. A key becomes a hash, which stays the same."""
    value = headers.get(name, "") if name else ""
    if value and name.lower() in SECRETS:
        key = value.encode(errors="surrogateescape")  # as it came, also when it is not UTF-8
        return "key-" + blake2b(key, key=salt.encode()[:64], digest_size=8, person=b"tokentrail").hexdigest()
    return _text(value.encode(errors="surrogateescape"))[:MAX_LABEL]


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
