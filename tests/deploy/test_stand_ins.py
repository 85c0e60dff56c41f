"""The images that stand in for others have their names, and only Grafana has none."""

from pathlib import Path

from tests.deploy import stand_ins


def test_each_image_of_the_compose_file_and_the_dockerfile_has_a_stand_in_but_grafana(services, stages):
    named = {stage.base for stage in stages.values()} | {one["image"] for one in services.values()}
    ours = {one["image"] for one in services.values() if "build" in one}
    assert {*stand_ins.images()} == named - ours
    assert {stand_ins.target_of(image) for image in stand_ins.images()} - stand_ins.targets() == {"grafana-grafana"}
    assert stand_ins.targets() - {stand_ins.target_of(image) for image in stand_ins.images()} == {"packages"}


def test_the_server_of_the_stand_in_has_the_pins_of_the_tests():
    pins = stand_ins.pinned(stand_ins.OF_CLICKHOUSE).split()
    assert [pin.split("==")[0] for pin in pins] == sorted(stand_ins.OF_CLICKHOUSE)


def test_builds_look_where_pip_of_this_machine_looks(monkeypatch):
    monkeypatch.setattr(stand_ins, "bridge", lambda: "172.17.0.1")
    assert "find-links" not in stand_ins.pip_settings(None)
    lines = stand_ins.pip_settings(Path("/wheels")).splitlines()
    assert f"find-links = http://172.17.0.1:{stand_ins.WHEELS_PORT}/" in lines
    assert "trusted-host = 172.17.0.1" in lines
