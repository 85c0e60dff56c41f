SELECT 1 FROM tokens WHERE $token_minutes LIMIT 1
