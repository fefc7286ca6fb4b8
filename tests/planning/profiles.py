"""Random small profiles, in whole numbers so that sums are exact."""

from hypothesis import strategies as st

from pipekit.profiling import LayerProfile, Profile

_number = st.integers(0, 20).map(float)

layers = st.builds(
    LayerProfile,
    name=st.just("layer"),
    forward_s=_number,
    backward_s=_number,
    output_bytes=_number,
    parameter_bytes=_number,
    saved_bytes=_number,
    saves_output=st.booleans(),
    buffer_bytes=st.integers(0, 3).map(float),
    update_s=st.integers(0, 2).map(float),
)


def profiles(max_layers: int) -> st.SearchStrategy[Profile]:
    """Return profiles of 1 to ``max_layers`` layers."""
    return st.builds(
        Profile,
        layers=st.lists(layers, min_size=1, max_size=max_layers).map(tuple),
        rows=st.just(4),
        input_bytes=_number,
    )
