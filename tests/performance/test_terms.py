"""Terms against FLOPs and bytes worked out by hand, and against their degenerate cases."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit.performance.constants import Constants
from pipekit.performance.devices import described, machine
from pipekit.performance.layout import ParallelLayout, Recompute, on_gpus
from pipekit.performance.memory import peak_bytes
from pipekit.performance.predict import step
from pipekit.performance.shapes import MLP, Attention, Experts, Shape, gpt
from pipekit.performance.terms import replicas
from pipekit.performance.terms.collectives import Links
from pipekit.performance.terms.kernels import Kernels
from pipekit.performance.terms.mixers import attention
from pipekit.performance.training import MEGATRON_CORE, MEGATRON_DEEPSPEED, TrainingSetup

PERFECT = Constants(1.0, 0.0)


def training(layout: ParallelLayout, **changes: object) -> TrainingSetup:
    run = TrainingSetup(
        gpt("GPT", 4096, 32, 16),
        layout,
        Links(machine("A100 80GB")),
        MEGATRON_DEEPSPEED,
        Constants(0.9, 40e-6),
        "float16",
        2048,
    )
    return replace(run, **changes)  # type: ignore[arg-type]


def test_a_large_product_takes_its_flops_and_a_thin_one_its_bytes() -> None:
    kernels = Kernels(machine("A100 80GB"), "float16", 1.0)
    size = 108 * 256  # whole waves of 128 x 256 tiles
    flops = 2 * size**3
    assert kernels.product(size, size, size) == pytest.approx(flops / 312e12, rel=0.02)
    moved = 2 * (size + size**2 + size)
    assert kernels.product(1, size, size) == pytest.approx(moved / (0.85 * 2.039e12), rel=0.01)


def test_rows_that_begin_off_the_mark_take_longer() -> None:
    kernels = Kernels(machine("A100 80GB"), "float16", 1.0)
    assert kernels.product(4096, 4096, 50257) > 2 * kernels.product(4096, 4096, 50304)
    fewer, more = (kernels.linear(rows, 4096, 1024).backward_s for rows in (44, 88))
    assert fewer <= more  # rows begin where columns do, however many there are


@given(st.integers(1, 9000), st.integers(1, 9000), st.integers(1, 9000), st.floats(0.1, 1))
def test_no_product_is_faster_than_the_sheet(m: int, k: int, n: int, efficiency: float) -> None:
    sheet = machine("H100")
    found = Kernels(sheet, "bfloat16", efficiency).product(m, k, n)
    assert found >= 2 * m * k * n / (efficiency * 989e12)
    assert found >= 2 * (m * k + k * n + m * n) / 3.35e12


def test_a_dtype_without_units_runs_by_the_next_wider_one() -> None:
    assert machine("A100 80GB").peak("float8") == 312e12
    with pytest.raises(ValueError, match="has no peak for int8"):
        machine("A100 80GB").peak("int8")


def test_a_ring_sends_every_byte_twice_but_for_its_own_part() -> None:
    links = Links(machine("A100 80GB"))
    assert links.all_reduce(1, 1e9) == 0
    assert links.all_reduce(8, 1e9) == pytest.approx(2 * 7 / 8 * 1e9 / (0.8 * 300e9), rel=0.01)
    across = links.all_reduce(16, 1e9, stride=8)  # one rank a node: one network card
    assert across == pytest.approx(2 * 15 / 16 * 1e9 / (0.9 * 25e9), rel=0.01)


def test_scores_cost_four_products_of_heads_by_hand() -> None:
    """2 x 2 b s^2 h forward, twice that backward; a window costs its share."""
    run = training(ParallelLayout(), framework=MEGATRON_CORE, constants=PERFECT, dtype="bfloat16")
    whole = attention(run, Attention(32, 32, 128))
    window = attention(run, Attention(32, 32, 128, window=128))
    saved = 2 * 2048 * (2048 / 2 - 128) * 32 * (128 + 128) / (0.55 * 312e12)
    assert whole.forward_s - window.forward_s == pytest.approx(saved)


def test_without_replicas_nothing_is_exchanged() -> None:
    alone = replicas.seconds(training(ParallelLayout()), 1.0)
    assert alone == pytest.approx(
        20 * replicas.parameters(training(ParallelLayout()))[1] / 1.733e12, rel=0.01
    )
    assert replicas.seconds(training(ParallelLayout(dp=2)), 1.0) > alone


def test_one_stage_is_its_passes_one_after_the_other() -> None:
    run = training(ParallelLayout(microbatches=5))
    once = step(replace(run, layout=ParallelLayout(microbatches=1)))
    found = step(run)
    assert found.after_s == once.after_s
    assert found.seconds - found.after_s == pytest.approx(5 * (once.seconds - once.after_s))


MIXTURE = Shape("mixture", 4096, 8, (((Attention(32, 8, 128), Experts(8, 2, 8192)), 4),))


@pytest.mark.parametrize("rule", ["activations", "selective", "experts"])
@pytest.mark.parametrize("tp", [1, 2])
def test_recomputing_a_part_costs_and_saves_less_than_everything(rule: Recompute, tp: int) -> None:
    runs = [
        training(ParallelLayout(tp, pp=2, microbatches=4, recompute=each), shape=MIXTURE)
        for each in ("nothing", rule, "everything")
    ]
    seconds, bytes_ = (
        [each(run) for run in runs] for each in (lambda run: step(run).seconds, most)
    )
    assert seconds == sorted(seconds)
    assert bytes_ == sorted(bytes_, reverse=True)
    assert len({*seconds}) == len({*bytes_}) == 3


def most(run: TrainingSetup) -> float:
    return max(peak_bytes(run))


def test_narrow_products_keep_narrow_inputs() -> None:
    """Of one layer by hand: a byte less for two normed inputs and for what enters the second
    product of the MLP, and one more for attention's output, which is kept in both dtypes."""
    shape = Shape("one", 4096, 8, (((Attention(32, 8, 128), MLP(8192)), 1),))
    two, one = (
        peak_bytes(training(ParallelLayout(), shape=shape, framework=MEGATRON_CORE, dtype=dtype))
        for dtype in ("bfloat16", "float8")
    )
    assert two[0] - one[0] == 2048 * (2 * 4096 + 8192 - 32 * 128)


@given(st.sampled_from([2, 4, 8]), st.sampled_from([2, 4]))
def test_zero_saves_memory_stage_by_stage(dp: int, tp: int) -> None:
    peaks = [
        peak_bytes(training(ParallelLayout(tp=tp, dp=dp, zero=stage)))[0] for stage in range(4)
    ]
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == 4


def test_the_first_ranks_of_1f1b_keep_more_microbatches() -> None:
    """Of equal stages with hardly a vocabulary, rank r keeps p - r (PipeDream-2BW, section 3.2)."""
    run = training(
        ParallelLayout(pp=4, microbatches=8), shape=replace(gpt("g", 4096, 32, 16), vocabulary=8)
    )
    first, second, third, last = peak_bytes(run)
    assert first - second == pytest.approx(second - third, rel=1e-3)
    assert second - third == pytest.approx(third - last, rel=1e-3)
    # 34 s b h + 5 a s^2 b a layer (Korthikanti et al., equation 1), of 4 layers.
    each = 4 * (34 * 2048 * 4096 + 5 * 32 * 2048**2)
    assert second - third == pytest.approx(each)


@given(st.sampled_from([2, 4]), st.integers(1, 2))
def test_a_vocabulary_spread_over_all_ranks_unloads_the_ends(pp: int, tp: int) -> None:
    """GPT-2's tables are as large as several of its blocks, so that the ends are the slowest."""
    ends = training(
        ParallelLayout(pp=pp, tp=tp, microbatches=16),
        shape=replace(gpt("small", 1024, 16, 8), tied=False),
    )
    spread = replace(ends, layout=replace(ends.layout, spreads_vocabulary=True))
    assert step(spread).seconds < step(ends).seconds
    assert sum(peak_bytes(spread)) == pytest.approx(sum(peak_bytes(ends)))
    assert replicas.parameters(spread)[1] <= replicas.parameters(ends)[1]


def test_zero_3_gathers_weights_for_each_pass() -> None:
    """Of P weights a microbatch costs 2 x 2 bytes gathered and 2 reduced, a step of ZeRO 1 2 + 2."""
    one, three = (
        replicas._exchange(training(ParallelLayout(dp=16, microbatches=5, zero=stage, tp=8)))
        for stage in (1, 3)
    )
    assert (three - 50e-6) / (one - 50e-6) == pytest.approx((5 * 2 + 10 * 2) / 4)
    layout = ParallelLayout(pp=2, dp=8, microbatches=4)  # in which whole weights stay
    runs = (training(replace(layout, zero=stage)) for stage in (1, 2, 3))
    assert len({replicas.seconds(run, 1.0) for run in runs}) == 1


def test_what_runs_beside_passes_is_late_by_a_layer_at_least() -> None:
    run = training(ParallelLayout(dp=16, zero=1), framework=MEGATRON_CORE, dtype="bfloat16")
    late, hidden = (replicas.seconds(run, slot_s) for slot_s in (0.0, 1e3))
    assert late - hidden == pytest.approx(replicas._exchange(run) * 15 / 16)
    waits = replace(run, framework=MEGATRON_DEEPSPEED)
    assert replicas.seconds(waits, 0.0) == replicas.seconds(waits, 1e3)


def test_layouts_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="tp 3 x cp 1 x pp 1 does not divide 8 GPUs"):
        on_gpus(8, 8, tp=3)
    with pytest.raises(ValueError, match="next larger batch is 16"):
        on_gpus(8, 12)
    with pytest.raises(ValueError, match="ep 3 does not divide tp x cp x dp = 4"):
        ParallelLayout(dp=4, ep=3)
    with pytest.raises(ValueError, match="pp must be a positive whole number, not 0"):
        ParallelLayout(pp=0)


def test_a_device_is_found_or_described_in_five_numbers() -> None:
    with pytest.raises(ValueError, match=r"did you mean 'H100'.*devices.described"):
        machine("H10")
    assert machine("h100") is machine("H100")
    own = described(100e12, 48, 1e12, 50e9, 10e9)
    assert own.peak("float8") == 100e12
    with pytest.raises(ValueError, match="network_bandwidth must be above zero"):
        described(100e12, 48, 1e12, 50e9, 0)
