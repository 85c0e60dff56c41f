"""Backup and restore of the embedded store; docs/storage.md has the backup of a ClickHouse server."""
