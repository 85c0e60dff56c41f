-- Requests with these ends and keys.
end IN (SELECT fromUnixTimestamp64Nano(arrayJoin({row_ends:Array(Int64)}))) AND request_key IN {row_keys:Array(UInt32)}
