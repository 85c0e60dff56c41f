"""tokentrail: SLO monitoring for LLM inference that keeps the trail of every token."""

__version__ = "0.1.0"
