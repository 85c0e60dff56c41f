-- The bytes of the UUID in `request_id`, zeros if there is none.
toFixedString(unhex(if(match(text['request_id'], '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$$'), replaceAll(text['request_id'], '-', ''), '')), 16)
