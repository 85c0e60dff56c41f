"""What can be wrong with a model."""


class ModelError(Exception):
    """A model cannot be found, fetched or used; the message says which and what to do."""
