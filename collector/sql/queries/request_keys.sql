SELECT trace_id, span_id FROM requests WHERE $window AND $filter AND status = 'ok'
