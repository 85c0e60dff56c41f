-- The waits between the tokens or chunks of an answer (`token_us`, µs after the start). One that did not end well (`status`) waited for the
-- next one until its end (`whole_ns`).
arrayPopFront(arrayDifference(arrayConcat(arrayMap(us -> toInt64(us), token_us),
    if(status != 'ok' AND notEmpty(token_us), [toInt64(intDiv(whole_ns, 1000))], []))))
