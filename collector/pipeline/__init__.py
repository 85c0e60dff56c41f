"""The signals' chains from receiver to store, and the settings of the collector."""
