"""What each layer costs: measured, reckoned for a named device, or imported."""

from pipekit.profiling.graph import merged
from pipekit.profiling.profile import LayerProfile, Profile, SkipProfile
from pipekit.profiling.values import ValueProfile

__all__ = ["LayerProfile", "Profile", "SkipProfile", "ValueProfile", "merged"]
