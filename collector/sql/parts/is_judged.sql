-- An ended request counts for attainment unless its client cancelled it. collector.slo.counts adds those that have not ended.
status != 'cancelled'
