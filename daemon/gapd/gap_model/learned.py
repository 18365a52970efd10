"""The learned source of derivatives: one ONNX call on the replayed windows, no further rollout."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gapd.gap.jacobian import Linearisation, Point
from gapd.gap_model.bundle import Bundle
from gapd.model.robot import Robot

Array = NDArray[np.float64]
Single = NDArray[np.float32]

# Windows per call: bounds memory and the time for which a call cannot be interrupted.
BATCH = 32


class Learned:
    """A `JacobianSource` that asks the gap model of a bundle."""

    def __init__(self, bundle: Bundle, robot: Robot) -> None:
        """Use a bundle that `open_bundle` verified for this robot."""
        self.bundle = bundle
        self._substeps = robot.layout.substeps

    def linearise(self, point: Point) -> Linearisation:
        """Predicted derivatives at the replayed windows; NaN for a window whose replay failed."""
        outputs = [self._run(point, slice(i, i + BATCH)) for i in range(0, len(point.windows), BATCH)]
        jacobian = np.concatenate([o["jacobian"] for o in outputs]).astype(float)
        x0_jacobian = np.concatenate([o["x0_jacobian"] for o in outputs]).astype(float)
        jacobian[point.rollouts.failed] = np.nan
        x0_jacobian[point.rollouts.failed] = np.nan
        return Linearisation(jacobian, x0_jacobian)

    def _run(self, point: Point, rows: slice) -> dict[str, Single]:
        window = point.rollouts.features[rows].astype(np.float32)
        # A failed replay has no features; its result is thrown away, but must not warn or slow the others.
        window[point.rollouts.failed[rows]] = 0.0
        context = point.windows.context[rows, :: self._substeps].astype(np.float32)
        if context.shape[-1] == 0:
            context = np.zeros((*context.shape[:2], 1), np.float32)  # what the network has where there is none
        z = np.broadcast_to(point.z, (len(point.windows), point.z.shape[-1]))[rows].astype(np.float32)
        return self.bundle.run(window, context, z, np.zeros_like(z))
