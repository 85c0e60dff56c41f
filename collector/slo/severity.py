"""The severities of alerts and incidents."""

from __future__ import annotations

from typing import Final, Literal, get_args

BurnSeverity = Literal["page", "ticket"]
"""Severities of SLO burns: `page` wakes somebody, `ticket` is for the working day."""

Severity = Literal[BurnSeverity, "info"]
"""Severities of every alert and incident; `info` is to be known."""

SEVERITIES: Final[tuple[Severity, ...]] = get_args(Severity)
"""Most urgent first."""
