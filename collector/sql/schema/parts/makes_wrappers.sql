-- Calls that make wrappers of others. A span of kind SERVER below a call is the same request at another vantage, and makes
-- no wrapper of it.
claim IN ($calls) AND (parent_span_id != '' OR scope = 'com.anthropic.sdk.python') AND kind != 2
