-- A span of kind SERVER below a request is the same request at another vantage, and makes no wrapper of it.
parent_span_id != '' AND kind != 2
