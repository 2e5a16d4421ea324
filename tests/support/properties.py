"""Settings of the property tests: the same examples on every machine and in every run, without a time limit."""

import hypothesis

check_examples = hypothesis.settings(
    derandomize=True,
    deadline=None,
    max_examples=60,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
