-- The labels of a request, and those that OpenTelemetry's GenAI conventions have attributes for (genai_names.yaml). A label of the span's own goes before.
mapUpdate(mapFilter((_, value) -> value != '', map($text_labels)), $labels)
