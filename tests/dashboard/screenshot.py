"""Takes pictures of a running collector's dashboard: `python -m tests.dashboard.screenshot --api URL --out FOLDER`.

Writes overview.png and explore.png, the first screens of these pages (1440 × 800), and request.png, the slowest request
of the range. Each is also written as it looks in the dark (overview-dark.png), which the site shows to those who read
it so. Refreshes are off, so that no picture shows a page while it is drawn.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlencode

import httpx
from playwright.sync_api import Page

from tests.dashboard.browser import browsing, settled, streamlit

WIDTH, FIRST_SCREEN, TALLEST = 1440, 800, 2600
PATIENCE_MS = 240_000
SCHEMES: Final[dict[Literal["light", "dark"], str]] = {"light": "", "dark": "-dark"}
"""The endings of the files' names."""


def slowest(api: str, window: dict[str, str]) -> str | None:
    """The trace id of the slowest request of the window, None when there is none."""
    params = {**window, "sort": "e2e", "status": "ok", "limit": "1"}
    answer = httpx.get(f"{api}/api/v1/requests", params=params, timeout=120)
    answer.raise_for_status()
    rows = answer.json()["requests"]
    return rows[0]["trace_id"] if rows else None


def picture(page: Page, path: Path, *, whole: bool) -> None:
    """A picture of the first screen, or of the whole page from top to bottom."""
    if whole:
        height = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
        page.set_viewport_size({"width": WIDTH, "height": max(FIRST_SCREEN, min(height, TALLEST))})
    settled(page)
    page.wait_for_timeout(1_000)  # the charts' own transitions
    page.screenshot(path=path)
    print(path)


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--api", required=True, help="the collector's API, for example http://127.0.0.1:8080")
    parser.add_argument("--out", type=Path, required=True, help="folder for the pictures")
    parser.add_argument("--start", default="-15m", help="RFC 3339, unix seconds, or relative to now: --start=-24h")
    parser.add_argument("--end", default="now")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    window = {"start": given.start, "end": given.end}
    trace_id = slowest(given.api, window)
    if trace_id is None:
        raise SystemExit(f"no request ended ok from {given.start} to {given.end}: no picture of one")
    of_range = urlencode({"range": "custom", **window, "refresh": "false"})
    pages = {
        "overview": f"/?{of_range}",
        "explore": f"/explore?{of_range}",
        "request": f"/request?trace_id={trace_id}&refresh=false",
    }
    with tempfile.TemporaryDirectory() as folder, streamlit(given.api, Path(folder)) as url, browsing() as browser:
        for scheme, ending in SCHEMES.items():
            context = browser.new_context(viewport={"width": WIDTH, "height": FIRST_SCREEN}, color_scheme=scheme)
            context.set_default_timeout(PATIENCE_MS)
            page = context.new_page()
            for name, path in pages.items():
                page.set_viewport_size({"width": WIDTH, "height": FIRST_SCREEN})
                page.goto(url + path)
                settled(page)
                picture(page, given.out / f"{name}{ending}.png", whole=name == "request")
            context.close()


if __name__ == "__main__":
    main()
