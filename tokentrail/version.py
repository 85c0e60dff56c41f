"""The version. The wheel's metadata and `tokentrail --version` both come from this line."""

__version__ = "0.1.0"
