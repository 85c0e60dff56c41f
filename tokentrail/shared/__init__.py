"""What is no SDK: helpers that the command line, the collector, the dashboard and the engine share."""
