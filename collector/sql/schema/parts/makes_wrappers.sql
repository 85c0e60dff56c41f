-- A call whose parent is a wrapper, if that is a call too. A span of kind SERVER below a call is the same request at another vantage, and makes
-- no wrapper of it.
claim IN ($calls) AND parent_span_id != '' AND kind != 2
