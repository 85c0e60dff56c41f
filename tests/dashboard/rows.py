"""Rows as the API answers them, for pages that are drawn without a collector."""

_NAMES = "trace_id span_id request_id verdict status error_type model tenant variant slo_class vantage service instance"
_NUMBERS = "end input_tokens output_tokens cached_tokens preemptions ttft_s tpot_s e2e_s"
LISTED = dict.fromkeys(_NAMES.split(), "x") | dict.fromkeys(_NUMBERS.split()) | {"verdicts": []}
"""A request of a list, whose numbers are not known."""
