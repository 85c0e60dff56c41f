"""Sphinx makes the site of these pages: `make site`. The site can be read offline, and loads nothing from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

from tokentrail.version import __version__

DOCS = Path(__file__).resolve().parent
REPOSITORY = "https://github.com/tokentrail/tokentrail"
LINK = re.compile(r"\]\((\.[^)#\s]*)")
PICTURE = re.compile(r"^!\[([^]]*)\]\((images/[\w-]+)\.png\)$", re.MULTILINE)

project = "tokentrail"
release = __version__
extensions = ["myst_parser"]
myst_enable_extensions = ["html_image"]
html_theme = "furo"
html_title = f"tokentrail {__version__}"
html_logo = "../dashboard/logo.svg"
html_favicon = "../dashboard/icon.svg"
html_theme_options = {"source_repository": REPOSITORY, "source_branch": "main", "source_directory": "docs/"}
html_copy_source = False
html_show_copyright = False
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]


def to_the_repository(app: Sphinx, page: str, source: list[str]) -> None:
    """Let links to files of the repository that are no pages lead to GitHub."""

    def written(link: re.Match[str]) -> str:
        path = (DOCS / page).parent.joinpath(link[1]).resolve()
        if path.is_relative_to(DOCS):
            return link[0]
        kind = "tree" if path.is_dir() else "blob"
        return f"]({REPOSITORY}/{kind}/main/{path.relative_to(DOCS.parent)}"

    source[0] = LINK.sub(written, source[0])


def in_light_and_dark(app: Sphinx, page: str, source: list[str]) -> None:
    """Let a picture that has a file for the dark be shown as its reader reads: overview.png and overview-dark.png."""

    def both(picture: re.Match[str]) -> str:
        text, path = picture.groups()
        if not (DOCS / page).parent.joinpath(f"{path}-dark.png").exists():
            return picture[0]
        schemes = {"only-light": path, "only-dark": f"{path}-dark"}
        return "".join(f'<img class="{name}" src="{file}.png" alt="{text}">' for name, file in schemes.items())

    source[0] = PICTURE.sub(both, source[0])


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", in_light_and_dark)
    app.connect("source-read", to_the_repository)
