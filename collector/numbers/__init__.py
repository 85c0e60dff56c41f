"""The numbers of a window: latencies, goodput, heat maps, curves, values of dimensions, SLOs and changes."""
