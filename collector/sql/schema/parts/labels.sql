-- The labels of a request by name: attributes `tokentrail.label.NAME` of its resource, over them what a setting names, and over those its span's. The receiver
-- has bounded them (collector/otlp/labels.py): each function here costs an insert 0.2 ms in each view.
mapApply(
    (key, value) -> (substring(key, 18), value),
    mapFilter((key, value) -> startsWith(key, 'tokentrail.label.') AND value != '', mapUpdate($labels_beside, text)))
