"""Trainers with faults that other trainers had, or may have: an issue is named where there is one."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pipekit.parity.verdict import Fault
from tests.parity.small import MeanOfMeans, Small, Uncleared, fault

Batch = tuple[Tensor, Tensor]


@fault("tokens", Fault.PER_MICROBATCH)
class TokensOfReplicas(MeanOfMeans):
    """transformers #34191: replicas, to which rows are dealt out, divide by their own tokens."""

    microbatches = 2

    def cut(self, batch: Batch) -> list[Batch]:
        return [(batch[0][k::2], batch[1][k::2]) for k in range(2)]


class OtherTerms(Small):
    """Divides by another number than that of the batch's terms."""

    def divisor(self, target: Tensor) -> int:
        raise NotImplementedError

    def given(self, x: Tensor, target: Tensor) -> Batch:
        self.divided_by = self.divisor(target)
        return x, target

    def loss(self, output: Any, target: Tensor) -> Any:
        return super().loss(output, target) * self.terms / self.divided_by


@fault("tokens", Fault.TERMS)
class IgnoredTokensCount(OtherTerms):
    """Ignored labels are in the divisor."""

    def divisor(self, target: Tensor) -> int:
        return target.numel()


@fault("tokens", Fault.TERMS)
class TokensOfTheBatchBefore(OtherTerms):
    """The number of tokens by which a loss is divided comes a batch late."""

    before = 0

    def divisor(self, target: Tensor) -> int:
        own = self.model.count(target)
        before, self.before = self.before or own, own
        return before


@fault("tokens", Fault.TERMS)
class TokensOfAllBatches(OtherTerms):
    """torchtune #1917: the number of tokens is never set to 0 again."""

    so_far = 0

    def divisor(self, target: Tensor) -> int:
        self.so_far += self.model.count(target)
        return self.so_far


@fault("tokens", Fault.TARGETS, "given")
def labels_shifted_twice(_: Any, x: Tensor, target: Tensor) -> Batch:
    """Model and loader both move labels by a token."""
    return x, F.pad(target[:, 1:], (0, 1), value=-100)


@fault("dense", Fault.TARGETS, "given")
def targets_in_other_rows(_: Any, x: Tensor, target: Tensor) -> Batch:
    """Inputs and targets are shuffled each by itself."""
    return x, target[torch.randperm(len(target))]


@fault("dense", Fault.TARGETS)
class TargetsOfTheBatchBefore(Small):
    """The last stage's loader is a batch behind the first one's."""

    before: Tensor | None = None

    def given(self, x: Tensor, target: Tensor) -> Batch:
        late, self.before = target if self.before is None else self.before, target
        return x, late


@fault("tokens", Fault.TARGETS, "given")
def inputs_for_labels(_: Any, x: Tensor, target: Tensor) -> Batch:
    """Nobody moves labels by a token."""
    return x, x.masked_fill(target < 0, -100)


@fault("dense", Fault.CLIPPED)
class NormOfTheBatchBefore(Small):
    """A norm that is added up beside the next batch clips an update late."""

    norm = 1.0

    def change(self) -> None:
        own = [p.grad for p in self.model.parameters() if p.grad is not None]
        before, self.norm = self.norm, float(torch.stack([g.norm() for g in own]).norm())
        for gradient in own:
            gradient *= 0.1 / before


@fault("odd", Fault.LOST)
class LastRowsDropped(Small):
    """Rows that fill no microbatch are left out, as a loader with ``drop_last`` does."""

    def cut(self, batch: Batch) -> list[Batch]:
        size = len(batch[0]) // self.microbatches
        ends = range(0, size * self.microbatches, size)
        return [(batch[0][k : k + size], batch[1][k : k + size]) for k in ends]


@fault("dense", Fault.MIXED, "change")
def reduced_over_stages(trainer: Any) -> None:
    """The gradients of two stages are averaged, as those of two replicas would be."""
    for one, other in zip(trainer.model[1:7], trainer.model[8:14], strict=True):
        for a, b in zip(one.parameters(), other.parameters(), strict=True):
            a.grad = b.grad = (a.grad + b.grad) / 2


@fault("tied", Fault.CLIPPED)
class TiedCountTwiceInTheNorm(Small):
    """The norm to which gradients are clipped has a shared weight once a use."""

    clip_norm = 0.15

    def change(self) -> None:
        grads = [p.grad for _, p in self.model.named_parameters(remove_duplicate=False)]
        factor = self.clip_norm / torch.stack([g.norm() for g in grads if g is not None]).norm()
        for parameter in self.model.parameters():
            parameter.grad *= factor


@fault("dense", Fault.DECAY, "change")
def decay_of_one_stage(trainer: Any) -> None:
    """Only one stage's optimizer has a weight decay."""
    for parameter in trainer.parts[1].parameters():
        parameter.grad += 0.01 * parameter.detach()


@fault("skips", Fault.CUT, "sent")
def second_tensor_lost(_: Any, stage: int, gradient: tuple[Tensor | None, ...]) -> Any:
    """Of two tensors between stages only the first one's gradient is sent back."""
    return (gradient[0], *[None] * (len(gradient) - 1))


@fault("dropout", Fault.DROPOUT)
class OtherMasksInRecomputation(Small):
    """torchtitan #1323: a recomputation draws other masks than its forward."""

    microbatches = 1

    def step(self, batch: Batch) -> float | None:
        with torch.no_grad():
            loss = float(self.model.loss(self.model(batch[0]), batch[1]))
        super().step(batch)
        return loss


@fault("dense", Fault.ROUNDED)
class SumsInBfloat16(Small):
    """Gradients are added up in bfloat16."""

    def microbatch(self, k: int, x: Any, target: Tensor) -> float:
        loss = super().microbatch(k, x, target)
        for parameter in self.model.parameters():
            parameter.grad = parameter.grad.bfloat16().float()
        return loss


@fault("dense", Fault.ROUNDED)
class WeightsInBfloat16(Small):
    """There is no float32 copy of weights in bfloat16."""

    def update(self) -> None:
        super().update()
        for parameter in self.model.parameters():
            parameter.data = parameter.data.bfloat16().float()


@fault("dense", Fault.OPTIMIZER)
class AdamWithDecay(Small):
    """The optimizer is another than build() was given, its decay no part of the gradient."""

    def build(self, model: Any, optimizer: Any) -> None:
        super().build(model, partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.1))


@fault("dense", Fault.SEVERAL_BATCHES)
class EverySecondBatch(Uncleared):
    """Gradients of two batches are added up for an update."""

    def update(self) -> None:
        self.number += 1
        if self.number % 2 == 0:
            super().update()
            self.model.zero_grad()


def turned(tensors: list[Tensor]) -> list[Tensor]:
    return [tensors[-1], *tensors[:-1]]


class Handed(Small):
    """All forwards, then all backwards; faults say what a stage gets of what was sent to it."""

    received: Any = list
    kept: Any = list
    returned: Any = list

    def step(self, batch: Batch) -> float | None:
        self.optimizer.zero_grad()
        self.terms = self.model.count(batch[1])
        parts = self.cut(batch)
        sent = [self.parts[0](x) for x, _ in parts]
        inputs = [x.detach().requires_grad_() for x in self.received(sent)]
        losses = [self.loss(self.parts[1](x), y) for x, (_, y) in zip(inputs, parts, strict=True)]
        sum(losses, torch.zeros(())).backward()
        gradients = self.returned([x.grad for x in inputs if x.grad is not None])
        torch.autograd.backward(self.kept(sent), gradients)
        self.update()
        return sum(float(loss.detach()) for loss in losses)


@fault("dense", Fault.HANDED)
class GradientOfANeighbour(Handed):
    """Gradients are received in another order than activations were sent."""

    returned = staticmethod(turned)


@fault("dense", Fault.HANDED)
class OneBuffer(Handed):
    """The buffer of all messages is read before the next one is there."""

    last: Tensor | None = None

    def received(self, sent: list[Tensor]) -> list[Tensor]:
        before, self.last = self.last, sent[-1]
        return [sent[0] if before is None else before, *sent[:-1]]


@fault("dense", Fault.HANDED)
class InputOfTheBatchBefore(Handed):
    """A stage begins before the message of its microbatch is there."""

    def built(self, model: Any) -> None:
        held: list[list[Tensor]] = []

        def late(tensors: list[Tensor]) -> list[Tensor]:
            held.append(tensors)
            return held[max(len(held) - 2, 0)]

        self.received = late


@fault("dense", Fault.HANDED)
class GradientOfTheBatchBefore(InputOfTheBatchBefore):
    """Likewise a backward."""

    def built(self, model: Any) -> None:
        super().built(model)
        self.received, self.returned = list, self.received


@fault("dense", Fault.ORDER)
class StagesInAnotherOrder(Small):
    """Chunks of an interleaved pipeline are run rank by rank."""

    stages = 4

    def built(self, model: Any) -> None:
        self.parts = [self.parts[k] for k in (0, 2, 1, 3)]


@fault("dense", Fault.LOST, "change")
def shard_not_reduced(trainer: Any) -> None:
    """AReaL #313: a part of a parameter lacks what other ranks add to it."""
    trainer.model[3].linear.weight.grad[:8] = 0


@fault("tied", Fault.AVERAGED_TWICE)
class TiedScaledInTheMiddle(Small):
    """A shared gradient is divided twice, the first time before the other stage is through."""

    def microbatch(self, k: int, x: Any, target: Tensor) -> float:
        loss = super().microbatch(k, x, target)
        if k == 2:
            self.model[0].weight.grad /= self.microbatches
        return loss


@fault("dense", Fault.UNKNOWN, "change")
def no_such_class(trainer: Any) -> None:
    """Wrong as no trainer is: what has no class must still be found."""
    for parameter in trainer.model.parameters():
        parameter.grad = parameter.grad**3


@fault("dense", Fault.TARGETS)
class TargetsLate(Small):
    """The last stage takes its targets from a queue that is one microbatch late."""

    last: Tensor | None = None

    def cut(self, batch: Batch) -> list[Batch]:
        parts = super().cut(batch)
        late = [parts[0][1] if self.last is None else self.last, *(y for _, y in parts)]
        self.last = late.pop()
        return [(x, y) for (x, _), y in zip(parts, late, strict=True)]


@fault("dense", Fault.TARGETS)
class InputOfTheFirst(Small):
    """Every microbatch has the first one's input."""

    def cut(self, batch: Batch) -> list[Batch]:
        parts = super().cut(batch)
        return [(parts[0][0], y) for _, y in parts]


@fault("dense", Fault.EACH_MICROBATCH)
class LastBatchInSteps(Small):
    """accelerate #1847: at the loader's end each microbatch is an update."""

    number = 0

    def microbatch(self, k: int, x: Any, target: Tensor) -> float:
        self.number += k == 0
        loss = super().microbatch(k, x, target)
        if self.number == 6 and k < self.microbatches - 1:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss


@fault("dense", Fault.CLIPPED)
class ClippedBeforeTheSum(Small):
    """Each microbatch's gradients are clipped alone."""

    def microbatch(self, k: int, x: Any, target: Tensor) -> float:
        own = list(self.model.parameters())
        before = [torch.zeros_like(p) if p.grad is None else p.grad for p in own]
        self.model.zero_grad()
        loss = super().microbatch(k, x, target)
        torch.nn.utils.clip_grad_norm_(own, 0.05)
        for parameter, gradient in zip(own, before, strict=True):
            parameter.grad += gradient
        return loss


@fault("tied", Fault.NEVER)
class CopyOfTiedLeft(Small):
    """The head's copy of a shared weight gives its gradient, and is never updated itself."""

    def built(self, model: Any) -> None:
        model[-1].weight = torch.nn.Parameter(model[0].weight.detach().clone())

    def change(self) -> None:
        self.model[0].weight.grad += self.model[-1].weight.grad
        self.model[-1].weight.grad = None

    def parameters(self) -> Any:
        return dict(self.model[:-1].named_parameters())


@fault("tied", Fault.STALE.format("1 update"))
class CopyOfTiedLate(CopyOfTiedLeft):
    """The head's copy of a shared weight is given to it before the update in place of after it."""

    def update(self) -> None:
        self.model[-1].weight.data.copy_(self.model[0].weight)
        super().update()


@fault("skips", Fault.AVERAGED_TWICE, "sent")
def second_tensor_scaled(trainer: Any, stage: int, gradient: tuple[Tensor | None, ...]) -> Any:
    """Of two tensors between stages the second one's gradient is averaged once more."""
    first, *others = gradient
    return first, *(None if g is None else g / trainer.microbatches for g in others)


@fault("tokens", Fault.PER_MICROBATCH, "loss")
def each_rows_mean(trainer: Any, output: Any, target: Tensor) -> Any:
    """The mean of the rows' own means, however many labels each has."""
    terms = F.cross_entropy(output.flatten(0, -2), target.flatten(), reduction="none")
    means = terms.view(target.shape).sum(1) / (target != -100).sum(1)
    return means.sum() / (trainer.microbatches * len(target))


@fault("odd", Fault.PER_MICROBATCH)
class WindowsOfSixteen(MeanOfMeans):
    """Lightning #19987: the last window is shorter, and counts as much as the others."""

    def cut(self, batch: Batch) -> list[Batch]:
        return list(zip(*(part.split(16) for part in batch), strict=True))


@fault("moe", Fault.AUXILIARY)
class AuxiliaryOfTheLast(Small):
    """The auxiliary loss of the last microbatch alone counts."""

    def loss(self, output: Any, target: Tensor) -> Any:
        return super().loss(output if self.k == self.microbatches - 1 else output[:1], target)


@fault("dense", Fault.LOST)
class SkippedByOneStage(Small):
    """A stage leaves out an update, whose gradients overflow there."""

    number = 0

    def change(self) -> None:
        self.number += 1
        if self.number == 3:
            self.parts[1].zero_grad()


@fault("dense", Fault.LATE)
class KeptByASkippedUpdate(Uncleared):
    """An update is left out, and its gradients are not cleared."""

    def update(self) -> None:
        self.number += 1
        if self.number != 2:
            super().update()
            self.model.zero_grad()


@fault("tokens", Fault.LOST)
class HalfASequence(Small):
    """Of ranks that share sequences one has no part in the sum."""

    def loss(self, output: Any, target: Tensor) -> Any:
        return super().loss(output[:, :3], target[:, :3])


@fault("tokens", Fault.PER_MICROBATCH, "loss")
def mean_of_each_zigzag(trainer: Any, output: Any, target: Tensor) -> Any:
    """Megatron-LM #7452: ranks that share sequences in a zigzag divide by their own tokens."""
    ranks = [[0, 5], [1, 4], [2, 3]]
    means = [trainer.model.loss(output[:, own], target[:, own]) for own in ranks]
    return sum(means, torch.zeros(())) / (len(ranks) * trainer.microbatches)


@fault("dense", Fault.CUT, "built")
def half_a_column_parallel_layer(_: Any, model: Any) -> None:
    """Ranks that share a layer do not add up the gradients of its input."""
    linear = model[5].linear

    def forward(x: Tensor) -> Tensor:
        given = zip((x, x.detach()), linear.weight.split(8), linear.bias.split(8), strict=True)
        return torch.cat([F.linear(*each) for each in given], -1)

    linear.forward = forward


@fault("dense", Fault.ONLY_LAST)
class ShardOverwritten(Small):
    """Of a part of each parameter gradients are not added up over microbatches (FSDP)."""

    def microbatch(self, k: int, x: Any, target: Tensor) -> float:
        for parameter in (p for p in self.model.parameters() if p.grad is not None):
            parameter.grad[len(parameter) // 2 :] = 0
        return super().microbatch(k, x, target)


@fault("tokens", Fault.LOST, "given")
def last_label_masked(_: Any, x: Tensor, target: Tensor) -> Batch:
    """The mask of labels is shifted by one."""
    shorter, lengths = target.clone(), (target >= 0).sum(1)
    shorter[torch.arange(len(target)), lengths - 1] = -100
    return x, shorter


@fault("batch-norm", Fault.BATCH_NORM, "built")
def stage_evaluates(trainer: Any, model: Any) -> None:
    """One stage stays as an evaluation left it."""
    trainer.parts[1].eval()


@fault("dense", Fault.CLIPPED, "change")
def biases_twice_in_the_norm(trainer: Any) -> None:
    """What all tensor-parallel ranks hold counts once a rank in the norm of the gradients."""
    own = dict(trainer.model.named_parameters()).items()
    norm = sum((1 + n.endswith("bias")) * p.grad.square().sum() for n, p in own).sqrt()
    for _, parameter in own:
        parameter.grad *= 0.1 / norm


@fault("dense", Fault.HANDED)
class WeightsByAnotherInput(Small):
    """A delayed weight gradient reads the input that a later microbatch has saved."""

    x: Tensor

    def change(self) -> None:
        layer = self.model[9].linear
        layer.weight.grad = torch.zeros_like(layer.weight)
        for (_, gradient), (x, _) in zip(self.saved, self.saved[1:] + self.saved[:1], strict=True):
            layer.weight.grad += gradient.T @ x
        self.saved.clear()

    def built(self, model: Any) -> None:
        self.saved: list[tuple[Tensor, Tensor]] = []
        model[9].linear.register_full_backward_hook(
            lambda _, __, gradients: self.saved.append((self.x, gradients[0]))
        )
        model[9].linear.register_forward_pre_hook(
            lambda _, given: setattr(self, "x", given[0].detach())
        )


@fault("tokens", Fault.LOST, "given")
def padding_is_a_class(_: Any, x: Tensor, target: Tensor) -> Batch:
    """A class is taken for padding."""
    return x, target.masked_fill(target == 0, -100)


@fault("dense", Fault.EARLIER_BATCH)
class SomeBatchesTwice(Small):
    """Each second batch is the one before."""

    before: Batch | None = None

    def given(self, x: Tensor, target: Tensor) -> Batch:
        used, self.before = self.before or (x, target), None if self.before else (x, target)
        return used


@fault("dense", Fault.SUMMED, "built")
def bias_of_each_rank(_: Any, model: Any) -> None:
    """Both ranks that share a row-parallel layer add its bias."""
    model[5].linear.register_forward_hook(lambda linear, _, y: y + linear.bias)


@fault("dense", Fault.STALE.format("1 update"))
class GatheredLate(Small):
    """The first microbatch reads weights that an update has not reached."""

    before: list[Tensor] | None = None

    def microbatch(self, k: int, x: Any, target: Tensor) -> float:
        own = [parameter.data for parameter in self.model.parameters()]
        if k == 0:
            self.newest = [tensor.clone() for tensor in own]
            torch._foreach_copy_(own, self.before or self.newest)
        loss = super().microbatch(k, x, target)
        torch._foreach_copy_(own, self.newest)
        self.before = self.newest
        return loss


@fault("dense", Fault.OTHER_LOSS, "loss")
def softmax_of_shards(trainer: Any, output: Any, target: Tensor) -> Any:
    """Shards of the vocabulary have a softmax each."""
    shards = [shard.log_softmax(-1) for shard in output.tensor_split(2, -1)]
    return F.nll_loss(torch.cat(shards, -1), target) / trainer.microbatches


@fault("dense", Fault.LOST, "change")
def largest_tenth(trainer: Any) -> None:
    """Only the largest tenth of each gradient is sent."""
    for parameter in trainer.model.parameters():
        sizes = parameter.grad.abs()
        parameter.grad[sizes < sizes.flatten().quantile(0.9)] = 0


@fault("dense", Fault.PLACES, "change")
def flat_shifted(trainer: Any) -> None:
    """Gradients lie a number further in a flat buffer than its parts begin."""
    own = [*trainer.model.parameters()]
    flat = torch.cat([parameter.grad.flatten() for parameter in own]).roll(1)
    for parameter, part in zip(own, flat.split([p.numel() for p in own]), strict=True):
        parameter.grad.view(-1).copy_(part)


@fault("dense", Fault.ORDER, "built")
def layer_on_both_sides(trainer: Any, model: Any) -> None:
    """The layer at a cut runs in both stages."""
    trainer.parts = [model[:8], model[7:]]


@fault("dense", Fault.FORWARD, "built")
def averaged_shards(_: Any, model: Any) -> None:
    """A row-parallel layer averages what its shards add up to."""
    model[5].linear.register_forward_hook(lambda linear, _, y: (y + linear.bias) / 2)


@fault("dense", Fault.BACKWARD, "built")
def input_added_constant(_: Any, model: Any) -> None:
    """A residual is taken out of the graph."""
    model[8].register_forward_hook(lambda _, given, y: y - given[0] + given[0].detach())


@fault("dense", Fault.RATE, "change")
def rates_of_layers(trainer: Any) -> None:
    """LARS in place of SGD."""
    for parameter in trainer.model.parameters():
        parameter.grad *= parameter.norm().item() / parameter.grad.norm()
