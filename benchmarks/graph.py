"""The causal graph: how many of its edges are right beside how many distractors, and what pruning costs a fit.

    make bench && .venv/bin/python benchmarks/graph.py            about an hour and a half on 2 cores
    .venv/bin/python benchmarks/graph.py --quick                  under ten minutes: fewer windows, no fits

The truth is the same measurement on other and many more windows. An edge is an effect of one prior standard deviation
above 0.1 noise standard deviations rms; pairs between 0.05 and 0.2 are not scored, for there either answer is right.
Distractors are parameters of the same model that move no channel by 0.05.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import graph_pruning
import numpy as np
from graph_subjects import Arm, Subject, subjects
from numpy.typing import NDArray
from scipy.stats import rankdata
from tables import write_table

from gaptrain.graph import Graph

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

TRUE, FALSE = 0.2, 0.05
TRUTH_SEED, SEED = 1000, 1
THREADS = 2


@dataclass(frozen=True)
class Size:
    """Windows of the truth and of the graphs that are judged, by subject; numbers of distractors."""

    truth: dict[str, int]
    windows: dict[str, tuple[int, ...]]
    distractors: tuple[int, ...]
    fits: int = 0  # truths that are fitted with and without pruning


SIZES = {
    "tiny": Size({"arm7": 32, "air_hockey": 2}, {"arm7": (16,), "air_hockey": (2,)}, (2,)),
    "quick": Size({"arm7": 256, "air_hockey": 16}, {"arm7": (64, 256), "air_hockey": (8,)}, (0, 150)),
    "full": Size(
        {"arm7": 4096, "air_hockey": 256}, {"arm7": (64, 256, 1024), "air_hockey": (128,)}, (0, 50, 150), fits=4
    ),
}


@dataclass(frozen=True)
class Score:
    """How right a graph is. Precision, recall and AUROC over the pairs that are clear in the truth."""

    auroc: float
    precision: float
    recall: float
    pairs: int
    true: int


def score(found: Graph, truth: Graph) -> Score:
    """Judge edges and their probabilities by the truth's effects, both of the same parameters."""
    scored = (truth.effect > TRUE) | (truth.effect < FALSE)
    real, on, probability = truth.effect[scored] > TRUE, found.edges[scored], found.probability[scored]
    return Score(auroc(probability, real), _share(real & on, on), _share(real & on, real), len(real), int(real.sum()))


def auroc(probability: Array, real: Flags) -> float:
    """Probability that a true edge is given a higher probability than a pair without, ties counted half."""
    positive, negative = int(real.sum()), int((~real).sum())
    above = rankdata(probability)[real].sum() - positive * (positive + 1) / 2
    return float(above / (positive * negative)) if positive and negative else float("nan")


def _share(part: Flags, whole: Flags) -> float:
    return float(part.sum() / whole.sum()) if whole.any() else float("nan")


def rows(subject: Subject, size: Size) -> list[list[str]]:
    """One row per number of distractors and windows."""
    truth = subject.graph(subject.names, size.truth[subject.name], TRUTH_SEED)
    strongest = truth.effect.max(axis=1)
    own = np.arange(len(strongest)) < subject.always
    acting = np.flatnonzero(own if own.any() else strongest >= FALSE)
    idle = np.random.default_rng(0).permutation(np.flatnonzero(~own & (strongest < FALSE)))
    lines = []
    for count in dict.fromkeys((*(min(d, len(idle)) for d in size.distractors), len(idle))):
        kept = np.sort(np.concatenate([acting, idle[:count]]))
        for windows in size.windows[subject.name]:
            began = time.perf_counter()
            found = subject.graph([subject.names[p] for p in kept], windows, SEED)
            seconds = time.perf_counter() - began
            lines.append(_line(subject, (len(kept), count, windows), score(found, truth.take(kept)), found, seconds))
            print(lines[-1], flush=True)
    return lines


def _line(subject: Subject, sizes: tuple[int, int, int], judged: Score, found: Graph, seconds: float) -> list[str]:
    parameters, distractors, windows = sizes
    return [
        f"{parameters}", f"{distractors}", f"{windows}", f"{windows * (parameters + subject.per_window)}",
        f"{seconds:.0f}", f"{judged.auroc:.4f}", f"{judged.precision:.3f}", f"{judged.recall:.3f}",
        f"{judged.true} of {judged.pairs}", f"{len(found.active)}", f"{int((~found.tested).sum())}",
    ]  # fmt: skip


def edges(subject: Subject, size: Size) -> None:
    """The table of edges."""
    head = [
        "parameters", "distractors", "windows", "rollouts", "s", "AUROC", "precision", "recall",
        "edges of scored pairs", "kept", "not tested",
    ]  # fmt: skip
    lines = rows(subject, size)
    notes = [" ".join(part.split()) for part in (__doc__ or "").split("\n\n")[2:]]
    notes.append("kept: parameters with an edge. not tested: parameters that do nothing at all in these motions.")
    title = f"Edges of the causal graph: {subject.name}, {len(subject.names)} parameters"
    write_table(f"graph-edges-{subject.name}", title, head, lines, notes)


def pruning(arm: Arm, size: Size) -> None:
    """The table of fits."""
    lines = graph_pruning.rows(arm.folder, max(size.windows["arm7"]), range(size.fits), THREADS)
    title = f"What pruning costs a fit: arm7 with {len(arm.names)} parameters, all drawn at random, 32 windows"
    note = "gapd without a bundle: finite differences, longer steps first. Identifiable: exact sd at most 1.5 %."
    if lines:
        write_table("graph-pruning", title, graph_pruning.HEAD, lines, [note])


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer windows, no fits")
    parser.add_argument("--size", choices=SIZES, help="instead of --quick")
    parser.add_argument("--models", nargs="+", choices=["arm7", "air_hockey"], default=["arm7", "air_hockey"])
    parser.add_argument("--tables", nargs="+", choices=["edges", "pruning"], default=["edges", "pruning"])
    arguments = parser.parse_args()
    size = SIZES[arguments.size or ("quick" if arguments.quick else "full")]
    chosen = [s for s in subjects(THREADS) if s.name in arguments.models]
    if "edges" in arguments.tables:
        for subject in chosen:
            edges(subject, size)
    if "pruning" in arguments.tables:
        pruning(next(s for s in chosen if isinstance(s, Arm)), size)


if __name__ == "__main__":
    main()
