"""The choice of the moment at which a write counts as durable."""

from enum import StrEnum


class Fsync(StrEnum):
    """`ACK`: fsync before a payload is acknowledged; requests that wait share one fsync. `OS`: acknowledge when the
    operating system has the payload, which survives a killed process but not a power cut."""

    ACK = "ack"
    OS = "os"
