-- Metrics of engines, scraped or sent as OTLP, under common names (collector/otlp/metric_names.yaml).

CREATE TABLE IF NOT EXISTS samples
(
    time      DateTime64(3, 'UTC')                CODEC(DoubleDelta, ZSTD),
    name      LowCardinality(String),                               -- the common name; the engine's own if it has none
    service   LowCardinality(String),
    instance  LowCardinality(String),
    process_tenant LowCardinality(String),
    engine    LowCardinality(String),                               -- the product; '' when its metrics do not tell
    scraper   LowCardinality(String),                               -- the collector that scraped it; '' when it was sent
    raw_name  LowCardinality(String),                               -- the engine's own name
    labels    Map(LowCardinality(String), String) CODEC(ZSTD),
    series    UInt64                              CODEC(ZSTD),      -- a hash of scraper, own name and labels
    kind      LowCardinality(String),                               -- gauge | counter (a total since the process began) | delta
    value     Float64                             CODEC(ZSTD),      -- of a histogram: the number of observations
    sum       Float64                             CODEC(ZSTD),      -- 0 unless it is a histogram, NaN of one that tells none
    bounds    Array(Float64)                      CODEC(ZSTD),      -- the buckets' upper bounds, and
    buckets   Array(UInt64)                       CODEC(ZSTD)       -- the observations in each bucket and above the last one
)
ENGINE = MergeTree
PARTITION BY toDate(time)
ORDER BY (name, service, instance, series, time)
SETTINGS $durable;

CREATE OR REPLACE MATERIALIZED VIEW keep_samples TO samples AS
WITH
    (points -> CAST((points.key, points.value.string_value), 'Map(String, String)')) AS as_map,
    -- OpenTelemetry's AGGREGATION_TEMPORALITY_DELTA is 1
    arrayConcat(
        arrayMap(p -> ('gauge', p.time_unix_nano, p.as_double, 0., [], [], p.attributes), metric.gauge.data_points),
        arrayMap(p -> (if(metric.sum.aggregation_temporality = 1, 'delta', 'counter'),
            p.time_unix_nano, p.as_double, 0., [], [], p.attributes), metric.sum.data_points),
        arrayMap(p -> (if(metric.histogram.aggregation_temporality = 1, 'delta', 'counter'),
            p.time_unix_nano, toFloat64(p.count), p.sum, p.explicit_bounds, p.bucket_counts, p.attributes),
            metric.histogram.data_points)) AS points
SELECT
    fromUnixTimestamp64Nano(toInt64(point.2), 'UTC') AS time,
    metric.name AS name,
    resource['service.name'] AS service,
    resource['service.instance.id'] AS instance,
    $process_tenant AS process_tenant,
    resource['tokentrail.engine'] AS engine,
    resource['tokentrail.scraper'] AS scraper,
    metric.description AS raw_name,
    as_map(point.7) AS labels,
    cityHash64(scraper, raw_name, labels) AS series,
    point.1 AS kind,
    point.3 AS value,
    point.4 AS sum,
    point.5 AS bounds,
    point.6 AS buckets
FROM
(
    SELECT resource, metric, arrayJoin(points) AS point
    FROM
    (
        SELECT as_map(resource_metric.resource.attributes) AS resource, arrayJoin(arrayJoin(resource_metric.scope_metrics).metrics) AS metric
        FROM (SELECT arrayJoin(resource_metrics) AS resource_metric FROM otlp_metrics)
    )
);
