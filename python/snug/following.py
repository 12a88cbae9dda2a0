"""What a session reports about its plans: warnings for steps that do not follow theirs, and the log."""

from __future__ import annotations

import logging
import warnings

from ._core import StepReport
from .plans import Plan
from .sizes import format_bytes

LOG = logging.getLogger("snug")
LOG.addHandler(logging.NullHandler())

# What StepReport.divergence says of a step that has no plan for another reason than its operators.
_NO_PLAN_FITS = "no plan of this step fits the budget"
_NO_MICRO_BATCHES = "it has no micro-batches, and the steps before it had some"


class PlanNotFollowed(UserWarning):
    """A step of a session ran without its plan, or evicted values in addition to what its plan drops.

    Gradients are right and the budget holds, but the step takes longer than it could. Session.backward warns once per
    session and reason. The first steps of a new shape are not warned of: the session plans a shape when it comes the
    second time. Session.last_step describes each step.

    Example:
        >>> warnings.simplefilter("error", snug.PlanNotFollowed)
    """


def log_plan(what: str, plan: Plan, seconds: float | None = None) -> None:
    """Logs a new plan at level INFO. `seconds`: of the recording and the search."""
    if not LOG.isEnabledFor(logging.INFO):
        return
    LOG.info(
        "%s: plan %s: %d operators, unplanned peak %s, predicted peak %s%s, budget %s, predicted step %.3f s (unplanned %.3f s)%s",
        what,
        plan.strategy,
        plan.operators,
        format_bytes(plan.unplanned_peak),
        format_bytes(plan.predicted_peak),
        f", smallest budget {format_bytes(plan.floor)}" if plan.is_searched else "",
        format_bytes(plan.budget) if plan.budget else "none",
        plan.predicted_seconds,
        plan.unplanned_seconds,
        f"; recorded and planned in {seconds:.3f} s" if seconds is not None else "",
    )


def log_step(report: StepReport) -> None:
    """Logs a step at level DEBUG."""
    if LOG.isEnabledFor(logging.DEBUG):
        how = "followed its plan" if report.followed_plan else f"followed no plan ({report.divergence})"
        LOG.debug("step: %s, %d operators replayed, %d evictions", how, report.replayed_ops, report.evictions)


class PlanWatch:
    """Warns of the steps of one session that do not follow their plans, once for each reason."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def look_at(self, report: StepReport, stacklevel: int) -> None:
        """Looks at a step that has ended. `stacklevel`: of the caller of the session, as for warnings.warn."""
        reason, message = self._fault_of(report)
        if reason and reason not in self._warned:
            self._warned.add(reason)
            warnings.warn(f"session: {message}{_kept(report)}", PlanNotFollowed, stacklevel=stacklevel + 1)

    def _fault_of(self, report: StepReport) -> tuple[str, str]:
        """Returns the reason for a warning and its message. Both are empty if there is none."""
        evicted = f"{report.evictions} values were evicted"
        if report.divergence == _NO_PLAN_FITS:
            if report.evictions == 0:
                return "", ""  # nothing took longer than with a plan
            return report.divergence, (
                f"{_NO_PLAN_FITS}, so it keeps everything until memory runs out; {evicted}, which takes longer than a "
                "plan; raise the budget to session.plan.floor, or use a smaller batch"
            )
        if report.divergence == _NO_MICRO_BATCHES:
            return report.divergence, (
                f"the step ran without a plan: {_NO_MICRO_BATCHES}; {evicted}; put each forward pass into a "
                "`with snug.micro_batch():`"
            )
        if report.stopped_planning:
            return "varying", (
                "new steps get no plans until steps come again, as each had operators or shapes that were new "
                f"({report.divergence}); {evicted} in the last one; pad batches to a few shapes"
            )
        # A step that is planned only now had none to go by.
        if report.followed_plan and report.evictions > 0 and not report.planned_anew:
            return "evictions", (
                f"the step followed its plan, and {evicted} in addition, as more memory is allocated than the plan counts; "
                "recomputing them takes time; free what is allocated outside of the step, or raise the budget"
            )
        return "", ""


def _kept(report: StepReport) -> str:
    """Returns what a step could not drop, for the end of a message."""
    return f"; kept whatever a plan says: {report.opaque[0]}" if report.opaque else ""
