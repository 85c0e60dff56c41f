"""The requests of a window, counted in cells by which every number is added up, and the verdicts of SLOs."""
