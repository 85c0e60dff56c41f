-- A function from what a span tells otherwise to the type of a request's error: the class of an exception, or else a finish reason that is a failure.
((is_cancelled, exception, end, reason) -> multiIf(is_cancelled, '', exception = '' AND end = 'error' AND reason != 'error', reason, exception))
