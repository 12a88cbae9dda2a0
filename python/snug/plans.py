"""Plans: what happens to each value of a step, and the predicted memory and time."""

from __future__ import annotations

import math
import os
from typing import Any

from . import _core
from .errors import UsageError
from .sizes import format_bytes


class Plan:
    """What happens to each value of one recorded step, and the predicted memory and time.

    Made by plan, Session.plan and Plan.load. fit(plan=...) uses one in place of a search.

    Args:
        graph: The recorded step. None: only what the plan itself says is known.
        planner: The finished search. None: floor and curve search when they are first used.
        plan: The plan.
        floor_of_all: The smallest budget of all kinds of steps, in bytes.
        window: The window of streamed tensors.

    Example:
        >>> plan = snug.plan(step, batch, "8GiB")
        >>> print(plan)
        >>> plan.predicted_peak <= plan.budget
        True
    """

    def __init__(
        self,
        graph: _core.StepGraph | None,
        planner: _core.Planner | None,  # None: the search runs when floor or curve needs it
        plan: _core.MemoryPlan,
        floor_of_all: int = 0,
        window: _core.OpenedWindow | None = None,
    ) -> None:
        self._floor_of_all = floor_of_all
        self._window = window
        self._step = graph
        self._searched = planner
        self._plan = plan
        self._read: _core.PlanFile | None = None

    @classmethod
    def load(cls, path: str | os.PathLike[str], graph: str | os.PathLike[str] | None = None) -> Plan:
        """Reads a plan that save, or `snug plan --out`, wrote.

        Args:
            path: The file of the plan.
            graph: The file that save_graph wrote for the same step. Without it the plan can be used by fit(plan=...),
                and floor, curve, explain, timeline and lower_bound raise UsageError.

        Returns:
            The Plan.

        Raises:
            UsageError: A file cannot be read or holds something else, or the plan is for another step.

        Example:
            >>> session.plan.save("plan.json")
            >>> session = snug.fit(step, batch, plan=snug.Plan.load("plan.json"))   # in the next process
        """
        read = _core.read_plan(os.fspath(path))
        step = None if graph is None else _core.read_step_graph(os.fspath(graph))
        if step is not None:
            read.check_is_for(step)
        plan = cls(step, None, read.plan)
        plan._read = read
        return plan

    @property
    def _graph(self) -> _core.StepGraph:
        if self._step is None:
            raise UsageError(
                "plan: it was read without its step, which this needs; give both files: Plan.load(path, graph), the second "
                "as save_graph wrote it"
            )
        return self._step

    def _file(self) -> _core.PlanFile:
        """Returns the plan with the operators of its step."""
        return _core.PlanFile(self._graph, self._plan) if self._read is None else self._read

    @property
    def _planner(self) -> _core.Planner:
        if self._searched is None:
            # A session keeps everything where that fits, whatever its strategy.
            self._searched = _core.Planner(self._graph, "optimal" if self._read is None else self._plan.strategy)
        return self._searched

    @property
    def is_searched(self) -> bool:
        """Whether the search for plans has run, so that floor and curve cost nothing."""
        return self._searched is not None

    @property
    def strategy(self) -> str:
        """The name of the strategy that made it."""
        return self._plan.strategy

    @property
    def budget(self) -> int | None:
        """Bytes. None for a plan without a budget."""
        return self._plan.budget or None

    @property
    def predicted_peak(self) -> int:
        """The predicted peak of the device's memory, in bytes, memory allocated before the step included.

        A session plans again when memory allocated later, outside of the step, leaves too little.
        """
        return self._plan.predicted_peak

    @property
    def unplanned_peak(self) -> int:
        """The peak of the same step with everything kept, in bytes."""
        return self._plan.unplanned_peak

    @property
    def predicted_seconds(self) -> float:
        """Seconds of the step, without waiting for streamed tensors (window.seconds)."""
        return self._plan.predicted_seconds

    @property
    def window(self) -> _core.OpenedWindow | None:
        """The part of the budget that streamed tensors are copied to, and its cost. None: nothing is streamed."""
        return self._window

    @property
    def unplanned_seconds(self) -> float:
        """Seconds of the same step with everything kept."""
        return self._plan.unplanned_seconds

    @property
    def others(self) -> list[_core.PlannedPart]:
        """The parts of further devices with a budget: device, budget, predicted_peak, unplanned_peak."""
        return self._plan.others

    @property
    def floor(self) -> int:
        """The smallest budget, in bytes, that plans of this strategy fit, for all kinds of steps."""
        if self._window is not None:
            return self._window.floor
        if self._graph.one_of_several:  # whose smallest peak depends on the plans of the others
            return self._floor_of_all
        return max(self._planner.floor(self._graph), self._floor_of_all)

    @property
    def operators(self) -> int:
        """The number of operators in the forward pass."""
        return self._graph.operators

    def lower_bound(self) -> tuple[int, float]:
        """Returns bounds that no plan can be below, of several kinds of micro-batches whatever the plans of the others are.

        Returns:
            Bytes of the peak, for any budget, and seconds of the step, for this budget (infinite if none fits).
        """
        peak, seconds = _core.lower_bound(self._graph, self.budget)
        return peak - (self._window.spare if self._window is not None else 0), seconds

    def explain(self) -> dict[str, Any]:
        """Returns what is kept, moved and recomputed, in bytes and seconds.

        Returns:
            A dictionary with totals, and with "pieces" and "operators", lists of such dictionaries.
        """
        return _core.explain(self._graph, self._plan)

    def timeline(self) -> list[int]:
        """Returns the predicted peak of memory during each event of the step, in bytes."""
        return _core.timeline(self._graph, self._plan)

    def curve(self, points: int = 16) -> list[tuple[int, float]]:
        """Returns the predicted seconds of a step for other budgets. Of several kinds of micro-batches: of this kind, with the
        others as they are planned now.

        Args:
            points: The number of budgets, from the unplanned peak to the smallest.

        Returns:
            Pairs of a budget in bytes and seconds, by falling budget.

        Raises:
            UsageError: There are less than 2 points.
        """
        if points < 2:
            raise UsageError(f"curve: {points} points; it takes two at least")
        most, least = self.unplanned_peak, self._planner.floor(self._graph)
        most = max(most + most // 16, least)  # with the reserve of the allocator
        budgets = [most - (most - least) * i // (points - 1) for i in range(points)]
        return [(b, self._planner.plan(self._graph, b).predicted_seconds) for b in budgets]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan as JSON, for Plan.load, `snug plan --graph G --plan P` and `snug train --plan P`.

        Args:
            path: The file, which is replaced as a whole.

        Raises:
            Error: The file cannot be written.
        """
        self._file().write(os.fspath(path))

    def save_graph(self, path: str | os.PathLike[str]) -> None:
        """Writes the recorded step as JSON, for Plan.load and `snug plan --graph`.

        Args:
            path: The file, which is replaced as a whole.

        Raises:
            Error: The file cannot be written.
        """
        _core.write_step_graph(os.fspath(path), self._graph)

    def _over(self) -> str:
        """Returns the note for a step that no plan brings under the budget, or an empty text."""
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
        if self._step is None:
            return repr(self)
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
