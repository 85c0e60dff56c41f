"""Burns of SLOs among the incidents: how fast, since when, and which requests are bad."""

import random

import pytest
import yaml
from fastapi.testclient import TestClient

from collector.app.service import build_api
from collector.ask.times import rfc3339
from collector.incidents import slo_burns
from collector.slo.model import load_slos
from tests.collector.rows import NOW, SECOND

MS = 1_000_000
T0 = NOW - 60 * SECOND


def calm_before(rows):
    """Many good requests five hours ago, so that only the rules about minutes fire."""
    rows.requests([{"slo_class": "chat", "ended": NOW - 5 * 3600 * SECOND}] * 3000)


def test_a_burning_budget_says_how_fast_and_since_when(api, rows):
    rows.requests([{"slo_class": "chat", "ttft_ns": 1, "tpot_ns": 1.0} for _ in range(10)])
    rows.requests([{"slo_class": "chat", "ttft_ns": SECOND, "ended": NOW - i * SECOND} for i in range(20, 60)])
    (burn,) = api("incidents")["incidents"]
    assert (burn["cause"], burn["slo"], burn["severity"], burn["requests_affected"]) == (
        "slo_burn",
        "chat",
        "page",
        40,
    )
    assert burn["title"] == 'SLO "chat" burns its error budget 16.0 times as fast as allowed'
    assert burn["detail"] == (
        "80 % of the requests of the last 5 min were bad; the SLO allows 5 %. page-outage fires above "
        "10 times the allowed share, also over the last 1 min."
    )
    assert burn["start"] == "2026-11-21T09:59:01Z"


def test_a_burn_began_at_the_nanosecond_of_its_first_bad_request(api, rows):
    rows.requests([{"slo_class": "chat", "status": "error", "ended": NOW - SECOND - 75 + i} for i in range(20)])
    burn = api("incidents")["incidents"][0]
    assert (burn["start"], burn["requests_affected"]) == ("2026-11-21T09:59:58.999999925Z", 20)


def test_lost_and_hung_requests_are_among_those_that_a_burn_affects(api, rows):
    """Nothing has ended: each is known by its announcement alone."""
    for age in range(6):
        rows.open(start=NOW - (300 + age) * SECOND, seen=NOW - 220 * SECOND, slo_class="chat")
    for age in range(12):
        rows.open(start=NOW - (20 + age) * SECOND, seen=NOW - SECOND, slo_class="chat")
    burn = next(i for i in api("incidents")["incidents"] if i["slo"] == "chat")
    assert burn["requests_affected"] == sum(one["total"] for one in burn["requests"]) == 6 + 12


def test_a_budget_of_ten_percent_has_no_exponent(api, rows):
    rows.requests([{"slo_class": "completion", "status": "error", "ended": NOW - i * SECOND} for i in range(20, 60)])
    (burn,) = api("incidents")["incidents"]
    assert burn["detail"].startswith("100 % of the requests of the last 5 min were bad; the SLO allows 10 %. page-")


def test_a_burn_began_after_the_last_calm_however_long_ago(api, rows):
    calm_before(rows)

    def ended(seconds_ago, status="error", n=1):
        rows.requests(
            [{"slo_class": "chat", "ended": NOW - s * SECOND, "status": status} for s in seconds_ago for _ in range(n)]
        )

    def start():
        return next(i["start"] for i in api("incidents")["incidents"] if i["cause"] == "slo_burn")

    ended(range(1, 1200, 10))
    ended([700])  # with nothing for some minutes, it is the same burn
    assert start() == "2026-11-21T09:40:09Z"
    ended([1240, 1500])
    assert start() == "2026-11-21T09:35:00Z"
    ended([1570], "ok", n=60)  # calm
    ended([1640])
    assert start() == "2026-11-21T09:35:00Z"


def test_a_burn_of_many_days_is_found_in_remembered_days_and_ends_at_the_slos_window(api, rows):
    apart, day = 50 * 60 * SECOND, 86_400 * SECOND
    edge = [NOW - 30 * day + seconds * SECOND for seconds in (20, -20)]  # a window of a rule holds both
    bad = sorted([*edge, *(NOW - SECOND - n * apart for n in range(40 * day // apart))], reverse=True)
    rows.requests([{"slo_class": "chat", "ended": at, "status": "error"} for at in [*bad, *[NOW - 9 * SECOND] * 9]])

    def burn(end="now"):
        found = next(i for i in api("incidents", end=end)["incidents"] if i["cause"] == "slo_burn")
        return found["start"], found["requests_affected"]

    in_window = [at for at in bad if at >= NOW - 30 * day]
    assert [burn(), burn()] == [(rfc3339(in_window[-1]), len(in_window) + 9)] * 2
    for calm, days in ((bad[-1] + apart // 2, 30), (bad[200] - apart // 2, 7), (NOW - 33_000 * SECOND, 0)):
        rows.requests([{"slo_class": "chat", "ended": calm} for _ in range(600)])
        since = [at for at in in_window if at > calm]
        assert burn() == (rfc3339(since[-1]), len(since) + 9), days


def test_a_pause_longer_than_the_rule_looks_back_is_calm_too(api, rows):
    calm_before(rows)
    rows.requests([{"slo_class": "chat", "ended": NOW - s * SECOND, "status": "error"} for s in range(1, 241, 10)])
    rows.requests([{"slo_class": "chat", "ended": NOW - 4020 * SECOND, "status": "error"}])
    assert api("incidents")["incidents"][0]["start"] == "2026-11-21T09:56:09Z"


def test_the_number_of_a_burn_is_that_of_its_lists_whenever_they_are_asked(api, rows):
    calm_before(rows)

    def ended(status, seconds_ago):
        rows.requests([{"slo_class": "chat", "ended": NOW - s * SECOND, "status": status} for s in seconds_ago])

    ended("error", [450, 451, 452])  # bad, before the calm
    ended("ok", range(300, 420))
    ended("error", range(3, 301, 3))
    ended("ok", range(5, 300, 15))
    rows.open(start=NOW - 90 * SECOND, seen=NOW - SECOND, slo_class="chat")
    rows.open(start=NOW - 200 * SECOND, seen=NOW - 100 * SECOND, slo_class="chat")
    starts = set()
    for seconds_ago in (0, 7, 61):
        found = api("incidents", end=f"-{seconds_ago}s" if seconds_ago else "now", start="-1h")["incidents"]
        burn = next(i for i in found if i["slo"] == "chat")
        totals = [api("requests", **one["parameters"])["total"] for one in burn["requests"]]
        assert totals == [one["total"] for one in burn["requests"]]
        assert burn["requests_affected"] == sum(totals)
        assert burn["requests"][0]["parameters"]["start"] == burn["start"]
        if not seconds_ago:
            assert totals == [100, 1, 1]
        starts.add(burn["start"])
    assert starts == {"2026-11-21T09:55:00Z"}


def test_the_number_of_a_burn_is_that_of_its_list_where_requests_were_sampled(api, rows):
    calm_before(rows)
    for weight, status in ((10.0, "error"), (1.0, "error"), (4.0, "ok")):
        rows.requests(
            [{"slo_class": "chat", "weight": weight, "status": status, "ended": NOW - s * SECOND} for s in range(1, 31)]
        )
    burn = next(i for i in api("incidents")["incidents"] if i["slo"] == "chat")
    (listed,) = burn["requests"]
    assert burn["requests_affected"] == listed["total"] == api("requests", **listed["parameters"])["total"] == 60


def test_the_number_of_a_burn_grows_when_a_faster_rule_of_its_severity_takes_over(api, rows):
    """A quarter of the requests fails for half an hour, and then all: the rule for an outage looks at a minute."""
    half_an_hour = range(120, 1920)
    statuses = [("error" if s % 4 == 0 else "ok", s) for s in half_an_hour] + [("error", s) for s in range(1, 120)]
    rows.requests([{"slo_class": "chat", "status": how, "ended": NOW - s * SECOND} for how, s in statuses])

    def burn(seconds_ago):
        found = api("incidents", start="-3h", end=f"-{seconds_ago}s" if seconds_ago else "now")["incidents"]
        return next(i for i in found if i["slo"] == "chat")

    seen = [burn(seconds_ago) for seconds_ago in range(1500, -1, -500)]
    assert [seen[0]["rule"], seen[-1]["rule"]] == ["ticket-fast", "page-outage"]
    assert [one["severity"] for one in seen] == ["ticket"] * (len(seen) - 1) + ["page"]
    affected = [one["requests_affected"] for one in seen]
    assert affected[:-1] == sorted(affected[:-1])
    assert len({one["start"] for one in seen[:-1]}) == 1
    # The page is about what began two minutes ago.
    assert (seen[-1]["start"], affected[-1]) == ("2026-11-21T09:58:00Z", 120)


def test_a_burn_of_requests_that_hang_began_with_the_oldest(api, rows):
    for age in range(12):
        rows.open(start=NOW - (70 + age) * SECOND, seen=NOW - SECOND, slo_class="chat")
    burn = next(i for i in api("incidents")["incidents"] if i["slo"] == "chat")
    assert (burn["start"], burn["requests_affected"]) == ("2026-11-21T09:58:39Z", 12)
    (one,) = burn["requests"]
    assert one["total"] == api("requests", **one["parameters"])["total"] == 12


def test_many_burns_that_are_looked_for_together_are_those_of_each_slo_alone(rows, tmp_path, ingest_status, clock):
    pick = random.Random(11)
    hour = 3600 * SECOND
    ages = [pick.randrange(1, longest) for longest, n in ((72 * hour, 400), (hour // 4, 200)) for _ in range(n)]
    rows.requests(
        [{"tenant": pick.choice("ab"), "slo_class": pick.choice(("chat", "")), "ended": NOW - age,
          "ingested_at": NOW - age + SECOND if age > SECOND else NOW, "e2e": pick.choice((1, 5, 30)) * SECOND,
          "ttft_ns": pick.choice((None, 1, SECOND)), "status": pick.choice(("ok", "ok", "error", "cancelled")),
          "error_type": pick.choice(("", "refused")), "weight": pick.choice((1.0, 1.0, 3.0))} for age in ages]
        + [{"ended": NOW - age * hour} for age in (30, 31) for _ in range(900)]
        + [{"ended": NOW - 2 * hour - i * SECOND, "slo_class": "chat", "ttft_ns": 1} for i in range(900)]
    )  # fmt: skip
    slos = [
        {"name": "all", "window": "30d", "thresholds": {"e2e": "4s"}},
        {"name": "chat", "window": "30d", "select": {"slo_class": ["chat"]}, "thresholds": {"ttft": "500ms"}},
        {"name": "short", "window": "3d", "select": {"tenant": ["a"]}, "thresholds": {"ttft": "2s", "e2e": "20s"},
         "errors": {"exclude": ["refused"]}},
        {"name": "each", "window": "7d", "group_by": ["tenant"], "thresholds": {"e2e": "60s"}},
        {"name": "well", "window": "7d", "select": {"tenant": ["nobody"]}, "thresholds": {"e2e": "60s"}},
    ]  # fmt: skip

    def incidents(*some, times=1):
        path = tmp_path / "some.yaml"
        path.write_text(yaml.safe_dump({"slos": [{"objective": "0.9", **slo} for slo in some]}))
        app, _ = build_api(rows.store, load_slos(path), ingest_status, lost_after_s=30.0, clock=clock)
        with TestClient(app) as client:
            first, *again = (client.get("/api/v1/incidents").json()["incidents"] for _ in range(times))
            assert all(one == first for one in again), "from remembered days"
            for one in first if again else ():
                (listed,) = one["requests"]
                assert client.get("/api/v1/requests", params=listed["parameters"]).json()["total"] == listed["total"]
        return first

    together = incidents(*slos, times=2)
    alone = [incident for slo in slos for incident in incidents(slo)]
    assert sorted(together, key=str) == sorted(alone, key=str)
    assert {(one["slo"], one["tenant"]) for one in together} >= {("all", None), ("chat", None), ("short", None)}
    assert len({one["start"] for one in together}) > 2


def test_a_burn_of_more_slos_than_before_is_not_read_from_what_was_remembered_of_the_fewer(
    rows, tmp_path, ingest_status, clock
):
    path, hour = tmp_path / "two.yaml", 3600 * SECOND
    common = {"window": "30d", "thresholds": {"e2e": "9s"}}
    slos = [
        {"name": name, "objective": objective, **common} for name, objective in (("wide", "0.5"), ("strict", "0.99"))
    ]
    path.write_text(yaml.safe_dump({"slos": slos}))
    rows.requests([{"ended": NOW - i * SECOND, "status": "error"} for i in range(1, 600)])
    some = [("error" if i % 4 == 0 else "ok", NOW - 2 * hour - i * 90 * SECOND) for i in range(1, 900)]
    rows.requests([{"ended": ended, "ingested_at": ended, "status": status} for status, ended in some])
    app, _ = build_api(rows.store, load_slos(path), ingest_status, lost_after_s=30.0, clock=clock)
    with TestClient(app) as client:
        ends = ("-2h", "now", "-2h")
        found = [
            client.get("/api/v1/incidents", params={"start": "-3h", "end": end}).json()["incidents"] for end in ends
        ]
    assert [[one["slo"] for one in of] for of in found] == [["strict"], ["strict", "wide", "strict"], ["strict"]]
    assert [[one["requests_affected"] for one in of] for of in found] == [[224], [599, 599, 224], [224]]


class TestAPromiseToEachTenant:
    """The rules of Prometheus watch each tenant, so an all-clear here must be one for each of them."""

    @pytest.fixture
    def slos_file(self, tmp_path):
        path = tmp_path / "slos.yaml"
        path.write_text(
            'slos: [{name: each, objective: "0.9", window: 30d, group_by: [tenant], thresholds: {e2e: 60s}}]'
        )
        return path

    @staticmethod
    def ended(rows, tenant, ok, failed):
        statuses = [("ok", i) for i in range(ok)] + [("error", i) for i in range(failed)]
        rows.requests([{"tenant": tenant, "status": how, "ended": NOW - (5 + i) * SECOND} for how, i in statuses])

    def test_the_verdict_on_the_only_tenant_is_its_own(self, api, rows):
        self.ended(rows, "plum", 5, 60)
        answer = api("verdict")
        assert (answer["state"], answer["tenant"], answer["since_ns"]) == ("broken", "plum", NOW - 64 * SECOND)
        assert answer["sentence"].startswith("each for plum is not kept")
        assert answer["why"].startswith("All ended with ")

    def test_a_burn_of_one_of_them_is_an_incident_although_all_together_are_well(self, api, rows):
        self.ended(rows, "big", 500, 3)
        self.ended(rows, "small", 0, 20)
        self.ended(rows, "", 5, 0)
        rows.open(start=NOW - 90 * SECOND, seen=NOW - SECOND, tenant="small")
        rows.open(start=NOW - 95 * SECOND, seen=NOW - SECOND, tenant="big")
        answer = api("incidents")
        (burn,) = answer["incidents"]
        assert (burn["slo"], burn["tenant"], burn["severity"]) == ("each", "small", "page")
        assert burn["title"] == 'SLO "each" burns its error budget 10.0 times as fast as allowed for small'
        assert (burn["start"], burn["requests_affected"]) == ("2026-11-21T09:59:36Z", 21)
        assert [one["total"] for one in burn["requests"]] == [20, 1]
        assert [api("requests", **one["parameters"])["total"] for one in burn["requests"]] == [20, 1]
        (slo,) = api("slos")["slos"]
        assert (slo["firing"], {group["tenant"]: group["firing"] for group in slo["groups"]}) == (
            "page", {"": None, "big": None, "small": "page"},
        )  # fmt: skip
        assert not any(rule["firing"] for rule in slo["burn"])
        assert answer["firing_outside"] == 0
        assert api("incidents", tenant="small") == answer
        elsewhere = api("incidents", tenant="big")
        assert (elsewhere["incidents"], elsewhere["firing_outside"]) == ([], 1)

    def test_tenants_that_are_no_worse_than_all_together_have_none_of_their_own(self, api, rows):
        self.ended(rows, "a", 0, 20)
        self.ended(rows, "b", 0, 20)
        (burn,) = api("incidents")["incidents"]
        assert (burn["tenant"], burn["severity"], burn["requests_affected"]) == (None, "page", 40)
        own = api("incidents", tenant="a")
        assert [(i["tenant"], i["requests_affected"]) for i in own["incidents"]] == [("a", 20)]
        assert own["firing_outside"] == 0

    def test_so_many_are_named_the_worst_first_and_the_others_are_counted(self, api, rows, monkeypatch):
        monkeypatch.setattr(slo_burns, "MOST_TENANTS", 2)
        self.ended(rows, "big", 5000, 0)
        for tenant, failed in (("a", 20), ("b", 22), ("c", 21), ("", 23)):
            self.ended(rows, tenant, 0, failed)
        first, last = sorted(api("incidents")["incidents"], key=lambda i: -i["requests_affected"])
        assert (first["tenant"], last["tenant"]) == ("", "b")
        assert first["title"].endswith("as fast as allowed for requests without a tenant")
        assert [api("requests", **one["parameters"])["total"] for one in first["requests"]] == [23]
        assert "more tenants" not in first["detail"]
        assert api("incidents", tenant="big")["firing_outside"] == 2
        assert last["detail"].endswith(" 2 more tenants burn their budgets too; `groups` of the SLO names them.")

    def test_a_name_for_which_no_filter_asks_has_no_list(self, api, rows):
        self.ended(rows, "big", 5000, 0)
        for length in (256, 257):
            self.ended(rows, "t" * length, 0, 20)
        burns = api("incidents")["incidents"]
        assert {(len(burn["tenant"]), burn["requests_affected"], len(burn["requests"])) for burn in burns} == {
            (256, 20, 1), (257, 20, 0),
        }  # fmt: skip
