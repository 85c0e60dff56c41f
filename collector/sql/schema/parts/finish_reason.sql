-- The first finish reason. It comes as an array, as a string with JSON ('["length"]'), or as a plain string. Words for "nothing" are none.
left(replaceRegexpOne(multiIf(
    startsWith(text['gen_ai.response.finish_reasons'], '['),
        if(JSONType(text['gen_ai.response.finish_reasons'], 1) = 'String', JSONExtractString(text['gen_ai.response.finish_reasons'], 1), ''),
    text['gen_ai.response.finish_reasons'] != '', text['gen_ai.response.finish_reasons'],
    attributes.value.array_value.values.string_value[indexOf(attributes.key, 'gen_ai.response.finish_reasons')][1]), '^(null|None)$$', ''), 64)
