"""SLO file, burn-rate windows and the Prometheus rules made from them."""
