"""The version, where the SDK can read it without importing itself."""

__version__ = "0.1.0"
