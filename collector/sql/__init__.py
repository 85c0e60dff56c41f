"""SQL, in files: tables and views (`schema/`, `engines/`) and questions (`queries/`)."""
