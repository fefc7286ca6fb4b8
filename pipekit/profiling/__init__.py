"""What each layer costs: measured, estimated for a named device, or imported."""

from pipekit.profiling.layer_profile import LayerProfile, SkipProfile, TieProfile
from pipekit.profiling.profile import Profile

__all__ = ["LayerProfile", "Profile", "SkipProfile", "TieProfile"]
