-- Inserts requests of one segment, each with its parts. `owners` has a row for each span that may have children: its trace, its
-- id, and the trace and the id of the request that it belongs to, and the tenant of the processes of both. `substring` makes a String of an id as it is; toString cuts off
-- zeros at its end.
INSERT INTO joins $settings
WITH owners AS
(
    SELECT unhex(o.1) AS trace, unhex(o.2) AS id, unhex(o.3) AS request_trace, unhex(o.4) AS request, o.5 AS tenant
    FROM (SELECT arrayJoin({owners:Array(Tuple(String, String, String, String, String))}) AS o)
)
SELECT r.* EXCEPT (link, is_log, segment, arrived), arraySort(part -> part.1, f.parts) AS parts
FROM
(
    SELECT * FROM held_requests
    WHERE arrived BETWEEN toDateTime({first_s:UInt32}, 'UTC') AND toDateTime({last_s:UInt32}, 'UTC') AND segment = {segment:String}
      AND (trace_id, span_id, text['process_tenant']) IN (SELECT toFixedString(request_trace, 16), toFixedString(request, 8), tenant FROM owners)
    LIMIT 1 BY trace_id, span_id, text['process_tenant']
) AS r
LEFT JOIN
(
    SELECT o.request_trace AS trace, o.request AS request, o.tenant AS tenant, groupArray({most_parts:UInt32})(p.part) AS parts
    FROM
    (
        SELECT substring(trace_id, 1) AS trace, parent_span_id, text['process_tenant'] AS tenant, (start, end, claim, text, number, events) AS part
        FROM held_spans
        WHERE trace_id IN (SELECT toFixedString(trace, 16) FROM owners)
        LIMIT 1 BY trace_id, span_id, tenant
    ) AS p
    INNER JOIN owners AS o ON p.trace = o.trace AND p.parent_span_id = o.id AND p.tenant = o.tenant
    GROUP BY trace, request, tenant
) AS f ON substring(r.trace_id, 1) = f.trace AND substring(r.span_id, 1) = f.request AND r.text['process_tenant'] = f.tenant
