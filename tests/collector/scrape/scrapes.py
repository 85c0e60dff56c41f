"""Stores pages of metrics as the scraper does."""

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_DELTA

from collector.otlp.checked import ItemLimits
from collector.otlp.exposition import read_exposition, set_labels
from collector.otlp.metrics import check
from collector.otlp.signals import METRICS
from collector.store.insert import insert_otlp
from tests.collector.rows import NOW, SECOND
from tests.collector.scrape.engine import recorded
from tokentrail.semconv import ENGINE, SCRAPER


class Scrapes:
    """Stores pages as the scraper does."""

    def __init__(self, store):
        self._store = store
        self._bodies = []

    def add(
        self,
        text,
        time_ns,
        *,
        service="chat",
        instance="i:1",
        engine="",
        scraper="me",
        up=True,
        reason="",
        delta=False,
    ):
        """Add a page, or why there is none; with `delta`, as a sender whose histograms grew by so much."""
        page = read_exposition(text, time_ns=time_ns, all_names=False, most_series=1000)
        request = ExportMetricsServiceRequest()
        made = request.resource_metrics.add()
        resource = {
            "service.name": service,
            "service.instance.id": instance,
            SCRAPER: scraper,
            ENGINE: engine or page.engine,
        }
        set_labels(made.resource, ((key, value) for key, value in resource.items() if value))
        scope = made.scope_metrics.add(metrics=page.metrics)
        for metric in scope.metrics if delta else ():
            metric.histogram.aggregation_temporality = AGGREGATION_TEMPORALITY_DELTA
        if scraper:
            point = scope.metrics.add(name="up").gauge.data_points.add(time_unix_nano=time_ns, as_double=float(up))
            set_labels(point, [("reason", reason)] if reason else [])
        self._bodies.append(check(request.SerializeToString(), ItemLimits()).payload)
        return self

    def down(self, time_ns, *, up=False, reason="timeout", **fields):
        return self.add("", time_ns, up=up, reason="" if up else reason, **({"engine": "vllm"} | fields))

    def tells_nothing(self, time_ns, **fields):
        return self.add("", time_ns, reason="no_metrics", **fields)

    def store(self):
        insert_otlp(self._store, METRICS, b"".join(self._bodies), str(id(self)))
        return self


def replay(scrapes, recording, name=None, **fields):
    """Store a recording so that its last scrape was 5 s ago; the first scrape's time then."""
    series = recorded(recording, name)
    shift = NOW - 5 * SECOND - series[-1][0]
    for time_ns, text in series:
        scrapes.add(text, time_ns + shift, **fields)
    scrapes.store()
    return series[0][0] + shift
