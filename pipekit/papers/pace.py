"""The same run at another pace: seconds of computing and links scaled alike."""

from dataclasses import replace

from pipekit.clusters import Cluster
from pipekit.profiling import Profile


def stretched(profile: Profile, factor: float) -> Profile:
    """Return a profile whose computing takes ``factor`` times as long; bytes stay."""
    layers = tuple(
        replace(
            layer,
            forward_s=layer.forward_s * factor,
            backward_s=layer.backward_s * factor,
            update_s=layer.update_s * factor,
            copy_s=layer.copy_s * factor,
        )
        for layer in profile.layers
    )
    return replace(profile, layers=layers)


def faster_links(cluster: Cluster, factor: float) -> Cluster:
    """Return a cluster whose links carry ``factor`` times as much a second."""
    for level in cluster.levels:
        origin = f"{level.effective.origin if level.effective else 'nominal'}, times {factor:g}"
        cluster = cluster.calibrated(level.name, level.used_bandwidth * factor, origin)
    return cluster
