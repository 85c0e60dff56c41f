"""The errors for which a receiver refuses a request. Each message tells the sender how to mend it."""

from __future__ import annotations


class TooLargeError(ValueError):
    """The body is larger than the collector takes."""


class UnsupportedContentTypeError(ValueError):
    """The body is neither Protobuf nor JSON."""


class UnsupportedEncodingError(ValueError):
    """The content encoding is not one that the collector can undo."""


class BrokenEncodingError(ValueError):
    """The body does not follow its content encoding."""


class MalformedError(ValueError):
    """The body is not a request of the signal that it was sent to."""


class SlowError(RuntimeError):
    """The message did not arrive in its time; the client should try again."""


class BusyError(RuntimeError):
    """The collector works on as many requests as it may; the client should try again soon."""
