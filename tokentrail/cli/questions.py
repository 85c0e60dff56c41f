"""How commands ask a collector's API, and what they say when it does not answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import typer

from tokentrail.cli.output import fail, note
from tokentrail.shared.formatting import data_until, without_user

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokentrail.cli.api import Api


_WRONG: Final = (400, 422)


@contextmanager
def of_our_version() -> Iterator[None]:
    """End the command with a sentence when an answer is of another form than it reads."""
    from tokentrail.cli.api import other_form
    from tokentrail.shared.connection import OTHER_FORM

    try:
        yield
    except OTHER_FORM as error:
        fail(RuntimeError(f"{other_form(error)}: install the same version of both, which tokentrail doctor compares"))


def given(**options: Any) -> dict[str, Any]:
    """The options that were given, as parameters; those of `label` are NAME=VALUE. Raises typer.BadParameter."""
    labels = options.pop("label", None) or []
    parameters = {name: value for name, value in options.items() if value is not None}
    return parameters | named_values("label", labels, "region=eu")


def named_values(option: str, texts: Sequence[str], example: str) -> dict[str, list[str]]:
    """NAME=VALUE, given once or more, as parameters: `--a variant=old` is {"a.variant": ["old"]}.

    Raises typer.BadParameter.
    """
    values: dict[str, list[str]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            msg = f"--{option}: NAME=VALUE, such as {example}, not {text!r}"
            raise typer.BadParameter(msg)
        values.setdefault(f"{option}.{name}", []).append(value)
    return values


def tell_end(answer: Mapping[str, Any]) -> None:
    """Say up to when an answer is complete, if that is before the end of its window."""
    if until := data_until(answer["window"]):
        note(until)


def ask(url: str, question: Callable[[Api], Any], *, wrong: int = 2, unknown: int = 1, otherwise: int = 1) -> Any:
    """Ask the API; an answer that is an error ends the command with the collector's own words.

    Its status is `wrong` for a value that can be none (400), as for an option that the command itself refuses,
    `unknown` for a name that nobody has (404), and else `otherwise`.
    """
    from httpx import DecodingError, HTTPError, HTTPStatusError

    from tokentrail.cli.api import Api, NoSuchRequest
    from tokentrail.shared.connection import ConnectionSettingError, in_words, way_out

    try:
        client = Api(url)
    except ConnectionSettingError as error:
        fail(error, wrong)
    try:
        return question(client)
    except HTTPStatusError as error:
        code = error.response.status_code
        wanted = client.key_wanted(code)
        told = client.problem(error.response) + (f": {wanted}" if wanted else "")
        fail(RuntimeError(told), {404: unknown, **dict.fromkeys(_WRONG, wrong)}.get(code, otherwise))
    except (DecodingError, NoSuchRequest) as error:
        fail(error, otherwise)
    except HTTPError as error:
        told = f"the collector at {without_user(url)} does not answer ({in_words(error)}): {way_out(error, '--api')}"
        fail(RuntimeError(told), otherwise)
    finally:
        client.close()
