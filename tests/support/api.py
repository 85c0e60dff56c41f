"""The OpenAPI document of the collector's API."""

from collector.service import build_api
from collector.status import IngestStatus
from collector.store import Store


def openapi():
    """The document, as GET /openapi.json answers it. The store is never asked."""
    app, _ = build_api(Store("chdb:///nowhere"), (), IngestStatus(), lost_after_s=30.0)
    return app.openapi()
