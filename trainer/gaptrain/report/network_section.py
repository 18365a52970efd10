"""How good the network is: by channel, by kind of parameter, its stated spread, its training."""

from __future__ import annotations

from gaptrain.report.charts import bar, coverage, curve
from gaptrain.report.facts import Facts
from gaptrain.report.markup import counted, given, number, section, table, text

# What the intervals of the network state.
NOMINAL_COVERAGE = 0.9
# A coverage that is off by less is about right.
CLOSE = 0.05


def channels_section(facts: Facts) -> str:
    """Effects and what the network misses of them, by channel."""
    manifest = facts.manifest
    largest = max((q.effect for q in manifest.channel_quality), default=0.0) or 1.0
    rows = []
    for quality, channel in zip(manifest.channel_quality, manifest.channels, strict=True):
        share = quality.missed / quality.effect if quality.effect > 0 else 0.0
        words = f"{100 * share:.3g} %"
        drawn = bar(quality.effect / largest, quality.missed / largest, f"{words} of the effect is missed")
        noise = given(channel.noise, channel.unit)
        rows.append([text(quality.name), noise, number(quality.effect), number(quality.missed), words, drawn])
    said = (
        "<p>The rms over held-out windows of what a step of all parameters does to a channel, and of the part that the "
        "network's derivatives miss, in the channel's noise standard deviations (σ). What is missed costs steps of "
        "a fit, not its answer: that comes from exact derivatives.</p>"
    )
    head = ["channel", "noise", "effect (σ)", "missed (σ)", "missed", "effect, and missed of it"]
    return section("channels", "Channel by channel", said, table(head, rows))


def network_section(facts: Facts) -> str:
    """Error by kind, coverage and training curve."""
    return section("network", "How good the network is", _errors(facts), _coverage(facts), _training(facts))


def _errors(facts: Facts) -> str:
    rows = [
        [text(kind), f"{100 * error:.3g} %", bar(error, words=f"{100 * error:.3g} %")]
        for kind, error in sorted(facts.manifest.held_out_error.items(), key=lambda item: -item[1])
    ]
    said = "<p>‖Ĵ − J‖ / ‖J‖ on held-out windows, mean over the parameters of a kind. 100 % is as good as nothing.</p>"
    return f"<h3>Error of the derivatives by kind of parameter</h3>{said}" + table(["kind", "error", ""], rows)


def _coverage(facts: Facts) -> str:
    share = facts.manifest.spread_coverage
    words = "about as stated"
    if share < NOMINAL_COVERAGE - CLOSE:
        words = "it errs more than it says"
    elif share > NOMINAL_COVERAGE + CLOSE:
        words = "it errs less than it says"
    said = f"<p>{100 * share:.1f} % of held-out errors are within the network's stated 90 % interval: {words}.</p>"
    return f"<h3>Coverage of the stated spread</h3>{said}{coverage(share, NOMINAL_COVERAGE)}"


def _training(facts: Facts) -> str:
    loss = facts.manifest.loss
    if not loss:
        return "<h3>Training</h3><p>The bundle does not say how the loss fell.</p>"
    said = f"<p>Mean loss of each of {counted(len(loss), 'epoch')}: {number(loss[0])} to {number(loss[-1])}.</p>"
    return f"<h3>Training</h3>{said}{curve(loss)}"


def provenance_section(facts: Facts) -> str:
    """Where the bundle comes from, and what was verified."""
    manifest, origin = facts.manifest, facts.manifest.provenance
    dropped = f"; {origin.dropped_windows} dropped" if origin.dropped_windows else ""
    timing = manifest.timing
    files = [[f"sha256 of {text(name)}", f"<code>{text(sha)}</code>"] for name, sha in sorted(manifest.files.items())]
    rows = [
        ["robot", text(manifest.robot)],
        ["engine", f"{text(manifest.engine)} {text(manifest.engine_version)}"],
        ["seed", str(origin.seed)],
        ["windows", f"{origin.windows} of {timing.knots} × {given(timing.knot_s, 's')}{dropped}"],
        ["epochs", str(origin.epochs)],
        ["context", ", ".join(text(name) for name in manifest.context) or "none"],
        ["gapd version", text(origin.gapd_version)],
        ["hash of the data", f"<code>{text(origin.data)}</code>"],
        ["schema", str(manifest.schema)],
        ["sha256 of manifest.json", f"<code>{facts.sha256}</code>"],
        *files,
    ]
    said = (
        f"<p>Verified when this page was made: {', '.join(text(name) for name in sorted(manifest.files))} have the "
        "sha256 that the manifest lists. Everything shown comes from the manifest. Whether it is the one that a robot "
        "runs: compare its sha256 with <code>bundle_sha256</code> in robot.toml.</p>"
    )
    return section("provenance", "Where it comes from", said, table(["what", "value"], rows, words=2))
