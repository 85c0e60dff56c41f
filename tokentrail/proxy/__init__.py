"""A streaming reverse proxy that records requests of OpenAI- and Anthropic-compatible servers (`tokentrail proxy`)."""
