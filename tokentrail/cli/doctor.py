"""`tokentrail doctor`: is the collector reachable and well, and does it see the engines and judge their requests?"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal

import httpx
from rich.console import Console
from rich.text import Text

from tokentrail.cli import listeners
from tokentrail.cli.api import Api, other_form
from tokentrail.cli.listeners import GrpcError, is_otlp, misnamed, refusal, send_nothing
from tokentrail.cli.processes import PORTS
from tokentrail.shared.connection import OTHER_FORM, in_words, send_otlp, way_out, why_unanswered
from tokentrail.shared.formatting import count, counted, duration, instant, of_tenant, one_line, percent, without_user
from tokentrail.version import __version__
from tokentrail.version import told as version_told

_CLOCK_S: Final = 2.0
"""A larger difference of two clocks moves requests out of the windows in which people look for them."""
_DISK: Final = 0.1
_DAY: Final = "-1d"
_HEALTHY: Final = 0.5
"""A time-out that cuts a larger share of healthy requests than of dead ones is too short."""
_STYLES: Final = {"ok": "green", "warn": "yellow", "fail": "bold red"}

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `fix` is empty when nothing is wrong."""

    name: str
    state: State
    detail: str
    fix: str = ""


def examine(api_url: str, otlp_http: str | None, otlp_grpc: str | None) -> Iterator[Finding]:
    """Yield the findings one by one. When the API does not answer, there are none about the stored rows.

    Without an address of OTLP, the collector's API tells it; the usual one is looked at if it does not.
    """
    api = Api(api_url)
    try:
        usual = {"otlp-http": f"http://127.0.0.1:{PORTS['OTLP/HTTP']}", "otlp-grpc": f"127.0.0.1:{PORTS['OTLP/gRPC']}"}
        told = usual | (_listeners(api, api_url) if None in (otlp_http, otlp_grpc) else {})
        yield _otlp_http(told["otlp-http"] if otlp_http is None else otlp_http)
        yield _otlp_grpc(told["otlp-grpc"] if otlp_grpc is None else otlp_grpc)
        reachable = yield from _api(api, api_url)
        if reachable:
            for look in (_version, _explaining, _storage, _engines, _slos, _time_outs, _unclaimed):
                yield from _asked(look, api)
    finally:
        api.close()


def _listeners(api: Api, api_url: str) -> dict[str, str]:
    """The addresses of OTLP: the listeners' schemes and ports, on the host on which the API answered."""
    try:
        told = api.get("collector")["listeners"]
        host = httpx.URL(api_url).host
        at = {name: httpx.URL(address).copy_with(host=host) for name, address in told.items()}
    except (httpx.HTTPError, httpx.InvalidURL, *OTHER_FORM):
        return {}
    return {name: str(address) for name, address in at.items()}


def _asked(look: Callable[[Api], Iterator[Finding]], api: Api) -> Iterator[Finding]:
    try:
        yield from look(api)
    except httpx.HTTPStatusError as error:
        fix = api.key_wanted(error.response.status_code) or "see the collector's log"
        yield Finding(look.__name__.strip("_"), "warn", api.problem(error.response), fix)
    except httpx.HTTPError as error:
        yield Finding(look.__name__.strip("_"), "warn", in_words(error), "see the collector's log")
    except OTHER_FORM as error:
        yield Finding(look.__name__.strip("_"), "warn", other_form(error), "install the same version in both places")


def _otlp_http(url: str) -> Finding:
    """An empty request is a valid one, and stores nothing."""
    name, option = "OTLP/HTTP", "--otlp-http"
    try:
        answer = send_otlp(url, "traces", b"", {}, timeout_s=listeners.TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return _failed(name, url, option, why_unanswered(url, error), way_out(error, option))
    if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        return Finding(name, "ok", f"{without_user(url)} answers, and asks senders for a key")
    if is_otlp(answer) and answer.status_code != httpx.codes.OK:
        told = f"{without_user(url)} answers {answer.status_code}: {refusal(answer)}"
        return Finding(name, "fail", told, "see the collector's log")
    if not is_otlp(answer):
        told = f"answers {answer.status_code}, but not as a receiver of OTLP does"
        return _failed(name, url, option, told, f"another server is there: name the collector's address with {option}")
    return Finding(name, "ok", without_user(url))


def _otlp_grpc(to: str) -> Finding:
    """The collector prints this address with http://, and exporters of OTLP/gRPC take it so."""
    name, option = "OTLP/gRPC", "--otlp-grpc"
    try:
        taken = send_nothing(to)
    except ModuleNotFoundError:
        told = f"{without_user(to)} was not asked, because the package grpcio is not installed"
        return Finding(name, "warn", told, "pip install 'tokentrail[grpc]'")
    except GrpcError as error:
        return _failed(name, to, option, str(error), error.way_out or way_out(error, option))
    return Finding(name, "ok", without_user(to) if taken else f"{without_user(to)} answers, and asks senders for a key")


def _failed(name: str, to: str, option: str, told: str, fix: str) -> Finding:
    """A listener that does not answer as it should, or another one of the collector's in its place."""
    if sentence := misnamed(name, to):
        return Finding(name, "fail", sentence, f"name the address of {name} with {option}")
    return Finding(name, "fail", f"{without_user(to)}: {told}", fix)


def _api(api: Api, url: str) -> Generator[Finding, None, bool]:
    """Return whether the store can be asked."""
    try:
        ready = api.ready()
    except httpx.HTTPError as error:
        yield _failed("API", url, "--api", in_words(error), way_out(error, "--api"))
        return False
    try:
        status = ready.json()["status"]
        reason = "" if status == "ready" else ready.json()["reason"]
    except (ValueError, KeyError, TypeError):
        told = f"answers {ready.status_code}, but not as a collector's API does"
        fix = "another server is there: name the collector's address with --api"
        yield _failed("API", url, "--api", told, fix)
        return False
    if status == "degraded":
        fix = "give the collector and its store more CPU or a faster disk; answers lack what waits"
        yield Finding("API", "warn", f"{without_user(url)} is behind: {reason}", fix)
    elif reason:
        yield Finding("API", "fail", f"{without_user(url)} is not ready: {reason}", "see the collector's log")
        return False
    else:
        yield Finding("API", "ok", without_user(url))
    if date := ready.headers.get("date"):
        apart = abs(parsedate_to_datetime(date).timestamp() - time.time())
        if apart > _CLOCK_S + 1:  # the header has whole seconds
            fix = "synchronise both clocks (NTP): the collector's clock decides what is in a window"
            yield Finding("clocks", "warn", f"this machine and the collector differ by {duration(apart)}", fix)
        else:
            yield Finding("clocks", "ok", "this machine and the collector agree")
    return True


def _version(api: Api) -> Iterator[Finding]:
    collectors = api.version()
    if collectors == __version__:
        yield Finding("version", "ok", f"this command and the collector are {version_told()}")
    else:
        detail = f"this command is {__version__}, the collector {collectors or 'does not tell its version'}"
        yield Finding("version", "warn", detail, "install the same version in both places")


def _explaining(api: Api) -> Iterator[Finding]:
    """Nothing if no explaining failed since the collector started."""
    if n := api.get("collector")["explain_failures"]:
        detail = f"explaining requests failed {count(n)} times since the collector started: they have no causes yet"
        fix = "see the collector's log; a store of another version may be the reason"
        yield Finding("causes", "warn", detail, fix)


def _storage(api: Api) -> Iterator[Finding]:
    storage = api.get("storage")
    free = [
        (disk["free_bytes"], disk["total_bytes"], f"{disk.get('host', '')} {disk['path']}".strip())
        for disk in storage["disks"]
    ]
    if storage.get("data_dir_total_bytes"):
        free.append((storage["data_dir_free_bytes"], storage["data_dir_total_bytes"], "the collector's log"))
    for free_bytes, total_bytes, place in free:
        full = total_bytes and free_bytes < _DISK * total_bytes
        detail = f"{free_bytes / 1e9:.1f} of {total_bytes / 1e9:.1f} GB are free at {place}"
        yield Finding(
            "disk", "warn" if full else "ok", detail, "shorten --retention, or give it more space" if full else ""
        )
    if (letters := storage["dead_letters"]) is None:
        yield Finding("dead letters", "warn", "the collector cannot read their folder", "see its disk and its log")
    elif dead := letters["files"] // 2:
        fix = "tokentrail dead-letters list --data-dir FOLDER"
        yield Finding("dead letters", "warn", f"{count(dead)} payloads could not be stored", fix)
    waiting = storage["log"]["bytes"]
    yield Finding("log", "ok", f"{waiting / 1e6:.1f} MB wait to be stored")


def _engines(api: Api) -> Iterator[Finding]:
    engines = api.get("engines", start=_DAY)["engines"]
    if not engines:
        fix = "set OTEL_EXPORTER_OTLP_ENDPOINT in the engine's environment and install tokentrail there"
        yield Finding("engines", "warn", "none has sent anything for a day", fix)
    for engine in engines:
        name = of_tenant(f"{engine['engine']} {engine['service']}".strip(), engine)
        silent = time.time() - instant(engine["last_seen"]).timestamp()
        detail = f"{name}: {counted(engine['requests'], 'request')} in a day, seen {duration(max(silent, 0))} ago"
        yield Finding("engine", "ok", detail)
        yield from _clock(name, engine)
        if missing := [told for told in engine["tells"] if told["told"] == "none"]:
            ways = dict.fromkeys(way for told in missing for way in told["ways"])
            whats = ", ".join(told["what"].replace("_", " ") for told in missing)
            yield Finding("engine", "ok", f"{name} does not tell: {whats}", "; ".join(ways))
    yield from _scrapes(api)


def _clock(name: str, engine: dict[str, Any]) -> Iterator[Finding]:
    """A clock that differs from the collector's, as the ends of the service's requests show it."""
    if (ahead_s := engine["clock_ahead_s"]) is not None and ahead_s > _CLOCK_S:
        detail = f"{name}: its requests end {duration(ahead_s)} in the collector's future"
        fix = "synchronise both clocks (NTP), see TokentrailClockAhead in docs/alerts.md"
        yield Finding("clock", "warn", detail, fix)
    if (behind_s := engine["clock_behind_s"]) is not None:
        detail = f"{name}: its requests arrive {duration(behind_s)} after their end, or later"
        fix = "synchronise both clocks (NTP), or let it send more often, see TokentrailClockBehind in docs/alerts.md"
        yield Finding("clock", "warn", detail, fix)


def _scrapes(api: Api) -> Iterator[Finding]:
    samples = api.get("samples", start="-5m")
    for told in samples["discovery_problems"]:
        fix = "repair it: docs/scraping.md says which targets are scraped until then"
        yield Finding("targets", "warn", f"{told['source']}: {told['problem']}", fix)
    for process in samples["processes"]:
        name = of_tenant(f"{process['service']} {process['instance']}", process)
        if process["up"] is False:
            detail = f"{name}: the last one failed ({process['reason'] or 'down'})"
            yield Finding("scrape", "warn", detail, "is it the engine's address? docs/scraping.md explains the reasons")
        elif process["reason"]:
            detail = f"{name} answers, and tells no metric that tokentrail knows"
            yield Finding("scrape", "warn", detail, "is it the engine's own /metrics? docs/scraping.md lists the names")


def _slos(api: Api) -> Iterator[Finding]:
    answer = api.get("slos")
    slos = answer["slos"]
    if problem := answer["file_problem"]:
        fix = "repair the file: until then the SLOs of the file before judge"
        yield Finding("SLO file", "warn", f"the newest one is not in use: {one_line(problem)}", fix)
    if not slos:
        yield Finding("SLOs", "warn", "there are none: nothing is judged", "start the collector with --slos FILE")
        return
    window = max(slo["window_s"] for slo in slos)
    everything = api.get("goodput", start=f"-{window:.0f}s", e2e="1d")["requests"]["total"]
    for slo in slos:
        selected = slo["requests"]["total"]
        detail = f"{slo['name']} selected {count(selected)} of {count(everything)} requests"
        if everything and not selected:
            yield Finding("SLO", "warn", detail, "compare its `select` with the columns of tokentrail requests")
        elif slo["requests"]["undetermined"]:
            n = count(slo["requests"]["undetermined"])
            yield Finding(
                "SLO",
                "warn",
                f"{detail}; {n} cannot be judged",
                "their source does not report a value that a threshold needs",
            )
        else:
            yield Finding("SLO", "ok", detail)


def _time_outs(api: Api) -> Iterator[Finding]:
    """Time-outs that clients evidently use, and that cut requests of which most would have been answered."""
    for group in api.get("timeouts", start=_DAY)["groups"]:
        for is_set in (one for wait in group["waits"] for one in wait["evident"]):
            would_have = is_set["would_have"]
            if would_have is not None and would_have["low"] > _HEALTHY:
                detail = f"{group['model'] or 'a model without a name'}: {count(is_set['requests'])} requests of a day "
                detail += f"were given up at {duration(is_set['timeout_s'])}, and {percent(would_have['share'])} of "
                detail += "them would have been answered"
                fix = "let clients wait longer: tokentrail timeouts says how long (docs/timeouts.md)"
                yield Finding("time-out", "warn", detail, fix)


def _unclaimed(api: Api) -> Iterator[Finding]:
    names = api.get("spans/names", start=_DAY)["names"]
    total = sum(name["spans"] for name in names)
    if total:
        most = ", ".join(f"{name['service']} {name['name']}".strip() for name in names[:3])
        yield Finding(
            "spans",
            "ok",
            f"{count(total)} spans of the last day are of no known engine (most: {most}): see tokentrail spans",
        )


def show(console: Console, findings: Iterator[Finding], *, as_json: bool) -> bool:
    """Print each finding when it is made. Returns whether none has failed."""
    seen = []
    for found in findings:
        seen.append(found)
        if not as_json:
            line = Text(f"{found.state:<5}", style=_STYLES[found.state])
            console.print(
                line.append(one_line(f"{found.name:<13}{found.detail}"), style="default"),
                soft_wrap=True,
                highlight=False,
            )
            if found.fix:
                console.print(f"     → {one_line(found.fix)}", soft_wrap=True, highlight=False, markup=False)
    if as_json:
        console.print_json(data=[vars(found) for found in seen])
    return all(found.state != "fail" for found in seen)
