"""`python -m tests.hostile_tenants --minutes 10`: two hostile tenants beside a good one, at real collectors with keys.

The good tenant sends the same bytes to two collectors. At one it is alone. At the other, a tenant forges all of its
engine processes, fails requests under its names, and has run quicker engines under the name of its service for longer
than a law of steps is learned from; another one floods it with names. One Prometheus evaluates the shipped rules and
packs for both. The run fails when an alert, an incident, an explanation or a number of the good tenant differs.
"""

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from operator import ne
from pathlib import Path

import httpx
import yaml

from alerts.engine_packs import packs
from alerts.generate import generate
from collector.slo.model import load_slos
from tests.alerts.test_prometheus import free_port
from tests.hostile_traffic import GOOD, LAWS, Flood, Forger, GoodTenant
from tests.support.collector import PROTOBUF, Collector
from tests.support.keys import add_key

LATEST_S = 25
"""The last second of a minute in which a run begins."""
SLOS = """
slos:
  - {name: each, objective: "0.9", window: 7d, group_by: [tenant], thresholds: {ttft: 500ms, e2e: 10s}}
  - {name: good, objective: "0.99", window: 7d, select: {tenant: [bolt]}, thresholds: {e2e: 10s}}
"""
TICK_S = 1.0
PATIENCE_S = 300
"""How long an answer may take, on a busy machine too."""
CLOSE_S = 20
"""Two collectors give a request up, and Prometheus sees it, at moments that differ by so much at most."""
QUERIES = (
    "summary", "goodput?ttft=500ms", "slos", "incidents", "requests?limit=1000", "requests?limit=1000&status=lost",
    "requests?limit=1000&status=in_flight", "timeseries?metric=ttft&step=10s", "timeseries?metric=requests&step=10s",
)  # fmt: skip
"""What the good tenant asks with a key of its own."""
EXPLAINED = (
    "explain", "explain?slo=each", "explain?metric=ttft&quantile=0.9", "verdict", "differences", "differences?slo=each",
    "requests?limit=1000&explained=true",
)  # fmt: skip
"""What it asks of causes. `/requests/{id}` of some requests comes to it."""
PAST_S = 1500
"""Two whole periods of ten minutes, in each of which a law is learned."""
_OF_A_LAW_S = 30.0
OF_PROCESSES = {"processes": "processes", "engines": "engines", "cold_starts": "cold_starts", "samples": "processes",
                "incidents": "incidents"}  # fmt: skip
"""What an admin asks, and the list in which the good tenant's processes are."""
OF_THE_MOMENT = re.compile(
    r"_timestamp_seconds$|_(cause|culprit|held_up|reason)_|^tokentrail_slo_(attainment|budget|burn|exhaustion)"
)
"""Metrics that depend on when a collector looked, or explained: the API answers for the same moment."""


_BURNS = {"burn", "short_burn", "long_burn", "peak_burn"}
_BURNED = re.compile(r"[\d.]+ (?=times as fast|% good in the last|% of the requests of the last)")
"""What words tell of a burn rate. It counts what has arrived, and a busy machine takes it later."""
EQUAL_WITHIN_S = 120.0
EXPLAINED_WITHIN_S = 300.0
_SERIES = re.compile(r"^(\w+)\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Side:
    """A collector with keys for all three tenants."""

    def __init__(self, folder, cluster, lost_after_s):
        slos = folder / "slos.yaml"
        slos.write_text(SLOS)
        self.cluster, keys = cluster, folder / cluster / "keys.json"
        flags = ["--slos", str(slos), "--lost-after-s", str(lost_after_s), "--metrics-without-key", "true"]
        flags += ["--query-timeout-s", str(PATIENCE_S)]
        self.collector = Collector(folder / cluster, *flags)
        self.collector.http.timeout = 2 * PATIENCE_S
        self.senders = {tenant: add_key(keys, "ingest", tenant) for tenant in (GOOD, "acme", "mallory")}
        self.good, self.admin = add_key(keys, "read", GOOD), add_key(keys, "admin")

    def send(self, tenant, bodies):
        """Post bodies by signal; the statuses."""
        headers = PROTOBUF | self.senders[tenant]
        urls = {signal: f"{self.collector.urls['otlp-http']}{signal.http_path}" for signal, _ in bodies}
        return {self.collector.http.post(urls[s], content=body, headers=headers).status_code for s, body in bodies}

    def ask(self, path, headers):
        url = f"{self.collector.urls['api']}/api/v1/{path}"
        answer = self.collector.http.get(url, headers=headers)
        assert answer.status_code == 200, (path, answer.text)
        return answer.json()

    def exposed(self):
        """Values by metric and labels of the good tenant, without those that depend on the moment."""
        mine, found = {("process_tenant", GOOD), ("tenant", GOOD)}, {}
        for name, labels, value in _SERIES.findall(self.collector.get("/metrics").text):
            own = tuple(sorted(_LABEL.findall(labels)))
            if mine & {*own} and not OF_THE_MOMENT.search(name):
                found[name, own] = float(value)
        return found

    def is_settled(self, end_s):
        """All that came until then is stored, and /metrics was read from the store since."""
        text = self.collector.get("/metrics").text
        names = ("state_timestamp_seconds", "heard_until_timestamp_seconds", "wal_segments")
        values = (re.search(rf"^tokentrail_collector_{name} (\S+)$", text, re.MULTILINE)[1] for name in names)
        state_s, heard_s, waiting = map(float, values)
        return min(state_s, heard_s) > end_s + 5 and not waiting

    def explanations(self, times, ids):
        """What the good tenant is answered about causes. (An admin's excess compares with all tenants' requests.)"""
        asked = [f"{path}{'&' if '?' in path else '?'}{times}" for path in EXPLAINED]
        asked += [f"requests/{trace_id}" for trace_id in ids]
        return {path: _without_moments(self.ask(path, self.good)) for path in asked}

    def answers(self, times):
        """What the good tenant, and an admin about it, is answered for the same times at every collector."""
        given = {path: self.ask(f"{path}{'&' if '?' in path else '?'}{times}", self.good) for path in QUERIES}
        found = {path: _without_moments(answer) for path, answer in given.items()}
        for path, name in OF_PROCESSES.items():
            rows = self.ask(f"{path}?{times}", self.admin)[name]
            own = [row for row in rows if row["process_tenant"] == GOOD]
            found[f"admin: {path}"] = _without_moments(own)
        return found


def _without_moments(answer):
    """An answer without the moments at which a collector gave requests up: an incident has ended, or it has not."""
    if isinstance(answer, str):
        return _BURNED.sub("", answer)
    if isinstance(answer, list):
        return [_without_moments(one) for one in answer]
    if not isinstance(answer, dict):
        return answer
    answer = answer | dict.fromkeys(_BURNS & answer.keys())
    if "cause" in answer and "firing" in answer:
        # The lists of requests begin when they were given up.
        lists = [(one["total"], one["parameters"].get("status")) for one in answer["requests"]]
        answer = answer | {"end": answer["end"] is not None, "requests": lists}
    if "until_ns" in answer and "inside" in answer:
        until = re.sub(r"^(From [^.]*?) to [^.]*\.", r"\1.", answer["sentence"])
        answer = answer | {"until_ns": answer["until_ns"] is not None, "sentence": until}
    return {name: _without_moments(value) for name, value in answer.items()}


class Prometheus:
    """Evaluates the shipped rules and packs for each side, which is a cluster."""

    def __init__(self, folder, sides):
        rules = generate(load_slos(folder / "slos.yaml")) | {f"pack-{name}.yml": text for name, text in packs().items()}
        for name, text in rules.items():
            (folder / name).write_text(re.sub(r"\n  interval: .*", "", text))
        targets = [
            {"targets": [side.collector.urls["api"].removeprefix("http://")], "labels": {"cluster": side.cluster}}
            for side in sides
        ]
        scrapes = {"job_name": "tokentrail-collector", "honor_labels": True, "static_configs": targets}
        config = {
            "global": {"scrape_interval": "2s", "evaluation_interval": "2s"},
            "rule_files": [str(folder / name) for name in rules],
            "scrape_configs": [scrapes],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        port = free_port()
        flags = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb"]
        with (folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["prometheus", *flags, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log
            )
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", trust_env=False)

    def fired(self, cluster, since_s):
        """The alerts about the good tenant that fired, each with its labels and the time from which on it did."""
        times = {"start": since_s, "end": time.time(), "step": "2s"}
        query = f'ALERTS{{alertstate="firing", cluster="{cluster}"}}'
        result = self._http.get("/query_range", params={"query": query, **times}).raise_for_status().json()
        found = {}
        for series in result["data"]["result"]:
            labels = {name: value for name, value in series["metric"].items() if name != "cluster"}
            if cluster == "alone" and labels.get("groups") == "all":  # a page for all of them, who are the good tenant
                labels = {name: value for name, value in labels.items() if name != "groups"} | {"tenant": GOOD}
            if GOOD in (labels.get("process_tenant"), labels.get("tenant")):
                found[json.dumps(labels, sort_keys=True)] = series["values"][0][0]
        return found

    def stop(self):
        self._process.terminate()
        self._process.wait(120)


def _wait_for_a_minute():
    """Until more than half a minute is left: a burn begins with a minute of arrival, which no body may straddle."""
    if (second := time.time() % 60) > LATEST_S:
        time.sleep(60 - second)


def _wait_until_settled(sides, end_s):
    """Both are asked all the time: one that nobody asks for longer than `lost_after_s` waits for its senders."""
    deadline = time.monotonic() + EQUAL_WITHIN_S
    while False in [side.is_settled(end_s) for side in sides]:
        assert time.monotonic() < deadline, "\n".join(side.collector.state() for side in sides)
        time.sleep(TICK_S)


def _exposed_differently(sides):
    """What /metrics of both tell that stays different: a request is given up at one a moment earlier."""
    deadline = time.monotonic() + EQUAL_WITHIN_S
    while True:
        exposed = [side.exposed() for side in sides]
        found = [
            f"/metrics {key}: {exposed[0].get(key)} alone, {exposed[1].get(key)} beside"
            for key in sorted(exposed[0].keys() | exposed[1].keys())
            if not math.isclose(exposed[0].get(key, math.inf), exposed[1].get(key, math.inf), rel_tol=1e-9)
        ]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(1.0)


def _explained_differently(sides, times):
    """The explanations that stay different: one side explains some seconds earlier. And the levels of the requests."""
    listed = sides[0].ask(f"requests?limit=1000&service={LAWS}&{times}", sides[0].good)["requests"]
    ids = [request["trace_id"] for request in listed[:: max(1, len(listed) // 20)]]
    deadline = time.monotonic() + EXPLAINED_WITHIN_S
    while True:
        pairs = [*zip(*(side.explanations(times, ids).items() for side in sides), strict=True)]
        found = [f"{path}: {_first_difference(a, b, differ)}" for (path, a), (_, b) in pairs if differ(a, b)]
        levels = Counter(answer["explained"] and answer["explained"]["level"] for (_, answer), _ in pairs[-len(ids) :])
        if (not found and None not in levels) or time.monotonic() > deadline:
            return found, dict(levels)
        time.sleep(5.0)


def run(seconds, folder, *, rules=True, lost_after_s=15, names=80, tick_s=TICK_S, past_s=PAST_S):
    """Send for so long, with `names` new names each `tick_s`; what differs, and a summary of what was compared.

    Without `rules`, alerts are not compared, and without `past_s`, no explanations.
    """
    sides = [Side(folder, cluster, lost_after_s) for cluster in ("alone", "beside")]
    forger, flood = Forger(), Flood(names)
    statuses, prometheus, both = {}, None, ThreadPoolExecutor(len(sides))
    try:
        for side in sides:
            side.collector.start()
        if rules:
            prometheus = Prometheus(folder, sides)
        for bodies in forger.past(past_s):
            assert sides[1].send("acme", bodies) == {200}
        end_s = time.monotonic() + (_OF_A_LAW_S if past_s else 0.0)
        while time.monotonic() < end_s:
            for side in sides:
                side.ask("summary", side.good)
            time.sleep(TICK_S)
        _wait_for_a_minute()
        good, began_s = GoodTenant(), time.time()
        while (now_s := time.time()) < began_s + seconds:
            bodies = good.bodies(now_s - began_s)
            # At the same time: on a busy machine, one of them would give a request up before its next word comes.
            assert [*both.map(lambda side, sent=bodies: side.send(GOOD, sent), sides)] == [{200}, {200}]
            for side in sides:
                side.ask("summary", side.good)
            for tenant, hostile in (("acme", forger), ("mallory", flood)):
                for status in sides[1].send(tenant, hostile.bodies(now_s - began_s)):
                    statuses[tenant, status] = statuses.get((tenant, status), 0) + 1
            time.sleep(max(0.0, tick_s - (time.time() - now_s)))
        end_s = time.time()
        times = f"start={int(began_s) - 60}&end={end_s:.3f}"
        _wait_until_settled(sides, end_s)
        seen = [side.answers(times) for side in sides]
        differences = [
            f"{path}: {_first_difference(*pair)}" for path in seen[0] if ne(*(pair := [s[path] for s in seen]))
        ]
        differences += _exposed_differently(sides)
        explained, levels = _explained_differently(sides, times) if past_s else ([], {})
        differences += explained
        if prometheus:
            time.sleep(CLOSE_S)
        fired = [prometheus.fired(side.cluster, began_s) if prometheus else {} for side in sides]
        differences += [
            f"alert {labels}: since {fired[0].get(labels)} alone, since {fired[1].get(labels)} beside"
            for labels in sorted(fired[0].keys() | fired[1].keys())
            if abs(fired[0].get(labels, 0) - fired[1].get(labels, 0)) > CLOSE_S
        ]
        return differences, {
            "answers": len(seen[0]), "series": len(sides[0].exposed()), "hostile payloads": statuses,
            "requests": seen[0]["summary"]["requests"]["total"],
            "levels": levels,
            "incidents": sorted({one["cause"] for one in seen[0]["admin: incidents"]}),
            "alerts": sorted({json.loads(labels)["alertname"] for labels in fired[0]}) if prometheus else None,
        }  # fmt: skip
    finally:
        both.shutdown()
        if prometheus:
            prometheus.stop()
        for side in sides:
            if side.collector.process and side.collector.process.poll() is None:
                side.collector.stop()


def differ(one, other):
    """Whether two JSON documents differ by more than a microsecond or two, or a millionth, in a number.

    A round of the explainer sums the steps that it reads, from the first one on, and rounds to microseconds. Where
    rounds begin depends on the moment, so the last microsecond does.
    """
    if isinstance(one, float) and isinstance(other, float | int):
        return not math.isclose(one, other, rel_tol=1e-6, abs_tol=2e-6)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() != other.keys() or any(differ(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) != len(other) or any(map(differ, one, other))
    return one != other


def _first_difference(one, other, unlike=ne, path=""):
    """The place and the two values of the first difference of two JSON documents."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        name = next(name for name in one if unlike(one[name], other[name]))
        return _first_difference(one[name], other[name], unlike, f"{path}.{name}")
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        place = next(place for place, pair in enumerate(zip(one, other, strict=True)) if unlike(*pair))
        return _first_difference(one[place], other[place], unlike, f"{path}[{place}]")
    return f"{path or 'all'}: {str(one)[:300]} alone, {str(other)[:300]} beside"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        differences, compared = run(given.minutes * 60, Path(folder))
    print(compared)
    print("\n".join(differences) or "nothing differs")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
