"""Every request's time in causes that add up: pure functions over columns of one process. Knows no store and no HTTP.

`explain.explain_process(requests, phases, steps, *, kv_events, limits, reference) -> Explained` divides the time of
requests. `learn.learn(requests, phases, steps, *, kv_events, former) -> StepModel | None` makes the next reference,
once per process and ten minutes, out of those ten minutes and the former one. `model.StepModel` is the reference;
`row()` and `of(row)` turn it into a row of `step_models` and back. `names.PARTS` are the causes, in the order of
all arrays. `replay.replay(requests, phases, steps, *, scheduling, without, left_out) -> Replay | None` lets the
requests come again without some causes.
"""
