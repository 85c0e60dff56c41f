"""The numbers: what requests, SLOs and engine processes did in a window of time. Nothing here knows of HTTP."""
