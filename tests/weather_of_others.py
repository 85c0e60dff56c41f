"""Weather for `python -m tests.weather` that comes from others: a slow store, a backlog, hostile names in alerts."""

import re
import shlex
import threading
import time
from pathlib import Path

import yaml

from collector.metrics.series import printable
from collector.slo.model import load_slos
from tests.alerts.pages import Hook, monitoring
from tests.collector.test_power_cut import body, counted
from tests.support.clickhouse_server import Server
from tests.support.collector import Collector
from tests.support.otlp import Request
from tokentrail import semconv

SLOW_S = 60.0
HELD_S = 4.0
"""How long each insert waits in the slow store; between two such times it takes what has come for half a second."""
TOKENS = 2000
"""Of a request in the backlog, which has 0.2 MB then."""
NAMES = (
    "{{ $labels.alertname }}", '{{ template "slack.default.text" . }}', "{{ range .Alerts }}", "a\nseverity: page",
    "'; touch owned; '", "$(touch owned) `touch owned`", "<!channel> *b* <https://evil.example|here>",
    "<script>alert(1)</script>", "\u202egnp.exe", "a\u200bb", "\\", "\x1b[31mred", '"', "--help", "x" * 900, "&amp;",
)  # fmt: skip
"""Of services that die."""


def slow(folder):
    """A store that holds each insert for seconds: acknowledgements, pages and `/readyz` come, and each request once."""
    server = Server(folder)
    server.start()
    collector = Collector(folder / "data", store=f"{server.url}/default", command=True).start()
    hold, enough, longest, sent = folder / "hold", threading.Event(), {}, 0

    def holding():
        while not enough.is_set():
            hold.touch()
            enough.wait(HELD_S)
            hold.unlink()
            enough.wait(0.5)

    def timed(kind, call, *arguments):
        began = time.monotonic()
        answer = call(*arguments)
        longest[kind] = max(longest.get(kind, 0.0), round(time.monotonic() - began, 1))
        return answer

    holder = threading.Thread(target=holding)
    holder.start()
    states = set()
    began = time.monotonic()
    try:
        while time.monotonic() < began + SLOW_S:
            sent += 1
            assert timed("acknowledgement", collector.post, body(sent, 3)).status_code == 200
            assert timed("page", collector.get, "/api/v1/summary?start=-3h").status_code == 200
            states.add(timed("/readyz", collector.get, "/readyz").status_code)
            time.sleep(0.2)
    finally:
        enough.set()
        holder.join()
    collector.wait_until_stored()
    collector.wait_until(lambda: counted(collector) == sent)
    assert server.tokens() == (sent, 3 * sent), (server.tokens(), sent)
    assert states <= {200, 503}
    assert collector.stop() == 0
    server.kill()
    return {"requests": sent, "longest seconds": longest, "/readyz": sorted(states)}


def backlog(folder, megabytes):
    """A store that is away while so many MB come, and is back then: all of it is stored once, within bounded memory."""
    server = Server(folder)
    server.start()
    collector = Collector(folder / "data", store=f"{server.url}/default", command=True).start()
    server.kill()
    memory = [_peak_mb(collector)]
    sent = size = 0
    while size < megabytes * 10**6:
        sent += 1
        made = body(sent, TOKENS)
        assert collector.post(made).status_code == 200
        size += len(made)
    waiting = sum(path.stat().st_size for path in collector.data_dir.glob("wal*/*.wal"))
    memory.append(_peak_mb(collector))
    began = time.monotonic()
    server.start()
    collector.wait_until(lambda: not list(collector.data_dir.glob("wal*/*.wal")), timeout_s=1800)
    took_s = time.monotonic() - began
    collector.wait_until(lambda: counted(collector) == sent)
    assert server.tokens() == (sent, TOKENS * sent), (server.tokens(), sent)
    memory.append(_peak_mb(collector))
    assert collector.stop() == 0
    server.kill()
    told = {"MB": round(size / 1e6), "MB in the log": round(waiting / 1e6), "seconds": round(took_s), "requests": sent}
    return told | {"peak MB before, with the backlog, after": memory}


def _peak_mb(collector):
    status = Path(f"/proc/{collector.process.pid}/status").read_text()
    return round(int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024)


def names(folder):
    """Services of hostile names die: what a real Alertmanager posts has the names as texts, and one shell word each."""
    slos, hook = folder / "slos.yaml", Hook()
    slo = {"name": "all", "objective": "0.9", "window": "30d", "thresholds": {"e2e": "60s"}}
    slos.write_text(yaml.safe_dump({"slos": [slo]}))
    load_slos(slos)
    collector = Collector(folder / "data", "--lost-after-s", "5", "--slos", str(slos), command=True).start()
    now, wanted = time.time_ns(), {printable(name) for name in NAMES}
    for trace, name in enumerate(NAMES, start=1):
        request = Request(**{semconv.SERVICE_NAME: name, semconv.SERVICE_INSTANCE_ID: name})
        asked = {semconv.OPERATION_NAME: "chat", semconv.REQUEST_MODEL: name}
        request.span(
            semconv.OPEN_SPAN, trace=trace, span=2, parent=1, start=now - 10**9, ns=10**9, attributes=asked, kind=2
        )
        assert collector.post(request.body()).status_code == 200
    posted = {}
    with monitoring(folder, slos, collector.urls["api"].removeprefix("http://"), hook.url):
        deadline, alive = time.monotonic() + 240, 10**6
        while posted.keys() != wanted and time.monotonic() < deadline:
            time.sleep(1)
            alive += 1
            assert collector.post(body(alive, 1)).status_code == 200  # where nobody sends, nobody is lost
            alerts = [alert for _, post in [*hook.posts["TokentrailEngineLost"]] for alert in post["alerts"]]
            posted = {alert["labels"]["service_name"]: alert["annotations"] for alert in alerts}
    collector.stop()
    assert posted.keys() == wanted, wanted ^ posted.keys()
    for name, annotations in posted.items():
        assert annotations["summary"] == f"{name} died with requests in flight", annotations
        assert f"hears nothing from {name}. Its" in annotations["description"], annotations
        words = shlex.split(annotations["command"])
        assert words[words.index("--service") + 1] == words[words.index("--instance") + 1] == name, annotations
        assert words == ["tokentrail", "requests", "--status", "lost", "--service", name, "--instance", name,
                         "--start", "-1h"], words  # fmt: skip
    return {"names": len(posted)}
