"""The error that all model code raises."""


class ModelError(Exception):
    """A model cannot be found, fetched or used. The message names the model, the reason and the remedy."""
