"""The commands about what a collector keeps: dead-letters, backup, check-store, restore."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tokentrail.cli.options import API_URL, ApiUrl, AsJson
from tokentrail.cli.output import HELP, console, fail, print_json
from tokentrail.cli.processes import ProcessFailed
from tokentrail.shared.folders import folder


def data_folder(text: str | Path) -> Path:
    """The folder of an option; raises typer.BadParameter for what can be none."""
    try:
        return folder(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def place_to_restore(text: str) -> str:
    """A folder, as `data_folder` makes it, or the address of a server, as it is."""
    return text if text.startswith(("http://", "https://")) else str(data_folder(text).absolute())


dead_letters = typer.Typer(help="Acknowledged payloads that the collector's store refused.", **HELP)
DataDir = Annotated[
    Path,
    typer.Option(
        parser=data_folder, metavar="<path>", envvar="TOKENTRAIL_DATA_DIR", help="The collector's data folder."
    ),
]
Names = Annotated[list[str], typer.Argument(metavar="NAME", help="Names of dead letters, as `list` prints them.")]


@dead_letters.command("list")
def list_dead_letters(data_dir: DataDir = Path(".data"), as_json: AsJson = False) -> None:
    """List the dead letters, oldest first.

    See docs/collector.md#dead-letters.
    """
    from tokentrail.cli import dead_letters as dead_letters_

    try:
        letters = dead_letters_.find(data_dir)
    except dead_letters_.NotFound as failure:
        fail(failure)
    if as_json:
        print_json([letter.described() for letter in letters])
    elif letters:
        console().print(dead_letters_.table(letters))
    else:
        console().print("no dead letters")


@dead_letters.command("show")
def show_dead_letters(names: Names, data_dir: DataDir = Path(".data"), as_json: AsJson = False) -> None:
    """Print dead letters: why and when each was set aside, and the spans in it."""
    from tokentrail.cli import dead_letters as dead_letters_

    try:
        letters = dead_letters_.chosen(data_dir, names)
    except dead_letters_.NotFound as failure:
        fail(failure)
    if as_json:
        print_json([{**letter.described(), "content": letter.content()} for letter in letters])
        return
    for letter in letters:
        dead_letters_.show(console(), letter)


@dead_letters.command("replay")
def replay_dead_letters(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Names of dead letters, as `list` prints them.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Send all of them.")] = False,
    data_dir: DataDir = Path(".data"),
    url: Annotated[str, typer.Option(help="OTLP/HTTP address of a collector.")] = "http://127.0.0.1:4318",
    header: Annotated[list[str] | None, typer.Option(help="A header of each request, as NAME=VALUE.")] = None,
    as_json: AsJson = False,
) -> None:
    """Send dead letters again; each is removed when the collector has acknowledged all of it. Exit status 1 if not."""
    from tokentrail.cli import dead_letters as dead_letters_

    if bool(names) == every:
        raise typer.BadParameter("give names, or --all")
    for text in header or []:
        if not text.partition("=")[0] or "=" not in text or not text.isascii():
            raise typer.BadParameter(f"--header: NAME=VALUE in ASCII, not {text!r}")
    headers = dict(text.split("=", 1) for text in header or [])
    try:
        letters = dead_letters_.find(data_dir) if every else dead_letters_.chosen(data_dir, names or [])
    except dead_letters_.NotFound as failure:
        fail(failure)
    kept = {}
    for name, reason in dead_letters_.replay(letters, url, headers):
        kept[name] = reason
        if not as_json:
            console().print(f"{name}: {reason or 'replayed'}", soft_wrap=True, markup=False, highlight=False)
    if as_json:
        print_json([{"name": name, "replayed": not reason, "reason": reason} for name, reason in kept.items()])
    elif not kept:
        console().print("no dead letters")
    if any(kept.values()):
        raise typer.Exit(1)


def backup(
    target: Annotated[Path, typer.Argument(help="File to write, or a folder for a file with the time in its name.")],
    api: ApiUrl = API_URL,
    as_json: AsJson = False,
) -> None:
    """Back up the embedded store of a collector that runs, and check the file.

    See docs/storage.md#backup-of-the-embedded-store.
    """
    from tokentrail.cli import backup as backup_

    try:
        backup_.backup(console(), target=target, url=api, as_json=as_json)
    except ProcessFailed as failure:
        fail(failure)


def check_store(
    data_dir: DataDir = Path(".data"),
    set_aside: Annotated[
        bool, typer.Option("--set-aside", help="Move damaged parts out, so that all other rows can be read.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Read every file of the embedded store of a collector that is stopped, and name the damaged parts.

    See docs/storage.md#damaged-parts.
    """
    from tokentrail.cli import backup as backup_

    try:
        raise typer.Exit(backup_.check_store(data_dir, set_aside=set_aside, as_json=as_json))
    except ProcessFailed as failure:
        fail(failure)


def restore(
    archive: Annotated[
        Path, typer.Argument(help="A file that `tokentrail backup` wrote.", exists=True, dir_okay=False)
    ],
    target: Annotated[
        str,
        typer.Argument(
            parser=place_to_restore,
            metavar="DATA_DIR",
            help="A new folder, to start a collector with. Or http(s)://USER@HOST:8123/DATABASE: a server's"
            " database that has no tables of tokentrail.",
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Make a new data folder from a backup, or copy the backup to a ClickHouse server.

    See docs/storage.md#from-the-embedded-store-to-a-server.
    """
    from tokentrail.cli import backup as backup_

    try:
        backup_.restore(archive=archive, target=target, as_json=as_json)
    except ProcessFailed as failure:
        fail(failure)
