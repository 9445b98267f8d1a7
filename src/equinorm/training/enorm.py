"""``ENorm``: one step towards the balanced weights after every optimizer step (Algorithm 2 of the paper)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from equinorm.errors import ArgumentError, EquinormError
from equinorm.find import symmetries as find_symmetries
from equinorm.interrupts import interrupts_deferred
from equinorm.report import Scales
from equinorm.restrict import holding
from equinorm.solve import METHODS
from equinorm.symmetry import Symmetries
from equinorm.trace import ExampleInputs
from equinorm.training.cycle import LOG2, Stepping
from equinorm.training.ownership import Layouts, Ownership, unwrapped
from equinorm.training.plain import Plain
from equinorm.training.plan import Plan, shapes_of
from equinorm.training.shards import held_of, is_sharded, local, locals_of, reducer
from equinorm.weighting import log_weights

PLAN_POWERS = (0.25, 4.0)  # beyond, sums of powers leave float32; the core works on their logarithms


class ENorm:
    """A companion to optimizers: call ``step()`` after theirs, or ``attach()`` once.

    Every step does ``cycles`` cycles of the paper's Algorithm 1 on the weights, and moves the optimizer's state with
    them (``eq:update_grads``), so that training goes on as if the weights had always been there.

    Args:
        model: the module being trained; wrapped by ``torch.compile`` or ``DistributedDataParallel`` if you like.
        optimizer: the optimizer of its parameters, or a list when they are split between several.
        example_inputs: as for :func:`equinorm.symmetries`; not needed with ``symmetries``.
        p, c, solver, scales, batch_norm, biases: as for :func:`equinorm.balance`. ``batch_norm="ignore"`` is the
            paper's ENorm + BN; it, and ``biases=False``, change the function at every step.
        cycles: how many cycles a step does.
        every: do something only at every so many steps.
        compile: fuse each pass over a weight with ``torch.compile``; the first steps then compile.
        symmetries: the result of an earlier :func:`equinorm.symmetries`; under ``fully_shard``, from before it.
        max_scale: a scale moves by at most this factor per step. A channel that comes back to life from a tiny norm
            would otherwise multiply its momentum by as much as it divides its weights.
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
        _check(p, cycles, every, solver, scales, compile, max_scale, nonfinite)
        self._model = unwrapped(model)
        if symmetries is None:
            if example_inputs is None:
                raise ArgumentError("example_inputs: needed to find the symmetries")
            symmetries = find_symmetries(self._model, example_inputs, batch_norm=batch_norm)
        elif symmetries.batch_norm != batch_norm:
            raise ArgumentError(
                f"symmetries: found with batch_norm={symmetries.batch_norm!r}, not {batch_norm!r}"
            )
        self._parameters = self._matching(symmetries)
        optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
        self._ownership = Ownership(optimizers, self._parameters)
        self.symmetries = holding(symmetries, self._ownership.held(symmetries))
        self._layouts = Layouts(self._model)
        self._every, self._biases, self._nonfinite = every, biases, nonfinite
        self._used = sorted({s.parameter for s in self.symmetries.scalings if s.plus.any() or s.minus.any()})
        self._refuse_half_precision(scales)
        limit = math.log(max_scale)
        stepping = Stepping(
            p,
            cycles,
            LOG2 * math.floor(math.log2(max_scale)) if scales == "pow2" else limit,
            scales == "pow2",
        )
        weights = log_weights(c, p, self.symmetries)
        self._engine = self._chosen_engine(stepping, weights, solver, compile)
        self._followers: list[dict[str, Tensor]] = []
        self._steps = 0
        device = next(iter(self._parameters.values())).device
        self._total = torch.zeros(self.symmetries.num_free + 1, dtype=torch.float64, device=device)

    @torch.no_grad()
    def step(self) -> None:
        """Normalise once: call it right after ``optimizer.step()``."""
        self._steps += 1
        if self._steps % self._every or not self.symmetries.num_free:
            return
        self._layouts.check()
        with self._full_precision():
            self._normalise()

    def _normalise(self) -> None:
        weights = locals_of(self._parameters)
        states = [(locals_of(tensors), exponent) for tensors, exponent in self._ownership.states(self._used)]
        x = self._engine.scales(weights)
        if x is None:
            if self._nonfinite == "skip":
                return
            raise EquinormError(
                "the optimizer has left weights that are not finite, or too large for sums of their powers; they stay "
                'as it left them. Lower the learning rate, or pass nonfinite="skip" to go on without normalising'
            )
        followers = [(locals_of(tensors), 1) for tensors in self._followers]
        with interrupts_deferred():
            self._engine.rescale(x, [(weights, 1), *states, *followers], self._biases)
            self._total += x

    def attach(self) -> Any:
        """Run by itself after each step of the optimizer (the last one, if there are several).

        Returns:
            A handle; its ``remove()`` detaches.
        """

        def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            self.step()

        return self._ownership.optimizers[-1].register_step_post_hook(after)

    def follow(self, averaged: nn.Module) -> None:
        """Give a copy or an average of the model (``AveragedModel``) the same scales from now on.

        Averages then stay averages of weights in one gauge. Follow it when it is made, before further steps.
        """
        parameters = dict(unwrapped(averaged).named_parameters())
        for name in self._used:
            if name not in parameters or parameters[name].shape != self._parameters[name].shape:
                raise ArgumentError(f"averaged: it has no parameter {name} of the model's shape")
        self._followers.append({name: parameters[name].detach() for name in self._used})

    @torch.no_grad()
    def norm(self) -> float:
        """sum of c_k ||W_k||_p^p over the counted parameters, of the weights as they are."""
        with self._full_precision():
            return self._engine.norm(locals_of(self._parameters))

    @torch.no_grad()
    def residual(self) -> float:
        """max |R - L| / (R + L) over the live free scales: 0 at the balanced point."""
        with self._full_precision():
            return self._engine.residual(locals_of(self._parameters))

    def total_scales(self) -> Scales:
        """The product of all scales so far: maps a checkpoint from before the first step onto today's gauge."""
        return Scales(self.symmetries, self._total.cpu(), self._biases)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs besides the model's and the optimizer's."""
        return {
            "steps": self._steps,
            "total_log_scales": self._total.clone(),
            "parameters": self._fingerprint(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint of the same model."""
        missing = {"steps", "total_log_scales", "parameters"} - set(state)
        if missing:
            raise ArgumentError(f"state: {sorted(missing)[0]!r} is missing; expected ENorm.state_dict()")
        if (
            dict(state["parameters"]) != self._fingerprint()
            or state["total_log_scales"].shape != self._total.shape
        ):
            raise ArgumentError("state: it comes from another model, or from other frozen parameters")
        self._steps = int(state["steps"])
        self._total.copy_(state["total_log_scales"])

    def _full_precision(self) -> torch.autocast:
        """Outside of any autocast, which would round sums of powers, or overflow them, on some devices."""
        return torch.autocast(self._total.device.type, enabled=False)

    def _fingerprint(self) -> dict[str, list[int]]:
        return {name: list(shape) for name, shape in self.symmetries.shapes.items()}

    def _matching(self, symmetries: Symmetries) -> dict[str, nn.Parameter]:
        parameters = dict(self._model.named_parameters())
        if {name: p.shape for name, p in parameters.items()} != dict(symmetries.shapes):
            raise ArgumentError(
                "symmetries: found on another model; its parameters have other names or shapes"
            )
        return parameters

    def _refuse_half_precision(self, scales: str) -> None:
        for name in self._used:
            dtype = self._parameters[name].dtype
            if not dtype.is_floating_point:
                raise ArgumentError(f"parameter {name} has type {dtype}; only real weights can be normalised")
            if dtype == torch.float16 and scales == "pow2":
                raise ArgumentError(
                    f"parameter {name} is float16, whose range is too small for powers of two to stay exact; keep "
                    "float32 weights and use autocast"
                )

    def _chosen_engine(
        self, stepping: Stepping, weights: Mapping[str, float], solver: str, compiled: bool
    ) -> Plan | Plain:
        sharded = [name for name, p in self._parameters.items() if is_sharded(p)]
        planned = solver == "cycle" and PLAN_POWERS[0] <= stepping.p <= PLAN_POWERS[1]
        shapes = shapes_of(self.symmetries) if planned else None
        contiguous = all(local(self._parameters[name]).is_contiguous() for name in self._used)
        if shapes is None or not contiguous:
            if sharded or compiled:
                what = "sharded parameters" if sharded else "compile=True"
                raise ArgumentError(
                    f'{what}: only with solver="cycle", p from {PLAN_POWERS[0]} to {PLAN_POWERS[1]}, contiguous '
                    "weights and no weight that maps a group of scales to itself"
                )
            engine = Plain(self.symmetries, weights, stepping, solver)
            if solver == "cycle-parallel":
                engine.scales(
                    locals_of(self._parameters)
                )  # refuses a network without its blocks now, not mid-training
            return engine
        wide = any(p.dtype == torch.float64 for p in self._parameters.values())
        return Plan(
            self.symmetries,
            shapes,
            {name: held_of(name, p) for name, p in self._parameters.items()},
            weights,
            stepping,
            torch.float64 if wide else torch.float32,
            next(iter(self._parameters.values())).device,
            compiled,
            reducer(self._parameters.items()),
            sharded,
        )


def _check(
    p: float,
    cycles: int,
    every: int,
    solver: str,
    scales: str,
    compile: bool,
    max_scale: float,
    nonfinite: str,
) -> None:
    if isinstance(p, bool) or not isinstance(p, (int, float)) or not p > 0:
        raise ArgumentError(f"p: expected a positive number or infinity, got {p!r}")
    for name, number in (("cycles", cycles), ("every", every)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ArgumentError(f"{name}: expected a whole number from 1, got {number!r}")
    for name, value, known in (
        ("solver", solver, tuple(METHODS)),
        ("scales", scales, ("real", "pow2")),
        ("nonfinite", nonfinite, ("raise", "skip")),
    ):
        if value not in known:
            raise ArgumentError(f"{name}: expected one of {', '.join(map(repr, known))}, got {value!r}")
    if not isinstance(max_scale, (int, float)) or not max_scale >= 2:
        raise ArgumentError(f"max_scale: expected a number from 2, got {max_scale!r}")
