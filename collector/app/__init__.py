"""The collector as a program: its service, its servers, and its side commands."""
