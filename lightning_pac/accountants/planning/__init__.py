"""What a project may release for one promise: noise, steps and signal of everything that it plans."""

from lightning_pac.accountants.planning.division import round_down
from lightning_pac.accountants.planning.figures import RunFigures, run_figures
from lightning_pac.accountants.planning.option import PlannedRun, ProjectOption
from lightning_pac.accountants.planning.project import ProjectPlan, plan
from lightning_pac.accountants.planning.releases import PlannedAnswers, PlannedTraining, PlannedValues

__all__ = [
    "PlannedAnswers",
    "PlannedRun",
    "PlannedTraining",
    "PlannedValues",
    "ProjectOption",
    "ProjectPlan",
    "RunFigures",
    "plan",
    "round_down",
    "run_figures",
]
