-- Which of these links have a span, which had their log record joined as a request of its own, and which had so in this segment. A log
-- record that the store refused is no request.
WITH of_logs AS
(
    SELECT segment, arrayJoin(links) AS link FROM joined_segments
    WHERE notEmpty(links) AND segment NOT IN (SELECT concat(segment, '.links') FROM joined_segments WHERE refused != '')
)
SELECT
    hex(link),
    text['process_tenant'] AS tenant,
    countIf(NOT is_log) > 0,
    (link, tenant) IN (SELECT link FROM of_logs),
    (link, tenant) IN (SELECT link FROM of_logs WHERE segment = concat({segment:String}, '.links'))
FROM held_requests
WHERE link IN (SELECT toFixedString(unhex(arrayJoin({links:Array(String)})), 16))
GROUP BY link, tenant
