"""`python -m collector.access`, which `tokentrail keys` runs: make, list and revoke keys."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import shlex
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from pydantic import ValidationError

from collector.access.audit import AuditLog
from collector.access.caller import Role
from collector.access.keyring import utc_now
from collector.access.keys import Key, KeyFileError, changing, make_key, read_keys
from collector.access.ownership import OwnershipError
from collector.pipeline.settings import Settings, describe_problems
from tokentrail.shared.durations import parse_duration
from tokentrail.shared.folders import beside, of_a_collector


def main(arguments: list[str]) -> int:
    """Run one command; 1 when it fails."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if wrong := _of_another_action(given):
        parser.error(wrong)
    folder = {} if given.data_dir is None else {"data_dir": given.data_dir}
    try:
        settings = Settings(**folder)
        settings = settings.model_copy(update={"data_dir": of_a_collector(settings.data_dir)})
        _ACTIONS[given.action](given, settings)
    except ValidationError as error:
        sys.stderr.write("".join(f"{line}\n" for line in describe_problems(error)))
        return 1
    except OwnershipError as error:
        sys.stderr.write(f"error: {error.strerror}\n")
        return 1
    except OSError as error:
        where = f"{settings.data_dir} cannot be written: {error.strerror}; --data-dir names the collector's data folder"
        of_the_output = error.filename is None
        sys.stderr.write(f"error: {error.strerror if of_the_output else where}\n")
        return 1
    except (KeyFileError, ValueError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tokentrail keys",
        description="Keys of a collector. They are in TOKENTRAIL_KEYS, or keys.json in the data folder.",
    )
    parser.add_argument(
        "action", choices=_ACTIONS, help="make a key and show it, once; list the keys; make one invalid at once"
    )
    parser.add_argument("id", nargs="?", default="", help="revoke: the id in the list, or the whole key")
    parser.add_argument("--role", choices=[*map(str, Role)], help="create: the rights of the key")
    whom = parser.add_mutually_exclusive_group()
    whom.add_argument("--tenant", default="", help="create: the only tenant that the key writes or reads")
    whom.add_argument("--all-tenants", action="store_true", help="create: the key writes or reads all tenants")
    parser.add_argument("--name", default="", help="create: a note for the list")
    parser.add_argument("--expires", help="create: 90d, 12h, or 2027-01-31T00:00:00+00:00; never if not given")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--data-dir", help="the collector's data folder (TOKENTRAIL_DATA_DIR, .data)")
    return parser


def _of_another_action(given: argparse.Namespace) -> str:
    """The mistake when an argument belongs to another action, which would be left out without a word."""
    if given.id and given.action != "revoke":
        return f"only revoke takes an id, and not {given.action}; --name notes whose key it is"
    if given.action != "create" and any((given.role, given.tenant, given.all_tenants, given.name, given.expires)):
        return f"{given.action} takes no option but --data-dir and --json; the others are those of create"
    return ""


def _create(given: argparse.Namespace, settings: Settings) -> None:
    if settings.keys is None and (others := beside(settings.data_dir)):
        msg = (
            f"there is no folder {settings.data_dir}, and the collector of {others[0]} would not read a key in it: "
            f"--data-dir {shlex.quote(str(others[0]))}, or make the folder first, for a new collector"
        )
        raise ValueError(msg)
    role = Role(given.role) if given.role else None
    if role is None:
        msg = "a key needs --role ingest, read or admin"
        raise ValueError(msg)
    if role is not Role.ADMIN and not given.tenant and not given.all_tenants:
        msg = f"a key with the role {role} needs --tenant NAME, or --all-tenants"
        raise ValueError(msg)
    now = utc_now()
    expires = _expiry(given.expires, now)
    try:
        key, secret = make_key(role, given.tenant, now, name=given.name, expires=expires)
    except ValidationError as error:
        field = str((*error.errors()[0]["loc"], "")[0])
        raise ValueError(_MEANT[field]) from None
    with changing(settings.keys_file) as keys:
        keys.append(key)
    _audit(settings, "created", key)
    try:
        sys.stdout.write(f"{json.dumps(_described(key) | {'key': secret}) if given.json else secret}\n")
        sys.stdout.flush()
    except OSError as error:
        msg = f"the key {key.id} is stored and cannot be shown ({error.strerror}): revoke it, and make another"
        raise ValueError(msg) from error
    whom = f"tenant {key.tenant}" if key.tenant else "all tenants"
    kept = f"It is not shown again; only its hash is stored, in {settings.keys_file.absolute()}"
    sys.stderr.write(f"key {key.id}: role {key.role}, {whom}. {kept}\n")


def _list(given: argparse.Namespace, settings: Settings) -> None:
    rows = [("id", "role", "tenant", "state", "created", "expires", "name")]
    keys = read_keys(settings.keys_file)
    if not keys:
        sys.stderr.write(f"there are no keys in {settings.keys_file.absolute()}; is this the collector's --data-dir?\n")
    if given.json:
        sys.stdout.write(json.dumps([_described(key) for key in keys]) + "\n")
        return
    for key in keys:
        expires = key.expires.isoformat(timespec="seconds") if key.expires else "never"
        created = key.created.isoformat(timespec="seconds")
        rows.append((key.id, str(key.role), key.tenant or "all", key.state(utc_now()), created, expires, key.name))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        sys.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")


def _revoke(given: argparse.Namespace, settings: Settings) -> None:
    wanted = given.id.split("_")[1] if given.id.startswith("tokentrail_") else given.id
    if not wanted:
        msg = "revoke needs the id of a key, which `tokentrail keys list` shows, or the whole key"
        raise ValueError(msg)
    if all(key.id != wanted for key in read_keys(settings.keys_file)):  # before a folder is made for it
        msg = f"there is no key {wanted!r} in {settings.keys_file.absolute()}; is this the collector's --data-dir?"
        raise ValueError(msg)
    with changing(settings.keys_file) as keys:
        at = next(i for i, key in enumerate(keys) if key.id == wanted)  # a key is never removed
        if keys[at].revoked is None:
            keys[at] = keys[at].model_copy(update={"revoked": utc_now()})
        key = keys[at]
    _audit(settings, "revoked", key)
    if given.json:
        sys.stdout.write(json.dumps(_described(key)) + "\n")
    sys.stderr.write(f"key {key.id} is revoked; a running collector knows it after a second\n")


def _described(key: Key) -> dict[str, str | None]:
    """A key without its hash, as JSON has it. A `tenant` that is null: all tenants."""
    fields = key.model_dump(mode="json", exclude={"sha256"})
    return {**fields, "tenant": key.tenant or None, "state": key.state(utc_now())}


def _expiry(text: str | None, now: datetime) -> datetime | None:
    if text is None:
        return None
    try:
        expires = datetime.fromisoformat(text)
    except ValueError:
        try:
            expires = now + timedelta(microseconds=parse_duration(text) / 1000)
        except ValueError as error:
            msg = f"--expires: {error}; or a time with its zone, such as 2027-01-31T00:00:00+00:00"
            raise ValueError(msg) from None
    if expires.tzinfo is None:
        msg = f"{text!r} has no time zone; write for example 2027-01-31T00:00:00+00:00"
        raise ValueError(msg)
    if expires <= now:
        msg = f"{text!r} is in the past"
        raise ValueError(msg)
    return expires


def _audit(settings: Settings, event: str, key: Key) -> None:
    AuditLog(settings.audit_file, max_bytes=0).write(  # the collector's rotates
        event, key=key.id, role=key.role, tenant=key.tenant, route="tokentrail keys", user=_user()
    )


def _user() -> str:
    """The name of who runs the command; the number where it has none, as in many containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # OSError from Python 3.13 on
        return str(os.getuid())


_MEANT: Final = {
    "tenant": "--tenant: a name has up to 64 letters, digits, '.', '_' and '-', and begins with a letter or a digit",
    "name": "--name: a note has 200 characters at most",
    "": "an admin key is for all tenants: leave --tenant out",
}
"""By field of a key: the message about a value that the field cannot have."""


_ACTIONS: Final[dict[str, Callable[[argparse.Namespace, Settings], None]]] = {
    "create": _create,
    "list": _list,
    "revoke": _revoke,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
