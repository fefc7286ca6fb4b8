"""One function for all planners."""

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

from pipekit.choices import require_choice, require_kind
from pipekit.clusters import Cluster
from pipekit.planning.balance import balanced
from pipekit.planning.interleaved import interleaved
from pipekit.planning.pipedream import pipedream
from pipekit.planning.sweep import parallel_pipelines
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.units import require_amount, whole

PLANNERS: Mapping[str, Callable[..., Plan]] = {
    "pipedream": pipedream,
    "parallel_pipelines": parallel_pipelines,
    "balance": balanced,
    "interleaved": interleaved,
}

_LEAST = {"stages": 1, "chunks": 1, "microbatches": 1, "max_batch": 1, "predictors": 0}
"""Of options that are whole numbers."""


def plan(
    profile: Profile | Mapping[int, Profile],
    cluster: Cluster,
    method: str = "pipedream",
    **options: Any,
) -> Plan:
    """Return the best plan that a paper's planner finds.

    Args:
        profile: costs of each layer; for "parallel_pipelines" there may be several, by rows.
        cluster: the workers and their links.
        method: "pipedream", "parallel_pipelines" (PipeDream-2BW's), "balance" (GPipe's and
            torchgpipe's, :func:`balanced`) or "interleaved" (Megatron-LM's loop).
        options: the planner's own, such as ``cost="released"`` or ``max_batch``; of all planners
            ``optimizer_states``, tensors of a parameter's size that the optimizer keeps: 1 with
            momentum, 2 for Adam, 6 in mixed precision, where weights of 2 bytes have a copy and
            two moments of 4 each.

    Raises:
        TypeError: the profile or the cluster is not one.
        ValueError: there is no such method or option, or no plan; the message says the least
            change that would make it possible.
    """
    require_choice("method", method, PLANNERS)
    planner = PLANNERS[method]
    parameters = signature(planner).parameters.values()
    known = {each.name: each for each in parameters if each.kind is each.KEYWORD_ONLY}
    for name in options:
        if name not in known:
            raise ValueError(f"{method} has no option {name!r}, only {', '.join(known)}")
    for name, each in known.items():
        if each.default is each.empty and name not in options:
            raise ValueError(f"{method} needs the option {name!r}")
    for name in options.keys() & _LEAST.keys():
        if options[name] is not known[name].default:
            options[name] = whole(name, options[name], _LEAST[name])
    require_amount("optimizer_states", options.get("optimizer_states", 0))
    for rows, one in (profile if isinstance(profile, Mapping) else {1: profile}).items():
        whole("the rows of a profile", rows)
        require_kind("profile", one, Profile, "pk.profile(model, microbatch)")
    require_kind("cluster", cluster, Cluster, "pk.clusters.flat(4, bandwidth=1e9)")
    if planner is not parallel_pipelines and not isinstance(profile, Profile):
        raise ValueError(f"{method} plans for one microbatch size: give one profile")
    return planner(profile, cluster, **options)
