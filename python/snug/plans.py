"""Plans: what is done with every value of a step, and what that costs."""

from __future__ import annotations

import math
from typing import Any

from . import _core
from .errors import UsageError
from .sizes import format_bytes


class Plan:
    """What is done with every value of one recorded step, and what that is predicted to cost. A plain value."""

    def __init__(
        self,
        graph: _core.StepGraph,
        planner: _core.Planner | None,  # None: the search runs when floor or curve needs it
        plan: _core.MemoryPlan,
        floor_of_all: int = 0,
        window: _core.OpenedWindow | None = None,
    ) -> None:
        self._floor_of_all = floor_of_all
        self._window = window
        self._graph = graph
        self._searched = planner
        self._plan = plan

    @property
    def _planner(self) -> _core.Planner:
        if self._searched is None:
            self._searched = _core.Planner(self._graph, "optimal")
        return self._searched

    @property
    def is_searched(self) -> bool:
        """Whether the search for plans has run, so that floor and curve cost nothing."""
        return self._searched is not None

    @property
    def strategy(self) -> str:
        return self._plan.strategy

    @property
    def budget(self) -> int | None:
        """Bytes; None when it was made without one."""
        return self._plan.budget or None

    @property
    def predicted_peak(self) -> int:
        """Bytes: all memory of the device, what was there before the step included. What comes to be there later, outside
        of the step, is beside it as long as both fit the budget; then the step is planned again."""
        return self._plan.predicted_peak

    @property
    def unplanned_peak(self) -> int:
        """Bytes, of the same step with everything kept."""
        return self._plan.unplanned_peak

    @property
    def predicted_seconds(self) -> float:
        """Of the step, beside what it waits for streamed tensors (window.seconds)."""
        return self._plan.predicted_seconds

    @property
    def window(self) -> _core.OpenedWindow | None:
        """The part of the budget that streamed tensors come into, and what that costs; None: nothing is streamed."""
        return self._window

    @property
    def unplanned_seconds(self) -> float:
        return self._plan.unplanned_seconds

    @property
    def others(self) -> list[_core.PlannedPart]:
        """What it takes of further devices that have a budget: device, budget, predicted_peak, unplanned_peak."""
        return self._plan.others

    @property
    def floor(self) -> int:
        """The smallest budget, in bytes, that plans of this strategy fit: of all kinds of steps, and with the smallest window
        where tensors are streamed."""
        if self._window is not None:
            return self._window.floor
        if self._graph.one_of_several:  # whose smallest peak depends on the plans of the others
            return self._floor_of_all
        return max(self._planner.floor(self._graph), self._floor_of_all)

    @property
    def operators(self) -> int:
        """Operators that the forward pass runs."""
        return self._graph.operators

    def lower_bound(self) -> tuple[int, float]:
        """Bytes and seconds that no plan can be below: for any budget, and for this one (infinite if none fits)."""
        peak, seconds = _core.lower_bound(self._graph, self.budget)
        return peak - (self._window.spare if self._window is not None else 0), seconds

    def explain(self) -> dict[str, Any]:
        """What is kept and recomputed, in bytes and seconds: in all, by piece of the step, by operator."""
        return _core.explain(self._graph, self._plan)

    def timeline(self) -> list[int]:
        """The highest memory, in bytes, during each event of the step, as it is predicted."""
        return _core.timeline(self._graph, self._plan)

    def curve(self, points: int = 16) -> list[tuple[int, float]]:
        """What other budgets would take: (budget in bytes, predicted seconds of a step), by falling budget."""
        if points < 2:
            raise UsageError(f"curve: {points} points; it takes two at least")
        most, least = self.unplanned_peak, self._planner.floor(self._graph)
        most = max(most + most // 16, least)  # with the reserve of the allocator
        budgets = [most - (most - least) * i // (points - 1) for i in range(points)]
        return [(b, self._planner.plan(self._graph, b).predicted_seconds) for b in budgets]

    def save(self, path: str) -> None:
        """Writes the plan as JSON: with the graph, what `snug plan --graph G --plan P` explains."""
        _core.write_plan(str(path), self._graph, self._plan)

    def save_graph(self, path: str) -> None:
        """Writes the recorded step as JSON: what `snug plan --graph` reads."""
        _core.write_step_graph(str(path), self._graph)

    def _over(self) -> str:
        """What is to be said of a step that no plan brings under the budget."""
        fits = self.budget is None or self.predicted_peak <= self.budget
        return "" if fits else ", no plan fits: evictions hold the budget"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self._plan == other._plan

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"Plan({self.strategy}: peak {format_bytes(self.predicted_peak)} of {format_bytes(self.unplanned_peak)}, "
            f"step {self.predicted_seconds:.3f} s of {self.unplanned_seconds:.3f} s{self._over()})"
        )

    def __str__(self) -> str:
        why = self.explain()
        bound_peak, bound_seconds = self.lower_bound()
        more = self.predicted_seconds / self.unplanned_seconds - 1 if self.unplanned_seconds > 0 else 0.0
        percent = 100 * self.predicted_peak / max(self.unplanned_peak, 1)
        rows = [
            ("operators", f"{self.operators}"),
            ("unplanned peak", format_bytes(self.unplanned_peak)),
            ("predicted peak", f"{format_bytes(self.predicted_peak)} ({percent:.1f} %){self._over()}"),
            ("smallest budget", f"{format_bytes(self.floor)}, no plan has a peak below {format_bytes(bound_peak)}"),
            ("kept for backward", format_bytes(why["kept_bytes"])),
            *([("moved", format_bytes(why["moved_bytes"]))] if why["moved_bytes"] else []),
            *([("in fewer bytes", f"{format_bytes(why['compressed_bytes'])} in {format_bytes(why['encoded_bytes'])}")] if why["compressed_bytes"] else []),
            *([("in fewer bits, not the same", f"{format_bytes(why['lossy_bytes'])} in {format_bytes(why['lossy_in_bytes'])}")] if why["lossy_bytes"] else []),
            ("recomputed", f"{format_bytes(why['recomputed_bytes'])}, {why['replayed_ops']} operators replayed"),
            ("predicted step", f"{self.predicted_seconds:.3f} s (+{100 * more:.2f} %)"),
        ]
        if self._window is not None:
            w = self._window
            rows.append((
                "streamed",
                f"{format_bytes(w.streamed)} in a window of {format_bytes(w.bytes)}; {format_bytes(w.copied_in)} come and "
                f"{format_bytes(w.copied_out)} leave in a step, which waits {w.seconds:.3f} s",
            ))
        if self.budget:
            rows.insert(2, ("budget", format_bytes(self.budget)))
        if math.isfinite(bound_seconds):
            rows.append(("no plan is faster than", f"{bound_seconds:.3f} s"))
        width = max(len(name) for name, _ in rows)
        return "\n".join([f"snug plan: {self.strategy}"] + [f"  {name:<{width}}  {text}" for name, text in rows])
