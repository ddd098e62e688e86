"""Whether a run says something about a rate: does its queue grow, and did it last long enough to tell?

queue_grows(simulate("llama-3.1-8b", "h200", trace=synthetic(num_prompts=4000, request_rate=90)))      # True
"""

from __future__ import annotations

import numpy as np

from .outcome import Outcome

WARM_UP = 0.25  # of the requests: an engine fills up first
BATCHES = 8  # consecutive parts of the other requests, whose mean waits are compared
OVERLOAD = 0.02  # seconds that the wait grows in a second of arrivals, from which a queue is said to grow
T_VALUE = 4.0  # slope over its standard error: one in 300 for BATCHES independent means of a queue that does not grow
ENOUGH_E2ELS = 5  # mean end-to-end latencies that arrivals must last


def queue_grows(outcome: Outcome) -> bool:
    """Whether requests come faster than they are answered: each one waits longer than those before it.

    With arrivals at λ a second and answers at μ < λ, the wait for the first token grows by λ/μ - 1 seconds a second.
    That slope is fitted to the mean TTFT of consecutive parts of the run; it must exceed OVERLOAD, and what chance
    makes of a queue that comes and goes. The longest answer does not matter, nor does a batch that fills up to its
    steady state (steps take a little longer, prompts do not wait), nor requests that all come at once or wait for
    others to end.
    """
    wait = outcome.first_token_s - outcome.arrival_s
    order = np.argsort(outcome.arrival_s, kind="stable")
    order = order[~np.isnan(wait[order])]
    order = order[int(WARM_UP * len(order)) :]
    if len(order) < 2 * BATCHES:
        return False
    parts = np.array_split(order, BATCHES)
    time = np.array([outcome.arrival_s[part].mean() for part in parts])
    waits = np.array([wait[part].mean() for part in parts])
    time = time - time.mean()
    spread = float((time * time).sum())
    if not spread:
        return False
    slope = float((time * waits).sum()) / spread
    residuals = waits - waits.mean() - slope * time
    error = float(np.sqrt((residuals * residuals).sum() / (BATCHES - 2) / spread))
    return slope > OVERLOAD and slope > T_VALUE * error


def too_short(outcome: Outcome) -> bool:
    """Whether arrivals last less than ENOUGH_E2ELS mean end-to-end latencies: a burst, which says nothing about a rate.

    ``too_short(simulate("llama-3.1-8b", "h200", trace=synthetic(num_prompts=100, request_rate=100)))  # True: 1 s``
    """
    e2el = outcome.finished_s - outcome.arrival_s
    e2el = e2el[~np.isnan(e2el)]
    arrivals = outcome.arrival_s[~np.isnan(outcome.arrival_s)]
    lasted = float(np.ptp(arrivals)) if len(arrivals) else 0.0
    return bool(len(e2el)) and lasted < ENOUGH_E2ELS * float(e2el.mean())
