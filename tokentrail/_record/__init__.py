"""The engine's threads: requests, their checked arguments, and the records that the hot path appends."""
