"""What each layer costs: measured, estimated for a named device, or imported."""

from pipekit.profiling.layer_profile import LayerProfile as LayerProfile
from pipekit.profiling.layer_profile import SkipProfile as SkipProfile
from pipekit.profiling.layer_profile import TieProfile as TieProfile
from pipekit.profiling.profile import Profile as Profile
