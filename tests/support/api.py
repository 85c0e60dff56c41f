"""The collector's API: its OpenAPI document, and one application for many tests."""

from unittest.mock import patch

from collector.api.app import create_app
from collector.app import service
from collector.app.service import build_api
from collector.base.status import IngestStatus
from collector.store import Store


def openapi():
    """The document, as GET /openapi.json answers it. The store is never asked."""
    app, _ = build_api(Store("chdb:///nowhere"), (), IngestStatus(), lost_after_s=30.0)
    return app.openapi()


NEEDED = {
    "timeseries": {"metric": "ttft"},
    "goodput": {"ttft": "500ms"},
    "compare": {"a.vantage": "server", "b.vantage": "client"},
    "check": {"slo": "chat"},
    "processes/timeline": {"service": "chat", "instance": "i-1"},
}
"""Parameters without which a route gives no answer, by its path below /api/v1/."""


def windowed(document):
    """The paths below /api/v1/ that take a window and name no object, from the OpenAPI document."""
    return [
        path.removeprefix("/api/v1/")
        for path, methods in document["paths"].items()
        if {"start", "end"} <= {one["name"] for one in methods.get("get", {}).get("parameters", ())} and "{" not in path
    ]


class _Newest:
    """Stands for the object that was given last."""

    given = None

    def __getattr__(self, name):
        return getattr(self.given, name)

    def __call__(self, *args):
        return self.given(*args)


_apps = []
_places = {}


def build_shared_api(*args, **kwargs):
    """`build_api` for callers with the usual access and limits: all of a process share one application.

    It answers from the newest caller's store, SLOs and clock. Each application of its own would cost 17 ms of CPU.
    """
    with patch.object(service, "create_app", _create):
        return build_api(*args, **kwargs)


def _create(*given, cancel, **of_all):
    for name, one in enumerate((*given, cancel)):
        _places.setdefault(name, _Newest()).given = one
    if not _apps:
        *places, newest_cancel = _places.values()
        _apps.append(create_app(*places, cancel=newest_cancel, **of_all))
    return _apps[0]
