-- An ended request counts for attainment unless its client cancelled it or it is undetermined. collector.slo.counts adds those
-- that have not ended.
status != 'cancelled' AND NOT $parts.is_undetermined
