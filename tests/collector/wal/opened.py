"""A log under a clock that tests set, its payloads and its segments."""

from collector.wal.frame import Frame, digest_of

SECOND = 10**9
WAIT_S = 120


class Clock:
    """The wall clock, which somebody may set by hand, and the monotonic clock, which only goes on."""

    def __init__(self):
        self.ns = 1_795_000_000 * SECOND
        self.monotonic_s = 100.0

    def go_on(self, seconds):
        self.ns += seconds * SECOND
        self.monotonic_s += seconds


def frames(*payloads):
    return [Frame(digest_of(payload), payload) for payload in payloads]


def sealed(log):
    """Every payload that waits for the store, by segment."""
    found = []
    while segment := log.next_sealed(0):
        read = log.read(segment).frames
        found.append([frame.payload for frame in read])
        log.release(segment, [frame.digest for frame in read])
    return found


def waiting(log, *payloads):
    for payload in payloads:
        log.append(frames(payload))
        log.seal()
