"""The writer: a sealed segment of the log, or several that wait, is one insert, until the store has it."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from time import time
from typing import Any, Final, TypeVar

from tenacity import (
    RetryCallState,
    RetryError,
    Retrying,
    stop_when_event_set,
    wait_exponential_jitter,
)

from collector.base.once_a_minute import OnceAMinute
from collector.base.stage import held
from collector.base.status import IngestStatus
from collector.base.store_errors import reason_of
from collector.otlp.envelope import repeats_more
from collector.otlp.signals import Signal
from collector.otlp.tokens import Columns, joined
from collector.store.claims import Claims
from collector.store.insert import (
    Bytes,
    DoubtfulError,
    RefusedError,
    TooMuchError,
    insert_block,
    insert_otlp,
    native_block,
)
from collector.store.new_tokens import NewTokens
from collector.store.part_folders import PartFolders
from collector.store.parts import parts_of, row_count
from collector.store.store import Store
from collector.wal.dead_letters import DeadLetters
from collector.wal.frame import Frame, digest_of
from collector.wal.log import SegmentLog
from collector.wal.segment import Contents, Segment

logger = logging.getLogger(__name__)

T = TypeVar("T")
SegmentCallback = Callable[[str], None]
Insert = Callable[[Store, Signal, bytes | Path, str], None]
InsertBlock = Callable[[Store, Signal, Sequence[Bytes], str], None]


_LONGEST_SLEEP_S: Final = 60.0
_LEAST_DIVIDED: Final = 1024 * 1024
_MOST_ATTEMPTS_TOO_MUCH: Final = 4
"""An insert that is too large for the store's memory is tried so often, because queries may have taken the memory.
Then it is divided, down to this many bytes: a store that has no memory for so few is tried for ever."""

_MOST_DOUBTS: Final = 4
"""A server that says that bytes are wrong which may have been cut short is believed when it has said so this often."""

_MOST_REPEATED: Final = 256 * 1024 * 1024
"""Most bytes of resources and scopes in one insert, repeated for each item. An embedded store that takes more memory
than there is would be killed with the collector, and again after each start."""


def _is_the_stores_fault(attempt: RetryCallState) -> bool:
    """Tell whether to try again, after a failed attempt."""
    error = attempt.outcome.exception() if attempt.outcome else None
    if isinstance(error, TooMuchError):
        return attempt.attempt_number < _MOST_ATTEMPTS_TOO_MUCH or sum(map(len, attempt.args[2])) <= _LEAST_DIVIDED
    return isinstance(error, Exception) and not isinstance(error, RefusedError | _ClaimsChangedError)


class _CutShortError(RuntimeError):
    """A server may not have got all bytes of an insert."""


class _ClaimsChangedError(RuntimeError):
    """A server has forgotten this segment's claims, because its disk is new, and another collector's come first now."""


class _StoppedError(RetryError):
    """The collector stops before the store took the data, which stays in the log."""


class Writer:
    """Takes a signal's segments from the log in order, on one thread; those that wait together are one insert.

    Plain rows (runs of token spans) are inserted as columns of their table, everything else as it was received. The
    inserts' tokens begin with the segment's id and follow from its payloads alone, so a segment that was stored, or
    half stored, just before a crash is not stored twice. Old frames may have been inserted by a collector that knew no
    columns, so they are inserted as they were received.

    A store that fails is tried for ever. A payload that the store refuses becomes a dead letter, alone; if only some of
    its items cannot be read, they alone do. An insert that is too large for the store's memory is divided. With
    `claims`, a payload that another segment has claimed is left out.
    """

    def __init__(
        self,
        signal: Signal,
        log: SegmentLog,
        store: Store,
        status: IngestStatus,
        dead_letters: DeadLetters,
        *,
        claims: Claims | None = None,
        insert: Insert = insert_otlp,
        insert_block: InsertBlock = insert_block,
        max_wait_s: float = 10.0,
    ) -> None:
        self.name = f"{signal.name} writer"
        self._signal = signal
        self._log = log
        self._store = store
        self._part_folders = PartFolders(store.folder)
        self._status = status
        self._dead_letters = dead_letters
        self._claims = claims
        self._check_claims: Callable[[], None] = lambda: None
        self._insert = insert
        self._insert_block = insert_block
        self._new_tokens = NewTokens(store)
        self._max_wait_s = max_wait_s
        self._callbacks: list[SegmentCallback] = []
        self._line_due = OnceAMinute()
        self._stored: set[str] = set()
        self._set_aside: set[bytes] = set()
        self._draining = threading.Event()
        self._give_up = threading.Event()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def paused(self, timeout_s: float) -> AbstractContextManager[None]:
        """Wait until no segment is being written, and hold the next one until the context ends; raises TimeoutError."""
        return held(self._writing, f"the {self.name} has been at one segment", timeout_s)

    def on_segment(self, callback: SegmentCallback) -> None:
        """Call with the `segment` value of the rows after every insert. An error in the callback is only logged."""
        self._callbacks.append(callback)

    def start(self) -> None:
        """Begin to write. The segments that an earlier process left in the log count as waiting at once."""
        self._status.wal_pending(self._signal.name, *self._log.pending, self._log.waiting_since_ns)
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Write the sealed segments and stop; False when some stay in the log for the next start."""
        last_insert_s = min(5.0, timeout_s / 4)  # when time is up, the insert in progress may still end
        for event, seconds in ((self._draining, timeout_s - last_insert_s), (self._give_up, last_insert_s)):
            event.set()
            self._log.wake()
            if self._thread.is_alive():
                self._thread.join(seconds)
        return not self._thread.is_alive() and self._log.pending[0] == 0

    def write(self, segment: Segment) -> None:
        """Store one segment and release it from the log. Call again after an OSError: nothing is stored twice."""
        contents = self._log.read(segment)
        while True:
            try:
                frames = self._claimed(segment.id, contents.frames)
                self._write_contents(segment, contents, frames)
                break
            except _ClaimsChangedError:
                self._stored.clear()
        if self._claims and self._set_aside:
            self._until_done(self._claims.withdraw, segment.id, self._set_aside)
        self._part_folders.sync()
        digests = [frame.digest for frame in contents.frames if frame.digest not in self._set_aside]
        self._log.release(segment, digests, self._set_aside)
        self._stored.clear()
        self._set_aside.clear()
        self._status.repeated(len(contents.frames) - len(frames))
        self._status.wal_pending(self._signal.name, *self._log.pending, self._log.waiting_since_ns)
        self._status.set_ready(f"{self._signal.name} log room")

    def _claimed(self, segment: str, frames: Sequence[Frame]) -> Sequence[Frame]:
        """Claim payloads; return those that the segment must store. `_check_claims` finds out whether that changes."""
        if not self._claims:
            return frames
        claimed = self._claims.claimed
        mine = self._until_done(claimed, segment, frames)

        def check() -> None:
            if claimed(segment, frames) != mine:
                raise _ClaimsChangedError(segment)

        self._check_claims = check
        return mine

    def _write_contents(self, segment: Segment, contents: Contents, frames: Sequence[Frame]) -> None:
        for part in parts_of(segment.id, frames, self._signal.plain):
            columns = part.columns and self._until_done(self._new_tokens.without_stored, part.columns)
            if columns:
                self._write_columns(f"{part.token}.columns", columns, announce=not part.frames)
            self._new_tokens.forget(frame.payload for frame in part.frames)
            unchanged = contents.undamaged and not part.columns and len(part.frames) == len(contents.frames)
            # A server is sent the bytes that were read: its claims may have taken hours, and the disk damaged the file.
            as_file = unchanged and not self._claims
            self._write_frames(part.token, part.frames, segment.path if as_file else None)

    def _run(self) -> None:
        while not self._give_up.is_set():
            try:
                self._log.merge_waiting()
                segment = self._log.next_sealed(timeout_s=_LONGEST_SLEEP_S)
                if segment is None:
                    if self._draining.is_set():
                        return
                    continue
                with self._writing:
                    self.write(segment)
            except _StoppedError:
                return
            except OSError as error:
                self._not_ready(f"the log of {self._signal.name} cannot be read or released: {error}")
                self._give_up.wait(1.0)
            except Exception as error:  # a mistake of ours: the thread must go on, and say why nothing is stored
                logger.exception("a segment of %s cannot be written", self._signal.name)
                self._not_ready(f"a segment of {self._signal.name} cannot be written: {error!r}")
                self._give_up.wait(self._max_wait_s)

    def _write_columns(self, token: str, columns: Sequence[Columns], *, announce: bool) -> None:
        """Insert plain rows; divide those that are too many for the store's memory."""
        assert self._signal.plain
        block = native_block(columns, self._signal.plain.types)
        try:
            self._insert_until_stored(self._insert_block, block, token, announce=announce)
        except TooMuchError:
            table, middle = joined(columns), row_count(columns) // 2
            for number, half in enumerate((slice(None, middle), slice(middle, None))):
                some = {name: column[half] for name, column in table.items()}
                self._write_columns(f"{token}.{number}", [some], announce=announce)

    def _write_frames(self, token: str, frames: Sequence[Frame], file: Path | None = None) -> None:
        """Insert all; when the store refuses the data, divide it until the parts at fault stand alone.

        Only the first attempt reads the file of these frames: the disk may damage it while it waits for the store.
        """
        if not frames:
            return
        if repeats_more([frame.payload for frame in frames], _MOST_REPEATED) and self._write_divided(token, frames):
            return
        files = iter([file] if file else [])

        def insert(store: Store, signal: Signal, payloads: list[Bytes], token: str) -> None:
            self._insert(store, signal, next(files, None) or b"".join(payloads), token)

        try:
            self._insert_until_stored(insert, [frame.payload for frame in frames], token)
        except RefusedError as refused:
            readable = self._without_misread(token, frames)
            if readable is not None:
                self._write_frames(f"{token}.r", readable)
            elif len(frames) == 1:
                self._put_aside(token, frames[0], str(refused))
            else:
                self._write_halves(token, frames)
        except TooMuchError as too_much:
            if not self._write_divided(token, frames):
                self._put_aside(token, frames[0], str(too_much))

    def _put_aside(self, token: str, frame: Frame, reason: str) -> None:
        """Make a dead letter. If it is a whole payload, it is forgotten, so that it can be sent again."""
        self._dead_letters.keep(f"{token}-{frame.digest.hex()}", frame.payload, reason)
        if digest_of(frame.payload) == frame.digest:
            self._set_aside.add(frame.digest)

    def _write_divided(self, token: str, frames: Sequence[Frame]) -> bool:
        """Insert halves of the payloads, or of the only one; False when that has one item."""
        if len(frames) == 1:
            payloads = self._signal.halves(bytes(frames[0].payload))
            if payloads is None:
                return False
            frames = [Frame(frames[0].digest, payload) for payload in payloads]
        self._write_halves(token, frames)
        return True

    def _write_halves(self, token: str, frames: Sequence[Frame]) -> None:
        middle = len(frames) // 2
        self._write_frames(f"{token}.0", frames[:middle])
        self._write_frames(f"{token}.1", frames[middle:])

    def _without_misread(self, token: str, frames: Sequence[Frame]) -> list[Frame] | None:
        """Set the items aside that the store cannot read, and encode the others anew; None when no payload changes."""
        divided = [(frame, *self._signal.without_misread(bytes(frame.payload))) for frame in frames]
        if all(good == frame.payload for frame, good, _ in divided):
            return None
        for frame, _, misread in divided:
            if misread:
                reason = f"a field has a wrong wire type; the other {self._signal.items} of the payload are stored"
                self._dead_letters.keep(f"{token}-{frame.digest.hex()}", misread, reason)
        return [Frame(frame.digest, good) for frame, good, _ in divided if good]

    def _insert_until_stored(
        self, insert: Callable[..., None], source: list[Bytes], token: str, *, announce: bool = True
    ) -> None:
        if token in self._stored:
            return
        attempts, doubts = itertools.count(), itertools.count(1)

        def attempt(*args: Any) -> None:
            if next(attempts):  # the server may have come back with an empty disk
                self._check_claims()
            try:
                insert(*args)
            except DoubtfulError as doubtful:
                if self._store.embedded or next(doubts) >= _MOST_DOUBTS:
                    raise
                raise _CutShortError(str(doubtful)) from doubtful

        self._until_done(attempt, self._store, self._signal, source, token)
        self._stored.add(token)
        if announce:
            self._announce(token)

    def _announce(self, token: str) -> None:
        self._status.inserted(time())
        for callback in self._callbacks:
            try:
                callback(token)
            except Exception:
                logger.exception("a callback failed after segment %s", token)

    def _until_done(self, call: Callable[..., T], *args: Any) -> T:
        """Call until the store does its part; raises `RefusedError` and `TooMuchError` of inserts."""
        attempts = Retrying(
            retry=_is_the_stores_fault,
            wait=wait_exponential_jitter(multiplier=0.1, max=self._max_wait_s, jitter=0.1),
            stop=stop_when_event_set(self._give_up),
            sleep=self._wait,
            before_sleep=self._report_failure,
            retry_error_cls=_StoppedError,
        )
        with self._status.waiting(part := f"{self._signal.name} store"):
            result = attempts(call, *args)
        self._status.set_ready(part)
        return result

    def _wait(self, seconds: float) -> None:
        self._give_up.wait(seconds)

    def _report_failure(self, attempt: RetryCallState) -> None:
        error = attempt.outcome.exception() if attempt.outcome else None
        cause = reason_of(error) if error else "no reason"
        reason = f"the store {self._store.safe_dsn} does not take data of {self._signal.name}: {cause}"
        self._not_ready(reason, attempt.attempt_number)

    def _not_ready(self, reason: str, attempt: int = 1) -> None:
        self._status.set_not_ready(f"{self._signal.name} store", reason)
        if self._line_due.allows("store"):
            logger.warning("%s (attempt %d; nothing is lost, the log keeps it)", reason, attempt)
