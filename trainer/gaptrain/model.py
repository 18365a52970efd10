"""The gap model: a causal network over the knots of a replayed window that predicts the replay's derivatives.

The effect of column d (a parameter, or a coordinate of the initial state) on channel c at knot k is, where the causal
graph has an edge and for all initial states,

    J[k, c, d] = gain[c, d](theta, context) * shape[k, c, d](window, context, theta)

and zero elsewhere: such pairs have no weights. `gain` is a log-linear fit made before training: it carries the orders
of magnitude over which an effect changes within the bounds, so that the network only has to learn shapes of order one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from mujoco import mjtJoint
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from gapd.model.robot import ABSENT, Robot
from gaptrain.draws import LOG_RATIO
from gaptrain.graph import EDGE

Array = NDArray[np.float64]
Index = NDArray[np.intp]

DILATIONS = (1, 2, 4, 8, 16)
KERNEL = 3
MODULATION = 64  # hidden width of the network that lets theta and context scale the trunk
# Velocities at which a friction feature turns over, as shares of the velocity's spread in training.
TURN_SHARES = (0.02, 0.2)
# A force this close to its limit counts as saturated; the feature passes from 0 to 1 around it.
SATURATED_SHARE, SATURATED_SLOPE = 0.99, 400.0
# The settings also hold exp(CURVE (t - 1)) of theta t scaled to -1..1: effects go with physical values, not with their
# logarithm. It is the physical value, as a share of its maximum, where the bounds lie a factor exp(2 CURVE) = 20
# apart. In the models here that is 7 to 1000, mostly 25 or 100; the layers on top see both forms and bridge that.
CURVE = 1.5


@dataclass(frozen=True)
class Shape:
    """Sizes and meaning of the arrays. Plain values only: it is stored in the checkpoint."""

    knots: int
    nv: int
    nu: int
    contexts: int
    parameters: int
    channels: int
    hinge: tuple[int, ...]  # joint coordinates that are angles
    actuated: tuple[int, ...]  # (nu,) joint coordinate an actuator acts on, or ABSENT
    log_context: tuple[int, ...]  # columns of the context that enter by their logarithm
    limited: tuple[int, ...]  # actuators with a force limit that no parameter writes
    limit: tuple[float, ...]  # the limits of those
    hidden: int

    @property
    def columns(self) -> int:
        """D = P + 2 nv, columns of the derivatives."""
        return self.parameters + 2 * self.nv

    @classmethod
    def of(cls, robot: Robot, hidden: int) -> Shape:
        """Read off a robot."""
        model, layout = robot.model, robot.layout
        logarithmic = (i for i, c in enumerate(robot.config.context) if c.low > 0 and c.high / c.low > LOG_RATIO)
        limited = _limited(robot)
        return cls(
            knots=layout.knots,
            nv=model.nv,
            nu=model.nu,
            contexts=len(robot.config.context),
            parameters=len(robot.parameters),
            channels=len(layout.channels),
            hinge=tuple(np.flatnonzero(model.jnt_type == int(mjtJoint.mjJNT_HINGE)).tolist()),
            actuated=tuple(layout.actuator_joint.tolist()),
            log_context=tuple(logarithmic),
            limited=limited,
            limit=tuple(float(np.abs(model.actuator_forcerange[a]).max()) for a in limited),
            hidden=hidden,
        )


class Inputs(nn.Module):
    """Turns raw inputs into normalised features; everything it needs is in the graph."""

    joined: Tensor
    joint: Tensor
    hinge: Tensor
    log_context: Tensor
    limited: Tensor
    limit: Tensor
    time: Tensor
    state_scale: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        nv, contexts, parameters = shape.nv, max(shape.contexts, 1), shape.parameters
        joined = [a for a, joint in enumerate(shape.actuated) if joint != ABSENT]
        self.register_buffer("joined", torch.tensor(joined, dtype=torch.long))
        self.register_buffer("joint", torch.tensor([shape.actuated[a] for a in joined], dtype=torch.long))
        self.register_buffer("hinge", torch.tensor(shape.hinge, dtype=torch.long))
        self.register_buffer("limited", torch.tensor(shape.limited, dtype=torch.long))
        self.register_buffer("limit", torch.tensor(shape.limit))
        self.register_buffer("log_context", torch.tensor([c in shape.log_context for c in range(contexts)]))
        self.register_buffer("time", torch.linspace(0, 1, shape.knots + 1)[None, :, None])
        for name, size in (
            ("state", 2 * nv + 2 * shape.nu), ("error", len(joined)), ("rate", nv + 2 * shape.nu),
            ("context", contexts), ("theta", parameters),
        ):  # fmt: skip
            self.register_buffer(name + "_mean", torch.zeros(size))
            self.register_buffer(name + "_scale", torch.ones(size))

    def sizes(self) -> tuple[int, int]:
        """Features per knot; settings, which the modulation and the gain see: scaled theta, its curve, mean context."""
        s = self.shape
        window = torch.zeros(1, s.knots + 1, 2 * s.nv + 2 * s.nu)
        context = torch.ones(1, s.knots + 1, max(s.contexts, 1))
        features, settings = self.forward(window, context, torch.zeros(1, s.parameters))
        return features.shape[-1], settings.shape[-1]

    def calibrate(self, window: Tensor, context: Tensor, z_min: Array, z_max: Array) -> None:
        """Set means and scales from training windows (n, K+1, F), contexts and the bounds of z."""
        for name, value in (("state", window), ("error", self._error(window)), ("rate", self._rate(window))):
            flat = value.reshape(-1, value.shape[-1])
            self._set(name, flat.mean(0), flat.std(0))
        seen = self._log(context).reshape(-1, context.shape[-1])
        self._set("context", seen.mean(0), seen.std(0))
        low, high = torch.as_tensor(z_min).float(), torch.as_tensor(z_max).float()
        self._set("theta", (low + high) / 2, (high - low) / 2)

    def _set(self, name: str, mean: Tensor, scale: Tensor) -> None:
        constant = scale < 1e-6 * (1 + mean.abs())  # an input that never changes must not be blown up
        getattr(self, name + "_mean").copy_(mean)
        getattr(self, name + "_scale").copy_(torch.where(constant, torch.ones_like(scale), scale))

    def _normal(self, name: str, value: Tensor) -> Tensor:
        mean: Tensor = getattr(self, name + "_mean")
        scale: Tensor = getattr(self, name + "_scale")
        return (value - mean) / scale

    def _error(self, window: Tensor) -> Tensor:
        """Command minus position of the joint it acts on: what a position servo sees."""
        command = window[..., 2 * self.shape.nv : 2 * self.shape.nv + self.shape.nu]
        return command.index_select(-1, self.joined) - window.index_select(-1, self.joint)

    def _rate(self, window: Tensor) -> Tensor:
        """Change since the knot before of velocity, command and force; zero at the first knot."""
        moving = window[..., self.shape.nv :]
        return functional.pad(moving[:, 1:] - moving[:, :-1], (0, 0, 1, 0))

    def _log(self, context: Tensor) -> Tensor:
        return torch.where(self.log_context, torch.log(context.clamp_min(1e-6)), context)

    def forward(self, window: Tensor, context: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Features (B, K+1, width) and settings (B, settings) of raw inputs."""
        nv, knots = self.shape.nv, self.shape.knots + 1
        state = self._normal("state", window)
        speed = window[..., nv : 2 * nv] / self.state_scale[nv : 2 * nv]
        angle = window.index_select(-1, self.hinge)
        known = self._normal("context", self._log(context))
        scaled = self._normal("theta", theta)
        parts = [state, self._normal("error", self._error(window)), self._normal("rate", self._rate(window))]
        parts += [torch.sin(angle), torch.cos(angle), known]
        parts += [torch.tanh(speed / turn) for turn in TURN_SHARES]
        parts += [self.time.expand(window.shape[0], knots, 1), scaled[:, None].expand(-1, knots, -1)]
        # A saturated servo loses its stiffness: effects then grow without bound.
        force = window[..., 2 * nv + self.shape.nu :].index_select(-1, self.limited)
        parts.append(torch.sigmoid((force.abs() / self.limit - SATURATED_SHARE) * SATURATED_SLOPE))
        curve = torch.exp(CURVE * scaled.clamp(-2, 2) - CURVE)  # to twice the bounds, then flat
        return torch.cat(parts, -1), torch.cat([scaled, curve, known.mean(1)], -1)


class Causal(nn.Module):
    """Residual dilated convolution that sees only the past, scaled and shifted by the settings."""

    def __init__(self, hidden: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.mix = nn.Linear(KERNEL * hidden, hidden)

    def forward(self, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        """Transform x (B, T, H) with scale and shift (B, H)."""
        y = functional.silu(x * (1 + scale[:, None]) + shift[:, None])
        # One product over shifted copies: on a CPU faster than a 1-D convolution over few knots.
        past = functional.pad(y, (0, 0, (KERNEL - 1) * self.dilation, 0))
        taps = [past[:, i * self.dilation : i * self.dilation + x.shape[1]] for i in range(KERNEL)]
        out: Tensor = x + self.mix(torch.cat(taps, -1))
        return out


def pairs(edge_probability: Array, nv: int) -> tuple[Index, Index]:
    """Channel (N,) and column (N,) of the effects that are modelled: those with an edge, and all initial states."""
    initial = np.ones((edge_probability.shape[1], 2 * nv), bool)
    channel, column = np.nonzero(np.concatenate([edge_probability.T > EDGE, initial], axis=1))
    return channel, column


class GapModel(nn.Module):
    """See the module's description. Inputs and outputs are those of gap.onnx.

    edge_probability (P, C) of the graph: there is an edge where it is above a half. The N pairs of a channel and a
    column that have weights are numbered by channel, then column.
    """

    gain_weight: Tensor
    gain_bias: Tensor
    gain_floor: Tensor
    edge_probability: Tensor
    channel: Tensor
    column: Tensor
    place: Tensor

    def __init__(self, shape: Shape, edge_probability: Array) -> None:
        super().__init__()
        self.shape = shape
        channel, column = pairs(edge_probability, shape.nv)
        place = np.full((shape.channels, shape.columns), len(channel))  # of a pair in the list; others: behind the last
        place[channel, column] = np.arange(len(channel))
        self.register_buffer("edge_probability", torch.from_numpy(edge_probability).float())
        self.register_buffer("channel", torch.from_numpy(channel))
        self.register_buffer("column", torch.from_numpy(column))
        self.register_buffer("place", torch.from_numpy(place.reshape(-1)))
        hidden, count = shape.hidden, len(channel)
        self.inputs = Inputs(shape)
        width, settings = self.inputs.sizes()
        self.enter = nn.Linear(width, hidden)
        blocks = [Causal(hidden, d) for d in DILATIONS]
        self.blocks = nn.ModuleList(blocks)
        self.modulation = nn.Sequential(
            nn.Linear(settings, MODULATION),
            nn.SiLU(),
            nn.Linear(MODULATION, 2 * hidden * len(DILATIONS)),
        )
        self.head = nn.Linear(hidden, count)
        self.spread = nn.Linear(hidden, shape.channels)
        self.register_buffer("gain_weight", torch.zeros(settings, count))
        self.register_buffer("gain_bias", torch.zeros(count))
        self.register_buffer("gain_floor", torch.zeros(count))
        nn.init.zeros_(self.head.bias)
        for block in blocks:
            nn.init.normal_(block.mix.weight, std=0.5 * (KERNEL * hidden) ** -0.5)

    def settings(self, window: Tensor, context: Tensor, theta: Tensor) -> Tensor:
        """What the gain depends on (B, settings)."""
        return self.inputs.forward(window, context, theta)[1]

    def gain(self, settings: Tensor) -> Tensor:
        """Size (B, N) that effects have at these settings: fitted, never below the floor."""
        fitted = torch.exp((settings @ self.gain_weight + self.gain_bias).clamp(-20, 20))
        return torch.sqrt(fitted**2 + self.gain_floor**2)

    def effects(self, window: Tensor, context: Tensor, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Shapes (B, K, N), gain (B, N), log_spread (B, K, C)."""
        features, settings = self.inputs.forward(window, context, theta)
        x = self.enter(features)
        modulation = self.modulation(settings).reshape(-1, len(DILATIONS), 2, self.shape.hidden)
        for i, block in enumerate(self.blocks):
            x = block(x, modulation[:, i, 0], modulation[:, i, 1])
        x = functional.silu(x[:, 1:])
        # How far off the effects are must not bend what they are: no gradient into the trunk.
        log_spread = self.spread(x.detach()).clamp(-8, 8)
        return self.head(x), self.gain(settings), log_spread

    def forward(
        self, window: Tensor, context: Tensor, theta: Tensor, delta: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """gap, jacobian, x0_jacobian, log_spread, edge_probability. The gap is of first order in delta."""
        shapes, gain, log_spread = self.effects(window, context, theta)
        known = functional.pad(shapes * gain[:, None], (0, 1))
        s = self.shape
        every = known.index_select(-1, self.place).reshape(-1, s.knots, s.channels, s.columns)
        jacobian = every[..., : s.parameters]
        gap = (jacobian * delta[:, None, None]).sum(-1)
        return gap, jacobian, every[..., s.parameters :], log_spread, self.edge_probability.clone()


def _limited(robot: Robot) -> tuple[int, ...]:
    model = robot.model
    written = {int(i) for c in robot.binding.cells if c.field == "actuator_forcerange" for i in c.flat}
    fixed = (a for a in np.flatnonzero(model.actuator_forcelimited).tolist() if not written & {2 * a, 2 * a + 1})
    return tuple(fixed)
