"""The record itself: stages, scaling, JSON."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit import Profile
from pipekit.profiling import LayerProfile, SkipProfile
from pipekit.schedules import OPS
from tests.hostile import damaged_json, read_or_refuse

A = LayerProfile("a", 1, 2, 10, 100, 7, True, 3, 1000, 0.5)
B = LayerProfile("b", 3, 4, 20, 200, 8, False, 4, 2000, 0.25)
C = LayerProfile("c", 5, 6, 30, 300, 9, True, 5, 3000, 0.125)
CHAIN = Profile((A, B, C), rows=4, input_bytes=40)
SKIPPING = Profile((A, B, C), 4, 40, {}, (SkipProfile("s", 0, 2, 8, saved=False),))
FILE = json.loads(json.dumps({"format": "pipekit profile 1", **asdict(SKIPPING)}))

numbers = st.floats(0, 1e99) | st.integers(0, 2**53).map(np.int64)
seconds = numbers | st.just(np.float32(0.1))
layers = st.builds(LayerProfile, st.text(), seconds, *[numbers] * 4, st.booleans(), *[numbers] * 3)
profiles = st.builds(
    Profile,
    st.lists(layers, min_size=1, max_size=5).map(tuple),
    st.integers(1, 1000).map(np.int64),
    numbers,
    st.dictionaries(st.text(), st.none() | st.text() | st.integers() | st.booleans()),
)


class TestStage:
    def test_layers_run_after_one_another_and_hold_what_all_hold(self) -> None:
        stage = CHAIN.stage(0, 2)
        assert stage == LayerProfile("a to b", 4, 6, 20, 300, 15, False, 7, 3000, 0.75)

    @pytest.mark.parametrize(("first", "stop"), [(-1, 2), (1, 1), (2, 1), (0, 4)])
    def test_layers_that_are_not_there(self, first: int, stop: int) -> None:
        with pytest.raises(ValueError, match=rf"no layers {first} to {stop - 1} in a chain of 3"):
            CHAIN.stage(first, stop)

    def test_what_enters_a_layer_is_the_output_before_it_or_the_input(self) -> None:
        assert [CHAIN.boundary_bytes(first) for first in range(3)] == [40, 10, 20]


class TestScaled:
    def test_activations_and_passes_follow_the_rows(self) -> None:
        half = CHAIN.scaled(2)
        assert half.rows == 2
        assert half.input_bytes == 20
        assert half.layers[0] == LayerProfile("a", 0.5, 1, 5, 100, 3.5, True, 3, 500, 0.5)


class TestJson:
    @given(profiles | st.just(SKIPPING))
    def test_what_is_saved_comes_back(
        self, tmp_path_factory: pytest.TempPathFactory, profile: Profile
    ) -> None:
        path = tmp_path_factory.getbasetemp() / "new" / "p.json"  # a folder for all examples
        profile.save(path)
        again = Profile.load(path)
        assert again == profile
        assert again.provenance == profile.provenance

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"skips": [{"name": "s"}]}, r"is not a profile: skips\[0\]\.source: Field required"),
            ({"format": "other"}, "does not say 'pipekit profile 1'"),
            ({"rows": None}, "is not a profile"),
            ({"rows": 0}, "rows, not 0"),
            ({"layers": []}, "needs at least one layer"),
            ({"layers": [{"name": "a"}]}, r"layers\[0\]\.forward_s: Field required"),
            (
                {"layers": [asdict(A) | {"flops": -1}]},
                r"layers\[0\]: .*flops must be 0 or a positive",
            ),
            (
                {"layers": [asdict(A), asdict(B) | {"colour": 1}]},
                r"layers\[1\]\.colour: Unexpected",
            ),
        ],
    )
    def test_a_file_that_is_no_profile_says_why(
        self, tmp_path: Path, change: dict[str, Any], says: str
    ) -> None:
        path = tmp_path / "p.json"
        CHAIN.save(path)
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        with pytest.raises(ValueError, match=says) as error:
            Profile.load(path)
        assert str(path) in str(error.value)


@given(content=damaged_json(FILE))
def test_whatever_stands_in_a_file_it_is_a_profile_or_refused(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def read(path: Path) -> None:
        profile = Profile.load(path)
        profile.scaled(7).stage(0, 1)

    read_or_refuse(read, content, tmp_path_factory.getbasetemp() / "profile.json")


class TestErrors:
    @pytest.mark.parametrize("value", [-1, math.inf, math.nan, None])
    def test_costs_are_finite_and_not_negative(self, value: Any) -> None:
        with pytest.raises(
            ValueError, match="layer 'x': backward_s must be 0 or a positive number"
        ):
            LayerProfile("x", 1, value)

    @pytest.mark.parametrize(("source", "destination"), [(1, 1), (2, 1), (-1, 1), (1, 3)])
    def test_skips_lead_from_a_layer_to_one_behind_it(self, source: int, destination: int) -> None:
        with pytest.raises(ValueError, match=r"skip 's' cannot go from layer .* in a chain of 3"):
            Profile((A, B, C), skips=(SkipProfile("s", source, destination, 1),))


class TestPartsOfABackward:
    def test_without_seconds_of_its_own_each_part_takes_half(self) -> None:
        layer = LayerProfile("a", 1.0, 3.0, update_s=0.25)
        assert [layer.seconds(op) for op in OPS[:5]] == [1.0, 3.0, 1.5, 1.5, 0.25]

    def test_measured_parts_are_added_scaled_and_saved(self, tmp_path: Path) -> None:
        known = LayerProfile(
            "a",
            1.0,
            3.0,
            saved_bytes=8.0,
            backward_input_s=2.0,
            backward_weight_s=1.25,
            input_only_bytes=4.0,
        )
        made = Profile((known, LayerProfile("b", 1.0, 3.0)), rows=2, provenance={"label": "exact"})
        whole = made.scaled(4).stage(0, 2)
        parts = whole.backward_input_s, whole.backward_weight_s, whole.input_only_bytes
        assert parts == (2 * (2.0 + 1.5), 2 * (1.25 + 1.5), 8.0)
        made.save(tmp_path / "profile.json")
        assert Profile.load(tmp_path / "profile.json") == made

    def test_one_part_alone_or_more_freed_than_saved_is_refused(self) -> None:
        with pytest.raises(ValueError, match="give both backward_input_s and backward_weight_s"):
            LayerProfile("a", 1.0, 3.0, backward_input_s=1.0)
        with pytest.raises(ValueError, match=r"input_only_bytes 3\.0 are part of saved_bytes"):
            LayerProfile("a", 1.0, 3.0, saved_bytes=2.0, input_only_bytes=3.0)
