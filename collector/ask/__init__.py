"""The query engine: SQL files with their parts, run on the store, whose answers about past days are remembered."""
