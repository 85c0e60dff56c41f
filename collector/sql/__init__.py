"""SQL, in files: tables and views (`schema/`, `engines/`), whole queries (`queries/`) and their parts (`parts/`)."""
