"""Rows with the same known columns share a template."""

import numpy as np

from tokentrail._build.workbench import alike


def test_rows_with_the_same_known_columns_are_grouped_in_order_of_appearance():
    known = np.array([[0, 1, 1], [1, 1, 0], [0, 1, 1], [1, 0, 1]], bool)
    assert [(columns.tolist(), rows.tolist()) for columns, rows in alike(known)] == [
        ([False, True, True], [0, 2]),
        ([True, True, False], [1]),
        ([True, False, True], [3]),
    ]


def test_rows_that_are_all_alike_are_not_copied():
    ((columns, rows),) = alike(np.array([[1, 0], [1, 0]], bool))
    assert (columns.tolist(), rows) == ([True, False], slice(None))
