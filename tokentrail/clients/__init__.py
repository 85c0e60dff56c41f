"""Requests that are recorded at the client, from the chunks of other people's APIs."""
