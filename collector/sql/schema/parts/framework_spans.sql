-- The ids of spans of other makers than `genai`, and zeros if there is one.
SELECT arrayJoin([span_id, toFixedString('', 8)]) FROM flat_spans WHERE claim != 'genai.request' AND claim IN ($calls)
