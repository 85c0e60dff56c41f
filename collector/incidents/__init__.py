"""Incidents, burns and the verdict: what is wrong now or was, since when, whose it is, and by what cause."""
