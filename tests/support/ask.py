"""Asks an embedded store in a process of its own: `forked.run("tests.support.ask", folder, "SELECT 1")`."""

from collector.store.schema import apply_schema
from collector.store.store import Store


def main(arguments):
    """Open the store as a collector does, and print the rows of each query."""
    folder, *queries = arguments
    store = Store.open(f"chdb://{folder}")
    apply_schema(store)
    for sql in queries:
        print(store.query(sql).result_rows)
    store.close()
    return 0
