"""The API of the synthetic day, asked at its end."""

from contextlib import contextmanager

from fastapi.testclient import TestClient

from collector.base.status import IngestStatus
from collector.slo.model import load_slos
from collector.store import Store
from tests.support.api import build_shared_api
from tests.support.day import SLOS, new_day

SECOND = 1_000_000_000


@contextmanager
def day_api(folder):
    """The day, and a function that asks the API about all of it, or other times."""
    day = new_day(folder, fresh_s=86_400)
    store = Store.open(f"chdb://{folder}")
    app, _ = build_shared_api(store, load_slos(SLOS), IngestStatus(), lost_after_s=30.0, clock=lambda: day.end)
    client = TestClient(app)

    whole = {"start": day.at(0) / SECOND, "end": day.end / SECOND}

    def ask(path, **params):
        answer = client.get(f"/api/v1/{path}", params=whole | params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    yield day, ask
    store.close()
