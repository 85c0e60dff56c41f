-- The newest value of each series in the window: of those with one of the names, or of all. A histogram counts its
-- observations. A scrape that failed, or that read no metric that is kept, is no answer of its target: it stores up with a reason, and its duration.
-- no rows without: samples
WITH name NOT IN ('up', 'scrape_duration') OR (name = 'up' AND value != 0 AND labels['reason'] = '') AS answered
SELECT
    $parts.process, scraper, name, series,
    argMax(engine, time) AS product,
    argMax(kind, time) AS newest_kind,
    argMax(value, time) AS newest,
    argMax(labels, time) AS newest_labels,
    toUnixTimestamp64Nano(CAST(minIf(time, answered), 'DateTime64(9)')) AS first_answer_ns,
    toUnixTimestamp64Nano(CAST(maxIf(time, answered), 'DateTime64(9)')) AS last_answer_ns,
    toUnixTimestamp64Nano(CAST(max(time), 'DateTime64(9)')) AS seen_ns
FROM samples
WHERE $parts.sampled AND (empty({names:Array(String)}) OR name IN {names:Array(String)})
GROUP BY $parts.process, scraper, name, series
ORDER BY $parts.process, name, series
