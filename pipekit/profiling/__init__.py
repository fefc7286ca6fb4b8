"""What each layer costs: measured, reckoned for a named device, or imported."""

from pipekit.profiling.profile import LayerProfile, Profile, SkipProfile

__all__ = ["LayerProfile", "Profile", "SkipProfile"]
