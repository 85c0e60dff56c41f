"""Waits, with a deadline, until the collector has the requests of a test."""

import time


def settled(api, request_ids, *, since, timeout_s=120.0):
    """All request rows since `since`, once the given ids are among them. The assertion names the missing ids."""
    deadline = time.monotonic() + timeout_s
    while True:
        rows = api.requests(start=since)
        missing = request_ids - {r["request_id"] for r in rows}
        if not missing:
            return rows
        assert time.monotonic() < deadline, f"no rows for {sorted(missing)} after {timeout_s:.0f} s"
        time.sleep(0.3)
