"""Keys, and the file that holds them.

A key is shown once, when it is made. The file has its SHA-256 only. A slow hash such as scrypt protects passwords,
because people choose guessable ones. A key has 256 random bits, which nobody can guess at any speed, and a slow hash
would cost its time with every request.

    tokentrail_ID_SECRET    a word for scanners that look for leaked secrets, 8 hex digits, 64 hex digits
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Annotated, Final

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from collector.access.caller import Role
from collector.access.ownership import Place, placed
from tokentrail.shared import private_files, regular_files
from tokentrail.shared.folders import words_of

_PREFIX: Final = "tokentrail"
_LOCKED_S: Final = 30.0
_NO_KEY: Final = hashlib.sha256(b"").hexdigest()

TenantName = Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,63})?$")]


class KeyFileError(ValueError):
    """The file of keys cannot be used; the message says why."""


class Key(BaseModel):
    """One key as the file has it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[str, Field(pattern="^[0-9a-f]{8}$")]
    name: Annotated[str, Field(max_length=200)] = ""
    role: Role
    tenant: TenantName = ""
    """Empty: all tenants."""
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    created: AwareDatetime
    expires: AwareDatetime | None = None
    revoked: AwareDatetime | None = None

    @model_validator(mode="after")
    def _admin_is_for_all_tenants(self) -> Key:
        if self.role is Role.ADMIN and self.tenant:
            msg = "an admin key is for all tenants"
            raise ValueError(msg)
        return self

    def state(self, now: datetime) -> str:
        """`valid`, `expired` or `revoked`."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else "valid"


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    keys: list[Key] = []


class Keys:
    """The keys of a file, found by the secret that a caller shows."""

    def __init__(self, keys: list[Key]) -> None:
        self._by_id = {key.id: key for key in keys}

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, secret: str) -> Key | None:
        """Find the key of a secret, also an expired or a revoked one.

        The time does not tell how much of the secret is right.
        """
        match = re.fullmatch(rf"{_PREFIX}_([0-9a-f]{{8}})_[0-9a-f]{{64}}", secret)
        key = self._by_id.get(match[1]) if match else None
        same = hmac.compare_digest(_sha256(secret), key.sha256 if key else _NO_KEY)
        return key if key and same else None


def make_key(
    role: Role, tenant: str, now: datetime, *, name: str = "", expires: datetime | None = None
) -> tuple[Key, str]:
    """Make a key: its entry for the file, and the secret that is shown once. Raises ValidationError."""
    key_id = secrets.token_hex(4)
    secret = f"{_PREFIX}_{key_id}_{secrets.token_hex(32)}"
    key = Key(id=key_id, name=name, role=role, tenant=tenant, sha256=_sha256(secret), created=now, expires=expires)
    return key, secret


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def read_keys(path: Path) -> list[Key]:
    """Read the keys of a file; none when it is missing. Raises `KeyFileError`."""
    return _read(path, lambda: os.open(path, regular_files.OPEN))


def _read(path: Path, opened: Callable[[], int]) -> list[Key]:
    try:
        keys = _File.model_validate_json(regular_files.content(opened())).keys
    except FileNotFoundError:
        return []
    except OSError as error:
        msg = f"the keys in {path} cannot be read: {words_of(error)}"
        raise KeyFileError(msg) from error
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        msg = f"{path} is not a file of keys: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise KeyFileError(msg) from None
    if len({key.id for key in keys}) < len(keys):
        msg = f"{path} has two keys with one id"
        raise KeyFileError(msg)
    return keys


@contextmanager
def changing(path: Path) -> Iterator[list[Key]]:
    """Give the keys of a file as a list, and write the list back unless the block raises.

    The file is replaced as a whole, only its owner may read it, and other writers wait meanwhile, `_LOCKED_S` at most.
    Where root changes it, the owner stays: `sudo tokentrail keys` must not hide the keys from a collector of another
    user. A link to the file stays too, because collectors that share a file must all see a key that is revoked; but
    root follows none that another user may have set. Raises `KeyFileError`, and OSError.
    """
    with ExitStack() as stack:
        try:
            place = stack.enter_context(placed(path))
        except RuntimeError as error:  # links that lead to each other
            msg = f"the keys in {path} cannot be read: {error}"
            raise KeyFileError(msg) from None
        stack.enter_context(_locked(place))
        keys = _read(place.path, lambda: place.open(os.O_RDONLY))
        yield keys
        _replace(place, _File(keys=keys).model_dump_json(indent=1, exclude_defaults=True).encode())


def _locked(place: Place) -> IO[str]:
    lock = place.path.with_name(f"{place.name}.lock")
    try:
        return private_files.held(place.open(private_files.LOCK, lock.name), wait_s=_LOCKED_S)
    except BlockingIOError as error:
        msg = (
            f"{lock} has been held by another process for {_LOCKED_S:.0f} s: wait for another `tokentrail keys`, or end"
            f" the process (`fuser {lock}`, as root, has its id)"
        )
        raise KeyFileError(msg) from error


def _replace(place: Place, content: bytes) -> None:
    temporary = f".{place.name}.{secrets.token_hex(8)}"
    descriptor = place.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL, temporary)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if place.owner:
                with suppress(FileNotFoundError):
                    old = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
                    os.fchown(descriptor, old.st_uid, old.st_gid)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
    except BaseException:
        os.unlink(temporary, dir_fd=place.folder)  # in an open folder
        raise
