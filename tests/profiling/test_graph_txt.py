"""PipeDream's graph.txt, as its profiler writes it."""

from pathlib import Path

import pytest
from hypothesis import given

from pipekit import Profile
from tests.hostile import damaged_text, read_or_refuse

COSTS = "forward_compute_time={}, backward_compute_time={}, activation_size={}, parameter_size={}"


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    return tmp_path / "graph.txt"


def node(
    name: str, forward: object = 1, backward: object = 2, out: object = 8, w: object = 4
) -> str:
    number, _, description = name.partition(" ")
    return f"node{number} -- {description or 'Layer'} -- {COSTS.format(forward, backward, out, w)}"


def edges(text: str) -> list[str]:
    return [f"\tnode{a} -- node{b}" for a, b in (edge.split("-") for edge in text.split())]


def read(path: Path, *lines: str) -> Profile:
    path.write_text("\n".join(lines) + "\n")
    return Profile.from_pipedream_graph(path)


def names(profile: Profile) -> list[str]:
    return [layer.name for layer in profile.layers]


def carried(profile: Profile) -> list[tuple[int, int, float]]:
    return [(skip.source, skip.destination, skip.bytes) for skip in profile.skips]


class TestRead:
    def test_a_chain(self, graph: Path) -> None:
        made = read(
            graph,
            "node1 -- Input0 -- forward_compute_time=30.000, backward_compute_time=0.000, "
            "activation_size=38535168.0, parameter_size=0.000",
            "node4 -- Conv2d(3, 64, kernel_size=(3, 3), padding=(1, 1)) -- "
            "forward_compute_time=46.201, backward_compute_time=113.330, "
            "activation_size=1644167168.000, parameter_size=147712.000",
            "node5 -- ReLU(inplace) -- forward_compute_time=1e-1, backward_compute_time=0.2, "
            "activation_size=1644167168.000, parameter_size=0.000 -- stage_id=0",
            "\tnode1 -- node4",
            "\tnode4 -- node5",
        )
        conv, relu = made.layers
        assert conv.name == "Conv2d(3, 64, kernel_size=(3, 3), padding=(1, 1))"
        assert conv.forward_s == pytest.approx(46.201e-3)
        assert conv.backward_s == pytest.approx(113.330e-3)
        assert conv.output_bytes == 1644167168
        assert conv.parameter_bytes == 147712
        assert relu.forward_s == pytest.approx(1e-4)
        assert made.input_bytes == 38535168
        assert made.rows == 1
        assert made.provenance["label"] == "measured"
        assert made.provenance["source"] == "graph.txt"

    def test_lines_may_stand_in_any_order(self, graph: Path) -> None:
        made = read(graph, *edges("2-1"), node("1 last"), "", node("2 first"))
        assert names(made) == ["first", "last"]


class TestGraph:
    def test_what_later_layers_read_goes_from_user_to_user(self, graph: Path) -> None:
        made = read(
            graph,
            node("1 Input0", out=100),
            node("2 stem", out=10),
            node("3 left", out="[7; 2]"),
            node("4 join", out=11),
            *edges("1-2 2-3 2-4 3-4"),
        )
        assert names(made) == ["stem", "left", "join"]
        assert [layer.output_bytes for layer in made.layers] == [10, 9, 11]
        assert carried(made) == [(1, 2, 10)]

    def test_layers_stand_in_the_files_order_as_far_as_they_can(self, graph: Path) -> None:
        lines = [node(f"{n} {name}") for n, name in enumerate("abcd", start=1)]
        assert names(read(graph, *lines, *edges("4-1 4-2 1-3 2-3"))) == ["d", "a", "b", "c"]

    def test_there_may_be_several_sources_inputs_and_ends(self, graph: Path) -> None:
        made = read(
            graph,
            node("1 Input0", out=100),
            node("2 Input1", out=10),
            node("3 source"),
            node("4 target"),
            node("5 hidden"),
            node("6 attention"),
            node("7 state"),
            *edges("1-3 2-4 2-6 3-6 4-6 5-6 6-7 4-7 3-7"),
        )
        assert names(made) == ["source", "target", "hidden", "attention", "state"]
        assert made.input_bytes == 110
        assert carried(made) == [
            *[(0, 1, 10), (1, 3, 10)],  # Input1
            *[(0, 3, 8), (3, 4, 8)],  # source
            *[(1, 3, 8), (3, 4, 8)],  # target
        ]
        assert [layer.output_bytes for layer in made.layers] == [0, 0, 8, 8, 8]
        assert names(read(graph, node("1 a"), node("2 b"))) == ["a", "b"]

    def test_parts_of_an_output_that_nobody_reads_are_left_out(self, graph: Path) -> None:
        lines = [node("1 LSTM"), node("2 __getitem__(0)"), node("3 __getitem__(1)"), node("4 head")]
        made = read(graph, *lines, *edges("1-2 1-3 2-4"))
        assert names(made) == ["LSTM", "__getitem__(0)", "head"]
        assert carried(made) == []


class TestErrors:
    @pytest.mark.parametrize(
        ("lines", "says"),
        [
            ([node("1"), "node2 -- Layer"], "line 2 is neither an edge, .* nor a node"),
            ([node("1"), node("2"), "node1 -- node2"], "line 3 is neither an edge, a tab"),
            ([node("1", forward="soon")], "line 1 is neither"),
            ([node("1", forward="1e")], "line 1: .*1e"),
            ([node("1", forward="-1")], "line 1: .*forward_s must be 0 or a positive number"),
            ([node("1", out="[]")], "line 1 is neither"),
            ([node("1"), node("1")], "line 2: node 'node1' stands there a second time"),
            ([node("1"), *edges("1-2")], "line 2: no node is named 'node2'"),
            ([node("1 Input0"), node("2"), *edges("2-1")], "line 3: an edge leads to the Input"),
            ([node("1 Input0")], "has no node that is a layer"),
            ([""], "has no node that is a layer"),
            (
                [node("1"), node("2"), node("3"), *edges("1-2 2-3 3-2")],
                "a cycle: node2 -> node3 -> node2",
            ),
            ([node("1"), *edges("1-1")], "a cycle: node1 -> node1"),
        ],
    )
    def test_a_broken_file_says_where(self, graph: Path, lines: list[str], says: str) -> None:
        with pytest.raises(ValueError, match=says) as error:
            read(graph, *lines)
        assert str(graph) in str(error.value)


@given(
    content=damaged_text(
        "\n".join([node("1 Input0"), node("2"), node("3", out="[4; 4]"), *edges("1-2 2-3")])
    )
)
def test_whatever_stands_in_a_file_it_is_a_profile_or_refused(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "graph.txt"
    read_or_refuse(Profile.from_pipedream_graph, content, path)
