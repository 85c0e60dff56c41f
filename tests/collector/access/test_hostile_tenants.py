"""Two hostile tenants beside a good one, for 16 s. The command takes ten minutes, sends more, and compares alerts.

Alerts are rules over the series that are compared here.
"""

from tests.hostile_tenants import run


def test_incidents_and_numbers_of_a_good_tenant_are_those_of_a_run_without_the_hostile_ones(tmp_path):
    differences, compared = run(16, tmp_path, rules=False, lost_after_s=8, names=20, tick_s=2.0, past_s=0)
    assert differences == []
    assert compared["hostile payloads"]["acme", 200] > 3
    assert compared["incidents"] == ["cold_start", "engine_hung", "engine_lost", "kv_eviction"]
    assert compared["requests"] > 3
    assert compared["series"] > 50
