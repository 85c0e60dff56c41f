"""The face that every stage of the collector shows to the service."""

from __future__ import annotations

from typing import Protocol


class Stage(Protocol):
    """A part of the collector that works on threads of its own: a server, a log's commit, a store's writer."""

    @property
    def name(self) -> str:
        """The stage's name, for log lines."""

    def start(self) -> None:
        """Begin to work. A stage is started once."""

    def stop(self, timeout_s: float) -> bool:
        """Take nothing new, hand on the work in progress, and return after `timeout_s` seconds at the latest.

        True: the stage has handed on everything that it held. A stage may be stopped twice, or without a start.
        """
