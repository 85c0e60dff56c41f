"""What the engine says to the world: OpenAI-compatible HTTP."""
