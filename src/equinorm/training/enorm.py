"""``ENorm``: one step towards the balanced weights after every optimizer step (Algorithm 2 of the paper)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from equinorm.errors import ArgumentError, EquinormError
from equinorm.interrupts import interrupts_deferred
from equinorm.report import Scales
from equinorm.restrict import holding
from equinorm.symmetry import Symmetries
from equinorm.trace import ExampleInputs
from equinorm.training.analysed import analysed
from equinorm.training.arguments import check_arguments, optimizers_of
from equinorm.training.attached import AfterStep, attach
from equinorm.training.cycle import Stepping
from equinorm.training.engine import chosen_engine
from equinorm.training.followers import Copy, Followers
from equinorm.training.layouts import Layouts
from equinorm.training.ownership import Ownership
from equinorm.training.precision import DIGITS, Precision
from equinorm.training.seen import Seen
from equinorm.training.shards import locals_of
from equinorm.weighting import log_weights


class ENorm:
    """A companion to optimizers: call ``step()`` after theirs, or ``attach()`` once.

    Every step does ``cycles`` cycles of the paper's Algorithm 1 on the weights, and moves the optimizer's state with
    them (``eq:update_grads``), so that training goes on as if the weights had always been there.

    Args:
        model: the module being trained; wrapped by ``torch.compile`` or ``DistributedDataParallel`` if you like.
        optimizer: the optimizer of its parameters, or a list when there are several.
        example_inputs: as for :func:`equinorm.symmetries`; not needed with ``symmetries``.
        p, c, solver, scales, batch_norm, biases: as for :func:`equinorm.balance`. ``batch_norm="ignore"`` is the
            paper's ENorm + BN; it, and ``biases=False``, change the function at every step.
        cycles: how many cycles a step does.
        every: do something, and look at the weights, only at every so many steps.
        compile: fuse each pass over a weight with ``torch.compile``; the first steps then compile.
        symmetries: the result of an earlier :func:`equinorm.symmetries`; under ``fully_shard``, from before it.
        max_scale: a scale moves by at most this factor per step. A channel that comes back to life from a tiny norm
            would otherwise multiply its momentum by as much as it divides its weights. Whatever you pass, a factor to
            the fourth power stays within the range of the weights' type.
        nonfinite: ``"raise"`` or ``"skip"`` when the optimizer has left NaN or infinite weights (or sums of powers
            that overflow); they stay as they are.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        example_inputs: ExampleInputs | None = None,
        *,
        p: float = 2.0,
        c: float | str | Mapping[str, float] = 1.0,
        cycles: int = 1,
        every: int = 1,
        solver: str = "cycle",
        scales: str = "real",
        batch_norm: str = "preserve",
        biases: bool = True,
        compile: bool = False,
        symmetries: Symmetries | None = None,
        max_scale: float = 8.0,
        nonfinite: str = "raise",
    ) -> None:
        check_arguments(
            p=p, cycles=cycles, every=every, solver=solver, scales=scales, biases=biases, compile=compile,
            max_scale=max_scale, nonfinite=nonfinite,
        )  # fmt: skip
        optimizers = optimizers_of(optimizer)
        self._model, found, self._parameters = analysed(model, example_inputs, symmetries, batch_norm)
        self._ownership = Ownership(optimizers, self._parameters)
        self.symmetries = holding(found, self._ownership.held(found, biases))
        self._layouts = Layouts(self._model, "ENorm")
        self._every, self._biases, self._nonfinite = every, biases, nonfinite
        self._moved = _moved(self.symmetries, biases)
        self._others = [
            name for name, p in self._parameters.items() if p.requires_grad and name not in self._moved
        ]
        self._exact = scales == "pow2"
        self._check_types()
        precision = Precision(self._parameters[name] for name in self._moved)
        stepping = Stepping(p, cycles, precision.bound(max_scale, self._exact), self._exact, precision.unit)
        weights = log_weights(c, p, self.symmetries)
        self._engine = chosen_engine(self.symmetries, self._parameters, weights, stepping, solver, compile)
        self._seen: Seen | None = None
        self._followers = Followers(self._parameters, self._moved)
        self._handle: Any = None
        self._steps = 0
        device = next(iter(self._parameters.values())).device
        self._total = torch.zeros(self.symmetries.num_free + 1, dtype=torch.float64, device=device)
        if not self.symmetries.num_free:
            warnings.warn(
                "ENorm has nothing to do: no scale of this model is free. print(enorm.symmetries) says why",
                stacklevel=2,
            )

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def step(self) -> None:
        """Normalise once: call it right after ``optimizer.step()``."""
        self._steps += 1
        if self._steps % self._every or not self.symmetries.num_free:
            return
        with self._undisturbed():
            if self._seen is None or not self._seen.again():
                self._seen = None  # until everything was found in order
                self._look_up()
            self._normalise()

    def _look_up(self) -> None:
        """Find and check the tensors of a step: those of the last one stand while nothing was replaced."""
        self._layouts.check()
        self._ownership.check()
        self._weights = locals_of(self._parameters)
        states = [(locals_of(tensors), exponent) for tensors, exponent in self._ownership.states(self._moved)]
        followers = [(tensors, 1) for tensors in self._followers.tensors()]
        self._targets = [(self._weights, 1), *states, *followers]
        self._beside = [self._weights[name] for name in self._others]
        seen = Seen()
        self._layouts.look(seen)
        self._ownership.look(seen, self._moved)
        self._followers.look(seen)
        self._seen = seen

    def _normalise(self) -> None:
        x = self._engine.scales(self._weights, self._beside)
        if x is None:
            if self._nonfinite == "skip":
                return
            raise EquinormError(
                "the optimizer has left weights that are not finite, or too large for sums of their powers; they stay "
                'as it left them. Lower the learning rate, or pass nonfinite="skip" to go on without normalising'
            )
        total = self._total + x.to(self._total.device)
        with interrupts_deferred():
            self._engine.rescale(x, self._targets, self._biases)
            self._total = total

    def attach(self) -> Any:
        """Run by itself after each step of the optimizer (the last one, if there are several).

        Attached already, it stays so, once; another ENorm of this model no longer runs after that optimizer.

        Returns:
            A handle; its ``remove()`` detaches.
        """
        optimizers = self._ownership.optimizers
        if self._handle is None or self._handle.id not in optimizers[-1]._optimizer_step_post_hooks:
            self._handle = attach(AfterStep(self._model, self.step), optimizers)
        return self._handle

    def follow(self, averaged: Copy) -> None:
        """Give a copy or an average of the model (``AveragedModel``) the same scales from now on.

        Averages then stay averages of weights in one gauge. Follow it when it is made, before further steps; once is
        enough, also when a checkpoint is loaded into it later.

        Args:
            averaged: a module like the model, on the same device and sharded alike, or a mapping of the model's
                parameter names to tensors. It has memory of its own; its type may be wider.
        """
        self._followers.add(averaged)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def norm(self) -> float:
        """sum of c_k ||W_k||_p^p over the counted parameters, of the weights as they are.

        Of sharded parameters all processes must ask for it, as for :meth:`residual`.
        """
        self._layouts.check()
        with self._undisturbed():
            return self._engine.norm(locals_of(self._parameters))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def residual(self) -> float:
        """max |R - L| / (R + L) over the live free scales: 0 at the balanced point."""
        self._layouts.check()
        with self._undisturbed():
            return self._engine.residual(locals_of(self._parameters))

    def total_scales(self) -> Scales:
        """The product of all scales so far: maps a checkpoint from before the first step onto today's gauge.

        The ratio of two totals maps the weights of the one time onto the gauge of the other.
        """
        return Scales(self.symmetries, self._total.to("cpu", copy=True), self._biases)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs besides the model's and the optimizer's."""
        return {"steps": self._steps, "total_log_scales": self._total.clone(), **self._fingerprint()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint of the same model."""
        expected = self._fingerprint()
        missing = {"steps", "total_log_scales", *expected} - set(state)
        if missing:
            raise ArgumentError(f"state: {min(missing)!r} is missing; expected ENorm.state_dict()")
        try:
            steps = int(state["steps"])
            total = torch.as_tensor(state["total_log_scales"], dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ArgumentError("state: its values are not numbers; expected ENorm.state_dict()") from error
        if {key: state[key] for key in expected} != expected or total.shape != self._total.shape:
            raise ArgumentError("state: it comes from another model, or from other frozen parameters")
        self._steps = steps
        self._total.copy_(total)

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Outside of autograd; of inference mode, whose tensors later steps could not change; and of autocast.

        Autocast would round sums of powers, or overflow them, on some devices.
        """
        kind = self._total.device.type
        with ExitStack() as stack:
            if torch.is_inference_mode_enabled():
                stack.enter_context(torch.inference_mode(False))  # which switches gradients on
            stack.enter_context(torch.no_grad())
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
            yield

    def _fingerprint(self) -> dict[str, Any]:
        """The parameters' shapes, and where each group of scales acts."""
        groups = [
            " ".join([str(group.size), *(f"{m.parameter}.{m.dim}{m.sign:+d}" for m in group.members)])
            for group in self.symmetries.groups
        ]
        shapes = {name: list(shape) for name, shape in self.symmetries.shapes.items()}
        return {"parameters": shapes, "groups": groups}

    def _check_types(self) -> None:
        for name in self._moved:
            dtype = self._parameters[name].dtype
            if dtype not in DIGITS:
                raise ArgumentError(f"parameter {name} has type {dtype}, which holds no scaled weights")
            if dtype == torch.float16 and self._exact:
                raise ArgumentError(
                    f"parameter {name} is float16, whose range is too small for powers of two to stay exact; keep "
                    "float32 weights and use autocast"
                )


def _moved(symmetries: Symmetries, biases: bool) -> list[str]:
    """The parameters that scales move."""
    return sorted(
        {
            scaling.parameter
            for scaling in symmetries.scalings
            if (scaling.counted or biases) and (scaling.plus.any() or scaling.minus.any())
        }
    )
