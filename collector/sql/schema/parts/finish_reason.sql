-- The finish reason that decides, as `worst` in tokentrail/shared/finish_reasons.py: of several answers that of one which failed goes before all, then
-- a cancelled one, then a word that nobody knows. They come as an array, as a string with JSON ('["length"]'), or as a plain string. Words for
-- "nothing" are none.
left(replaceRegexpOne((multiIf(
    startsWith(text['gen_ai.response.finish_reasons'], '['), arrayMap(raw -> if(startsWith(raw, '"'), JSONExtractString(raw), ''), JSONExtractArrayRaw(text['gen_ai.response.finish_reasons'])),
    text['gen_ai.response.finish_reasons'] != '', [text['gen_ai.response.finish_reasons']],
    attributes.value.array_value.values.string_value[indexOf(attributes.key, 'gen_ai.response.finish_reasons')]) AS told_reasons)[
        greatest(1, coalesce(nullIf(indexOf(arrayMap($end_of, told_reasons) AS told_ends, 'error'), 0), nullIf(indexOf(told_ends, 'cancelled'), 0),
            indexOf(told_ends, 'unknown')))], '^(null|None)$$', ''), 64)
