-- A request's tokens lie between its start and its end, so the minutes to read follow from the requests.
minute >= (SELECT toStartOfMinute(min(start)) FROM requests WHERE $parts.ended_in_window AND $filter AND status = 'ok')
  AND minute <= toStartOfMinute(fromUnixTimestamp64Nano({end_ns:Int64} - 1))
