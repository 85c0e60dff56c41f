"""No answer and no law mixes the processes of two tenants: what is grouped by service is grouped by its tenant too."""

import ast
import re
from pathlib import Path

import collector

ROOT = Path(collector.__file__).parent
WITHOUT_PROCESSES = {
    "api/queries/span_names.sql": "spans have no process_tenant",
    "numbers/queries/changes.sql": "its filter is that of one tenant's processes, or of all",
}
OF_NAMES = {
    "(row['service'], row['instance'])": "of SQL's prefilter by names; processes are told apart by their keys",
    "(one.service, one.instance)": "likewise",
    "(process.service, process.instance)": "likewise",
    "(-(one.longest_wait_s or 0), one.service, one.instance)": "an order, and no key",
    "(target.url, target.service, target.instance)": "of pages that are scraped: the address tells them apart",
}
OF_IDS = {
    "sql/schema/40_stored_once.sql": "a prefilter by ids; what holds it compares the tenants too",
    "incidents/queries/eviction_runs.sql": "likewise",
    "ask/sql/reported_once.sql": "a client's row and its server's may be of two tenants (SECURITY.md)",
    "engines/queries/process_timeline_phases.sql": "of one process, whose tenant is a condition beside it",
}
IDS = re.compile(
    r"\(((?:\w+, )*trace_id, (?:request_)?span_id(?:, [\w.$]+)*)\) (?:NOT )?IN\b|\bUSING \(([^)]*trace_id[^)]*)\)"
)
GROUPS = re.compile(
    r"\b(?:GROUP BY|PARTITION BY|LIMIT \d+ BY)\b(.*?)(?=\b(?:HAVING|ORDER|LIMIT|ROWS|SETTINGS|WHERE)\b|$|\n\n)",
    re.DOTALL,
)
KEYS = re.compile(r"\bservice\b")


def test_sql_that_groups_by_service_groups_by_its_tenant():
    found = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.sql")
        if "migrations" not in path.parts
        for groups in GROUPS.findall(re.sub(r"--.*", "", path.read_text()))
        if KEYS.search(groups) and "process_tenant" not in groups
    }
    assert found == WITHOUT_PROCESSES.keys()


def test_requests_are_looked_up_by_their_ids_and_a_tenant():
    """Another tenant may send the same ids: they choose no rows of it, keep none out and are joined with none."""
    found = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.sql")
        for ids in IDS.findall(re.sub(r"--.*", "", path.read_text()))
        if not re.search(r"tenant|\$parts\.process\b", "".join(ids))
    }
    assert found == OF_IDS.keys()


def test_a_key_that_has_a_service_has_its_tenant():
    """A tuple with a row's service and its instance or variant names a process or its kind."""
    found = set()
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Tuple):
                continue
            parts = [ast.unparse(one) for one in node.elts]
            named = {re.sub(r".*\b(service|instance|variant|model)\b'?\]?$", r"\1", part) for part in parts}
            if "service" in named and named & {"instance", "variant", "model"} and "tenant" not in str(parts):
                found.add(f"({', '.join(parts)})")
    found = {one for one in found if "." in one or "[" in one}
    assert found == OF_NAMES.keys()
