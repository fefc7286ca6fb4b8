"""The levels: the tasks of a schedule, to be put in an order by hand, and the best order known.

A level's costs are in time slots: a forward takes one and a backward two, times the factor of its
stage and of its worker; a message takes ``link`` slots.  A move to the host or back takes one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipekit import schedules
from pipekit.schedules import Schedule


@dataclass(frozen=True)
class Puzzle:
    """Tasks to place, each on its worker."""

    name: str
    goal: str  # the puzzle, in a few sentences
    idea: str  # the first hint
    teaches: str  # the lesson of its answer
    source: str  # paper and section
    best: Schedule  # the best known: its tasks, their workers and weights are the level's
    capped: bool = True  # whether no worker may have more microbatches in flight than with it
    stages: Sequence[float] = ()  # how many times as long each takes; empty: all alike
    workers: Sequence[float] = ()  # likewise
    link: float = 0.0  # slots of a message between workers


TIGHT = schedules.parse(
    """
    worker 0 | F0 F1 . .  .  I0 W0 F2 I1 W1 F3 .  .  I2 W2 I3 W3^
    worker 1 | .  F0 F1 . I0 W0 .  I1 F2 W1 .  F3 I2 W2 I3 W3^
    worker 2 | .  .  F0 I0 W0 F1 I1 W1 . F2 I2 W2 F3 I3 W3^
    """
)
"""Found by ``pk.search`` in 5 s under a cap of two microbatches a worker."""

LEVELS = (
    Puzzle(
        "Naive",
        "Two minibatches go through three stages, with an update after each. The second reads the "
        "weights that the first has made. F is a forward, B a backward, ^ an update: click all of "
        "them in an order that works. Who can work while another does?",
        "A forward needs the forward of the stage before, a backward that of the stage behind. Go "
        "down with F0, then up with B0; after each stage's B0 comes its update ^.",
        "Without microbatches one worker works at a time.",
        "PipeDream, Figure 3",
        schedules.model_parallel(3).take(2),
        capped=False,
    ),
    Puzzle(
        "GPipe",
        "A batch is cut into four microbatches, which all read the same weights. Keep the workers "
        "busy; memory is no matter.",
        "Nothing hinders a worker from the next forward while others work on the one before.",
        "Microbatches fill the pipeline; the bubble is (n-1)/(m+n-1).",
        "GPipe, section 3.2",
        schedules.gpipe(3, 4).take(1),
        capped=False,
    ),
    Puzzle(
        "1F1B",
        "The same tasks, but a worker may have no more microbatches in flight than there are "
        "stages from it to the last: 3, 2 and 1. Is that as fast as GPipe all the same?",
        "A backward makes room. After its warm-up each worker takes a forward and a backward in "
        "turn.",
        "The same bubble with fewer activations kept.",
        "PipeDream-2BW, section 3.2",
        schedules.flush(3, 4).take(1),
    ),
    Puzzle(
        "Virtual stages",
        "Four stages on two workers, two each: worker 0 has stages 0 and 2. Smaller stages fill "
        "the pipeline sooner.",
        "Send microbatches 0 and 1 through all four stages before microbatch 2 begins.",
        "Interleaving makes the bubble smaller, and sends more messages.",
        "Megatron-LM (SC '21), section 2.2",
        schedules.interleaved(4, 4, workers=2).take(1),
    ),
    Puzzle(
        "PipeDream",
        "Update after every minibatch, and never wait. The weights that a minibatch reads are "
        "given: older ones on earlier stages, and its backward reads the same.",
        "Three minibatches enter before the first backward comes home; then every worker has a "
        "backward, an update and a forward in turn.",
        "No flush and no bubble, with older weights.",
        "PipeDream, sections 3.3 and 3.4",
        schedules.pipedream(3).take(4),
    ),
    Puzzle(
        "Two versions",
        "Three batches of two microbatches without a flush. Each reads weights one update old, so "
        "that two versions of the weights are enough.",
        "Begin the second batch while the gradients of the first come back: it reads version 0, "
        "too.",
        "Double buffering: no flush with two weight versions.",
        "PipeDream-2BW, section 3.1",
        schedules.two_bw(2, 2).take(3),
    ),
    Puzzle(
        "Zero bubble",
        "A backward comes in two parts. I, for the stage's input, is awaited by the stage before; "
        "W, for the weights, can wait until there is nothing better to do.",
        "Let I go first whenever one is there, and fill idle slots with W.",
        "The second half of a backward fills gaps.",
        "Qi et al. (ICLR '24), section 2.1",
        schedules.zb_h1(3, 4).take(1),
    ),
    Puzzle(
        "A V under a memory cap",
        "Four stages in a V on two workers: worker 0 has the first and the last. In flight at most "
        "are three halves of a microbatch on worker 0, and four on worker 1.",
        "The worker that begins a microbatch ends it, so that its room is free soon: follow one "
        "microbatch down the V and up again.",
        "A V shares activations out evenly.",
        "Qi et al. (NeurIPS '24)",
        schedules.v_min(4, 4).take(1),
    ),
    Puzzle(
        "ZB-V",
        "The same V with room for four halves on both workers. Neither needs to wait between its "
        "first and last task.",
        "Fill the warm-up with forwards of both stages of a worker; spend W where nothing else is "
        "there.",
        "Zero bubble within the memory of 1F1B.",
        "Qi et al. (ICLR '24), section 6",
        schedules.zb_v(4, 4).take(1),
    ),
    Puzzle(
        "Two directions: Chimera",
        "Each worker has two stages' weights: half of the microbatches enter at worker 0, half at "
        "worker 1. Their gradients are summed by both.",
        "While microbatch 0 goes down, microbatch 1 comes up: they cross without meeting.",
        "Two directions halve the warm-up, for twice the weights.",
        "Li and Hoefler (SC '21), section 3.1",
        schedules.chimera(2, 2).take(1),
    ),
    Puzzle(
        "DualPipe",
        "Two directions with backwards in parts: microbatches 0 and 1 enter at worker 0, the "
        "others at worker 1.",
        "Each worker begins with its own direction's forwards. From then on a forward of one "
        "direction goes with a backward of the other.",
        "Forwards and backwards of two directions fill one another's gaps.",
        "DeepSeek-V3, section 3.2.1",
        schedules.dualpipe(2, 4).take(1),
    ),
    Puzzle(
        "Uneven stages",
        "The middle stage takes twice as long as the others. Which worker may never wait?",
        "Worker 1 is the bottleneck: have work ready for it at all times, with one more forward "
        "on worker 0 than 1F1B has.",
        "The slowest stage sets the pace; a deeper warm-up before it hides the rest.",
        "PipeDream, section 3.1",
        schedules.eager(3, 4).take(1),
        stages=(1, 2, 1),
    ),
    Puzzle(
        "Slow link",
        "A message takes one slot. 1F1B's warm-up is now too short: each forward waits for a "
        "gradient that is still on its way.",
        "A round trip over a link takes two slots more: put one more forward in flight for each "
        "link that lies behind a worker.",
        "Microbatches in flight hide transfers.",
        "PipeDream, section 3.2; eager 1F1B",
        schedules.eager(3, 5).take(1),
        link=1,
    ),
    Puzzle(
        "Memory for two",
        "Backwards in two parts, and no worker may have more than two microbatches in flight. No "
        "named method fits.",
        "Each W makes room for a forward, so that it cannot always wait.",
        "Under a cap of one's own a search finds orders that no paper has.",
        "pk.search",
        TIGHT,
    ),
    Puzzle(
        "Offload",
        "Two stages on each worker, and activations may wait on the host: O takes a microbatch's "
        "there, L brings them back before their backward. Both run beside the passes behind them. "
        "No worker may keep more than two microbatches' activations itself.",
        "Offload behind each forward of a worker's first stage, since its backward is far away, "
        "and load during the backward before the one that needs it.",
        "A transfer beside the passes makes room and costs no time, if it comes back early enough "
        "and not too early.",
        "Wan et al. (ICML '25), PipeOffload",
        schedules.offloaded(schedules.gis(4, 3, workers=2), (0, 1)).take(1),
    ),
    Puzzle(
        "Weight versions",
        "PipeDream's minibatches once more, with vertical sync: all stages read the version that "
        "the first has read. Count the versions that each worker keeps.",
        "The versions are given. Keep the warm-up as short as it can be without waiting.",
        "Consistent versions cost a weight version more on late stages.",
        "PipeDream, section 3.3",
        schedules.pipedream(3, vertical_sync=True).take(4),
    ),
    Puzzle(
        "A straggler",
        "Worker 1 takes twice as long for everything. Backwards come in two parts.",
        "The slow worker's I goes first, since others wait for it: its W come at the end.",
        "Only the straggler's own work counts, and the one forward before it.",
        "Qi et al. (ICLR '24), section 3",
        schedules.zb_h1(3, 4).take(1),
        capped=False,
        workers=(1, 2, 1),
    ),
)
"""From the easiest; the last one of the course, to diagnose a trace, is no table to build."""
