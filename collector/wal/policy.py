"""When a write counts as durable."""

from enum import StrEnum


class Fsync(StrEnum):
    """`ACK`: fsync before a payload is acknowledged (requests that wait share one). `OS`: acknowledged when the
    operating system has it, which survives a killed process but not a power cut."""

    ACK = "ack"
    OS = "os"
