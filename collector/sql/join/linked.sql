-- Which of these links have a span, and which had their log record joined as a request of its own.
SELECT
    hex(link),
    countIf(NOT is_log) > 0,
    link IN (SELECT arrayJoin(links) FROM joined_segments WHERE notEmpty(links))
FROM held_requests
WHERE link IN (SELECT toFixedString(unhex(arrayJoin({links:Array(String)})), 16))
GROUP BY link
