"""Service-level objectives: the SLO file, the judgement of requests, error budgets and conditions."""
