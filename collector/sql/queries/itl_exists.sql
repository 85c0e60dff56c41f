-- One row when a token lies in the minutes that itl.sql would read, which is cheaper to find out.
SELECT 1 FROM tokens WHERE $parts.token_minutes LIMIT 1
