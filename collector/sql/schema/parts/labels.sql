-- The labels of a request by name, in the order of names: attributes `tokentrail.label.NAME` of its span, then what a setting names, then attributes of its
-- resource. The first of a name counts. A value is a text, a number, true or false. tokentrail/semconv.py has the bounds. `_cut` says how many labels were left
-- out or shortened:
--     region eu, n 3, "a b" x, tags [1, 2]    {'n': '3', 'region': 'eu', '_cut': '2'}
CAST(arrayConcat(
    arrayMap(
        label -> (label.1, if(lengthUTF8(label.2) > 256, concat(leftUTF8(label.2, 239), '…', lower(left(hex(SHA256(label.2)), 16))), label.2)),
        arraySort(
            arraySlice(
                arrayFilter(
                    label -> match(label.1, '^([A-Za-z][A-Za-z0-9_.-]{0,63}|_cut)$$'),
                    arrayFilter(
                        (label, nth) -> nth = 1,
                        arrayFilter(
                            label -> label.2 != '',
                            arrayConcat(
                                arrayMap(
                                    (key, v) -> if(v.value IN ('string_value', 'int_value', 'double_value', 'bool_value'),
                                        (substring(key, 18), $value_as_text), (concat('?', key), '?')),
                                    arrayFilter(key -> startsWith(key, 'tokentrail.label.'), attributes.key),
                                    arrayFilter((v, key) -> startsWith(key, 'tokentrail.label.'), attributes.value, attributes.key)),
                                $label_attributes,
                                arrayMap(
                                    (key, value) -> (substring(key, 18), value),
                                    arrayFilter(key -> startsWith(key, 'tokentrail.label.'), mapKeys(resource)),
                                    arrayFilter((value, key) -> startsWith(key, 'tokentrail.label.'), mapValues(resource), mapKeys(resource)))
                            )) AS given_labels,
                        arrayEnumerateUniq(given_labels.1)) AS named_labels),
                1, 16) AS taken_labels)),
    if((length(named_labels) - length(taken_labels) + arrayCount(label -> lengthUTF8(label.2) > 256, taken_labels) AS cut_labels) > 0,
        [('_cut', toString(cut_labels))], [])
), 'Map(String, String)')
