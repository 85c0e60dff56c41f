"""SQL, in files: tables and views (`schema/`, `engines/`), migrations, and the joins of spans (`join/`)."""
