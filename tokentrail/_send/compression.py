"""The compression of bodies that wait for the collector."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

from opentelemetry.exporter.otlp.proto.http import Compression

from tokentrail._send.http import GRPC, Endpoint


def body_compression(endpoint: Endpoint) -> Compression:
    """The compression of bodies in the queue. A gRPC channel compresses its messages itself."""
    return Compression.NoCompression if endpoint.protocol == GRPC else endpoint.compression


def compressor(compression: Compression) -> Callable[[bytes], bytes]:
    """The function that compresses a body."""
    if compression is Compression.Gzip:
        return lambda body: gzip.compress(body, compresslevel=1, mtime=0)
    if compression is Compression.Deflate:
        return lambda body: zlib.compress(body, level=1)
    return bytes


def decompressor(compression: Compression) -> Callable[[bytes], bytes]:
    """The inverse of `compressor`."""
    if compression is Compression.Gzip:
        return gzip.decompress
    return zlib.decompress if compression is Compression.Deflate else bytes
