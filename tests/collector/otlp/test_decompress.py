import gzip
import tracemalloc
import zlib
from unittest import mock

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from collector.otlp import decompress as module
from collector.otlp.decompress import SUPPORTED, decompress
from collector.otlp.errors import BrokenEncodingError, TooLargeError, UnsupportedEncodingError

COMPRESS = {
    "identity": bytes,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}
LIMIT = 10_000
compressed = pytest.mark.parametrize("encoding", [name for name in SUPPORTED if name != "identity"])


@given(st.sampled_from(SUPPORTED), st.binary(max_size=LIMIT))
def test_every_encoding_gives_the_body_back(encoding, body):
    assert decompress(COMPRESS[encoding](body), encoding, LIMIT) == body


@pytest.mark.parametrize("encoding", SUPPORTED)
def test_the_limit_is_exact(encoding):
    assert len(decompress(COMPRESS[encoding](bytes(LIMIT)), encoding, LIMIT)) == LIMIT
    with pytest.raises(TooLargeError, match="10000 bytes"):
        decompress(COMPRESS[encoding](bytes(LIMIT + 1)), encoding, LIMIT)


def zstd_stream(body):
    """A frame that does not say its size, as a sender that compresses while it writes makes it."""
    compressor = zstandard.ZstdCompressor().compressobj()
    return compressor.compress(body) + compressor.flush()


@pytest.mark.parametrize("size", [1, LIMIT])
def test_a_zstd_frame_need_not_say_its_size(size):
    assert decompress(zstd_stream(bytes(size)), "zstd", LIMIT) == bytes(size)


def test_a_zstd_frame_that_does_not_say_its_size_may_be_empty():
    header, last_block = bytes.fromhex("28b52ffd 00 58"), bytes.fromhex("010000")
    assert decompress(header + last_block, "zstd", LIMIT) == b""


def test_a_zstd_frame_that_does_not_say_its_size_has_the_same_limit():
    with pytest.raises(TooLargeError, match="10000 bytes"):
        decompress(zstd_stream(bytes(LIMIT + 1)), "zstd", LIMIT)


def test_a_zstd_frame_that_wants_a_large_window_is_refused():
    settings = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True)
    compressor = zstandard.ZstdCompressor(compression_params=settings).compressobj()
    frame = compressor.compress(b"spans") + compressor.flush()
    with pytest.raises(BrokenEncodingError, match="too much memory"):
        decompress(frame, "zstd", LIMIT)


@compressed
def test_a_bomb_is_refused_without_being_unpacked(encoding):
    bomb = COMPRESS[encoding](bytes(64 * 2**20))
    tracemalloc.start()
    with pytest.raises(TooLargeError):
        decompress(bomb, encoding, 2**20)
    assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    tracemalloc.stop()


def test_a_bomb_of_many_pieces_is_left_where_the_limit_is(monkeypatch):
    monkeypatch.setattr(module, "_PIECE_BYTES", 1_000)
    bomb = gzip.compress(bytes(16 * 2**20))
    tracemalloc.start()
    with pytest.raises(TooLargeError):
        decompress(bomb, "gzip", 2**20)
    assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    tracemalloc.stop()


@compressed
@given(st.data())
def test_a_truncated_body_is_never_taken_for_a_whole_one(encoding, data):
    whole = COMPRESS[encoding](bytes(range(256)) * 4)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(BrokenEncodingError, match=encoding):
        decompress(whole[:cut], encoding, LIMIT)


@compressed
@pytest.mark.parametrize("behind", [b"x", b"more data", b"\x1f"], ids=["a byte", "bytes", "a byte of gzip"])
def test_data_behind_a_whole_body_is_refused(encoding, behind):
    with pytest.raises(BrokenEncodingError, match=encoding):
        decompress(COMPRESS[encoding](b"spans" * 10) + behind, encoding, LIMIT)


@pytest.mark.parametrize("encoding", ["deflate", "zstd"])
def test_another_body_behind_a_whole_one_is_refused(encoding):
    with pytest.raises(BrokenEncodingError, match=encoding):
        decompress(2 * COMPRESS[encoding](b"spans" * 10), encoding, LIMIT)


@given(st.lists(st.binary(max_size=LIMIT // 10), min_size=1, max_size=10), st.integers(1, 100))
def test_gzip_members_are_one_body_wherever_they_are_cut(parts, piece):
    with mock.patch.object(module, "_PIECE_BYTES", piece):
        assert decompress(b"".join(map(gzip.compress, parts)), "gzip", LIMIT) == b"".join(parts)


def test_gzip_members_share_the_limit():
    half = gzip.compress(bytes(LIMIT // 2))
    assert decompress(2 * half, "gzip", LIMIT) == bytes(LIMIT)
    with pytest.raises(TooLargeError, match="10000 bytes"):
        decompress(2 * half + gzip.compress(b"1"), "gzip", LIMIT)
    with pytest.raises(BrokenEncodingError, match="one whole gzip"):
        decompress(half + half[:-1], "gzip", LIMIT)


def test_gzip_members_are_counted_since_an_empty_one_costs_time_too():
    empty = gzip.compress(b"")
    assert decompress(4096 * empty, "gzip", LIMIT) == b""
    with pytest.raises(BrokenEncodingError, match="more than 4096 members"):
        decompress(4097 * empty, "gzip", LIMIT)
    with pytest.raises(BrokenEncodingError, match="whole gzip"):
        decompress(4095 * empty + empty[:-1], "gzip", LIMIT)


@compressed
def test_garbage_is_named(encoding):
    with pytest.raises(BrokenEncodingError, match=encoding):
        decompress(b"not compressed at all", encoding, LIMIT)


def test_an_unknown_encoding_is_answered_with_the_known_ones():
    with pytest.raises(UnsupportedEncodingError, match=r"'br'.*gzip, deflate, zstd"):
        decompress(b"", "br", LIMIT)
