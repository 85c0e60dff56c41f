-- The exception's class in a status message such as 'RuntimeError: out of memory', or ''.
extract(status_message, '^([A-Za-z_][A-Za-z0-9_.]*): ')
