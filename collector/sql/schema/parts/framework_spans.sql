-- The ids of spans of other makers than `genai`, and zeros if OpenInference's instrumentation of the anthropic client is among them.
SELECT arrayJoin(if(scope = 'openinference.instrumentation.anthropic', [span_id, toFixedString('', 8)], [span_id])) FROM flat_spans
WHERE claim != 'genai.request' AND claim IN ($calls)
