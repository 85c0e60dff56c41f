"""Access to a collector that others reach: keys, tenants, limits, the audit log and TLS."""
