"""Two sets of requests compared like for like, the gate of a release, and what is different about some."""
