-- One row when any token is as old as the window's end. Without one, itl.sql need not join tokens to requests.
SELECT 1 FROM tokens WHERE minute <= toStartOfMinute(fromUnixTimestamp64Nano({end_ns:Int64})) LIMIT 1
