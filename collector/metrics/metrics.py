"""The registry of all metrics of `/metrics`: names, meanings and labels, of which the tables of docs/metrics.md
are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram"]

PROCESS_TENANT: Final = "process_tenant"
"""The label with the tenant to which a process belongs; empty: to all."""
REQUEST_LABELS: Final = {
    "gen_ai_request_model": "model",
    "gen_ai_operation_name": "operation",
    "gen_ai_provider_name": "engine",
    "engine": "engine",
    "service_name": "service",
    "variant": "variant",
    "tenant": "tenant",
    "slo_class": "slo_class",
    "vantage": "vantage",
    PROCESS_TENANT: "process_tenant",
}
"""Labels of metrics about requests, and their columns. Without the instance: processes come and go, and each label set
has many series."""
REQUEST: Final = tuple(REQUEST_LABELS)
PROCESS: Final = ("service_name", "service_instance_id", PROCESS_TENANT)
"""Labels of metrics about engine processes: the fields of `Process`."""
SAMPLED: Final = ("engine", "service", "instance", PROCESS_TENANT)
"""Labels of metrics that an engine tells itself."""


@dataclass(frozen=True)
class Metric:
    """One metric family."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


# fmt: off
TTFT = Metric(
    "gen_ai_server_time_to_first_token_seconds", "histogram",
    "Arrival to first output token of requests that ended ok. The `tenant` of a histogram is empty, unless "
    "`--metrics-tenant-histograms` tells tenants apart.", REQUEST)
TPOT = Metric(
    "gen_ai_server_time_per_output_token_seconds", "histogram",
    "Mean time per output token after the first (TPOT), of requests that ended ok with two tokens or more.", REQUEST)
E2E = Metric(
    "gen_ai_server_request_duration_seconds", "histogram",
    "Arrival to last token of requests that ended ok (`error_type` is empty), and to the failure of those that "
    "failed; cancelled ones have none.", (*REQUEST, "error_type"))

REQUESTS = Metric(
    "tokentrail_requests_total", "counter",
    "Requests that ended, by `status`: `ok`, `error`, `cancelled`, `unknown`.", (*REQUEST, "status"))
TOKENS = Metric(
    "tokentrail_tokens_total", "counter",
    "Tokens of requests that ended and reported them, by `gen_ai_token_type`: `input`, `output`.",
    (*REQUEST, "gen_ai_token_type"))
CACHED_TOKENS = Metric(
    "tokentrail_cached_input_tokens_total", "counter",
    "Input tokens that came from the prefix cache; no series where the engine does not report them.", REQUEST)

SLO: Final = ("slo", "tenant")
"""Labels of an SLO's counters. The tenant is empty unless the SLO is a promise to each tenant."""

SLO_REQUESTS = Metric(
    "tokentrail_slo_requests_total", "counter",
    "Requests that the SLO judges: all it selects but the excused (cancelled in time, or failed with an excluded "
    "error) and the undetermined. One in flight counts once it is known to be bad.", SLO)
SLO_GOOD = Metric(
    "tokentrail_slo_good_requests_total", "counter",
    "Requests of tokentrail_slo_requests_total that ended ok and met every threshold, and lost ones that came back "
    "and were not bad.", SLO)
SLO_UNDETERMINED = Metric(
    "tokentrail_slo_undetermined_requests_total", "counter",
    "Requests that are neither good nor bad: a threshold needs a value that is not known, or nobody tells whether "
    "they ended well.", SLO)
SLO_CAUSE_TIME = Metric(
    "tokentrail_slo_cause_bad_seconds_total", "counter",
    "Time that bad requests of the SLO spent on each `cause` (docs/explain.md#causes), once they have ended and are "
    "explained. All of it counts, also what good requests spend as well.", ("slo", "cause"))
SLO_CAUSE_SHARE = Metric(
    "tokentrail_slo_cause_share", "gauge",
    "While the SLO's budget burns: the share of a `cause` in what the bad requests of the last minutes took beyond "
    "good ones, as in `top_cause` of /api/v1/incidents. The five largest; absent until such requests are explained.",
    (*SLO, "cause", "group"))
SLO_REASON = Metric(
    "tokentrail_slo_reason_info", "gauge",
    "1, while the SLO's budget burns: `text` says what was wrong with the bad requests of the last minutes (the error, "
    "or the threshold that they missed), and if no cause of it is known, why.", (*SLO, "text"))
SLO_CULPRIT_SHARE = Metric(
    "tokentrail_slo_culprit_share", "gauge",
    "While the SLO's budget burns: where its bad requests lost most by the largest cause (`by=\"process\"`, and "
    "`variant` where a service has several), and the `tenant` whose prompts, or whose requests in the places or KV "
    "blocks, made others wait the longest; each with its share of that.",
    (*SLO, "by", "name"))
SLO_INFO = Metric(
    "tokentrail_slo_info", "gauge",
    "1. `hash` is that of the SLO's definition in the collector's SLO file.", ("slo", "hash", "owner", "team"))
SLO_OBJECTIVE = Metric(
    "tokentrail_slo_objective_ratio", "gauge", "Share of requests that is promised to be good.", ("slo",))
SLO_SELECTED = Metric(
    "tokentrail_slo_selected_requests", "gauge",
    "Requests of the last day that ended and that the SLO selects.", ("slo",))
SLO_CANDIDATES = Metric(
    "tokentrail_slo_candidate_requests", "gauge", "Requests of the last day that ended, whichever SLO selects them.")
SLO_ATTAINMENT = Metric(
    "tokentrail_slo_attainment_ratio", "gauge",
    "Good requests divided by judged ones, over the SLO's window; absent without any.", SLO)
SLO_BUDGET_LEFT = Metric(
    "tokentrail_slo_budget_left_ratio", "gauge",
    "Share of the error budget that is left over the SLO's window; negative when it is overspent.", SLO)
SLO_BURN = Metric(
    "tokentrail_slo_burn_rate", "gauge",
    "How many times as fast as allowed the budget burns, by `window` (`5m`, `1h`, …); absent without requests.",
    (*SLO, "window"))
SLO_EXHAUSTION = Metric(
    "tokentrail_slo_exhaustion_seconds", "gauge",
    "Time until the budget is gone at the burn rate of the last hour; 0 when it is gone, absent while nothing burns.",
    SLO)
SLO_EVALUATED = Metric(
    "tokentrail_slo_evaluation_timestamp_seconds", "gauge",
    "When attainment, budget, burn rates and selected requests were last computed: every minute or less often, since "
    "they read the SLO's whole window; 0 before the first time.")
SLO_IN_FLIGHT = Metric(
    "tokentrail_slo_in_flight_violations", "gauge", "Requests in flight that are past a threshold now.", ("slo",))

SERVED: Final = ("gen_ai_request_model", "service_name", PROCESS_TENANT)
"""Labels of times by cause: fewer than those of requests, since each label set has up to 45 series."""
CAUSE_TIME = Metric(
    "tokentrail_request_cause_seconds_total", "counter",
    "Time of requests that servers reported, by `cause` (docs/explain.md#causes), before the first token (`of` is "
    "`ttft`) and after it (`rest`). A request counts when it is first explained, most of them within a minute.",
    (*SERVED, "of", "cause"))
PHASE_TIME = Metric(
    "tokentrail_request_phase_seconds_total", "counter",
    "Time of requests that servers reported, by `phase` (docs/numbers.md#phases): `queued`, `prefill`, …; no series of "
    "a phase that no engine tells.", (*SERVED, "phase"))
HELD_UP = Metric(
    "tokentrail_requests_held_up_total", "counter",
    "Of requests that servers reported and that are explained, those that waited for half of the time until their "
    "first token, or longer, for one `reason`: a place in the `batch`, `kv` blocks, `tokens` of a step, or others of a "
    "higher `priority`.", (*SERVED, "reason"))

IN_FLIGHT = Metric(
    "tokentrail_requests_in_flight", "gauge", "Requests that were announced and have not ended.", PROCESS)
STUCK = Metric(
    "tokentrail_requests_stuck", "gauge",
    "Requests in flight that their engine process still announces while it runs no step: it hangs.", PROCESS)
LOST = Metric(
    "tokentrail_requests_lost_total", "counter",
    "Requests that were announced and never heard of again: the engine died.", PROCESS)
LAST_LOST = Metric(
    "tokentrail_requests_last_lost_timestamp_seconds", "gauge", "When a request was last given up as lost.", PROCESS)
RUNNING = Metric("tokentrail_requests_running", "gauge", "Requests in the batch of the engine's newest step.", PROCESS)
WAITING = Metric("tokentrail_requests_waiting", "gauge", "Requests queued at the engine's newest step.", PROCESS)

KV_USAGE = Metric("tokentrail_kv_usage_ratio", "gauge", "KV-cache blocks in use at the newest step, 0 to 1.", PROCESS)
KV_EVICTED = Metric(
    "tokentrail_kv_evicted_blocks_total", "counter",
    "KV-cache blocks evicted, by `reason`: `preemption` took them from a running request, `cache_full` dropped cached"
    " ones.", (*PROCESS, "reason"))
PREEMPTIONS = Metric(
    "tokentrail_preemptions_total", "counter", "Running requests that lost their KV-cache blocks.", PROCESS)
LAST_PREEMPTION = Metric(
    "tokentrail_kv_last_preemption_timestamp_seconds", "gauge",
    "When a running request last lost its KV-cache blocks.", PROCESS)

ENGINE_UP = Metric(
    "tokentrail_engine_up", "gauge",
    "1 when the last scrape was answered, 0 when it failed; absent for a process that sends its metrics.", SAMPLED)
ENGINE_RUNNING = Metric(
    "tokentrail_engine_requests_running", "gauge", "Requests in the batch, by the engine's own metrics.", SAMPLED)
ENGINE_WAITING = Metric(
    "tokentrail_engine_requests_waiting", "gauge", "Requests in the queue, by the engine's own metrics.", SAMPLED)
ENGINE_GENERATION_TOKENS = Metric(
    "tokentrail_engine_generation_tokens_total", "counter",
    "Output tokens, by the engine's own metrics. llama.cpp and TGI count when a request ends.", SAMPLED)
ENGINE_PREEMPTIONS = Metric(
    "tokentrail_engine_preemptions_total", "counter",
    "Running requests that lost their KV-cache blocks, by the engine's own metrics.", SAMPLED)
ENGINE_KV_USAGE = Metric(
    "tokentrail_engine_kv_cache_usage_ratio", "gauge", "KV cache in use, 0 to 1, by the engine's own metrics.", SAMPLED)

COLD_STARTS = Metric("tokentrail_cold_starts_total", "counter", "Starts of the process, also from zero.", PROCESS)
COLD_STARTS_FAILED = Metric(
    "tokentrail_cold_starts_failed_total", "counter", "Starts of the process that ended with an error.", PROCESS)
COLD_START_DURATION = Metric(
    "tokentrail_cold_start_last_duration_seconds", "gauge", "How long the process's latest start took.", PROCESS)
COLD_START_END = Metric(
    "tokentrail_cold_start_last_end_timestamp_seconds", "gauge", "When the process's latest start was over.", PROCESS)

CLOCK: Final = ("service_name", PROCESS_TENANT)
CLOCK_AHEAD = Metric(
    "tokentrail_clock_ahead_seconds", "gauge",
    "How far in the collector's future a request of the service ended, at most, in the last 15 minutes: its clock is "
    "ahead, or the collector's behind. Absent for services that are not a second ahead.", CLOCK)
CLOCK_BEHIND = Metric(
    "tokentrail_clock_behind_seconds", "gauge",
    "How long after its end, by its process's clock, the timeliest request of the last 15 minutes of a process of the"
    " service arrived, of its processes the latest one's: its clock is behind, or it sends late. Absent for services "
    "below 30 s.", CLOCK)

PAYLOADS = Metric("tokentrail_collector_payloads_received_total", "counter", "OTLP payloads acknowledged.")
DUPLICATES = Metric(
    "tokentrail_collector_payloads_duplicate_total", "counter", "Acknowledged payloads that had been received before.")
REPEATED = Metric(
    "tokentrail_collector_payloads_repeated_total", "counter",
    "Acknowledged payloads that were left out of an insert, because another segment has claimed the same bytes "
    "(docs/collector.md#several-collectors-on-one-store).")
REJECTED = Metric(
    "tokentrail_collector_payloads_rejected_total", "counter",
    "OTLP payloads answered with an error, by `reason`.", ("reason",))
LIMITED = Metric(
    "tokentrail_collector_payloads_limited_total", "counter",
    "OTLP payloads refused because their `tenant` is over a `limit` (`spans`, `bytes`, `models`, …); at most 1,000 "
    "pairs, then tenant `other`.", ("tenant", "limit"))
API_REFUSED = Metric(
    "tokentrail_collector_api_requests_refused_total", "counter",
    "Requests to the API that were refused or given up, by `reason`: `ambiguous`, `unauthenticated`, `forbidden`, "
    "`wrong_host`, `busy`, `too_long`, `too_large`, `client_left`.", ("reason",))
DEAD_LETTERED = Metric(
    "tokentrail_collector_payloads_dead_lettered_total", "counter",
    "Acknowledged payloads, or parts of them, that the store refused or the disk damaged; kept as dead letters "
    "(docs/collector.md#dead-letters).")
NOT_JOINED = Metric(
    "tokentrail_collector_segments_not_joined_total", "counter",
    "Log segments whose requests the store refused when they were joined with their parts "
    "(docs/collector.md#requests-of-several-processes); their rows are missing.")
EXPLAINED = Metric(
    "tokentrail_collector_requests_explained_total", "counter",
    "Requests whose causes were stored, by how far they could be explained "
    "(docs/explain.md#when-a-request-is-explained); one that is explained again counts again.", ("level",))
EXPLAIN_FAILURES = Metric(
    "tokentrail_collector_explain_failures_total", "counter",
    "Rounds of the explainer that ended with an error and are tried again, and processes and segments whose requests "
    "it left unexplained; the log says why.")
EXPLAIN_LAG = Metric(
    "tokentrail_collector_explain_lag_seconds", "gauge",
    "How long the oldest request that is not explained has been in the store; 0 when all are. A minute is normal "
    "where an engine sends no steps. Absent before the first round, and with `--explain false`.")
SPANS = Metric("tokentrail_collector_spans_received_total", "counter", "Spans in acknowledged payloads.")
SPANS_REJECTED = Metric(
    "tokentrail_collector_spans_rejected_total", "counter",
    "Spans left out of acknowledged payloads, by `reason`.", ("reason",))
DATA_POINTS = Metric(
    "tokentrail_collector_data_points_received_total", "counter",
    "Data points of metrics in acknowledged payloads, those of scrapes included.")
DATA_POINTS_DROPPED = Metric(
    "tokentrail_collector_data_points_dropped_total", "counter",
    "Data points left out, by `reason`: `unknown_name`, `other_name` (the engine has a better name for the same, or "
    "another rank says it too), `part` (a series of the same page contains it), `no_value`, `unsupported`, `kind`, "
    "`labels`, `time`, `future`, `too_many_days`.",
    ("reason",))
LOG_RECORDS_DROPPED = Metric(
    "tokentrail_collector_log_records_dropped_total", "counter",
    "Log records left out, by `reason`: `unclaimed` (no engine's mapping reads them; the collector's log names their "
    "scopes), `time`, `future`, `too_many_days`, `too_many_attributes`, `too_large`.", ("reason",))
NAMES_CUT = Metric(
    "tokentrail_collector_names_cut_total", "counter",
    "Names of more than 1,024 characters in spans and log records, which are stored in part "
    "(docs/collector.md#refusals).")
LABELS_CUT = Metric(
    "tokentrail_collector_labels_cut_total", "counter",
    "Labels of requests that were left out or shortened (docs/collector.md#labels).")
SCRAPES = Metric(
    "tokentrail_collector_scrapes_total", "counter",
    "Scrapes by `result`: `ok`, why it failed (docs/scraping.md#up-down-gone), or `log` when the log took no samples.",
    ("result",))
SCRAPE_SERIES_DROPPED = Metric(
    "tokentrail_collector_scrape_series_dropped_total", "counter",
    "Series left out of scrapes: more than TOKENTRAIL_SCRAPE_MAX_SERIES of one target, or histograms that are none.")
SCRAPE_TARGETS = Metric("tokentrail_collector_scrape_targets", "gauge", "Targets that are scraped.")
SCRAPE_TARGETS_DROPPED = Metric(
    "tokentrail_collector_scrape_targets_dropped", "gauge", "Targets beyond the 1,000 that one collector scrapes.")
PROCESSES_DROPPED = Metric(
    "tokentrail_collector_engine_processes_dropped", "gauge",
    "Processes with samples of the last five minutes that `tokentrail_engine_*` leave out, because there are more "
    "than 1,000.")
PROCESSES_UNDER_OTHER = Metric(
    "tokentrail_collector_processes_under_other", "gauge",
    "Engine processes whose metrics are those of `other`, because /metrics has 500 of them or their name is too long.")
BYTES = Metric("tokentrail_collector_received_bytes_total", "counter", "Bytes received, after decompression.")
SEGMENTS = Metric("tokentrail_collector_segments_inserted_total", "counter", "Log segments written to the store.")
WAL_SEGMENTS = Metric("tokentrail_collector_wal_segments", "gauge", "Log segments that the store does not have yet.")
WAL_BYTES = Metric("tokentrail_collector_wal_bytes", "gauge", "Bytes in the log that the store does not have yet.")
LAST_INSERT = Metric(
    "tokentrail_collector_last_insert_timestamp_seconds", "gauge",
    "When the store last took a segment; 0 before the first.")
STORE_ROWS = Metric(
    "tokentrail_store_rows", "gauge", "Rows of a table, with deleted ones until a merge has removed them.", ("table",))
STORE_BYTES = Metric("tokentrail_store_bytes", "gauge", "Bytes of a table on the disk.", ("table",))
STORE_BROKEN = Metric(
    "tokentrail_store_broken_parts", "gauge",
    "Parts of a table that ClickHouse found damaged and set aside when it started: their rows are in no answer "
    "(docs/storage.md#damaged-parts).", ("table",))
_DISK: Final = ("host", "disk", "path")
"""Labels of a disk of the store. The host is empty but on a cluster."""
STORE_FREE = Metric("tokentrail_store_disk_free_bytes", "gauge", "Free bytes of a disk of the store.", _DISK)
STORE_TOTAL = Metric("tokentrail_store_disk_total_bytes", "gauge", "Bytes of a disk of the store.", _DISK)
RETENTION_ROWS = Metric(
    "tokentrail_collector_retention_rows_total", "counter",
    "Rows that the retention (docs/storage.md#retention) removed, by `table`.", ("table",))
RETENTION_FAILURES = Metric(
    "tokentrail_collector_retention_failures_total", "counter",
    "Rounds of the retention that ended with an error; the next one is a minute later.")
RETENTION_LAST = Metric(
    "tokentrail_collector_retention_last_timestamp_seconds", "gauge",
    "When the retention last ended a round; 0 before the first, and without a retention.")
DEAD_LETTER_BYTES = Metric("tokentrail_collector_dead_letter_bytes", "gauge", "Bytes of all dead letters on the disk.")
DATA_DIR_FREE = Metric(
    "tokentrail_collector_disk_free_bytes", "gauge",
    "Free bytes on the disk of the log and the dead letters; of several disks in the data folder, the one with the "
    "least room; absent when it does not answer.")
DATA_DIR_TOTAL = Metric(
    "tokentrail_collector_disk_total_bytes", "gauge", "Bytes of the disk of the log and the dead letters.")
CERTIFICATE_FROM = Metric(
    "tokentrail_collector_certificate_not_before_timestamp_seconds", "gauge",
    "When the TLS certificate (docs/collector.md#tls) becomes valid; absent without TLS, and for a certificate that "
    "no client takes.")
CERTIFICATE_UNTIL = Metric(
    "tokentrail_collector_certificate_not_after_timestamp_seconds", "gauge", "When the TLS certificate expires.")
CERTIFICATE_USABLE = Metric(
    "tokentrail_collector_certificate_usable", "gauge",
    "1 when the newest TLS certificate can be used; 0 when its files cannot be, so that the old one stays, or when it"
    " is not for a server; absent without TLS.")
SLO_FILE_REFUSED = Metric(
    "tokentrail_collector_slo_file_refused_total", "counter",
    "Changed SLO files that cannot be used, so that the SLOs stayed as they were; the log and /api/v1/slos say why.")
READY = Metric("tokentrail_collector_ready", "gauge", "1 when accepted data can be stored, as /readyz says.")
STORE_UP = Metric(
    "tokentrail_collector_store_up", "gauge",
    "1 when the store answered the latest refresh; when 0, what comes from it is as old as the state's timestamp "
    "says.")
STATE_AT = Metric(
    "tokentrail_collector_state_timestamp_seconds", "gauge",
    "When the metrics of requests, SLOs, engine processes and the store were last read; 0 before the first time.")
HEARD_UNTIL = Metric(
    "tokentrail_collector_heard_until_timestamp_seconds", "gauge",
    "The store has everything that was received up to this time; requests count as lost (docs/slos.md#good-requests) "
    "by silence before it.")
EARLY_FORGOTTEN = Metric(
    "tokentrail_collector_early_requests_forgotten_total", "counter",
    "Requests that were counted in flight and forgotten, because there were more than 100,000; their ends count "
    "again.")
LEFT_OUT_BYTES = Metric(
    "tokentrail_collector_metrics_left_out_bytes", "gauge",
    "Bytes of histograms that this page has no room for: it has 4 MiB of counters and histograms, and of tenants in "
    "turn. The API has all latencies.")
OVERFLOW = Metric(
    "tokentrail_collector_label_overflow_total", "counter",
    "Requests counted under `other`, by `kind`: `requests` in all labels, `models` in times by phase and cause, "
    "`tenants` in the counters of an SLO with `group_by: [tenant]`.", ("kind",))
# fmt: on

ALL: Final = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
