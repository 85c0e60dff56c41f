-- A function from what a span tells otherwise, the end of its answer and whether nothing tells an end to the request's status. A refusal is an answer.
((is_cancelled, failed, end, has_no_end) -> multiIf(is_cancelled, 'cancelled', failed OR end = 'error', 'error', end = 'cancelled', 'cancelled',
    has_no_end OR end = 'unknown', 'unknown', 'ok'))
